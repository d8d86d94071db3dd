"""A migration rehearsed: a copy of the store in use, in a scratch namespace, timed and compared.

The store in use is only read. Unlike in a migration it changes meanwhile, so a difference at a node that was changed
since the copy began is not the copy's fault.

The copy follows coordination.impl.MigrationCoordinator of pulsar-metadata 4.2. Every persistent node but the root is
put with its value, version and number of writes to the key of its path, parents before children. Pulsar's first error
ends its copy; this one goes on, to find all errors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bookwarden.errors import RefusedError
from bookwarden.metadata_migration.comparison import Comparison, Difference, DifferenceClass, Report, VersionRule
from bookwarden.metadata_migration.control import SizedNode
from bookwarden.metadata_migration.rehearsal.scratch import COORDINATOR, MARKER, ScratchLease
from bookwarden.metadata_migration.walking import TreeWalk
from bookwarden.metadata_migration.watching import PARTICIPANTS_LIMIT_SECONDS, PROPOSED_BYTES, PROPOSED_SECONDS
from bookwarden.metastore.interface import CreateResult, MetadataStore, NewNode, ScratchStore, Versioned

# The coordinator's wait for further nodes after it has copied the last one.
_LAST_POLL_SECONDS: Final = 1.0
# The source's clock and ours may differ by this much.
_SKEW_MS: Final = 60_000
# A request's worth, and a few megabytes at most where nodes are large.
_NODES_AT_ONCE: Final = 1_000
_BYTES_AT_ONCE: Final = 8 * 1024 * 1024


class NotCopied(NamedTuple):
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
    not_copied: tuple[NotCopied, ...]  #: Nodes that the target did not take.
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
        self._not_copied: list[NotCopied] = []
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
        self._not_copied.append(NotCopied(node.path, size, result))


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
