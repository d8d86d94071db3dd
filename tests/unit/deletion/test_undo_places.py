"""Undo over two bookie clusters: what was deleted in one of them comes back there, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bookwarden.clusters.bookkeeper.bookies.probe import ReplicaStatus
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.deletion.journal.entries import JournalEntry, UndoRecord, UndoStep, decode_record
from bookwarden.deletion.journal.reading import JournalFolder, JournalReader, Selection
from bookwarden.deletion.journal.writing import FileJournal
from bookwarden.deletion.ports import LedgerCatalog, RecordsUndone
from bookwarden.deletion.undo.operation import ReadsElsewhere, Undo
from bookwarden.deletion.undo.places import UndoInPlaces
from bookwarden.deletion.undo.rows import UndoOutcome, UndoRow
from bookwarden.errors import RefusedError, StoreUnavailableError
from bookwarden.ledgers.custom_metadata import COPY_KEY
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.wire.ledger_metadata import decode_ledger_metadata
from unit.deletion.test_undo import GONE, SILENT, Site
from unit.switching.two_bookie_clusters import COPY, ROOTS, TwoBookieClusters


class PlacedSite(Site):
    """A store with two bookie clusters, their bookies' answers, and one journal."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        #: Why a place of a ledger is not proven whole, by the name of its cluster and its id.
        self.unproven: dict[tuple[str, int], str] = {}
        self.proofs: list[tuple[str, int]] = []
        self.two = TwoBookieClusters(self.store)
        self.two.register()

    def deleted_in(self, cluster: str, ledger_id: int, **changes: object) -> JournalEntry:
        """Journal a deletion in a cluster; by "" one from before there was a registry."""
        path = ledger_path(ROOTS[cluster or "a"], ledger_id)
        placed = {"ledger_id": ledger_id, "path": path, "bookie_cluster": cluster}
        fields: dict[str, object] = {**placed, "instance": f"instance-{cluster or 'a'}", **changes}
        return self.deleted(**fields)

    def problem_of(self, ledger: StoredLedger) -> str | None:
        where = next(name for name, root in ROOTS.items() if ledger.path.startswith(root)), ledger.ledger_id
        self.proofs.append(where)
        return self.unproven.get(where)

    def in_places(self, journal: FileJournal) -> UndoInPlaces:
        def undo_of(catalog: LedgerCatalog, undone: RecordsUndone, elsewhere: ReadsElsewhere = lambda _: {}) -> Undo:
            fixed = catalog, self, self, journal, decode_ledger_metadata, "undo-1"
            return Undo(*fixed, undone=undone, elsewhere=elsewhere, proof=self)

        two = self.two
        return UndoInPlaces(undo_of(two.catalog, self.undone), two.clusters, two.catalog, self.undone, undo_of)

    def rows(self, *, preview: bool = False, accept_unknown: bool = False) -> list[UndoRow]:
        journal = FileJournal(self.folder)
        try:
            undo, deletions = self.in_places(journal), self.selected(Selection())
            made = undo.preview(deletions) if preview else undo.run(deletions, accept_unknown=accept_unknown)
            return [row for rows in made for row in rows]
        finally:
            journal.close()


@pytest.fixture
def site(tmp_path: Path) -> PlacedSite:
    return PlacedSite(tmp_path)


def test_each_deletion_comes_back_into_the_cluster_that_its_row_names(site: PlacedSite) -> None:
    entries = [site.deleted_in("a", 7), site.deleted_in("b", 7), site.deleted_in("b", 8), site.deleted_in("", 9)]
    preview = site.rows(preview=True)
    assert [row.outcome for row in preview] == [UndoOutcome.WOULD_RESTORE] * 4
    assert [site.raw(entry.path) for entry in entries] == [None] * 4
    rows = site.rows()
    assert [(row.ledger_id, row.outcome, row.reason) for row in rows] == [
        (9, UndoOutcome.RESTORED, ""),
        (7, UndoOutcome.RESTORED, "in bookie cluster a"),
        (7, UndoOutcome.RESTORED, "in bookie cluster b"),
        (8, UndoOutcome.RESTORED, "in bookie cluster b"),
    ]
    assert [site.raw(entry.path) for entry in entries] == [entry.raw for entry in entries]
    assert [site.two.places_of(ledger_id) for ledger_id in (7, 8, 9)] == ["ab", "b", "a"]
    steps = [each for each in JournalReader(JournalFolder(site.folder)) if isinstance(each, UndoRecord)]
    restored = sorted((each.ledger_id, each.bookie_cluster) for each in steps if each.step is UndoStep.RESTORED)
    assert restored == [(7, "a"), (7, "b"), (8, "b"), (9, "")]
    # A second time there is nothing left to put back, in any cluster.
    assert {row.outcome for row in site.rows()} == {UndoOutcome.RESTORED}
    assert all("put back before" in row.reason for row in site.rows())


