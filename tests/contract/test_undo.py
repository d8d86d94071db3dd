"""Undo on every store: what is held comes back, what is lost is taken away again, what is left in part is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.deletion.undo.rows import UndoOutcome
from bookwarden.ledgers.metadata import AbsentLedger, DeleteResult, StoredLedger
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from contract.test_metadata_store import FACTORIES, Pair
from unit.deletion.test_undo import CLOSED, GONE, SILENT, Site

LEDGERS = range(7, 10)
WHOLE, PART, NONE = LEDGERS


@pytest.fixture(params=FACTORIES, ids=lambda factory: factory.__name__)
def store(request: pytest.FixtureRequest) -> MetadataStore:
    pair: Pair = request.param(request)
    return pair[0]


def found(store: MetadataStore) -> list[bool]:
    return [isinstance(reading, StoredLedger) for reading in BookKeeperCatalog(store).read_many(LEDGERS)]


@pytest.fixture
def site(store: MetadataStore, tmp_path: Path) -> Site:
    """Three ledgers that were deleted: one is held whole, one in part, one not at all."""
    if store.get("/ledgers") is None:
        store.create("/ledgers", b"")
    assert BookKeeperCatalog(store).read_many(LEDGERS) == [AbsentLedger(ledger_id) for ledger_id in LEDGERS]
    made = Site(tmp_path, store)
    for ledger_id in LEDGERS:
        made.deleted(ledger_id=ledger_id, path=ledger_path("/ledgers", ledger_id))
    for bookie in ("b1", "b2"):
        made.answers |= {(bookie, NONE, entry): GONE for entry in (0, 9)} | {(bookie, PART, 9): GONE}
    return made


def test_what_is_lost_goes_again_and_what_is_left_of_a_ledger_is_kept(store: MetadataStore, site: Site) -> None:
    site.undo()
    assert found(store) == [True, True, False]
    # Another undo, which was told to, and may not take what somebody was told is restored.
    site.answers[("b1", WHOLE, 0)] = site.answers[("b2", WHOLE, 0)] = GONE
    site.undo(discard_partial=True)
    assert found(store) == [True, False, False]
    BookKeeperCatalog(store).delete_many(
        [some for some in BookKeeperCatalog(store).read_many(LEDGERS) if isinstance(some, StoredLedger)]
    )


def test_what_was_written_since_it_was_put_back_stays(store: MetadataStore, site: Site) -> None:
    site.usual = SILENT
    site.answers.clear()
    site.undo()
    reading = BookKeeperCatalog(store).read_many([NONE])[0]
    assert isinstance(reading, StoredLedger)
    store.put(reading.path, reading.raw, reading.version)
    site.usual = GONE
    site.undo()
    assert found(store) == [False, False, True]
    reading = BookKeeperCatalog(store).read_many([NONE])[0]
    assert isinstance(reading, StoredLedger)
    BookKeeperCatalog(store).delete_many([reading])


def test_what_a_sweep_is_about_to_delete_stays_once_undo_has_said_so(store: MetadataStore, tmp_path: Path) -> None:
    site, catalog = Site(tmp_path, store), BookKeeperCatalog(store)
    if store.get("/ledgers") is None:
        store.create("/ledgers", b"")
    path = ledger_path("/ledgers", 17)
    store.create(path, encode_ledger_metadata(CLOSED), make_parents=True)
    (doomed,) = catalog.read_many([17])
    assert isinstance(doomed, StoredLedger)
    site.deleted(ledger_id=17, path=path, version=doomed.version, created_ms=doomed.created_ms)
    assert [row.outcome for row in site.undo()] == [UndoOutcome.NOTHING_TO_DO]
    assert catalog.delete_many([doomed]) == [DeleteResult.LOST_RACE]
    assert [row.outcome for row in site.undo()] == [UndoOutcome.NOTHING_TO_DO]
    (now,) = catalog.read_many([17])
    assert isinstance(now, StoredLedger)
    assert (now.raw, now.created_ms) == (doomed.raw, doomed.created_ms)
    catalog.delete_many([now])
