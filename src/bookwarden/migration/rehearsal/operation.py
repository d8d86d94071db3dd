"""A migration rehearsed: a copy of the store in use, in a scratch namespace, timed and compared.

The store in use is only read. It goes on to change meanwhile, as it does not in a migration, so a difference at a node
that was changed since the copy began is none of the copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from bookwarden.metastore.interface import MetadataStore, ScratchStore
from bookwarden.migration.comparison.differences import Difference, DifferenceClass
from bookwarden.migration.comparison.findings import Report, VersionRule
from bookwarden.migration.comparison.stores import Comparison
from bookwarden.migration.rehearsal.copying import Copy, CopyReport
from bookwarden.migration.rehearsal.marker import MARKER, Hold
from bookwarden.migration.rehearsal.scratch import COORDINATOR

# What PIP-454 promises, and how long its coordinator waits for participants before it copies all the same.
PROPOSED_SECONDS: Final = 30.0
PROPOSED_BYTES: Final = 500_000_000
PARTICIPANTS_LIMIT_SECONDS: Final = 60.0
# How long the coordinator goes on to wait for further nodes when it has copied the last one.
_LAST_POLL_SECONDS: Final = 1.0
# The source's clock and ours may differ by so much.
_SKEW_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a migration of this store to this target would take, in seconds, at the speed of the rehearsal.

    ``blocked_least`` is how long no metadata can be written where all participants leave at once, ``blocked_most``
    where one never does. ``proposed`` is what the proposal allows for so many bytes.
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
    """What the rehearsal found.

    ``changed`` counts differences that come from changes of the source since it began, ``damaged`` those that do not,
    without the nodes that the target did not take; ``first`` are the first of these.
    """

    copy: CopyReport
    comparison: Report
    comparing_s: float
    changed: int
    damaged: int
    first: tuple[Difference, ...]
    estimate: Estimate

    @property
    def is_good(self) -> bool:
        """Whether a migration would have ended well: the target took every node, and each as it was."""
        return not self.copy.not_copied and not self.damaged


class Rehearsal:
    """Copies and compares once, in a namespace that ``hold`` has taken.

    ``reading_s`` tells the seconds in which the source was read so far, over all threads; ``limited`` says that the
    reads were held back, so that a migration is faster than the rehearsal. ``progress`` is told the number of nodes
    read so far: each is read to be copied, and again to be compared.
    """

    def __init__(
        self,
        source: MetadataStore,
        scratch: ScratchStore,
        compared: MetadataStore,
        hold: Hold,
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
        sorting = _Sorting(begun_ms - _SKEW_MS, {one.path for one in copy.not_copied}, self._keep)
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
        # Where the target has no more nodes than were copied, one that only it has was deleted in the source.
        if comparison.compared - comparison.counts[DifferenceClass.MISSING] <= copy.copied:
            changed = sorting.changed + extra
        else:
            changed, first = sorting.changed, first + comparison.first[DifferenceClass.EXTRA]
        damaged = comparison.faults - changed - sorting.refused
        return RehearsalReport(copy, comparison, comparing_s, changed, damaged, first, estimate)


class _Sorting:
    """Counts, of the differences at nodes of the source, those that come from changes of it; keeps some others."""

    def __init__(self, since_ms: int, not_copied: Collection[str], keep: int) -> None:
        self._since_ms = since_ms
        self._not_copied = not_copied
        self._keep = keep
        self.changed = self.refused = 0
        self.damaged: list[Difference] = []

    def take(self, differences: Sequence[Difference]) -> None:
        """Take over what the comparison found; it calls from one thread at a time."""
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
    # While reads are held back for a while, writes hardly meet: what each took is what both would take together.
    copying = min(copy.seconds, reading_s + copy.writing_s) if limited else copy.seconds
    blocked = copying + _LAST_POLL_SECONDS
    proposed = (copy.value_bytes + copy.path_bytes) / PROPOSED_BYTES * PROPOSED_SECONDS
    return Estimate(copying, blocked, blocked + PARTICIPANTS_LIMIT_SECONDS, max(proposed, _LAST_POLL_SECONDS))