def test_a_deletion_in_a_cluster_that_is_gone_is_not_put_into_another(site: PlacedSite) -> None:
    site.deleted_in("a", 7, bookie_cluster="c")
    site.deleted_in("b", 8)
    rows = {row.ledger_id: row for row in site.rows()}
    assert rows[7].outcome is UndoOutcome.NOT_RESTORABLE
    assert "deleted in the bookie cluster 'c', and there are a, b" in rows[7].reason
    assert rows[8].outcome is UndoOutcome.RESTORED
    assert (site.two.places_of(7), site.two.places_of(8)) == ("", "b")


def test_what_is_lost_in_one_cluster_stays_known_as_undone_while_another_has_it(site: PlacedSite) -> None:
    site.deleted_in("a", 7)
    site.deleted_in("b", 7)
    site.deleted_in("b", 8)
    # The one in b is proven, since a has it again by then, and lost right after.
    asked: list[int] = []

    def before_asking() -> None:
        asked.append(len(asked))
        gone = len(asked) == 2
        for bookie in ("b1", "b2"):
            site.answers |= {(bookie, 7, entry): GONE for entry in (0, 9)} if gone else {}
            site.answers |= {(bookie, 8, entry): GONE for entry in (0, 9)} if gone else {}

    site.before_asking = before_asking
    rows = [(row.ledger_id, row.outcome) for row in site.rows()]
    assert rows == [(7, UndoOutcome.RESTORED), (7, UndoOutcome.LOST), (8, UndoOutcome.LOST)]
    assert (site.two.places_of(7), site.two.places_of(8)) == ("a", "")
    assert list(site.undone.read_many([7, 8])) == [7]
    # A copy was made at another time; the record keeps the ledger whatever that is.
    assert site.undone.read_many([7])[7].ctime_ms is None


def test_without_a_registry_and_while_it_is_not_known(site: PlacedSite) -> None:
    site.deleted_in("", 7)
    site.two.register(b"{")
    with pytest.raises(StoreUnavailableError):
        site.rows()
    assert site.two.places_of(7) == ""
    node = site.store.get("/bookwarden/bookie-clusters")
    assert node is not None
    site.store.delete_many([("/bookwarden/bookie-clusters", node.version)])
    site.two.clusters.invalidate()
    (row,) = site.rows()
    assert (row.outcome, row.reason) == (UndoOutcome.RESTORED, "")


@pytest.mark.parametrize("preview", [False, True])
def test_what_another_bookkeeper_lost_is_put_back_nowhere(site: PlacedSite, preview: bool) -> None:
    """The path of a ledger is the same in every BookKeeper, so it tells nothing."""
    site.deleted_in("a", 7)
    site.deleted_in("b", 8, instance="instance-x")
    told = (
        "1 of these ledgers, such as 8, .* INSTANCEID instance-x, and the bookie cluster 'b' .* has instance-b: nothing"
    )
    with pytest.raises(RefusedError, match=told):
        site.rows(preview=preview)
    assert (site.two.places_of(7), site.two.places_of(8)) == ("", "")
    assert site.steps() == []
    assert site.undone.read_many([7, 8]) == {}


