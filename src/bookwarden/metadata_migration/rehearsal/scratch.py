"""A scratch namespace: taken if it is empty, held by a marker, and removed only if all of it must be a rehearsal's.

The marker is a node by which a rehearsal holds its namespace, and a later one recognizes what it left.
It is created before anything else, in an empty namespace, and deleted when everything else is gone. Its holder renews
it every few seconds, and stops writing anything when it could not for longer than a lease. So the contents of a
namespace with a marker were made by rehearsals, between the marker's creation and a lease after its last renewal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from bookwarden.errors import ConfigError, FormatError, RefusedError, StoreError
from bookwarden.leases import LeaseTimes
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metadata_migration.walking import TreeWalk
from bookwarden.metastore.following.flag import MigrationState
from bookwarden.metastore.interface import ScratchStore, Versioned
from bookwarden.metastore.record_lease import LeaseMessages, RecordLease, parse_record
from bookwarden.metastore.urls import scheme_of, split_chroot

MARKER: Final = "/bookwarden-rehearsal"
_WHAT: Final = "scratch copy of bookwarden metadata-migration rehearse"
_WORDS: Final = LeaseMessages(
    "A rehearsal",
    "works in this namespace",
    "the target is too slow or away; nothing more is written to it, run again with --clean",
    "wait for the end of that rehearsal, or name another namespace",
)
# The clocks of a namespace's servers may differ by this much.
_SKEW_MS: Final = 60_000


class FoundMarker(NamedTuple):
    """A marker as it was read. ``until_ms`` is its last renewal by the rehearsal that made the copy.

    ``is_free``: its holder writes nothing more, since it says so, or ran on this machine and has ended.
    """

    version: int
    begun_ms: int
    until_ms: int
    holder: str
    is_free: bool

    def may_have_made(self, node: Versioned, lease_s: float) -> bool:
        """Return whether the node is as a rehearsal leaves it: persistent, never written again, and of its time."""
        last_ms = self.until_ms + int(lease_s * 1000) + _SKEW_MS
        in_time = self.begun_ms - _SKEW_MS <= node.created_ms <= last_ms
        return in_time and not node.ephemeral and node.modified_ms == node.created_ms


def find_marker(store: ScratchStore) -> FoundMarker | None:
    """Read the marker; None if there is none. RefusedError if something else has its name."""
    (node,) = store.get_many([MARKER])
    if node is None:
        return None
    try:
        found = parse_record(node, MARKER, "a rehearsal")
        if found.fields.get("what") != _WHAT or node.ephemeral:
            raise FormatError("another node")
        until_ms = found.fields.get("untilMs")
        until_ms = node.modified_ms if until_ms is None else int(until_ms)
    except (FormatError, ValueError, TypeError) as error:
        raise RefusedError(f"{MARKER} is there and was not written by a rehearsal: name another namespace") from error
    return FoundMarker(node.version, node.created_ms, until_ms, found.holder, found.is_free)


class ScratchLease(RecordLease):
    """Holds a scratch namespace in a with statement, by a thread that renews the marker."""

    def __init__(self, store: ScratchStore, times: LeaseTimes) -> None:
        super().__init__(store, MARKER, _WORDS, times)

    def take(self, found: FoundMarker | None = None) -> ScratchLease:
        """Take an empty namespace, or one over to remove its copy; RefusedError if another rehearsal came first."""
        until_ms = None if found is None else found.until_ms
        self.hold({"what": _WHAT, "untilMs": until_ms}, None if found is None else found.version)
        return self

    def __enter__(self) -> ScratchLease:
        super().__enter__()
        return self


# Pulsar's own nodes about a migration. A rehearsal makes none, so a store that has them was migrated to.
COORDINATOR: Final = "/pulsar/migration-coordinator"

_BATCH: Final = 1_000
_IDLE: Final = ("NOT_STARTED", "FAILED")
_GONE = (DeleteResult.DELETED, DeleteResult.ABSENT)


def require_scratch(target: str, in_use: Iterable[str]) -> None:
    """Raise ConfigError for a target that is no Oxia, and RefusedError for one in a store that is in use."""
    if scheme_of(target) not in ("oxia", "memory"):
        raise ConfigError(f"{target} is no target of a migration: Pulsar moves metadata to oxia:// alone")
    if any(split_chroot(url)[0] == split_chroot(target)[0] for url in in_use):
        raise RefusedError(f"{target} is a store in use: name a scratch namespace, made for the rehearsal alone")


def require_idle(flag: MigrationState | None, source_url: str, target: str) -> None:
    """Raise RefusedError where the flag of the source names this target, or says that the source moves, or moved."""
    if flag is not None and flag.target_url and split_chroot(flag.target_url)[0] == split_chroot(target)[0]:
        raise RefusedError(
            f"{target} is what the migration flag of {source_url} names ({flag.phase}): name a scratch namespace that "
            "no cluster is moved to"
        )
    if flag is not None and flag.phase not in _IDLE:
        raise RefusedError(
            f"the metadata of {source_url} is being migrated, or was ({flag.phase}): there is nothing to rehearse"
        )


def claim(store: ScratchStore, times: LeaseTimes) -> ScratchLease:
    """Take a namespace that is empty; RefusedError for another."""
    store.sync()
    _require_alone(store, [])
    hold = ScratchLease(store, times).take()
    try:
        _require_alone(store, [MARKER[1:]])
    except BaseException:
        # A process that came in between should not find our node.
        hold.remove()
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
    lease = ScratchLease(store, times)
    if not found.is_free:
        refusal = f"the rehearsal on {found.holder} goes on in this namespace: wait for its end"
        found = lease.wait_until_given_up(found, lambda: find_marker(store), refusal, say)
    if found is None:
        return 0
    with lease.take(found) as hold:
        return _Removal(store, found, hold, times).run()


def clean_own(store: ScratchStore, hold: ScratchLease, times: LeaseTimes) -> int:
    """Remove the copy of the marker's holder, as `clean` does."""
    found = find_marker(store)
    if found is None:
        raise RefusedError(f"{MARKER} was deleted by another client: nothing is removed")
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

    def __init__(self, store: ScratchStore, found: FoundMarker, hold: ScratchLease, times: LeaseTimes) -> None:
        self._store = store
        self._found = found
        self._hold = hold
        self._lease_s = times.lease_s

    def run(self) -> int:
        """Remove everything; return how many nodes, without the marker."""
        TreeWalk([self._store], lambda paths, nodes: self._require_ours(paths, nodes[0]), passed_over=[MARKER]).run()
        removed = self._remove_below(["/"])
        _require_alone(self._store, [MARKER[1:]])
        self._hold.remove()
        return removed

    def _require_ours(self, paths: Sequence[str], nodes: Sequence[Versioned | None]) -> None:
        for path, node in zip(paths, nodes, strict=True):
            ours = node is None or self._found.may_have_made(node, self._lease_s)
            if not ours or f"{path}/".startswith(f"{COORDINATOR}/"):
                raise RefusedError(
                    f"{path} of the target was not made by the rehearsal, or was written since: another client uses "
                    "this namespace, and nothing of it is removed any more"
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
                raise RefusedError(
                    f"{path} of the target was changed while the copy was removed: another client uses it"
                )
            if result not in _GONE:
                raise StoreError(f"it is not known whether {path} of the target was removed: run again with --clean")
        return len(there)
