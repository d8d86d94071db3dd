"""A migration rehearsed: a copy of the store in use, in a scratch namespace, timed and compared.

The store in use is only read. Unlike in a migration it changes meanwhile, so a difference at a node that was changed
since the copy began is not the copy's fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from bookwarden.metastore.interface import MetadataStore, ScratchStore
from bookwarden.migration.comparison import Comparison, Difference, DifferenceClass, Report, VersionRule
from bookwarden.migration.rehearsal.copying import Copy, CopyReport
from bookwarden.migration.rehearsal.marker import MARKER, Hold
from bookwarden.migration.rehearsal.scratch import COORDINATOR

# The speed that PIP-454 promises, and its coordinator's wait for participants, after which it copies anyway.
PROPOSED_SECONDS: Final = 30.0
PROPOSED_BYTES: Final = 500_000_000
PARTICIPANTS_LIMIT_SECONDS: Final = 60.0
# The coordinator's wait for further nodes after it has copied the last one.
_LAST_POLL_SECONDS: Final = 1.0
# The source's clock and ours may differ by this much.
_SKEW_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """The durations of a migration of this store to this target, in seconds, at the speed of the rehearsal.

    For ``blocked_least`` no metadata can be written where all participants leave at once, for ``blocked_most`` where
    one never does. ``proposed`` is the proposal's allowance for so many bytes.
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
        # If the target has no more nodes than were copied, one that the source lacks was deleted there.
        if comparison.compared - comparison.counts[DifferenceClass.MISSING] <= copy.copied:
            changed = sorting.changed + extra
        else:
            changed, first = sorting.changed, first + comparison.first[DifferenceClass.EXTRA]
        damaged = comparison.faults - changed - sorting.refused
        return RehearsalReport(copy, comparison, comparing_s, changed, damaged, first, estimate)


class _Sorting:
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
