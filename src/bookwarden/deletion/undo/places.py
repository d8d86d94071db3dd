"""Undo where a ledger may be in several bookie clusters: each deletion is put back into the cluster that it names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from bookwarden.clusters.bookkeeper.undone import UndoneLedger
from bookwarden.deletion.journal.reading import Deletion, SelectedDeletions
from bookwarden.deletion.ports import BookieClusters, LedgerCatalog, RecordsUndone
from bookwarden.deletion.undo.operation import ReadsElsewhere, Undo
from bookwarden.deletion.undo.rows import UndoCase, UndoRow, conclusion
from bookwarden.errors import RefusedError
from bookwarden.ledgers.custom_metadata import is_unfinished
from bookwarden.ledgers.metadata import AbsentLedger, StoredLedger, UnreadableLedger

_BEFORE: Final = "before bookie clusters were registered, in the first one, which is no longer registered"


class UndoInPlaces:
    """Restores deletions, those of one bookie cluster after those of another, each into the BookKeeper that it was in.

    ``alone`` is the undo where no cluster is registered; ``undo_of`` makes that of one cluster, which is given what the
    others have. ``everywhere`` has the ledgers of all clusters.
    """

    def __init__(
        self,
        alone: Undo,
        clusters: BookieClusters,
        everywhere: LedgerCatalog,
        undone: RecordsUndone,
        undo_of: Callable[[LedgerCatalog, RecordsUndone, ReadsElsewhere], Undo],
    ) -> None:
        self._alone = alone
        self._clusters = clusters
        self._everywhere = everywhere
        self._undone = _UndoneAnywhere(undone, everywhere)
        self._undo_of = undo_of

    def count_unknown(self, deletions: SelectedDeletions) -> int:
        """Count the ledgers of which it is not known whether they were deleted from the BookKeeper that is there.

        Raises RefusedError where one was deleted from another.
        """
        is_registered, instances = bool(self._clusters.catalogs()), self._clusters.instances()
        unknown = 0
        for origin in deletions.origins():
            # Without a registry all are put back into the same one.
            there = instances.get(origin.bookie_cluster if is_registered else "")
            if there is None:
                continue
            if not origin.instance:
                unknown += origin.ledgers
            elif origin.instance != there:
                raise RefusedError(
                    f"{origin.ledgers:,} of these ledgers, such as {origin.example}, were deleted from the BookKeeper "
                    f"with the INSTANCEID {origin.instance}, and {_of_settings(origin.bookie_cluster, is_registered)} "
                    f"{f'has {there}' if there else 'has none'}: nothing is put back. Undo them with the settings of "
                    "that BookKeeper (metadata_store.bookkeeper_url, ledgers_root), and those of this one apart"
                )
        return unknown

    def run(self, deletions: SelectedDeletions, *, accept_unknown: bool = False) -> Iterator[list[UndoRow]]:
        """Restore the deletions as `Undo.run` does.

        Raises RefusedError, before anything is written, where `count_unknown` does, and unless ``accept_unknown`` where
        it counts any.
        """
        unknown = self.count_unknown(deletions)
        if unknown and not accept_unknown:
            raise RefusedError(f"{unknown:,} ledgers may have been deleted from another BookKeeper")
        return self._each(deletions, Undo.run)

    def preview(self, deletions: SelectedDeletions) -> Iterator[list[UndoRow]]:
        """Yield the result that an undo of each ledger would have now; write nothing. Raises as `count_unknown`."""
        self.count_unknown(deletions)
        return self._each(deletions, Undo.preview)

    def _each(
        self, deletions: SelectedDeletions, act: Callable[[Undo, Iterable[Deletion]], Iterator[list[UndoRow]]]
    ) -> Iterator[list[UndoRow]]:
        catalogs = self._clusters.catalogs()
        if not catalogs:
            yield from act(self._alone, deletions)
            return
        for name in sorted({origin.bookie_cluster for origin in deletions.origins()}):
            some = _OfCluster(deletions, name)
            catalog = catalogs.get(name)
            if catalog is None:
                yield from ([_of_no_cluster(deletion, catalogs)] for deletion in some)
                continue
            # Records from before the registry name none.
            place = name or next(each for each, found in catalogs.items() if each and found is catalog)
            undo = self._undo_of(catalog, self._undone, partial(_elsewhere, self._everywhere, place))
            for rows in act(undo, some):
                yield [replace(row, reason=_with_cluster(name, row.reason)) for row in rows]


class _OfCluster:
    """The deletions of one bookie cluster; may be iterated over as often as all."""

    def __init__(self, deletions: Iterable[Deletion], name: str) -> None:
        self._deletions = deletions
        self._name = name

    def __iter__(self) -> Iterator[Deletion]:
        return (deletion for deletion in self._deletions if deletion.entry.bookie_cluster == self._name)


class _UndoneAnywhere:
    """The records of undone ledgers, one for all places of a ledger, kept as long as one of them has it."""

    def __init__(self, undone: RecordsUndone, everywhere: LedgerCatalog) -> None:
        self._undone = undone
        self._everywhere = everywhere

    def read_many(self, ledger_ids: Sequence[int]) -> Mapping[int, UndoneLedger]:
        """Return the records of these ledgers, where there is one."""
        return self._undone.read_many(ledger_ids)

    def note_many(self, ledgers: Sequence[UndoneLedger]) -> None:
        """Write the record of each ledger; a copy was made at another time than its original, so it names none."""
        self._undone.note_many([replace(ledger, ctime_ms=None) for ledger in ledgers])

    def withdraw_many(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        """Remove the records of those of these ledgers that are in no cluster; return those that had one."""
        readings = self._everywhere.read_many(ledger_ids)
        return self._undone.withdraw_many([each.ledger_id for each in readings if isinstance(each, AbsentLedger)])


def _elsewhere(
    everywhere: LedgerCatalog, place: str, ledger_ids: Sequence[int]
) -> dict[int, StoredLedger | UnreadableLedger]:
    """Return what other bookie clusters than this one have of these ledgers, or may have, as brokers would read it."""
    found: dict[int, StoredLedger | UnreadableLedger] = {}
    for reading in everywhere.read_many(ledger_ids):
        if isinstance(reading, UnreadableLedger):
            found[reading.ledger_id] = reading
        elif isinstance(reading, StoredLedger):
            others = (one for one in reading.places if one.bookie_cluster != place and not is_unfinished(one.metadata))
            found.update((one.ledger_id, one) for one in islice(others, 1))
    return found


def _of_no_cluster(deletion: Deletion, names: Collection[str]) -> UndoRow:
    entry = deletion.entry
    there = ", ".join(sorted(name for name in names if name))
    where = f"in the bookie cluster {entry.bookie_cluster!r}" if entry.bookie_cluster else _BEFORE
    obstacle = f"it was deleted {where}, and there are {there}"
    case = UndoCase(deletion, UnreadableLedger(entry.ledger_id, obstacle), None, obstacle)
    return conclusion(case, {}, {}, ())


def _of_settings(bookie_cluster: str, is_registered: bool) -> str:
    if is_registered and bookie_cluster:
        return f"the bookie cluster {bookie_cluster!r} that is registered"
    return "the one that the settings name"


def _with_cluster(name: str, reason: str) -> str:
    return "; ".join(part for part in (f"in bookie cluster {name}" if name else "", reason) if part)
