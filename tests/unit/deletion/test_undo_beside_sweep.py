"""An undo while a sweep is about to delete the same ledgers: what it says is true afterwards too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.journal.entries import JournalEntry, JournalRecord, UndoStep
from bookwarden.deletion.journal.reading import Selection
from bookwarden.deletion.journal.writing import FileJournal
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.deletion.undo.rows import UndoOutcome
from bookwarden.ledgers.kinds import CursorHolder
from bookwarden.ledgers.metadata import Conditions, DeleteResult, Restoration, StoredLedger
from bookwarden.ledgers.outcomes import Outcome
from servers.population import Population
from servers.sweep_parts import sweep_with
from unit.deletion.test_sweeping import DATA, NOW, POLICY, Recorder, mark
from unit.deletion.test_undo import Site


class GatedCatalog(BookKeeperCatalog):
    """A catalog that calls a test, once, before it deletes."""

    before_delete: Callable[[], object] | None = None

    def delete_many(
        self, ledgers: Sequence[StoredLedger], conditions: Sequence[Conditions] | None = None
    ) -> list[DeleteResult]:
        gate, self.before_delete = self.before_delete, None
        if gate is not None:
            gate()
        return super().delete_many(ledgers, conditions)


class GatedJournal(FileJournal):
    """A journal that calls a test, once, after records are durable."""

    after_append: Callable[[], object] | None = None

    def append(self, records: Sequence[JournalRecord]) -> None:
        super().append(records)
        gate, self.after_append = self.after_append, None
        if gate is not None:
            gate()


class SweptSite(Site):
    """A store that is swept, and in which undo works, with one journal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.population = Population(self.store)
        self.catalog = GatedCatalog(self.store)
        self.sweep_journal = GatedJournal(self.folder)
        self.sweep_object = sweep_with(
            *(
                self.catalog,
                MetadataReferences([self.store], seen_from_ledgers=[""]),
                self.sweep_journal,
                Recorder(),
                POLICY,
            ),
            SweepLimits(max_unreachable=0),
            undone=self.undone,
            pause=lambda _: None,
            clock=lambda: NOW,
        )

    def outcomes(self, *ledger_ids: int) -> list[Outcome]:
        marks = [mark(ledger_id) for ledger_id in ledger_ids]
        return [row.outcome for rows in self.sweep_object.process(marks, "run/0") for row in rows]

    def is_there(self, path: str) -> bool:
        return self.store.get(path) is not None


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SweptSite]:
    made = SweptSite(tmp_path)
    yield made
    made.sweep_journal.close()


def test_what_was_never_deleted_is_not_deleted_a_moment_later(site: SweptSite) -> None:
    """The sweep has read the records of undone ledgers, and its journal is durable: only the delete is left."""
    paths = [site.population.ledger(ledger_id, DATA) for ledger_id in (7, 8)]
    said: list[tuple[UndoOutcome, str]] = []
    site.catalog.before_delete = lambda: said.extend((row.outcome, row.reason) for row in site.undo())
    assert site.outcomes(7, 8) == [Outcome.RETRY] * 2
    never = "its metadata is there as it was: it was never deleted; the sweep keeps it from now on"
    assert said == [(UndoOutcome.NOTHING_TO_DO, never)] * 2
    assert all(map(site.is_there, paths))
    assert site.outcomes(7, 8) == [Outcome.UNDONE] * 2
    # Once more it is the same, though undo has written the node.
    assert {row.outcome for row in site.undo()} == {UndoOutcome.NOTHING_TO_DO}
    assert site.asked == []


def test_the_sweep_looks_for_an_undo_once_more_before_it_deletes(site: SweptSite) -> None:
    paths = [site.population.ledger(ledger_id, DATA) for ledger_id in (7, 8, 9)]
    assert site.outcomes(9) == [Outcome.DELETED]
    site.sweep_journal.after_append = lambda: site.undo()
    assert site.outcomes(7, 8) == [Outcome.UNDONE] * 2
    assert all(map(site.is_there, paths))


def test_those_that_are_left_are_deleted_only_while_their_own_nodes_are_as_they_were_read(site: SweptSite) -> None:
    cursor = CursorHolder(DATA.name, "sub")
    site.population.names(DATA, [99])
    site.population.names(cursor, [98])
    site.population.ledger(7, DATA)
    site.population.ledger(8, cursor)
    site.population.ledger(99, DATA)

    def undo_one_and_name_the_other() -> None:
        site.undo(selection=Selection(ledger_ids=frozenset({7})))
        site.population.names(cursor, [8])

    site.sweep_journal.after_append = undo_one_and_name_the_other
    rows = [row for rows in site.sweep_object.process([mark(7), mark(8, cursor)], "run/0") for row in rows]
    assert [row.outcome for row in rows] == [Outcome.UNDONE, Outcome.RETRY]


def test_what_goes_while_undo_looks_is_put_back(site: SweptSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep's delete comes after undo has looked, and before it writes."""
    path = site.population.ledger(7, DATA)
    (doomed,) = site.catalog.read_many([7])
    assert isinstance(doomed, StoredLedger)
    site.sweep_journal.append([journaled(doomed)])
    restore = BookKeeperCatalog.restore_many

    def restore_after_delete(catalog: BookKeeperCatalog, ledgers: Sequence[Restoration]) -> list[bool]:
        monkeypatch.setattr(BookKeeperCatalog, "restore_many", restore)
        assert catalog.delete_many([doomed]) == [DeleteResult.DELETED]
        return restore(catalog, ledgers)

    monkeypatch.setattr(BookKeeperCatalog, "restore_many", restore_after_delete)
    assert [row.outcome for row in site.undo()] == [UndoOutcome.RESTORED]
    assert site.is_there(path)
    assert site.steps() == [UndoStep.BEGUN, UndoStep.RESTORED]


def journaled(ledger: StoredLedger) -> JournalEntry:
    return JournalEntry(
        *(ledger.ledger_id, str(DATA), ledger.path, ledger.version, ledger.created_ms, ledger.raw, "run/0", 5)
    )
