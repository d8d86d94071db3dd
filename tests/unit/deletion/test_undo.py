"""Undo over the in-memory store: what comes back, what is taken away again, what is left alone, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bookwarden.clusters.bookkeeper.bookies.probe import Presence, ReplicaStatus
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.undone import UndoneLedger, UndoneLedgers
from bookwarden.deletion.journal.entries import JournalEntry, JournalRecord, UndoRecord, UndoStep
from bookwarden.deletion.journal.reading import JournalFolder, JournalReader, SelectedDeletions, Selection
from bookwarden.deletion.journal.writing import FileJournal
from bookwarden.deletion.undo.operation import Undo
from bookwarden.deletion.undo.rows import UndoOutcome, UndoRow, entries_to_ask, survey
from bookwarden.errors import FormatError, StoreAccessError, StoreMigratingError, StoreUnavailableError
from bookwarden.ledgers.metadata import DeleteResult, LedgerMetadata, LedgerState, Restoration, Segment, StoredLedger
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata

PATH = "/ledgers/00/0000/L0007"
HELD, GONE = ReplicaStatus(Presence.HELD), ReplicaStatus(Presence.NOT_HELD)
SILENT = ReplicaStatus(Presence.UNKNOWN, "connection refused")
CTIME = 1_600_000_000_000
CLOSED = LedgerMetadata(3, LedgerState.CLOSED, 2, 2, 2, (Segment(0, ("b1", "b2")),), 1000, 9, "CRC32C", CTIME)


class Noted(UndoneLedgers):
    """Records of undone ledgers, with a look at the store before one is written."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.store)
        self._site = site

    def note_many(self, ledgers: Sequence[UndoneLedger]) -> None:
        assert self._site.before_noting()
        super().note_many(ledgers)


@dataclass
class Site:
    """A store, its bookies' answers by (bookie, ledger, entry), and a journal on disk."""

    folder: Path
    store: MetadataStore = field(default_factory=MemoryStore)
    answers: dict[tuple[str, int, int], ReplicaStatus] = field(default_factory=dict)
    usual: ReplicaStatus = HELD
    asked: list[tuple[int, int]] = field(default_factory=list)
    before_asking: Callable[[], None] = lambda: None
    before_noting: Callable[[], bool] = lambda: True
    moving: str = ""
    stops: int = 0

    def __post_init__(self) -> None:
        if self.store.get("/ledgers") is None:
            self.store.create("/ledgers", b"")
        self.undone = Noted(self)

    def holdings(self, entries: Sequence[tuple[int, LedgerMetadata, int]]) -> list[Mapping[str, ReplicaStatus]]:
        self.before_asking()
        self.asked += [(ledger_id, entry_id) for ledger_id, _, entry_id in entries]
        return [
            {
                bookie: self.answers.get((bookie, ledger_id, entry_id), self.usual)
                for bookie in metadata.segments[0].ensemble
            }
            for ledger_id, metadata, entry_id in entries
        ]

    def await_writes(self) -> None:
        if self.moving:
            raise StoreMigratingError(self.moving)

    def journal(self, *records: JournalRecord) -> None:
        journal = FileJournal(self.folder)
        journal.append(records)
        journal.close()

    def deleted(self, metadata: LedgerMetadata = CLOSED, **changes: object) -> JournalEntry:
        """Journal a deletion of ledger 7, which has no node."""
        entry = JournalEntry(7, "t/n/persistent/a", PATH, 3, 1_000, encode_ledger_metadata(metadata), "q/1", 2_000)
        entry = replace(entry, **changes)
        self.journal(entry)
        return entry

    def undo(self, *, discard_partial: bool = False, selection: Selection = Selection()) -> list[UndoRow]:  # noqa: B008
        journal = FileJournal(self.folder)
        try:
            undo = self._undo(journal, discard_partial=discard_partial)
            return [row for rows in undo.run(self.selected(selection)) for row in rows]
        finally:
            journal.close()

    def preview(self) -> list[UndoRow]:
        rows = self._undo(FileJournal(self.folder)).preview(self.selected(Selection()))
        return [row for some in rows for row in some]

    def _undo(self, journal: FileJournal, *, discard_partial: bool = False) -> Undo:
        return Undo(
            BookKeeperCatalog(self.store),
            self,
            self,
            journal,
            decode_ledger_metadata,
            "undo-1",
            undone=self.undone,
            discard_partial=discard_partial,
        )

    def selected(self, selection: Selection) -> SelectedDeletions:
        return SelectedDeletions(JournalReader(JournalFolder(self.folder)), selection)

    def raw(self, path: str = PATH) -> bytes | None:
        found = self.store.get(path)
        return found.value if found else None

    def steps(self) -> list[UndoStep]:
        return [record.step for record in JournalReader(JournalFolder(self.folder)) if isinstance(record, UndoRecord)]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_ledger_comes_back_byte_for_byte_with_the_nodes_above_it(site: Site) -> None:
    entry = site.deleted()
    (row,) = site.undo()
    assert (row.outcome, row.reason, row.held, row.copies) == (UndoOutcome.RESTORED, "", 4, 4)
    assert (row.ledger_id, row.run, row.deleted_at, row.ledger_bytes) == (7, "q/1", 2_000, 1000)
    assert site.raw() == entry.raw
    assert site.asked == [(7, 0), (7, 9)]
    assert site.steps() == [UndoStep.BEGUN, UndoStep.RESTORED]


