"""Any mark and any ledger metadata, through all that a task of the sweep does with them: nothing kills a batch."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.journal.entries import JournalEntry, JournalRecord
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.ledgers.pending_deletion import LAST_MS
from bookwarden.ledgers.received import OF_PHASE_TWO, ReceivedMark
from bookwarden.metastore.memory import MemoryStore
from bookwarden.pipelines.pulsar_source.columns import RowBuffer
from bookwarden.pipelines.streams.outcome_table import outcome_batch
from bookwarden.pipelines.sweep.query import received_marks
from bookwarden.wire.avro import PendingDeletionCodec
from bookwarden.wire.entry import messages
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden.wire.pb.pulsar_api_pb2 import MessageMetadata
from servers.population import ROOT, Population
from servers.sweep_parts import sweep_with

RETRY_TOPIC = "persistent://pulsar/system/__ledger_deletion-RETRY"
TOPIC = f"{RETRY_TOPIC}-partition-0"
HOLDER = ManagedLedgerHolder("t/ns/persistent/orders")
LEDGER = 5
LARGEST = 1 << 20
CODEC = PendingDeletionCodec()
POLICY = DeletionPolicy(max_retries=3, unlisted_grace=0)
FIELDS: Mapping[str, Any] = {
    "topicName": HOLDER.name,
    "ledgerComponent": "MANAGED_LEDGER",
    "ledgerType": "LEDGER",
    "ledgerId": LEDGER,
}
METADATA = LedgerMetadata(
    *(3, LedgerState.CLOSED, 1, 1, 1, (Segment(0, ("a:1",)),), 9, 3, "CRC32C", 5),
    {name: text.encode() for name, text in expected_custom_metadata(HOLDER).items()},
)


@dataclass
class Message:
    """What a producer chooses of a message."""

    payload: bytes
    texts: Mapping[str, str] = field(default_factory=dict)
    published: int = 1
    happened: int = 0

    def metadata(self) -> MessageMetadata:
        made = MessageMetadata(publish_time=self.published, event_time=self.happened, producer_name=b"producer")
        made.partition_key = b"key"
        for name, value in self.texts.items():
            made.properties.add(key=name.encode(), value=value.encode())
        return made


class Sent:
    """The journal and the outbox: counts what is sent, and puts nothing anywhere."""

    def __init__(self) -> None:
        self.letters = 0
        self.retries = 0

    def append(self, records: Sequence[JournalRecord]) -> None:
        for record in records:
            assert isinstance(record, JournalEntry)
            record.encode()

    def retry(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        self.retries += 1

    def delay(self, received: ReceivedMark, delay_s: float, verified_ms: int, reason: str) -> None:
        self.retries += 1

    def wait(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        self.retries += 1

    def give_up(self, received: ReceivedMark, outcome: Outcome, reason: str) -> None:
        self.letters += 1

    def flush(self) -> None:
        pass


def sweep(
    message: Message, metadata: bytes | None, *, listed: bool = False, unread: str = ""
) -> tuple[dict[str, Any], Sent]:
    """Take one message through the source's columns, the decoder, the sweep and the outcome table."""
    store, sent = MemoryStore(), Sent()
    population = Population(store)
    if metadata is not None:
        store.create(ledger_path(ROOT, LEDGER), metadata, make_parents=True)
    population.names(HOLDER, [LEDGER] if listed else [])
    limits = SweepLimits(1000, 0.0)
    phase_two = sweep_with(BookKeeperCatalog(store), MetadataReferences([store]), sent, sent, POLICY, limits)
    buffer = RowBuffer(TOPIC, 0, 10)
    if unread:
        buffer.add_unread(Position(1, 2), message.metadata(), unread)
    else:
        buffer.add(Position(1, 2), message.metadata(), messages(message.metadata(), message.payload, LARGEST))
    marks = list(received_marks(buffer.take(), lambda _topic, payload, _version: CODEC.decode(payload), RETRY_TOPIC))
    (batch,) = phase_two.carry_out(marks, "run/7", partial(outcome_batch, batch=7))
    (row,) = batch.to_pylist()
    return row, sent


