"""All references of all metadata roots: every kind of node, every form of name, and what cannot be read."""

from __future__ import annotations

import pytest

from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.errors import BookieError, StoreError
from bookwarden.ledgers.kinds import CompactedHolder, CursorHolder, ManagedLedgerHolder, PlaceKind, SchemaHolder
from bookwarden.ledgers.references import ReferenceIndex
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import managed_ledger_pb2, schema_locator_pb2
from servers.index_answers import is_referenced

ROOT = "zk:one"


def topic(*ids: int, shadow_of: str | None = None) -> bytes:
    message = managed_ledger_pb2.ManagedLedgerInfo()
    for ledger_id in ids:
        message.ledgerInfo.add(ledgerId=ledger_id)
    if shadow_of is not None:
        message.properties.add(key="PULSAR.SHADOW_SOURCE", value=shadow_of)
    return bytes(message.SerializeToString())


def cursor(ledger_id: int = -1, compacted: int | None = None, bucket: int | None = None) -> bytes:
    message = managed_ledger_pb2.ManagedCursorInfo(cursorsLedgerId=ledger_id)
    if compacted is not None:
        message.properties.add(name="CompactedTopicLedger", value=compacted)
    if bucket is not None:
        message.cursorProperties.add(name="#pulsar.internal.delayed.bucket_1_2", value=str(bucket))
    return bytes(message.SerializeToString())


def schema(info: int, *ids: int) -> bytes:
    message = schema_locator_pb2.SchemaLocator()
    for version, ledger_id in enumerate(ids):
        entry = message.index.add(version=version, hash=b"h")
        entry.position.ledgerId, entry.position.entryId = ledger_id, 0
    message.info.version, message.info.hash = len(ids), b"h"
    message.info.position.ledgerId, message.info.position.entryId = info, 0
    return bytes(message.SerializeToString())


NODES = {
    "/managed-ledgers/t/n/persistent/a+b": topic(1, 2),
    "/managed-ledgers/t/n/persistent/a+b/sub%2F1": cursor(11, bucket=12),
    "/managed-ledgers/t/n/persistent/a+b/__compaction": cursor(90, compacted=13),
    "/managed-ledgers/t/n/persistent/copy": topic(1, shadow_of="persistent://t/n/a b"),
    "/managed-ledgers/t/n/persistent/empty": b"",
    "/managed-ledgers/t/n/persistent/empty/s": cursor(14),
    "/managed-ledgers/t/cluster/n/persistent/old": topic(3),
    "/managed-ledgers/t/cluster/n/persistent/old/s": cursor(15),
    "/managed-ledgers/pulsar/127.0.0.1:8080/persistent/healthcheck": topic(4),
    "/managed-ledgers/pulsar/system/persistent/transaction_coordinator_assign-partition-0": topic(5),
    "/managed-ledgers/t/n/persistent/persistent": topic(6),
    "/managed-ledgers/t/n/persistent/persistent/s": cursor(16),
    "/managed-ledgers/v1/c/persistent/persistent/x": topic(7),
    "/managed-ledgers/v1/c/persistent/persistent/x/s": cursor(17),
    "/schemas/t/n/a+b": schema(23, 21, 22, -1),
    "/pulsar/functions/x/<default>/ledgers/inprogress_000000000000000001": b"2;31;1",
    "/pulsar/functions/x/<default>/ledgers/logrecs_000000000000000001_000000000000000009": b"327680;32;1;9;1;9;0;8;0",
    "/pulsar/functions/x/<default>/allocation": b"33",
    "/pulsar/functions/x/<default>/maxtxid": b"9",
    "/pulsar/packages/function/t/n/f/<default>/allocation": b"",
    "/stream/storage/000000000000/1/<default>/ledgers/inprogress_000000000000000001": b"5;34;1;0;0",
}
NAMED = {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15, 16, 17, 21, 22, 23, 31, 32, 33, 34, 90}


def metadata_root() -> MemoryStore:
    store = MemoryStore()
    for path, value in NODES.items():
        store.create(path, value, make_parents=True)
    return store


def change(store: MemoryStore, path: str, value: bytes) -> None:
    found = store.get(path)
    assert found is not None
    store.put(path, value, found.version)


def scan(store: MemoryStore, entries: Entries | None = None) -> ReferenceIndex:
    index = ReferenceIndex()
    ReferencePieces({ROOT: store}, entries).read_into(index)
    return index


class Entries(DecodedEntries):
    """The last entry of the compaction cursor's ledger 90."""

    def __init__(self, compacted: int | None) -> None:
        self._compacted = compacted

    def last_entry(self, ledger_id: int) -> bytes | None:
        assert ledger_id == 90
        if self._compacted is None:
            raise BookieError("away")
        entry = managed_ledger_pb2.PositionInfo(ledgerId=1, entryId=2)
        entry.properties.add(name="CompactedTopicLedger", value=self._compacted)
        return bytes(entry.SerializeToString())