def test_metadata_is_put_back_before_any_bookie_is_asked(site: Site) -> None:
    site.deleted()
    site.deleted(ledger_id=8, path="/ledgers/00/0000/L0008")

    def require_both() -> None:
        assert site.raw() is not None
        assert site.raw("/ledgers/00/0000/L0008") is not None

    site.before_asking = require_both
    assert [row.outcome for row in site.undo()] == [UndoOutcome.RESTORED] * 2


def test_a_ledger_of_which_some_copies_are_left_is_restored_and_said_to_be_under_replicated(site: Site) -> None:
    site.deleted()
    site.answers[("b1", 7, 0)] = site.answers[("b1", 7, 9)] = GONE
    (row,) = site.undo()
    assert (row.outcome, row.reason) == (UndoOutcome.RESTORED, "under-replicated: 2 of 4 copies found")
    assert site.raw() is not None


def test_a_ledger_that_no_bookie_holds_is_lost_and_its_metadata_goes_again(site: Site) -> None:
    site.deleted()
    site.usual = GONE
    (row,) = site.undo()
    assert row.outcome is UndoOutcome.LOST
    assert row.reason == "no bookie holds entries 0, 9; its metadata was taken away again"
    assert site.raw() is None
    assert site.steps() == [UndoStep.BEGUN, UndoStep.LOST]
    site.usual = HELD
    assert [row.outcome for row in site.undo()] == [UndoOutcome.RESTORED], "a second undo asks again"


def test_of_a_ledger_that_is_lost_in_part_the_rest_is_kept_unless_it_is_to_go(site: Site) -> None:
    entry = site.deleted()
    site.answers[("b1", 7, 9)] = site.answers[("b2", 7, 9)] = GONE
    (row,) = site.undo()
    assert (row.outcome, row.held) == (UndoOutcome.LOST, 2)
    assert row.reason.endswith("its metadata stays")
    assert site.raw() == entry.raw
    (row,) = site.undo(discard_partial=True)
    assert row.outcome is UndoOutcome.LOST
    assert site.raw() is None


def test_of_a_ledger_that_is_lost_in_part_what_may_be_on_a_silent_bookie_is_kept(site: Site) -> None:
    entry = site.deleted()
    site.usual = GONE
    site.answers[("b1", 7, 0)] = SILENT
    (row,) = site.undo()
    assert (row.outcome, row.held) == (UndoOutcome.LOST, 0)
    assert row.reason.endswith("its metadata stays")
    assert site.raw() == entry.raw