@pytest.mark.parametrize("cluster", ["", "a"])
@pytest.mark.parametrize("there", ["instance-b", ""])
def test_without_a_registry_the_bookkeeper_of_the_settings_counts(site: PlacedSite, there: str, cluster: str) -> None:
    site.deleted_in(cluster, 7)
    for path in ("/ledgers/INSTANCEID", "/bookwarden/bookie-clusters"):
        site.store.delete_many([(path, 0)])
    if there:
        site.store.create("/ledgers/INSTANCEID", there.encode())
    site.two.clusters.invalidate()
    with pytest.raises(RefusedError, match=f"instance-a, and the one that the settings name has {there or 'none'}"):
        site.rows()
    assert site.two.places_of(7) == ""


def test_a_bookkeeper_that_is_not_known_must_be_accepted(site: PlacedSite) -> None:
    site.deleted_in("a", 7)
    site.deleted_in("b", 8, instance="")
    assert {row.outcome for row in site.rows(preview=True)} == {UndoOutcome.WOULD_RESTORE}
    with pytest.raises(RefusedError, match="1 ledgers may have been deleted from another BookKeeper"):
        site.rows()
    assert (site.two.places_of(7), site.two.places_of(8)) == ("", "")
    assert {row.outcome for row in site.rows(accept_unknown=True)} == {UndoOutcome.RESTORED}


def test_the_last_deletion_of_a_ledger_says_which_bookkeeper_it_was_in(site: PlacedSite) -> None:
    site.deleted_in("a", 7, instance="")
    site.deleted_in("a", 7, journaled_at=3_000)
    assert [row.outcome for row in site.rows()] == [UndoOutcome.RESTORED]


def test_records_without_a_cluster_are_written_as_ever() -> None:
    entry = JournalEntry(7, "t/n/persistent/a", "/p", 3, 1, b"raw", "q/1", 2)
    assert b"bookie_cluster" not in entry.encode()
    assert b"instance" not in entry.encode()
    placed = JournalEntry(7, "t/n/persistent/a", "/p", 3, 1, b"raw", "q/1", 2, "b")
    for record in (
        entry,
        placed,
        replace(placed, instance="i-1"),
        replace(entry, instance="i-1"),
        UndoRecord(7, "q/1", "u", UndoStep.LOST, 2, "b"),
        UndoRecord(7, "q", "u", UndoStep.LOST, 2),
    ):
        assert decode_record(record.encode()) == record
    assert b"bookie_cluster" not in UndoRecord(7, "q", "u", UndoStep.LOST, 2).encode()


def test_nothing_that_is_not_whole_hides_what_another_cluster_has(site: PlacedSite) -> None:
    """Brokers read the active cluster first, so a hollow original would come before a whole copy."""
    for ledger_id in (7, 8):
        site.deleted_in("a", ledger_id)
        site.two.ledger("b", ledger_id, holder=None, **COPY)
    site.deleted_in("a", 9)
    site.unproven["a", 7] = "bookie a2 answered ENOENTRY to entry 3"
    why = "in bookie cluster a; bookie cluster b has it, and here it is not proven whole: bookie a2 answered ENOENTRY"
    outcomes = []
    for preview in (True, False):
        rows = {row.ledger_id: row for row in site.rows(preview=preview)}
        outcomes.append({ledger_id: row.outcome for ledger_id, row in rows.items()})
        assert rows[7].reason.startswith(why)
    assert outcomes == [
        {7: UndoOutcome.NOT_RESTORABLE, 8: UndoOutcome.WOULD_RESTORE, 9: UndoOutcome.WOULD_RESTORE},
        {7: UndoOutcome.NOT_RESTORABLE, 8: UndoOutcome.RESTORED, 9: UndoOutcome.RESTORED},
    ]
    assert rows[7].reason.endswith("to entry 3; nothing was put back")
    assert [site.two.places_of(ledger_id) for ledger_id in (7, 8, 9)] == ["b", "ab", "a"]
    # The sweep may go on deleting it, and what is nowhere else was in no need of a proof.
    assert set(site.undone.read_many([7, 8, 9])) == {8, 9}
    assert ("a", 9) not in site.proofs


def test_what_is_nowhere_else_is_back_before_anything_is_proven(site: PlacedSite) -> None:
    site.deleted_in("a", 7)
    site.two.ledger("b", 7, holder=None, **COPY)
    site.deleted_in("a", 9)
    seen: list[str] = []
    site.problem_of = lambda _: seen.append(site.two.places_of(9))  # type: ignore[method-assign,assignment]
    site.rows()
    assert seen == ["a"]