def test_every_ledger_that_any_node_names_is_found_and_nothing_else() -> None:
    index = scan(metadata_root(), Entries(18))
    assert {ledger for ledger in range(200) if index.who_names(ledger)} == NAMED | {18}


@pytest.mark.parametrize(
    ("ledger_id", "expected"),
    [
        (
            1,
            {
                (PlaceKind.MANAGED_LEDGER, "t/n/persistent/a+b", "/managed-ledgers/t/n/persistent/a+b"),
                (PlaceKind.SHADOW_TOPIC, "t/n/persistent/copy", "/managed-ledgers/t/n/persistent/copy"),
            },
        ),
        (
            3,
            {
                (
                    PlaceKind.MANAGED_LEDGER,
                    "t/cluster/n/persistent/old",
                    "/managed-ledgers/t/cluster/n/persistent/old",
                )
            },
        ),
        (
            13,
            {
                (
                    PlaceKind.COMPACTED,
                    "compacted:t/n/persistent/a+b",
                    "/managed-ledgers/t/n/persistent/a+b/__compaction",
                )
            },
        ),
        (23, {(PlaceKind.SCHEMA, "schema:t/n/a+b", "/schemas/t/n/a+b")}),
        (33, {(PlaceKind.LOG_ALLOCATION, "/pulsar/functions/x/<default>", "/pulsar/functions/x/<default>/allocation")}),
    ],
)
def test_the_place_says_what_it_is_whose_and_where(ledger_id: int, expected: set[tuple[PlaceKind, str, str]]) -> None:
    places = [reference.place for reference in scan(metadata_root()).who_names(ledger_id)]
    assert {(place.kind, place.holder, place.path) for place in places} == expected
    assert {place.root for place in places} == {ROOT}


def test_all_roots_are_read_and_told_apart() -> None:
    other = MemoryStore()
    other.create("/managed-ledgers/t/n/persistent/a+b", topic(1, 77), make_parents=True)
    index = ReferenceIndex()
    ReferencePieces({ROOT: metadata_root(), "zk:two": other}).read_into(index)
    assert {reference.place.root for reference in index.who_names(1)} == {ROOT, "zk:two"}
    assert {reference.place.root for reference in index.who_names(77)} == {"zk:two"}


@pytest.mark.parametrize("entries", [None, Entries(None)])
def test_a_compacted_ledger_that_stands_in_an_entry_which_is_not_read_is_a_doubt(entries: Entries | None) -> None:
    index = scan(metadata_root(), entries)
    assert is_referenced(index, 18, CompactedHolder("t/n/persistent/a+b")) is None
    assert is_referenced(index, 18, ManagedLedgerHolder("t/n/persistent/a+b")) is False
    assert "ledger 90" in index.doubts[0].reason


@pytest.mark.parametrize(
    ("path", "value", "holder"),
    [
        ("/managed-ledgers/t/n/persistent/copy", b"\x0a\xff", ManagedLedgerHolder("t/n/persistent/another")),
        ("/managed-ledgers/t/n/persistent/a+b/sub%2F1", b"\xff", CursorHolder("t/n/persistent/a+b", "sub%2F1")),
        ("/schemas/t/n/a+b", b"\xff", SchemaHolder("t/n/a+b")),
        ("/pulsar/functions/x/<default>/ledgers/inprogress_000000000000000001", b"2;x;1", SchemaHolder("any")),
        ("/pulsar/functions/x/<default>/ledgers/inprogress_000000000000000001", b"2;-1;1", SchemaHolder("any")),
        ("/pulsar/functions/x/<default>/ledgers/inprogress_000000000000000001", b"", SchemaHolder("any")),
        ("/pulsar/functions/x/<default>/allocation", b"3x", ManagedLedgerHolder("any")),
    ],
)
def test_a_node_that_cannot_be_parsed_is_a_doubt_and_never_an_absence(path: str, value: bytes, holder: object) -> None:
    store = metadata_root()
    change(store, path, value)
    index = scan(store, Entries(18))
    assert is_referenced(index, 199, holder) is None  # type: ignore[arg-type]
    assert [doubt.path for doubt in index.doubts if doubt.concerns(holder)] == [path]  # type: ignore[arg-type]


def test_a_root_without_managed_ledgers_is_no_pulsars() -> None:
    with pytest.raises(StoreError, match="no Pulsar's"):
        scan(MemoryStore())


def test_a_root_that_does_not_answer_is_an_error() -> None:
    store = metadata_root()
    store.close()
    with pytest.raises(StoreError):
        scan(store)