def test_bookies_that_do_not_answer_leave_it_unverified_and_are_named(site: Site) -> None:
    site.deleted()
    for entry_id in (0, 9):
        site.answers[("b1", 7, entry_id)] = GONE
        site.answers[("b2", 7, entry_id)] = SILENT
    (row,) = site.undo()
    assert row.outcome is UndoOutcome.UNVERIFIED
    assert "b2 (connection refused)" in row.reason
    assert site.raw() is not None
    site.usual = GONE
    site.answers.clear()
    (row,) = site.undo()
    assert row.outcome is UndoOutcome.LOST
    assert site.raw() is None
    assert site.steps() == [UndoStep.BEGUN, UndoStep.UNVERIFIED, UndoStep.LOST]


def test_one_silent_bookie_of_two_is_told_of_and_no_obstacle(site: Site) -> None:
    site.deleted()
    for entry_id in (0, 9):
        site.answers[("b2", 7, entry_id)] = SILENT
    (row,) = site.undo()
    assert row.outcome is UndoOutcome.RESTORED
    assert "under-replicated: 2 of 4" in row.reason
    assert "b2" in row.reason


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_a_ledger_that_was_not_closed_is_not_restored(site: Site, state: LedgerState) -> None:
    site.deleted(CLOSED._replace(state=state, last_entry_id=None))
    (row,) = site.undo()
    assert row.outcome is UndoOutcome.NOT_RESTORABLE
    assert state.name.lower().split("_")[0] in row.reason
    assert site.raw() is None
    assert site.steps() == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"raw": b"no metadata"}, "cannot be read"),
        ({"path": "/ledgers/00/0000/L0008"}, "another cluster's"),
        ({"path": "/managed-ledgers/t/n/persistent/a"}, "another cluster's"),
        ({"ledger_id": -1}, "another cluster's"),
    ],
)
def test_what_the_journal_says_is_not_believed_blindly(site: Site, changes: dict[str, object], says: str) -> None:
    entry = site.deleted(**changes)
    (row,) = site.undo()
    assert row.outcome is UndoOutcome.NOT_RESTORABLE
    assert says in row.reason
    assert site.raw(entry.path) is None


def test_a_ledger_that_was_never_deleted_is_left_alone_and_no_bookie_is_asked(site: Site) -> None:
    raw = encode_ledger_metadata(CLOSED)
    site.store.create(PATH, raw, make_parents=True)
    found = site.store.get(PATH)
    assert found is not None
    site.deleted(version=0, created_ms=found.created_ms)
    (before,) = BookKeeperCatalog(site.store).read_many([7])
    assert isinstance(before, StoredLedger)
    site.usual = GONE
    assert [row.outcome for row in site.preview()] == [UndoOutcome.NOTHING_TO_DO]
    assert site.undone.read_many([7]) == {}
    (row,) = site.undo()
    assert row.outcome is UndoOutcome.NOTHING_TO_DO
    assert site.asked == []
    assert site.raw() == raw
    assert list(site.undone.read_many([7])) == [7]
    # A delete by what was read before fails.
    assert BookKeeperCatalog(site.store).delete_many([before]) == [DeleteResult.LOST_RACE]


@pytest.mark.parametrize(
    ("other", "says"),
    [(CLOSED._replace(ctime_ms=1_700_000_000_000), "another ledger"), (CLOSED._replace(length=5), "not what was")],
)
def test_other_metadata_in_its_place_stays_as_it_is(site: Site, other: LedgerMetadata, says: str) -> None:
    site.deleted()
    site.store.create(PATH, encode_ledger_metadata(other), make_parents=True)
    (row,) = site.undo()
    assert row.outcome is UndoOutcome.NOT_RESTORABLE
    assert says in row.reason
    assert site.raw() == encode_ledger_metadata(other)


def test_metadata_that_somebody_else_put_back_is_never_taken_away(site: Site) -> None:
    entry = site.deleted()
    site.store.create(PATH, entry.raw, make_parents=True)
    site.usual = GONE
    (row,) = site.undo()
    assert row.outcome is UndoOutcome.LOST
    assert row.reason.endswith("its metadata stays")
    assert site.raw() == entry.raw
    assert site.steps() == []


