"""BookKeeper's catalog over a metadata store."""

from __future__ import annotations

import pytest

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_paths import LedgerLayout, ledger_path
from bookwarden.errors import FormatError, StoreError
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    DeleteResult,
    LedgerMetadata,
    LedgerState,
    Segment,
    StoredLedger,
    UnreadableLedger,
)
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.ledger_metadata import encode_ledger_metadata

METADATA = LedgerMetadata(
    *(3, LedgerState.CLOSED, 1, 1, 1, (Segment(0, ("127.0.0.1:3181",)),)),
    length=10,
    last_entry_id=4,
    digest_type="CRC32C",
    ctime_ms=1_700_000_000_000,
    custom={"application": b"pulsar"},
)
RAW = encode_ledger_metadata(METADATA)
LONG_ID = 2**40


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    made.create("/ledgers", b"")
    for ledger_id in (1, 2, 3, LONG_ID):
        made.create(ledger_path("/ledgers", ledger_id), RAW, make_parents=True)
    made.put(ledger_path("/ledgers", 3), b"BookieMetadataFormatVersion\t9\nwhat", 0)
    return made


def test_each_ledger_is_read_in_the_order_asked(store: MemoryStore) -> None:
    readings = BookKeeperCatalog(store).read_many([LONG_ID, 9, 3, 1, 1, -5])
    assert [type(reading) for reading in readings] == [
        StoredLedger,
        AbsentLedger,
        UnreadableLedger,
        StoredLedger,
        StoredLedger,
        UnreadableLedger,
    ]
    assert [reading.ledger_id for reading in readings] == [LONG_ID, 9, 3, 1, 1, -5]
    stored = readings[0]
    assert isinstance(stored, StoredLedger)
    assert (stored.raw, stored.version, stored.metadata) == (RAW, 0, METADATA)
    assert stored.path == ledger_path("/ledgers", LONG_ID)
    unreadable = readings[2]
    assert isinstance(unreadable, UnreadableLedger)
    assert "/ledgers/00/0000/L0003" in unreadable.reason


def test_ledgers_are_deleted_as_they_were_read_and_directories_stay(store: MemoryStore) -> None:
    catalog = BookKeeperCatalog(store)
    ledgers = [reading for reading in catalog.read_many([1, 2, LONG_ID, 1]) if isinstance(reading, StoredLedger)]
    store.put(ledgers[1].path, RAW, 0)
    deleted, lost = DeleteResult.DELETED, DeleteResult.LOST_RACE
    assert catalog.delete_many(ledgers) == [deleted, lost, deleted, deleted]
    assert catalog.delete_many(ledgers[:1]) == [DeleteResult.ABSENT]
    assert isinstance(catalog.read_many([2])[0], StoredLedger)
    assert store.get("/ledgers/000/0001/0995/1162") is not None
    assert catalog.read_many([]) == []
    assert catalog.delete_many([]) == []


@pytest.mark.parametrize(
    ("factory", "layout"),
    [
        ("FlatLedgerManagerFactory", LedgerLayout.FLAT),
        ("LongHierarchicalLedgerManagerFactory", LedgerLayout.LONG_HIERARCHICAL),
        ("LegacyHierarchicalLedgerManagerFactory", LedgerLayout.LEGACY_HIERARCHICAL),
    ],
)
def test_a_ledger_is_found_in_the_layouts_place_and_in_pulsars(
    store: MemoryStore, factory: str, layout: LedgerLayout
) -> None:
    store.create("/ledgers/LAYOUT", f"2\norg.apache.bookkeeper.meta.{factory}:1".encode())
    store.create(ledger_path("/ledgers", 70, layout), RAW, make_parents=True)
    found = BookKeeperCatalog(store).read_many([70, 1, 71])
    assert [type(reading) for reading in found] == [StoredLedger, StoredLedger, AbsentLedger]


def test_a_ledger_with_two_nodes_is_a_doubt(store: MemoryStore) -> None:
    store.create("/ledgers/LAYOUT", b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1")
    store.create(ledger_path("/ledgers", 1, LedgerLayout.FLAT), RAW)
    (reading,) = BookKeeperCatalog(store).read_many([1])
    assert isinstance(reading, UnreadableLedger)
    assert "two metadata nodes" in reading.reason


def test_an_unknown_layout_is_no_empty_catalog(store: MemoryStore) -> None:
    store.create("/ledgers/LAYOUT", b"2\ncom.example.Other:1")
    with pytest.raises(FormatError, match="LAYOUT"):
        BookKeeperCatalog(store).read_many([1])


def test_a_root_that_does_not_exist_is_no_empty_catalog(store: MemoryStore) -> None:
    with pytest.raises(StoreError, match="ledgers_root"):
        BookKeeperCatalog(store, "/ledger").read_many([1])


def test_a_reading_tells_when_the_node_was_made_and_last_written() -> None:
    now = 1000.0
    store = MemoryStore(lambda: now)
    path = ledger_path("/ledgers", 1)
    store.create(path, RAW, make_parents=True)
    now = 2000.0
    store.put(path, RAW, 0)
    (found,) = BookKeeperCatalog(store).read_many([1])
    assert isinstance(found, StoredLedger)
    assert (found.created_ms, found.modified_ms) == (1_000_000, 2_000_000)
