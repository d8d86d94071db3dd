"""A migration rehearsed: a copy of the store in use, in a scratch namespace, timed and compared.

The store in use is only read. Unlike in a migration it changes meanwhile, so a difference at a node that was changed
since the copy began is not the copy's fault.

The copy follows coordination.impl.MigrationCoordinator of pulsar-metadata 4.2. Every persistent node but the root is
put with its value, version and number of writes to the key of its path, parents before children. Pulsar's first error
ends its copy; this one goes on, to find all errors.

The marker is a node by which a rehearsal holds its namespace, and a later one recognizes what it left.
It is created before anything else, in an empty namespace, and deleted when everything else is gone. Its holder renews
it every few seconds, and stops writing anything when it could not for longer than a lease. So the contents of a
namespace with a marker were made by rehearsals, between the marker's creation and a lease after its last renewal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from bookwarden.errors import ConfigError, FormatError, RefusedError, StoreError
from bookwarden.leases import LeaseTimes
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metadata_migration.comparison import Comparison, Difference, DifferenceClass, Report, VersionRule
from bookwarden.metadata_migration.control import SizedNode
from bookwarden.metadata_migration.walking import TreeWalk
from bookwarden.metadata_migration.watching import PARTICIPANTS_LIMIT_SECONDS, PROPOSED_BYTES, PROPOSED_SECONDS
from bookwarden.metastore.following.flag import MigrationState
from bookwarden.metastore.interface import CreateResult, MetadataStore, NewNode, ScratchStore, Versioned
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
_SERVERS_SKEW_MS: Final = 60_000
# The coordinator's wait for further nodes after it has copied the last one.
_LAST_POLL_SECONDS: Final = 1.0
# The source's clock and ours may differ by this much.
_SKEW_MS: Final = 60_000
# A request's worth, and a few megabytes at most where nodes are large.
_NODES_AT_ONCE: Final = 1_000
_BYTES_AT_ONCE: Final = 8 * 1024 * 1024


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
        last_ms = self.until_ms + int(lease_s * 1000) + _SERVERS_SKEW_MS
        in_time = self.begun_ms - _SERVERS_SKEW_MS <= node.created_ms <= last_ms
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


class RefusedNode(NamedTuple):
    """A node that the target does not take, and why; ``size`` in bytes."""

    path: str
    size: int
    reason: CreateResult


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The result of a copy."""

    copied: int  #: Persistent nodes that the target has now.
    ephemeral: int  #: Ephemeral nodes, which are not copied.
    value_bytes: int  #: Of the copied nodes.
    path_bytes: int  #: Of the copied nodes.
    largest: SizedNode | None  #: The node with the largest value; None without nodes.
    not_copied: tuple[RefusedNode, ...]  #: Nodes that the target did not take.
    seconds: float  #: Of the whole copy.
    writing_s: float  #: Seconds spent in writes, over all threads.