def test_what_an_undo_called_restored_is_not_taken_away_by_a_later_one(site: Site) -> None:
    entry = site.deleted()
    site.undo()
    site.usual = GONE
    (row,) = site.undo()
    assert (row.outcome, site.raw()) == (UndoOutcome.LOST, entry.raw)


def test_a_second_undo_asks_the_bookies_again_and_writes_nothing(site: Site) -> None:
    site.deleted()
    site.undo()
    (row,) = site.undo()
    assert (row.outcome, row.reason) == (UndoOutcome.RESTORED, "its metadata was put back before")
    assert site.asked == [(7, 0), (7, 9)] * 2
    assert site.steps() == [UndoStep.BEGUN, UndoStep.RESTORED]


def test_an_empty_ledger_is_restored_without_a_question(site: Site) -> None:
    site.deleted(CLOSED._replace(last_entry_id=-1, length=0))
    site.usual = GONE
    (row,) = site.undo()
    assert (row.outcome, row.reason, site.asked) == (UndoOutcome.RESTORED, "it has no entries", [])


def test_a_dry_run_asks_the_bookies_and_writes_nothing(site: Site) -> None:
    site.deleted()
    site.deleted(CLOSED._replace(state=LedgerState.OPEN), ledger_id=8, path="/ledgers/00/0000/L0008")
    outcomes = [row.outcome for row in site.preview()]
    assert outcomes == [UndoOutcome.WOULD_RESTORE, UndoOutcome.NOT_RESTORABLE]
    site.usual = GONE
    assert site.preview()[0].outcome is UndoOutcome.LOST
    assert (site.raw(), site.steps()) == (None, [])


def test_nothing_is_written_while_the_metadata_moves(site: Site) -> None:
    site.deleted()
    site.moving = "phase COPYING"
    with pytest.raises(StoreMigratingError, match="COPYING"):
        site.undo()
    assert (site.raw(), site.steps()) == (None, [])
    site.moving = ""
    assert [row.outcome for row in site.undo()] == [UndoOutcome.RESTORED]


def test_what_is_lost_is_not_taken_away_while_the_metadata_moves(site: Site) -> None:
    site.deleted()
    site.usual = GONE
    site.before_asking = lambda: setattr(site, "moving", "phase COPYING")
    with pytest.raises(StoreMigratingError, match="COPYING"):
        site.undo()
    assert site.raw() is not None


def test_nothing_is_put_back_that_is_not_in_the_journal_first(site: Site) -> None:
    deletions = list([site.deleted()] and site.selected(Selection()))

    class Full:
        def append(self, records: Sequence[JournalRecord]) -> None:
            raise StoreUnavailableError("disk full")

    undo = Undo(BookKeeperCatalog(site.store), site, site, Full(), decode_ledger_metadata, "undo-1", undone=site.undone)
    with pytest.raises(StoreUnavailableError, match="disk full"):
        list(undo.run(deletions))
    assert site.raw() is None


def test_metadata_that_changes_before_it_is_taken_away_stays(site: Site) -> None:
    site.deleted()
    site.usual = GONE
    real = site.store.delete_many

    def late(expected: Sequence[tuple[str, int]], **more: object) -> list[DeleteResult]:
        site.store.put(PATH, b"somebody's", 0)
        return real(expected, **more)

    site.store.delete_many = late  # type: ignore[method-assign]
    (row,) = site.undo()
    assert row.outcome is UndoOutcome.LOST
    assert "stays" in row.reason
    assert site.raw() == b"somebody's"


def test_a_thousand_ledgers_in_several_batches(site: Site) -> None:
    raw = encode_ledger_metadata(CLOSED)
    entries = [
        JournalEntry(number, "h", f"/ledgers/00/0000/L{number:04d}", 0, 1, raw, "q/1", 2_000) for number in range(1200)
    ]
    site.journal(*entries)
    site.answers.update({(bookie, 700, entry): GONE for bookie in ("b1", "b2") for entry in (0, 9)})
    rows = site.undo()
    assert [row.ledger_id for row in rows if row.outcome is not UndoOutcome.RESTORED] == [700]
    assert len(site.store.list_children("/ledgers/00/0000")) == 1199


