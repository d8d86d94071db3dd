"""The switch to another bookie cluster, step by step; killed at any of them, the same command carries it on.

1. The order is kept (`OrderLease`), with the registry's epoch that it was given on.
2. The newest promotion is taken away, and the registry is changed, by one compare-and-set: from here on the switch is
   made, whatever becomes of this process.
3. An event is sent, which spares others a wait, and whose loss costs nothing.
4. All live brokers are waited for.

The registry is changed by compare-and-set, and so is a copy of a ledger, so no safety depends on the lease: it keeps
two commands from working at the same thing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from bookwarden.bookie_clusters.brokers import Broker, read_brokers
from bookwarden.bookie_clusters.checks.observing import Observer, run_precheck
from bookwarden.bookie_clusters.checks.precheck import Precheck, judge_brokers
from bookwarden.bookie_clusters.order import (
    NextStep,
    Order,
    Phase,
    SwitchPlan,
    phase_of,
    plan_resumption,
    plan_rollback,
    plan_switch,
)
from bookwarden.bookie_clusters.promoted import void_promotion
from bookwarden.bookie_clusters.registry import Registry
from bookwarden.bookie_clusters.registry_node import RegistryNode, StoredRegistry
from bookwarden.clusters.pulsar.messages.switch_events import SwitchEvents
from bookwarden.errors import BookwardenError, FormatError, LostRaceError, RefusedError
from bookwarden.findings import Finding, failing
from bookwarden.leases import LeaseTimes
from bookwarden.ledgers.switch_event import SwitchEvent
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.record_lease import LeaseMessages, RecordLease, find_record, not_a_record
from bookwarden.records import record_fields, record_of

ORDER_PATH: Final = "/bookwarden/bookie-clusters-switch"

_OF_ORDERS: Final = LeaseMessages(
    "A switch",
    "carries out this order",
    "carry on with `bookie-clusters switch --resume`",
    "look at `bookie-clusters status`",
)
_LOOK_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class FoundOrder:
    """The record of an order as it was read. ``is_free`` is as for FoundRecord."""

    order: Order
    version: int
    holder: str
    is_free: bool


def find_order(store: MetadataStore) -> FoundOrder | None:
    """Read the record; None if no order was given yet, FormatError if it is none."""
    found = find_record(store, ORDER_PATH, "an order")
    if found is None:
        return None
    try:
        order = record_of(Order, found.fields)
    except FormatError as error:
        raise not_a_record(ORDER_PATH, "an order", error) from error
    return FoundOrder(order, found.version, found.holder, found.is_free)


class OrderLease(RecordLease):
    """Holds the record of the newest order in a with statement, in which `take` comes first; thread-safe."""

    def __init__(self, store: MetadataStore, times: LeaseTimes | None = None) -> None:
        super().__init__(store, ORDER_PATH, _OF_ORDERS, times)

    def take(self, order: Order, found: FoundOrder | None, say: Callable[[str], object] = lambda _: None) -> None:
        """Write this order over the found one; RefusedError if another process works, or came first.

        A record that is held is watched first, until its holder has certainly given up.
        """
        if found is not None and not found.is_free:
            refusal = (
                f"a switch to {found.order.target} is under way, carried out by {found.holder}: wait for its end, "
                "see `bookie-clusters status --watch`"
            )
            found = self.wait_until_given_up(found, lambda: find_order(self._store), refusal, say)
        self.hold(record_fields(order), None if found is None else found.version)

    def advance(self, order: Order) -> None:
        """Keep the order as it is now, before it is acted on; raises as `require`."""
        self.write(record_fields(order))

    def __enter__(self) -> OrderLease:
        super().__enter__()
        return self


class SwitchedBroker(NamedTuple):
    """A broker that follows: how many seconds after the registry was changed it reported that, by the store's clock."""

    broker: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PlannedSwitch:
    """A plan, and what it rests on."""

    plan: SwitchPlan
    found: StoredRegistry
    last: FoundOrder | None


