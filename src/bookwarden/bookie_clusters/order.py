"""An order to switch, and its phases: what a process must know that carries on where another was killed.

The registry says what is active, and the brokers what they follow; so an order adds only who gave it, on which state
of the registry, and whether it was a rollback. It is kept before the registry is changed; `is_in` says afterwards
whether it was.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from pydantic import Field

from bookwarden.bookie_clusters.brokers import Broker
from bookwarden.bookie_clusters.registry import Registry
from bookwarden.errors import NotFoundError, RefusedError
from bookwarden.records import RECORD


class Phase(enum.Enum):
    """The phases of a switch, in the words of PIP-477, but its BUILD_PROMOTE_CLEANUP, which has commands of its own."""

    NOT_REGISTERED = "NOT_REGISTERED"  #: There is one bookie cluster, or none: nothing to switch to.
    REGISTERED = "REGISTERED"  #: There is another, and no order.
    SWITCH_TRIGGERED = "SWITCH_TRIGGERED"  #: The order is given, and the registry may be changed by it.
    LIVE_DUAL_READ = "LIVE_DUAL_READ"  #: The registry is changed; brokers follow, and read from all clusters.
    DONE = "DONE"  #: All live brokers follow.
    DONE_WITH_FAILURES = "DONE_WITH_FAILURES"  #: The registry is changed, and something else did not succeed.
    ROLLBACK = "ROLLBACK"  #: The order is given, or carried out, to return to the cluster that was active before.


#: The phases that may follow each; an order that was never carried out counts as REGISTERED.
TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.NOT_REGISTERED: frozenset({Phase.REGISTERED}),
    Phase.REGISTERED: frozenset({Phase.NOT_REGISTERED, Phase.SWITCH_TRIGGERED, Phase.ROLLBACK}),
    Phase.SWITCH_TRIGGERED: frozenset({Phase.REGISTERED, Phase.LIVE_DUAL_READ}),
    Phase.LIVE_DUAL_READ: frozenset({Phase.DONE, Phase.DONE_WITH_FAILURES, Phase.ROLLBACK}),
    Phase.DONE: frozenset({Phase.SWITCH_TRIGGERED, Phase.ROLLBACK}),
    Phase.DONE_WITH_FAILURES: frozenset({Phase.DONE, Phase.DONE_WITH_FAILURES, Phase.SWITCH_TRIGGERED, Phase.ROLLBACK}),
    Phase.ROLLBACK: frozenset({Phase.REGISTERED, Phase.DONE, Phase.DONE_WITH_FAILURES}),
}
_UNDER_WAY: Final = frozenset({Phase.SWITCH_TRIGGERED, Phase.LIVE_DUAL_READ, Phase.ROLLBACK})


@dataclass(frozen=True, slots=True)
class Order:
    """An order to make ``target`` active, and how far it is."""

    __pydantic_config__ = RECORD

    source: str  #: Name of the bookie cluster that was active when it was given.
    target: str  #: Name of the one that is to be.
    after_epoch: int  #: Of the registry that it was given on; it makes the next one.
    origin: str  #: The process that gave it.
    time_ms: Annotated[int, Field(alias="time")]  #: When, by the clock of its origin.
    phase: Phase  #: As it was last kept.
    is_rollback: bool = False  #: It returns to the cluster that was active before.
    errors: Annotated[tuple[str, ...], Field(alias="troubles")] = ()  #: What failed besides.

    @property
    def epoch(self) -> int:
        """The epoch of the registry that the order makes."""
        return self.after_epoch + 1

    @property
    def is_under_way(self) -> bool:
        """Whether its record says that something is left to do."""
        return self.phase in _UNDER_WAY

    def is_in(self, registry: Registry) -> bool:
        """Return whether this very order made the registry's newest switch."""
        newest = registry.directive
        return newest is not None and (
            (newest.source, newest.target, newest.epoch, newest.origin, newest.time_ms)
            == (self.source, self.target, self.epoch, self.origin, self.time_ms)
        )

    def may_still_come(self, registry: Registry) -> bool:
        """Return whether the registry is as it was when the order was given, so that it can be carried out."""
        return registry.epoch == self.after_epoch and registry.active == self.source

    def advanced(self, phase: Phase, errors: Sequence[str] = ()) -> Order:
        """Return it in this phase; RefusedError unless that may follow."""
        if phase is not self.phase or phase is Phase.DONE_WITH_FAILURES:
            require_transition(self.phase, phase)
        return replace(self, phase=phase, errors=tuple(errors))