LONGS = st.one_of(
    st.integers(-(2**70), 2**70), st.sampled_from([2**62, -(2**62), 2**63 - 1, -1, 0, LAST_MS, LAST_MS + 1])
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), LONGS, st.floats(allow_nan=True), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=5,
)
SPOILT = st.dictionaries(
    st.sampled_from([*FIELDS, "cursorName", "schemaId", "offloadContext", "bookieCluster", "markedAt", "reason"]),
    st.one_of(JSON, LONGS, st.sampled_from(["MANAGED_CURSOR", "SCHEMA_STORAGE", "OFFLOAD_LEDGER", "COMPACTED_LEDGER"])),
    max_size=3,
)
NUMBERS = st.one_of(st.text(), LONGS.map(str), st.sampled_from(["9" * 15, "9" * 5000, "²"]))
PROPERTIES = st.dictionaries(st.one_of(st.sampled_from(sorted(OF_PHASE_TWO)), st.text()), NUMBERS, max_size=4)
UNSIGNED = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([2**62, 2**63, 2**64 - 1]))
PAYLOADS = st.one_of(
    SPOILT.map(lambda spoilt: json.dumps({**FIELDS, **spoilt}).encode()),
    st.binary(max_size=60),
    st.integers(0, LAST_MS).map(
        lambda at: CODEC.encode(replace(CODEC.decode(json.dumps(FIELDS).encode()), marked_at=at))
    ),
)
INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**62, -(2**62), LAST_MS + 1]))
METADATAS = st.one_of(
    st.none(),
    st.builds(
        lambda ctime, length: encode_ledger_metadata(METADATA._replace(ctime_ms=ctime, length=length)),
        INT64,
        st.integers(0, 2**63 - 1),
    ),
    st.binary(max_size=60),
)


@settings(max_examples=300, deadline=None)
@given(PAYLOADS, PROPERTIES, UNSIGNED, UNSIGNED, METADATAS, st.booleans())
@example(json.dumps({**FIELDS, "markedAt": 2**62}).encode(), {}, 1, 0, None, False)
@example(json.dumps(FIELDS).encode(), {}, 1, 0, encode_ledger_metadata(METADATA._replace(ctime_ms=2**62)), False)
@example(json.dumps(FIELDS).encode(), {}, 2**64 - 1, 2**64 - 1, encode_ledger_metadata(METADATA), True)
@example(json.dumps(FIELDS).encode(), {"bookwarden.first-read": "9" * 5000}, 1, 0, None, True)
@example(
    json.dumps(FIELDS).encode(),
    {"RECONSUMETIMES": "2", "DELAY_TIME": "9" * 400},
    *(1, 0, encode_ledger_metadata(METADATA), True),
)
def test_whatever_comes_has_one_outcome_and_kills_no_batch(
    payload: bytes,
    properties: dict[str, str],
    published: int,
    happened: int,
    metadata: bytes | None,
    listed: bool,
) -> None:
    row, sent = sweep(Message(payload, properties, published, happened), metadata, listed=listed)
    assert sent.letters == (row["outcome"] in ("malformed", "gave up"))
    assert sent.retries == (row["outcome"] in ("retry", "delayed", "waiting"))


def test_a_mark_of_no_time_is_malformed_and_a_ledger_of_no_time_is_kept() -> None:
    row, sent = sweep(Message(json.dumps({**FIELDS, "markedAt": 2**62}).encode()), encode_ledger_metadata(METADATA))
    assert (row["outcome"], row["marked_at"], sent.letters) == ("malformed", None, 1)
    assert "markedAt 4611686018427387904" in row["reason"]
    row, sent = sweep(
        Message(json.dumps(FIELDS).encode(), published=int(time.time() * 1000)),
        encode_ledger_metadata(METADATA._replace(ctime_ms=2**62)),
    )
    assert (row["outcome"], row["ledger_created_at"], sent.retries) == ("retry", None, 1)
    assert "creation time 4611686018427387904" in row["reason"]


def test_what_was_not_read_has_a_letter_with_the_reason_and_believes_no_producer() -> None:
    forged = {"bookwarden.unread": "forged"}
    row, sent = sweep(
        Message(json.dumps(FIELDS).encode(), forged), encode_ledger_metadata(METADATA), unread="a message in chunks"
    )
    assert (row["outcome"], row["ledger_id"], sent.letters) == ("malformed", None, 1)
    assert row["reason"] == "not read: a message in chunks"
    row, _ = sweep(Message(json.dumps(FIELDS).encode(), forged), None)
    assert row["outcome"] == "already gone"


@pytest.mark.parametrize("number", [2**62, -(2**62), 2**63, -(2**70), 2**200])
def test_an_outcome_row_holds_any_number(number: int) -> None:
    row, _ = sweep(Message(json.dumps(FIELDS).encode()), None)
    assert row["outcome"] == "already gone"
    made = outcome_batch([_row(number)], 1).to_pylist()[0]
    assert (made["marked_at"], made["ledger_created_at"]) == (None, None)
    assert made["published_at"] is not None
    assert made["reason"] == "a\\ud800b"


def _row(number: int) -> OutcomeRow:
    return OutcomeRow(
        *(number, "holder", "MANAGED_LEDGER", "LEDGER", Outcome.DELETED, "a\ud800b", number, number, number, number),
        *(number, number, "topic", "1:2:0", ""),
    )
