"""A scratch namespace: taken only if it is empty, and removed only if all of it must be a rehearsal's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from bookwarden.errors import RefusedError, StoreError
from bookwarden.leases import LeaseTimes
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.interface import ScratchStore, Versioned
from bookwarden.migration.rehearsal.marker import (
    MARKER,
    FoundMarker,
    Hold,
    find_marker,
    wait_until_given_up,
)
from bookwarden.migration.walking import TreeWalk

# Pulsar's own nodes about a migration. A rehearsal makes none, so a store that has them was migrated to.
COORDINATOR: Final = "/pulsar/migration-coordinator"

_BATCH: Final = 1_000
_GONE = (DeleteResult.DELETED, DeleteResult.ABSENT)


def claim(store: ScratchStore, times: LeaseTimes) -> Hold:
    """Take a namespace that is empty; RefusedError for another."""
    store.sync()
    _require_alone(store, [])
    hold = Hold(store, times).create()
    try:
        _require_alone(store, [MARKER[1:]])
    except BaseException:
        # A process that came in between should not find our node.
        hold.withdraw()
        raise
    return hold


def clean(store: ScratchStore, times: LeaseTimes, say: Callable[[str], object]) -> int:
    """Remove what an earlier rehearsal left, its marker last; return how many nodes, 0 where there is no marker.

    Raises RefusedError, and removes nothing, where anything cannot be a rehearsal's.
    """
    store.sync()
    found = find_marker(store)
    if found is None:
        return 0
    found = wait_until_given_up(store, found, times, say)
    with Hold(store, times, found.until_ms).take_over(found.version) as hold:
        return _Removal(store, found, hold, times).run()


def clean_own(store: ScratchStore, hold: Hold, times: LeaseTimes) -> int:
    """Remove the copy of the marker's holder, as `clean` does."""
    found = find_marker(store)
    if found is None:
        raise RefusedError(f"{MARKER} was deleted by somebody else: nothing is removed")
    return _Removal(store, found, hold, times).run()


def _require_alone(store: ScratchStore, expected: Sequence[str]) -> None:
    (names,) = store.list_many(["/"])
    others = [name for name in names if name not in expected]
    if not others:
        return
    if MARKER[1:] in others:
        raise RefusedError(f"an earlier rehearsal left its copy in this namespace ({MARKER}): remove it with --clean")
    raise RefusedError(
        f"the target is not empty: it has /{others[0]}"
        + (f" and {len(others) - 1} more nodes at its top" if len(others) > 1 else "")
        + ": name a namespace that was made for this alone"
    )


class _Removal:
    """Removes a copy from the leaves up, after a check of all of it; each node by the version that was checked."""

    def __init__(self, store: ScratchStore, found: FoundMarker, hold: Hold, times: LeaseTimes) -> None:
        self._store = store
        self._found = found
        self._hold = hold
        self._lease_s = times.lease_s

    def run(self) -> int:
        """Remove everything; return how many nodes, without the marker."""
        TreeWalk([self._store], lambda paths, nodes: self._require_ours(paths, nodes[0]), passed_over=[MARKER]).run()
        removed = self._remove_below(["/"])
        _require_alone(self._store, [MARKER[1:]])
        (result,) = self._store.delete_many([(MARKER, self._hold.release())])
        if result not in _GONE:
            raise RefusedError(f"{MARKER} was changed by somebody else while the copy was removed: look at it")
        return removed

    def _require_ours(self, paths: Sequence[str], nodes: Sequence[Versioned | None]) -> None:
        for path, node in zip(paths, nodes, strict=True):
            ours = node is None or self._found.may_have_made(node, self._lease_s)
            if not ours or f"{path}/".startswith(f"{COORDINATOR}/"):
                raise RefusedError(
                    f"{path} of the target was not made by the rehearsal, or was written since: somebody uses this "
                    "namespace, and nothing of it is removed any more"
                )

    def _remove_below(self, directories: Sequence[str]) -> int:
        removed = 0
        paths = self._paths_in(directories)
        while batch := list(islice(paths, _BATCH)):
            parents = self._store.parents_among(batch)
            if parents:
                removed += self._remove_below([path for path in batch if path in parents])
            removed += self._remove(batch)
        return removed

    def _paths_in(self, directories: Sequence[str]) -> Iterator[str]:
        for directory in directories:
            prefix = directory if directory == "/" else f"{directory}/"
            yield from (prefix + name for name in self._store.list_many([directory])[0] if prefix + name != MARKER)

    def _remove(self, paths: Sequence[str]) -> int:
        nodes = self._store.get_many(paths)
        self._require_ours(paths, nodes)
        self._hold.require()
        there = [(path, node.version) for path, node in zip(paths, nodes, strict=True) if node is not None]
        results = self._store.delete_many(there)
        for (path, _), result in zip(there, results, strict=True):
            if result is DeleteResult.LOST_RACE:
                raise RefusedError(f"{path} of the target was changed while the copy was removed: somebody uses it")
            if result not in _GONE:
                raise StoreError(f"it is not known whether {path} of the target was removed: run again with --clean")
        return len(there)