def require_transition(before: Phase, after: Phase) -> None:
    """Raise RefusedError unless the phase may follow the other."""
    if after not in TRANSITIONS[before]:
        raise RefusedError(
            f"the last switch is in phase {before.value}, which {after.value} cannot follow: carry it on with "
            "`bookie-clusters switch --resume` first"
        )


def phase_of(registry: Registry | None, order: Order | None, brokers: Sequence[Broker]) -> Phase:
    """Return the phase of the newest switch, by the registry and the brokers, which count, and the record."""
    if registry is None or len(registry.clusters) < 2:
        return Phase.NOT_REGISTERED
    if order is not None and order.is_under_way and order.may_still_come(registry):
        return order.phase
    directive = registry.directive
    if directive is None:
        return Phase.REGISTERED
    recorded = _phase_after(order) if order is not None and order.is_in(registry) else Phase.DONE
    if recorded is Phase.DONE and not all(broker.follows(directive.epoch) for broker in brokers):
        return Phase.LIVE_DUAL_READ
    return recorded


class NextStep(enum.Enum):
    """The next step of a command to switch."""

    START = "start"  #: Give a new order.
    RESUME = "resume"  #: Carry on what another process left.
    VERIFY = "verify"  #: The target is active: only see that all brokers follow.


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """The next step, and the order that it is about."""

    step: NextStep
    order: Order


def plan_switch(registry: Registry, last: Order | None, target: str, origin: str, time_ms: int) -> SwitchPlan:
    """Plan a switch to the cluster of this name; RefusedError where it cannot be switched to now."""
    registry.cluster(target)
    return _plan(registry, last, target, origin, time_ms, is_rollback=False)


def plan_rollback(registry: Registry, last: Order | None, origin: str, time_ms: int) -> SwitchPlan:
    """Plan the return to the cluster that was active before the newest switch.

    Given again it carries on, or finds it done: never does it return to where the last rollback came from.
    """
    if last is not None and last.is_rollback and (last.is_in(registry) or _can_come(registry, last)):
        return _plan(registry, last, last.target, origin, time_ms, is_rollback=True)
    if registry.directive is None:
        raise NotFoundError("nothing was switched yet: there is nothing to return from")
    return _plan(registry, last, registry.directive.source, origin, time_ms, is_rollback=True)


def plan_resumption(registry: Registry, last: Order | None) -> SwitchPlan:
    """Plan to carry on what another process left; NotFoundError if nothing is left to do."""
    if last is None or not (_can_come(registry, last) or (last.is_in(registry) and last.phase is not Phase.DONE)):
        raise NotFoundError("no switch is under way: there is nothing to carry on")
    return SwitchPlan(NextStep.RESUME, last)


def _plan(
    registry: Registry, last: Order | None, target: str, origin: str, time_ms: int, *, is_rollback: bool
) -> SwitchPlan:
    if last is not None and last.target == target and (_can_come(registry, last) or last.is_in(registry)):
        is_left = last.is_under_way or last.phase is Phase.DONE_WITH_FAILURES
        return SwitchPlan(NextStep.RESUME if is_left else NextStep.VERIFY, last)
    first = Phase.ROLLBACK if is_rollback else Phase.SWITCH_TRIGGERED
    order = Order(registry.active, target, registry.epoch, origin, time_ms, first, is_rollback)
    if target == registry.active:
        return SwitchPlan(NextStep.VERIFY, order)
    if last is not None and last.is_in(registry):
        require_transition(_phase_after(last), first)
    # Refuses a deprecated cluster.
    registry.switched(target, origin, time_ms)
    return SwitchPlan(NextStep.START, order)


def _phase_after(carried_out: Order) -> Phase:
    """Return the phase of an order that changed the registry: killed right after that, its record is one behind."""
    return Phase.LIVE_DUAL_READ if carried_out.phase is Phase.SWITCH_TRIGGERED else carried_out.phase


def _can_come(registry: Registry, order: Order) -> bool:
    return order.is_under_way and order.may_still_come(registry)
