"""Bytes that a real Pulsar wrote; tests/data/pulsar_4_0_8_nodes.json says how they were made."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from bookwarden.ledgers.custom_metadata import custom_metadata_mismatch, identify_holder
from bookwarden.ledgers.kinds import BucketHolder, CompactedHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState
from bookwarden.ledgers.names import TopicName
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.envelope import Compression, unwrap
from bookwarden.wire.ledger_metadata import decode_ledger_metadata
from bookwarden.wire.managed_ledger import decode_managed_ledger, remove_ledgers
from bookwarden.wire.schema_locator import decode_schema_locator

SAMPLES = json.loads((Path(__file__).parents[2] / "data/pulsar_4_0_8_nodes.json").read_text())["samples"]
every_codec = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: str(sample["compression"]))


def _node(sample: dict[str, Any], path: str) -> bytes:
    return base64.b64decode(sample["nodes"][path])


def _topic(sample: dict[str, Any]) -> TopicName:
    return TopicName.parse(f"persistent://public/default/wire sample~{sample['compression']}")


def _codec(sample: dict[str, Any]) -> Compression | None:
    name = sample["compression"].upper()
    return None if name == "NONE" else Compression[name]


@every_codec
def test_the_managed_ledger_lists_what_the_broker_says(sample: dict[str, Any]) -> None:
    raw = _node(sample, f"/managed-ledgers/{_topic(sample).managed_ledger}")
    assert unwrap(raw)[1] is _codec(sample)
    info = decode_managed_ledger(raw)
    # The last one was open and empty: the unload replaced it.
    assert [ledger.ledger_id for ledger in info.ledgers[:-1]] == sample["expected"]["ledgers"][:-1]
    assert all(ledger.entries and ledger.size and ledger.timestamp_ms for ledger in info.ledgers[:-1])


@every_codec
def test_a_ledger_is_removed_from_what_a_broker_wrote(sample: dict[str, Any]) -> None:
    first = sample["expected"]["ledgers"][0]
    raw = _node(sample, f"/managed-ledgers/{_topic(sample).managed_ledger}")
    rewritten = remove_ledgers(raw, [first])
    assert decode_managed_ledger(rewritten).ledgers == decode_managed_ledger(raw).ledgers[1:]
    assert decode_managed_ledger(rewritten).ledger_ids == decode_managed_ledger(raw).ledger_ids - {first}
    assert unwrap(rewritten)[1] is _codec(sample)


@every_codec
def test_the_cursors_name_their_compacted_and_delayed_ledgers(sample: dict[str, Any]) -> None:
    path = f"/managed-ledgers/{_topic(sample).managed_ledger}"
    compaction = decode_cursor(_node(sample, f"{path}/__compaction"))
    assert compaction.compacted_ledger_id == sample["expected"]["compacted"]
    subscription = decode_cursor(_node(sample, f"{path}/sub%2Fone"))
    assert subscription.cursors_ledger_id is None
    assert subscription.mark_delete is not None
    assert len(subscription.delayed_bucket_ids) == 1
    assert subscription.ledger_ids == subscription.delayed_bucket_ids


@every_codec
def test_the_schema_names_its_ledger(sample: dict[str, Any]) -> None:
    locator = decode_schema_locator(_node(sample, f"/schemas/{_topic(sample).schema_id}"))
    assert locator.ledger_ids == set(sample["expected"]["schemaLedgers"])


def _ledgers() -> list[LedgerMetadata]:
    (sample,) = [sample for sample in SAMPLES if sample["compression"] == "none"]
    paths = [path for path in sample["nodes"] if path.startswith("/ledgers/")]
    return [decode_ledger_metadata(_node(sample, path)) for path in paths]


def test_the_metadata_of_every_kind_of_ledger_is_read() -> None:
    ledgers = _ledgers()
    assert {ledger.custom["component"] for ledger in ledgers} == {
        b"managed-ledger",
        b"schema",
        b"compacted-ledger",
        b"delayed-index-bucket",
    }
    assert all(ledger.custom["application"] == b"pulsar" for ledger in ledgers)
    assert all(ledger.segments[0].ensemble == ("bk0test",) for ledger in ledgers)
    assert {ledger.digest_type for ledger in ledgers} == {"CRC32", "CRC32C"}


def test_an_open_ledger_has_no_last_entry() -> None:
    states = {(ledger.state, ledger.last_entry_id is None) for ledger in _ledgers()}
    assert states == {(LedgerState.OPEN, True), (LedgerState.CLOSED, False)}


def test_each_ledger_is_known_by_the_holder_that_pulsar_wrote_into_it() -> None:
    topic = _topic(SAMPLES[0])
    holders = {identify_holder(ledger.custom) for ledger in _ledgers()}
    assert {CompactedHolder(topic.managed_ledger), BucketHolder(topic.managed_ledger, "sub%2Fone")} <= holders
    assert {ManagedLedgerHolder(topic.managed_ledger), SchemaHolder("public/default/__change_events")} <= holders
    for ledger in _ledgers():
        holder = identify_holder(ledger.custom)
        assert holder is not None
        assert custom_metadata_mismatch(holder, ledger.custom) is None