def segments(*parts: tuple[int, int]) -> tuple[Segment, ...]:
    return tuple(Segment(first, tuple(f"b{number}" for number in range(size))) for first, size in parts)


@pytest.mark.parametrize(
    ("ensemble", "write", "firsts", "last", "asked"),
    [
        (3, 3, (0,), 99, [0, 99]),
        (3, 3, (0, 40), 99, [0, 39, 40, 99]),
        (3, 2, (0,), 99, [0, 1, 2, 97, 98, 99]),
        (3, 2, (0,), 1, [0, 1]),
        (3, 3, (0, 100), 99, [0, 99]),
        (3, 3, (0,), 0, [0]),
        (3, 3, (0,), -1, []),
    ],
    ids=["one segment", "two segments", "striped", "striped, short", "empty last segment", "one entry", "empty"],
)
def test_the_entries_asked_for_tell_of_every_bookie(
    ensemble: int, write: int, firsts: tuple[int, ...], last: int, asked: list[int]
) -> None:
    parts = segments(*((first, ensemble) for first in firsts))
    metadata = LedgerMetadata(3, LedgerState.CLOSED, ensemble, write, write, parts, 1, last)
    assert entries_to_ask(metadata) == asked


def test_an_entry_is_lost_only_when_every_one_of_its_bookies_says_so() -> None:
    found = survey([(0, {"a": GONE, "b": HELD}), (1, {"a": GONE, "b": GONE}), (2, {"a": GONE, "b": SILENT})])
    assert (found.copies, found.held, found.lost, found.unknown) == (6, 1, (1,), (2,))
    assert found.silent == {"b": "connection refused"}


def test_a_path_that_is_not_the_ledgers_is_never_created() -> None:
    store = MemoryStore()
    store.create("/ledgers", b"")
    with pytest.raises(FormatError, match="not where"):
        BookKeeperCatalog(store).restore_many([Restoration(7, PATH, b""), Restoration(8, "/ledgers/x", b"")])
    assert store.get(PATH) is None


def test_metadata_that_was_written_again_since_it_was_put_back_is_not_taken_away(site: Site) -> None:
    entry = site.deleted()
    site.usual = SILENT
    assert [row.outcome for row in site.undo()] == [UndoOutcome.UNVERIFIED]
    site.store.put(PATH, entry.raw, 0)
    site.usual = GONE
    (row,) = site.undo()
    assert row.reason.endswith("its metadata stays")
    assert site.raw() == entry.raw


def test_a_record_of_the_undo_is_there_before_the_ledger_and_stays_unless_that_is_lost(site: Site) -> None:
    site.deleted()
    site.deleted(ledger_id=8, path="/ledgers/00/0000/L0008")
    site.answers.update({(bookie, 8, entry): GONE for bookie in ("b1", "b2") for entry in (0, 9)})
    site.before_noting = lambda: [site.raw(), site.raw("/ledgers/00/0000/L0008")] == [None, None]
    assert [row.outcome for row in site.undo()] == [UndoOutcome.RESTORED, UndoOutcome.LOST]
    assert site.undone.read_many([7, 8]) == {7: UndoneLedger(7, "undo-1", site.undone.read_many([7])[7].at_ms, CTIME)}
    # A second undo writes it too, and none that only looks.
    site.before_noting = lambda: True
    site.undone.withdraw_many([7])
    site.preview()
    assert site.undone.read_many([7]) == {}
    site.undo(selection=Selection(ledger_ids=frozenset({7})))
    assert set(site.undone.read_many([7])) == {7}


def test_an_undo_that_may_not_write_its_records_goes_on_and_says_so(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> bool:
        raise StoreAccessError("/bookwarden/undone: no right to create")

    site.deleted()
    site.before_noting = refuse
    assert [row.outcome for row in site.undo()] == [UndoOutcome.RESTORED]
    assert "stop it until no mark is in flight: /bookwarden/undone" in caplog.text