@pytest.mark.parametrize("answer", [GONE, SILENT], ids=["collected", "silent"])
def test_what_loses_a_replica_as_it_is_put_back_is_taken_back(site: PlacedSite, answer: ReplicaStatus) -> None:
    """Whatever is left of it: the other cluster has it whole."""
    site.deleted_in("a", 7)
    site.two.ledger("b", 7, holder=None, **COPY)
    site.answers["b1", 7, 9] = answer
    (row,) = site.rows()
    assert row.outcome is UndoOutcome.LOST
    assert "bookie cluster b has it, and here it is not proven whole: " in row.reason
    assert row.reason.endswith("its metadata was taken away again")
    assert site.two.places_of(7) == "b"
    assert site.steps() == [UndoStep.BEGUN, UndoStep.LOST]


@pytest.mark.parametrize("kept", [None, "no answer"])
@pytest.mark.parametrize("step", [UndoStep.BEGUN, UndoStep.RESTORED])
def test_what_an_earlier_undo_put_back_goes_only_for_what_is_whole(
    site: PlacedSite, step: UndoStep, kept: str | None
) -> None:
    """A bookie may have collected it a moment after; what nobody called restored was never to be read."""
    entry = site.deleted_in("a", 7)
    site.journal(UndoRecord(7, entry.run, "undo-0", step, 3_000, "a"))
    site.store.create(entry.path, entry.raw, make_parents=True)
    site.two.ledger("b", 7, holder=None, **COPY)
    site.unproven["a", 7] = "bookie a1 answered ENOENTRY to entry 0"
    if kept is not None:
        site.unproven["b", 7] = kept
    (row,) = site.rows()
    stays = step is UndoStep.RESTORED and kept is not None
    assert row.outcome is UndoOutcome.LOST
    assert row.reason.endswith("its metadata stays" if stays else "its metadata was taken away again")
    assert site.two.places_of(7) == ("ab" if stays else "b")


def test_where_another_cluster_may_have_it_nothing_is_put_back_unproven(site: PlacedSite) -> None:
    site.deleted_in("a", 7)
    site.store.create(ledger_path(ROOTS["b"], 7), b"damaged", make_parents=True)
    site.deleted_in("a", 8)
    # Brokers read no unfinished copy, so what is left here is all there is.
    site.answers["b1", 8, 9] = GONE
    site.two.ledger("b", 8, holder=None, **{COPY_KEY: b"unproven"})
    site.unproven["a", 7] = site.unproven["a", 8] = "no answer"
    rows = {row.ledger_id: row for row in site.rows()}
    assert [rows[each].outcome for each in (7, 8)] == [UndoOutcome.NOT_RESTORABLE, UndoOutcome.RESTORED]
    assert "another bookie cluster may have it (" in rows[7].reason


@pytest.mark.parametrize("instance", ["instance-a", ""])
def test_once_the_first_cluster_has_left_its_ledgers_are_put_back_nowhere(site: PlacedSite, instance: str) -> None:
    site.deleted_in("", 7, instance=instance)
    b = site.two.registry.clusters["b"]
    site.two.clusters = site.two.seen_from("b")
    site.two.register(replace(site.two.registry, epoch=4, clusters={"b": b}))
    (row,) = site.rows(accept_unknown=True)
    assert row.outcome is UndoOutcome.NOT_RESTORABLE
    assert "before bookie clusters were registered, in the first one, which is no longer registered" in row.reason
    assert site.two.places_of(7) == ""


def test_a_cluster_that_another_had_the_name_of_before_gets_none_of_its_ledgers(site: PlacedSite) -> None:
    """One was unregistered, and another registered by the same name, and at the same root of another store."""
    site.deleted_in("b", 7, instance="instance-of-the-former-b")
    with pytest.raises(RefusedError, match=r"instance-of-the-former-b, and the bookie cluster 'b' .* has instance-b"):
        site.rows(accept_unknown=True)
    assert site.two.places_of(7) == ""