class Copy:
    """Copies the persistent nodes of a tree; reads the source, and writes to the scratch namespace while it is held.

    ``progress`` is called with the number of nodes seen so far. Nodes about migrations, and the marker, are left out.
    """

    def __init__(
        self,
        source: MetadataStore,
        scratch: ScratchStore,
        hold: ScratchLease,
        *,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._walk = TreeWalk([source], self._copy, passed_over=(COORDINATOR, MARKER))
        self._scratch = scratch
        self._hold = hold
        self._progress = progress
        self._lock = threading.Lock()
        self._copied = self._ephemeral = self._value_bytes = self._path_bytes = 0
        self._largest: SizedNode | None = None
        self._not_copied: list[RefusedNode] = []
        self._writing_s = 0.0

    def run(self) -> CopyReport:
        """Copy everything, once.

        Raises what the stores raise, and RefusedError where something else writes to the namespace.
        """
        begin = time.monotonic()
        self._walk.run()
        return CopyReport(
            self._copied,
            self._ephemeral,
            self._value_bytes,
            self._path_bytes,
            self._largest,
            tuple(sorted(self._not_copied, key=lambda one: one.path)),
            time.monotonic() - begin,
            self._writing_s,
        )

    def _copy(self, paths: Sequence[str], nodes: Sequence[Sequence[Versioned | None]]) -> None:
        batch: list[NewNode] = []
        ephemeral = size = 0
        for path, node in zip(paths, nodes[0], strict=True):
            if node is None:
                continue
            if node.ephemeral:
                ephemeral += 1
                continue
            batch.append(NewNode(path, node.value, node.version))
            size += len(node.value)
            if len(batch) >= _NODES_AT_ONCE or size >= _BYTES_AT_ONCE:
                self._write(batch)
                batch, size = [], 0
        if batch:
            self._write(batch)
        with self._lock:
            self._ephemeral += ephemeral

    def _write(self, batch: Sequence[NewNode]) -> None:
        self._hold.require()
        begin = time.monotonic()
        results = self._scratch.create_many(batch)
        seconds = time.monotonic() - begin
        with self._lock:
            self._writing_s += seconds
            for node, result in zip(batch, results, strict=True):
                self._take(node, result)
            seen = self._copied + len(self._not_copied)
        self._progress(seen)

    def _take(self, node: NewNode, result: CreateResult) -> None:
        if result is CreateResult.EXISTS:
            raise RefusedError(
                f"{node.path} was in the target before it was copied, though the namespace was empty: another client "
                "writes to it"
            )
        size = len(node.value)
        if self._largest is None or size > self._largest.size:
            self._largest = SizedNode(node.path, size)
        if result is CreateResult.CREATED:
            self._copied += 1
            self._value_bytes += size
            self._path_bytes += len(node.path.encode("utf-8", "surrogatepass"))
            return
        self._not_copied.append(RefusedNode(node.path, size, result))


@dataclass(frozen=True, slots=True)
class Estimate:
    """The durations of a migration of this store to this target, in seconds, at the speed of the rehearsal.

    For ``blocked_least`` no metadata can be written where all participants leave at once, for ``blocked_most`` where
    one never does. ``proposed`` is the proposal's allowance for a copy of this size.
    """

    copying: float
    blocked_least: float
    blocked_most: float
    proposed: float

    @property
    def is_as_proposed(self) -> bool:
        """Whether the copy is as fast as the proposal says."""
        return self.copying <= self.proposed


@dataclass(frozen=True, slots=True)
class RehearsalReport:
    """The findings of a rehearsal."""

    copy: CopyReport  #: The copy's result, with the nodes that the target did not take.
    comparison: Report  #: Of the source and the copy.
    comparing_s: float  #: Duration of the comparison, in seconds.
    changed: int  #: Differences from changes of the source since the copy began.
    damaged: int  #: All other differences, except at nodes that were not copied.
    first: tuple[Difference, ...]  #: The first of the damaged.
    estimate: Estimate  #: For a migration.

    @property
    def is_good(self) -> bool:
        """Whether a migration would have ended well: the target took every node, and each as it was."""
        return not self.copy.not_copied and not self.damaged


class Rehearsal:
    """Copies and compares once, in a namespace that ``hold`` has taken.

    ``reading_s`` returns the seconds spent reading the source so far, over all threads; ``limited`` says that reads
    were throttled, so that a migration is faster than the rehearsal. ``progress`` is called with the number of nodes
    read so far: each is read to be copied, and again to be compared.
    """

    def __init__(
        self,
        source: MetadataStore,
        scratch: ScratchStore,
        compared: MetadataStore,
        hold: ScratchLease,
        *,
        reading_s: Callable[[], float],
        limited: bool = False,
        keep: int = 20,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._source = source
        self._scratch = scratch
        self._compared = compared
        self._hold = hold
        self._reading_s = reading_s
        self._limited = limited
        self._keep = keep
        self._progress = progress

    def run(self) -> RehearsalReport:
        """Copy and compare; raises what the stores raise, and RefusedError where the namespace is not ours alone."""
        begun_ms = int(time.time() * 1000)
        copy = Copy(self._source, self._scratch, self._hold, progress=self._progress).run()
        estimate = _estimate(copy, self._reading_s(), self._limited)
        begin = time.monotonic()
        sorting = _DifferenceSorter(begun_ms - _SKEW_MS, {one.path for one in copy.not_copied}, self._keep)
        comparison = Comparison(
            self._source,
            self._compared,
            passed_over=(COORDINATOR, MARKER),
            versions=VersionRule.AUTO,
            keep=self._keep,
            sink=sorting.take,
            progress=lambda nodes: self._progress(copy.copied + nodes),
        ).run()
        comparing_s = time.monotonic() - begin
        extra = comparison.counts[DifferenceClass.EXTRA]
        first: tuple[Difference, ...] = tuple(sorting.damaged)
        # If the target has no more nodes than were copied, one that the source lacks was deleted there.
        if comparison.compared - comparison.counts[DifferenceClass.MISSING] <= copy.copied:
            changed = sorting.changed + extra
        else:
            changed, first = sorting.changed, first + comparison.first[DifferenceClass.EXTRA]
        damaged = comparison.faults - changed - sorting.refused
        return RehearsalReport(copy, comparison, comparing_s, changed, damaged, first, estimate)


class _DifferenceSorter:
    """Separates differences that come from changes of the source, and keeps the first of the others."""

    def __init__(self, since_ms: int, not_copied: Collection[str], keep: int) -> None:
        self._since_ms = since_ms
        self._not_copied = not_copied
        self._keep = keep
        self.changed = self.refused = 0
        self.damaged: list[Difference] = []

    def take(self, differences: Sequence[Difference]) -> None:
        """Add differences of the comparison, which calls from one thread at a time."""
        for one in differences:
            if one.source is None:
                continue
            if one.path in self._not_copied:
                self.refused += 1
            elif one.source.modified_ms >= self._since_ms:
                self.changed += 1
            elif len(self.damaged) < self._keep:
                self.damaged.append(one)


def _estimate(copy: CopyReport, reading_s: float, limited: bool) -> Estimate:
    # Writes hardly overlap throttled reads, so the sum is the time of a copy without the limit.
    copying = min(copy.seconds, reading_s + copy.writing_s) if limited else copy.seconds
    blocked = copying + _LAST_POLL_SECONDS
    proposed = (copy.value_bytes + copy.path_bytes) / PROPOSED_BYTES * PROPOSED_SECONDS
    return Estimate(copying, blocked, blocked + PARTICIPANTS_LIMIT_SECONDS, max(proposed, _LAST_POLL_SECONDS))