@dataclass(frozen=True, slots=True)
class SwitchOutcome:
    """The result of a switch. ``behind`` are brokers that did not follow in time, with what they follow instead."""

    order: Order
    epoch: int
    followed: tuple[SwitchedBroker, ...]
    behind: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to do."""
        return self.order.phase is Phase.DONE


@dataclass(frozen=True, slots=True)
class SwitchOptions:
    """The options of an order to switch."""

    dry_run: bool = False  #: Run the precheck alone, without a trial ledger.
    skip_precheck: bool = False  #: Messages can be lost by that.
    with_trial: bool = True  #: Write a trial ledger to the target's bookies.
    wait_s: float = 60.0  #: Maximum seconds to wait for brokers.


@dataclass(frozen=True, slots=True)
class SwitchResult:
    """The result of an order to switch."""

    precheck: Precheck | None  #: None if it was skipped, or the switch was made before.
    switched: SwitchOutcome | None  #: None if the precheck failed, and after a dry run.

    @property
    def is_refused(self) -> bool:
        """Whether the precheck found what blocks the switch: nothing was switched then."""
        return self.precheck is not None and bool(self.precheck.failing)


@dataclass(frozen=True, slots=True)
class SwitchState:
    """The state of the newest switch, and of everything that follows it."""

    phase: Phase
    registry: Registry | None
    order: FoundOrder | None
    brokers: tuple[Broker, ...]


class Switch:
    """Switches by the registry in Pulsar's own store; ``events`` send the event, and may raise BookwardenError."""

    def __init__(
        self,
        registry: RegistryNode,
        events: SwitchEvents,
        origin: str,
        *,
        times: LeaseTimes | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.registry = registry
        self._times = times
        self._events = events
        self._origin = origin
        self._clock = clock
        self._sleep = sleep

    def state(self) -> SwitchState:
        """Read where everything stands; changes nothing."""
        brokers = read_brokers(self.registry.store)
        found, last = self.registry.read(), find_order(self.registry.store)
        registry = None if found is None else found.registry
        return SwitchState(phase_of(registry, last.order if last else None, brokers), registry, last, tuple(brokers))

    def plan(self, target: str) -> PlannedSwitch:
        """Plan a switch to the cluster of this name; RefusedError where that cannot be."""
        return self._planned(lambda registry, last: plan_switch(registry, last, target, self._origin, self._now_ms()))

    def plan_back(self) -> PlannedSwitch:
        """Plan the return to the cluster that was active before; NotFoundError if nothing was switched."""
        return self._planned(lambda registry, last: plan_rollback(registry, last, self._origin, self._now_ms()))

    def plan_rest(self) -> PlannedSwitch:
        """Plan to carry on what another process left; NotFoundError if nothing is left."""
        return self._planned(plan_resumption)

    def is_made(self, planned: PlannedSwitch) -> bool:
        """Return whether the registry was changed already, so that only what follows is left."""
        return planned.plan.step is NextStep.VERIFY or planned.plan.order.is_in(planned.found.registry)

    def run(
        self,
        planned: PlannedSwitch,
        options: SwitchOptions,
        observer: Observer,
        *,
        confirm: Callable[[Precheck | None], object] = lambda _: None,
        say: Callable[[str], object] = lambda _: None,
        tell: Callable[[SwitchedBroker], object] = lambda _: None,
    ) -> SwitchResult:
        """Check, switch, and wait for the brokers: what commands and REST do.

        ``confirm`` is called with the precheck before the switch is made, and may raise RefusedError; ``say`` and
        ``tell``, and what is raised, are those of `carry_out`.
        """
        is_made = self.is_made(planned)
        found = None
        if not (is_made or options.skip_precheck):
            order = planned.plan.order
            with_trial = options.with_trial and not options.dry_run
            found = run_precheck(observer, order.target, with_trial=with_trial, is_rollback=order.is_rollback)
        if options.dry_run or (found is not None and found.failing):
            return SwitchResult(found, None)
        if not is_made:
            confirm(found)
        switched = self.carry_out(
            planned, wait_s=options.wait_s, is_checked=not options.skip_precheck, say=say, tell=tell
        )
        return SwitchResult(found, switched)

    def carry_out(
        self,
        planned: PlannedSwitch,
        *,
        wait_s: float,
        is_checked: bool = True,
        say: Callable[[str], object] = lambda _: None,
        tell: Callable[[SwitchedBroker], object] = lambda _: None,
    ) -> SwitchOutcome:
        """Carry the plan out, and wait up to ``wait_s`` seconds for the brokers; ``tell`` is called for each.

        Right before the registry is changed the brokers are looked at again, unless ``is_checked`` is False.
        Raises RefusedError if that, or anything else, changed since the plan was made; nothing was switched then.
        """
        if planned.plan.step is NextStep.VERIFY:
            return self._follow(planned, wait_s, tell)
        order = planned.plan.order
        with OrderLease(self.registry.store, self._times) as lease:
            lease.take(order, planned.last, say)
            if not order.is_in(planned.found.registry):
                self._change(order, planned.found, lease, is_checked=is_checked)
            if order.phase is Phase.SWITCH_TRIGGERED:
                order = order.advanced(Phase.LIVE_DUAL_READ)
                lease.advance(order)
            changed = self._changed_by(order)
            say(f"{order.target} is active since epoch {order.epoch}; waiting for the brokers")
            errors = self._sent(order, changed.registry, say)
            followed, behind = self._await(order.epoch, changed.changed_ms, wait_s, tell, lease.require)
            if behind:
                errors += [f"not followed by {one}" for one in behind]
            order = order.advanced(Phase.DONE_WITH_FAILURES if behind else Phase.DONE, errors)
            lease.advance(order)
        return SwitchOutcome(order, order.epoch, tuple(followed), tuple(behind))

    def _planned(self, plan: Callable[[Registry, Order | None], SwitchPlan]) -> PlannedSwitch:
        found = self.registry.require()
        last = find_order(self.registry.store)
        return PlannedSwitch(plan(found.registry, last.order if last else None), found, last)

    def _change(self, order: Order, found: StoredRegistry, lease: OrderLease, *, is_checked: bool) -> None:
        """Make the target active; RefusedError if anything changed since the plan was made."""
        if is_checked:
            brokers = read_brokers(self.registry.store)
            require_brokers(judge_brokers(brokers, found.registry, order.target, is_rollback=order.is_rollback))
        following = found.registry.switched(order.target, order.origin, order.time_ms)
        if following.epoch != order.epoch:
            raise RefusedError(
                f"the registry has epoch {found.registry.epoch}, and the order is for {order.after_epoch}"
            )
        lease.require()
        # Before the registry says otherwise: a sweep goes on deleting what the former promotion covers until it reads
        # one of the two again.
        void_promotion(self.registry.store)
        try:
            self.registry.replace(found, following)
        except LostRaceError as error:
            # Another client may have changed it again after us, before our answer was read back.
            now = self.registry.read()
            if now is None or not order.is_in(now.registry):
                raise RefusedError(f"nothing was switched: {error}") from error

    def _changed_by(self, order: Order) -> StoredRegistry:
        found = self.registry.read()
        if found is None or not order.is_in(found.registry):
            raise RefusedError("the registry was changed again by another client: see `bookie-clusters status`")
        return found

    def _sent(self, order: Order, registry: Registry, say: Callable[[str], object]) -> list[str]:
        event = SwitchEvent(order.source, order.target, order.origin, order.epoch, order.time_ms, registry.owner)
        try:
            self._events.send(event)
        except BookwardenError as error:
            say(f"The event was not sent, which costs nothing but time: {error}")
            return [f"the event was not sent: {error}"]
        return []

    def _follow(self, planned: PlannedSwitch, wait_s: float, tell: Callable[[SwitchedBroker], object]) -> SwitchOutcome:
        found = planned.found
        directive = found.registry.directive
        epoch = 0 if directive is None else directive.epoch
        followed, behind = self._await(epoch, found.changed_ms, wait_s, tell, lambda: None)
        phase = Phase.DONE_WITH_FAILURES if behind else Phase.DONE
        order = replace(planned.plan.order, phase=phase, after_epoch=epoch - 1)
        return SwitchOutcome(order, epoch, tuple(followed), tuple(behind))

    def _await(
        self,
        epoch: int,
        changed_ms: int,
        wait_s: float,
        tell: Callable[[SwitchedBroker], object],
        require: Callable[[], None],
    ) -> tuple[list[SwitchedBroker], list[str]]:
        """Wait until all live brokers follow this epoch; return them, and those that do not when the time is over."""
        deadline = time.monotonic() + wait_s
        followed: dict[str, SwitchedBroker] = {}
        while True:
            brokers = read_brokers(self.registry.store)
            for broker in brokers:
                if broker.follower is not None and broker.follows(epoch) and broker.name not in followed:
                    seconds = max(0, broker.follower.reported_ms - changed_ms) / 1000
                    followed[broker.name] = SwitchedBroker(broker.name, seconds)
                    tell(followed[broker.name])
            behind = [broker.described() for broker in brokers if not broker.follows(epoch)]
            if not behind or time.monotonic() >= deadline:
                return list(followed.values()), behind
            require()
            self._sleep(_LOOK_EVERY_S)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def require_brokers(findings: Iterable[Finding]) -> None:
    """Raise RefusedError, with the first check that fails, if any does."""
    bad = failing(findings)
    if bad:
        raise RefusedError(f"{bad[0].seen}: {bad[0].advice}; nothing was switched")
