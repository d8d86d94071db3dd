"""The drain of a former bookie cluster: what is there is copied, promoted and cleaned up, until the cluster can leave.

Each pass does all that can be done now, and reports what is left and why. How far a drain is, both clusters show by
themselves: so it may be stopped and repeated at any time, and nothing of it is remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bookwarden.bookie_clusters.inventory import LedgerInventory, OpenLedger, UnloadResult, roll, take_inventory
from bookwarden.bookie_clusters.moving.build import Build, find_build
from bookwarden.bookie_clusters.moving.cleanup import Cleanup, SentMarks
from bookwarden.bookie_clusters.moving.promotion import Promoter, PromotionPass
from bookwarden.bookie_clusters.registry import NOT_OURS
from bookwarden.bookie_clusters.registry_node import ClusterRegistry
from bookwarden.errors import RefusedError
from bookwarden.ledgers.outcomes import CopyOutcome

# What was closed by the first is copied by the second; what is opened meanwhile is in the active cluster.
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class RemainingLedgers:
    """The ledgers that a former cluster has."""

    cluster: str  #: Its name.
    active: str  #: Where brokers write.
    ledgers: Counter[str]  #: All, by kind.
    size: int  #: Bytes of those that are closed, of one copy of each entry.
    open: tuple[OpenLedger, ...]  #: Those that are still written.
    may_go: int  #: Those that brokers read from the active cluster.
    stays: Counter[str]  #: All others, by the reason.
    to_copy: int  #: How many of them are closed, and not in the active cluster yet.
    to_copy_size: int  #: Their bytes, as above.
    copying_s: float | None  #: Seconds to copy these, at the pace of the newest build; None without one.
    window_left_s: float  #: Until then nothing may go; 0 once it may.

    @property
    def total(self) -> int:
        """How many ledgers of ours there are."""
        return self.ledgers.total() - self.ledgers[NOT_OURS]

    @property
    def topics(self) -> list[str]:
        """The topics to unload, so that what is open is closed."""
        return LedgerInventory((), self.open).topics


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The result of one pass."""

    left: RemainingLedgers  #: What was left when the sweep had not deleted anything yet that this pass marked.
    builds: tuple[Build, ...]  #: What was copied.
    unloaded: tuple[UnloadResult, ...]  #: Topics, so that what was open is closed.
    promoted: PromotionPass | None  #: None where nothing was to be promoted.
    marked: SentMarks | None  #: None where nothing may go yet.

    @property
    def failed(self) -> int:
        """How many ledgers could not be copied, which an operator has to look at."""
        return self.builds[-1].counts.of(CopyOutcome.FAILED) if self.builds else 0


@dataclass(frozen=True)
class Drainer:
    """Drains former clusters."""

    registry: ClusterRegistry  #: Of this Pulsar cluster.
    cleanup: Cleanup  #: Marks what may go.
    promoting: Promoter  #: Has brokers read copies.

    def left(self, name: str) -> RemainingLedgers:
        """Count what the cluster has; changes nothing.

        Raises RefusedError where it is active or not registered.
        """
        self._require_former(name)
        targets = self.cleanup.targets(name)
        found = self._inventory(name)
        to_copy, size = targets.to_copy[name], targets.to_copy_sizes[name]
        return RemainingLedgers(
            name,
            targets.active,
            Counter({count.kind: count.open + count.closed for count in found.counts}),
            sum(count.size for count in found.counts),
            found.left,
            targets.total,
            Counter({reason: number for (_, reason), number in targets.kept.items()}),
            to_copy,
            size,
            self._seconds_for(to_copy, size),
            targets.window_left_s,
        )

    def carry_out(
        self,
        name: str,
        build: Callable[[], Build],
        *,
        per_second: float,
        force: bool = False,
        say: Callable[[str], object] = lambda _: None,
    ) -> DrainResult:
        """Do all that can be done now; ``build`` copies everything that is closed, ``say`` is called with each step.

        Topics are unloaded not more than ``per_second``; ``force`` waives the rollback window. Raises RefusedError as
        `left`, while a switch is under way, and where nothing may be marked.
        """
        self._require(name)
        builds: list[Build] = []
        unloaded: list[UnloadResult] = []
        for _ in range(_ROUNDS):
            say("copying what is closed")
            builds.append(build())
            topics = self._inventory(name).topics
            if not topics:
                break
            say(f"unloading {len(topics):,} topics that still write there")
            unloaded += roll(topics, self.promoting.topics.unload, per_second, lambda _: None)
        promoted = self._promote(per_second, say)
        left = self.left(name)
        marked = None
        if left.may_go and (force or not left.window_left_s):
            say(f"marking {left.may_go:,} ledgers for deletion")
            marked = self.cleanup.mark(name, force=force)
        return DrainResult(left, tuple(builds), tuple(unloaded), promoted, marked)

    def _inventory(self, name: str) -> LedgerInventory:
        return take_inventory(self.registry.require().registry, store_of=self.registry.store_of, only=name)

    def _seconds_for(self, ledgers: int, size: int) -> float | None:
        build = find_build(self.registry.store)
        pace = None if build is None else build.pace
        return None if pace is None else pace.seconds_for(ledgers, size)

    def _require(self, name: str) -> None:
        """Raise RefusedError where the drain could not come to its end."""
        self._require_former(name)
        try:
            self.cleanup.require(name, force=True)
        except RefusedError as error:
            raise RefusedError(f"bookie cluster {name!r} is not drained: {error}") from error

    def _require_former(self, name: str) -> None:
        if self.cleanup.former.active(name).name == name:
            raise RefusedError(f"bookie cluster {name!r} is not drained: it is active, and brokers write there")

    def _promote(self, per_second: float, say: Callable[[str], object]) -> PromotionPass | None:
        if self.cleanup.former.active().since_ms is None:
            return None
        plan = self.promoting.plan()
        if not plan.ledgers.total():
            return None
        say(f"promoting {plan.ledgers.total():,} ledgers, by unloading {len(plan.topics):,} topics")
        return self.promoting.carry_out(plan, per_second)
