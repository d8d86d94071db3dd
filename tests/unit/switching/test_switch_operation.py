"""The switch, step by step: killed anywhere, the same command again ends in the same state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from bookwarden.bookie_clusters.operation import (
    ORDER_PATH,
    PlannedSwitch,
    Switch,
    SwitchEvent,
    SwitchOutcome,
    find_order,
)
from bookwarden.bookie_clusters.order import NextStep, Phase
from bookwarden.bookie_clusters.promoted import PROMOTION_PATH, Promotion, find_promotion, keep_promotion
from bookwarden.bookie_clusters.registry import REGISTRY_PATH, parse_registry, serialize_registry
from bookwarden.bookie_clusters.registry_node import RegistryNode
from bookwarden.errors import (
    LostRaceError,
    OutcomeUnknownError,
    PulsarUnavailableError,
    RefusedError,
)
from bookwarden.leases import LeaseTimes
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.wrappers import ForwardingStore
from servers.switching.ground import Ground, registry_of
from unit.switching.mortal import Killed, Mortal

# No renewal comes between the steps, and a holder that does not renew is given up soon.
QUICK = LeaseTimes(renew_s=0.05, lease_s=30.0, given_up_s=0.1)
LIVELY = LeaseTimes(renew_s=0.02, lease_s=30.0, given_up_s=30.0)


class Post:
    """Takes the events, or refuses them."""

    def __init__(self, *, works: bool = True) -> None:
        self.sent: list[SwitchEvent] = []
        self._works = works

    def send(self, event: SwitchEvent) -> None:
        if not self._works:
            raise PulsarUnavailableError("no broker answers")
        self.sent.append(event)


def command(store: MetadataStore, post: Post | None = None, *, origin: str = "one", **options: Any) -> Switch:
    return Switch(RegistryNode(store, "memory:"), post or Post(), origin, **{"times": QUICK, **options})


def carried(switch: Switch, planned: PlannedSwitch, *, wait_s: float = 10.0, **options: Any) -> SwitchOutcome:
    return switch.carry_out(planned, wait_s=wait_s, **options)


def order_of(ground: Ground) -> tuple[Phase, bool]:
    found = find_order(ground.store)
    assert found is not None
    return found.order.phase, found.is_free


@pytest.fixture
def ground() -> Ground:
    made = Ground()
    made.broker("b1")
    made.broker("b2")
    return made


def test_a_switch_is_one_change_and_one_event(ground: Ground) -> None:
    post, told = Post(), []
    switch = command(ground.store, post)
    result = carried(switch, switch.plan("b"), tell=told.append)
    registry = ground.registry
    assert (registry.active, registry.epoch) == ("b", 3)
    assert registry.directive is not None
    assert (registry.directive.source, registry.directive.origin) == ("a", "one")
    assert post.sent == [SwitchEvent("a", "b", "one", 3, registry.directive.time_ms, registry.owner)]
    assert (result.is_whole, result.epoch, result.behind) == (True, 3, ())
    assert [one.broker for one in told] == ["b1", "b2"]
    assert order_of(ground) == (Phase.DONE, True)
    assert switch.state().phase is Phase.DONE


def test_a_promotion_is_void_before_the_registry_is_changed(ground: Ground) -> None:
    seen: list[tuple[str, bool]] = []

    class Watched(ForwardingStore):
        """Tells, at each change of the registry, whether there is a promotion."""

        def put(self, path: str, value: bytes, version: int) -> None:
            if path == REGISTRY_PATH:
                seen.append((parse_registry(value).active, ground.store.get(PROMOTION_PATH) is not None))
            super().put(path, value, version)

    switch = command(Watched(ground.store))
    for planned in (lambda: switch.plan("b"), switch.plan_back):
        keep_promotion(ground.store, Promotion("b", 3, 1, frozenset()), -1)
        assert carried(switch, planned()).is_whole
    assert seen == [("b", False), ("a", False)]
    assert ground.store.get(PROMOTION_PATH) is None


def test_a_promotion_that_is_written_again_and_again_ends_the_switch_before_it_is_made(ground: Ground) -> None:
    keep_promotion(ground.store, Promotion("b", 3, 1, frozenset()), -1)

    class Rewritten(ForwardingStore):
        """Another process promotes whenever the node is about to go."""

        def delete_many(self, expected: Sequence[tuple[str, int]], **options: Any) -> list[DeleteResult]:
            if expected[0][0] == PROMOTION_PATH:
                keep_promotion(ground.store, Promotion("b", 3, 1, frozenset()), find_promotion(ground.store)[1])
            return super().delete_many(expected, **options)

    switch = command(Rewritten(ground.store))
    with pytest.raises(LostRaceError, match="is being written by another process"):
        carried(switch, switch.plan("b"))
    assert ground.registry.active == "a"


def test_there_and_back_and_the_same_again(ground: Ground) -> None:
    for _ in range(2):
        switch = command(ground.store)
        carried(switch, switch.plan("b"))
        assert command(ground.store).plan("b").plan.step is NextStep.VERIFY
        for _ in range(2):
            switch = command(ground.store)
            planned = switch.plan_back()
            assert carried(switch, planned).is_whole
            assert ground.registry.active == "a"
        assert planned.plan.step is NextStep.VERIFY
    assert ground.registry.epoch == 6


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kill_at", range(5))
@pytest.mark.parametrize("is_rollback", [False, True])
@pytest.mark.parametrize("again", ["same", "resume"])
def test_killed_anywhere_the_same_command_again_ends_in_the_same_state(
    ground: Ground, before: bool, kill_at: int, is_rollback: bool, again: str
) -> None:
    if is_rollback:
        first = command(ground.store)
        carried(first, first.plan("b"))
    target, epoch = ("a", 4) if is_rollback else ("b", 3)
    store = Mortal(ground.store, kill_at, before=before)
    killed = command(store, times=LeaseTimes(renew_s=1000.0))
    with suppress(Killed):
        carried(killed, killed.plan_back() if is_rollback else killed.plan("b"))
    # A process that was killed has let go of nothing.
    switch = command(ground.store, origin="two")
    state = switch.state()
    if again == "same" or state.phase in (Phase.DONE, Phase.REGISTERED):
        planned = switch.plan_back() if is_rollback else switch.plan("b")
    else:
        planned = switch.plan_rest()
    result = carried(switch, planned)
    assert result.is_whole
    assert (ground.registry.active, ground.registry.epoch) == (target, epoch)
    assert switch.state().phase is Phase.DONE
    assert order_of(ground)[0] is Phase.DONE
    assert command(ground.store).plan(target).plan.step is NextStep.VERIFY


def test_a_second_command_is_refused_while_the_first_works(ground: Ground) -> None:
    path = ground.broker("late", follows=False)
    second = command(ground.store, times=LIVELY, origin="two")
    refused: list[str] = []

    def sleep(_: float) -> None:
        # The first one waits for its brokers, and renews its record meanwhile.
        with pytest.raises(RefusedError, match=r"a switch to b is under way, carried out by .* as process") as caught:
            carried(second, second.plan("b"))
        refused.append(str(caught.value))
        ground.follow(path)

    first = command(ground.store, times=LIVELY, sleep=sleep)
    assert carried(first, first.plan("b")).is_whole
    assert len(refused) == 1


def test_of_two_that_begin_at_once_one_gives_way(ground: Ground) -> None:
    first, second = command(ground.store), command(ground.store, origin="two")
    both = first.plan("b"), second.plan("b")
    assert carried(first, both[0]).is_whole
    with pytest.raises(RefusedError, match="another process has just written"):
        carried(second, both[1])
    assert ground.registry.epoch == 3


def test_a_broker_that_does_not_follow_is_named_and_waited_for_again(ground: Ground) -> None:
    late = ground.broker("late", follows=False)
    switch = command(ground.store)
    result = carried(switch, switch.plan("b"), wait_s=0.0)
    assert result.behind == ("late (epoch 2)",)
    assert order_of(ground) == (Phase.DONE_WITH_FAILURES, True)
    ground.follow(late)
    assert carried(switch, command(ground.store).plan_rest()).is_whole
    assert order_of(ground) == (Phase.DONE, True)


def test_an_event_that_is_not_sent_is_told_and_costs_nothing(ground: Ground) -> None:
    said: list[str] = []
    switch = command(ground.store, Post(works=False))
    result = carried(switch, switch.plan("b"), say=said.append)
    assert result.is_whole
    assert result.order.errors == ("the event was not sent: no broker answers",)
    assert any("costs nothing" in line for line in said)


def test_brokers_are_looked_at_again_right_before(ground: Ground) -> None:
    switch = command(ground.store)
    planned = switch.plan("b")
    ground.broker("without", jar=False)
    with pytest.raises(RefusedError, match="without does not follow the registry"):
        carried(switch, planned)
    assert ground.registry.active == "a"
    # In a laboratory.
    assert carried(switch, switch.plan("b"), wait_s=0.0, is_checked=False).behind == ("without (without the jar)",)


def test_a_registry_that_changed_since_the_plan_is_left_alone(ground: Ground) -> None:
    switch = command(ground.store)
    planned = switch.plan("b")
    ground.change(registry_of(names="abc", epoch=3))
    with pytest.raises(RefusedError, match="nothing was switched"):
        carried(switch, planned, is_checked=False)
    assert (ground.registry.active, ground.registry.epoch) == ("a", 3)
    # Given again it is an order on the registry as it is now.
    assert carried(switch, switch.plan("b")).epoch == 4


class Overtaken(ForwardingStore):
    """Changes the registry, loses the answer, and somebody else changes it again before it is read back."""

    def put(self, path: str, value: bytes, version: int) -> int:
        written = super().put(path, value, version)
        if path == REGISTRY_PATH:
            super().put(path, serialize_registry(parse_registry(value).with_deprecated("a", True)), written)
            raise OutcomeUnknownError("the connection broke")
        return written


def test_a_change_that_somebody_changed_again_was_made(ground: Ground) -> None:
    switch = command(Overtaken(ground.store))
    assert carried(switch, switch.plan("b")).is_whole
    assert (ground.registry.active, ground.registry.epoch) == ("b", 4)


class Lossy(ForwardingStore):
    """Writes the record, and loses the answer of every other write of it."""

    def __init__(self, inner: MetadataStore) -> None:
        super().__init__(inner)
        self._writes = 0

    def put(self, path: str, value: bytes, version: int) -> int:
        return self._lose(path, lambda: super(Lossy, self).put(path, value, version))

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        self._lose(path, lambda: super(Lossy, self).create(path, value, make_parents=make_parents) or 0)

    def _lose(self, path: str, write: Callable[[], int]) -> int:
        written = write()
        if path == ORDER_PATH:
            self._writes += 1
            if self._writes % 2:
                raise OutcomeUnknownError("the connection broke")
        return written


def test_a_record_whose_answer_was_lost_is_still_ours(ground: Ground) -> None:
    store = Lossy(ground.store)
    for target in "ba":
        switch = command(store)
        assert carried(switch, switch.plan(target)).is_whole
        assert order_of(ground) == (Phase.DONE, True)


def test_a_record_that_somebody_else_took_is_left_to_them(ground: Ground) -> None:
    ground.broker("late", follows=False)

    taken = threading.Event()

    def sleep(_: float) -> None:
        # A renewal may come between.
        while not taken.is_set():
            node = ground.store.get(ORDER_PATH)
            assert node is not None
            with suppress(LostRaceError):
                ground.store.put(ORDER_PATH, b"{}", node.version)
                taken.set()

    switch = command(ground.store, times=LIVELY, sleep=sleep)
    with pytest.raises(RefusedError, match="another process carries out"):
        carried(switch, switch.plan("b"))
    node = ground.store.get(ORDER_PATH)
    assert node is not None
    assert node.value == b"{}"


def test_a_rollback_does_not_wait_for_brokers_that_follow_and_know_both_clusters(ground: Ground) -> None:
    path = ground.broker("late", follows=False)
    switch = command(ground.store)
    assert switch.carry_out(switch.plan("b"), wait_s=0).behind == ("late (epoch 2)",)
    back = switch.carry_out(switch.plan_back(), wait_s=0)
    assert (back.epoch, back.behind, ground.registry.active) == (4, ("late (epoch 2)",), "a")
    ground.follow(path)
    assert carried(switch, switch.plan_rest()).is_whole
