"""Orders to switch: which may be given when, which are carried on, and the phase that follows from what is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookwarden.bookie_clusters.brokers import Broker, RegistryFollower
from bookwarden.bookie_clusters.order import (
    TRANSITIONS,
    NextStep,
    Order,
    Phase,
    phase_of,
    plan_resumption,
    plan_rollback,
    plan_switch,
)
from bookwarden.bookie_clusters.registry import Registry
from bookwarden.errors import FormatError, NotFoundError, RefusedError
from bookwarden.records import record_fields, record_of
from servers.switching.ground import OWNER, registry_of

ALONE = registry_of("a", names="a", epoch=1)
BEFORE = registry_of("a")
ORDER = Order("a", "b", 2, "host process 7", 1000, Phase.SWITCH_TRIGGERED)
AFTER = BEFORE.switched("b", "host process 7", 1000)
BACK = Order("b", "a", 3, "host process 8", 2000, Phase.ROLLBACK, is_rollback=True)
RETURNED = AFTER.switched("a", "host process 8", 2000)
HERE = ("host process 9", 3000)


def brokers(*epochs: int | None) -> list[Broker]:
    return [
        Broker(f"b{number}", None if epoch is None else RegistryFollower(epoch, "a", OWNER, {}))
        for number, epoch in enumerate(epochs)
    ]


@pytest.mark.parametrize(
    ("registry", "order", "epochs", "phase"),
    [
        (None, None, (), Phase.NOT_REGISTERED),
        (ALONE, None, (1,), Phase.NOT_REGISTERED),
        (BEFORE, None, (2,), Phase.REGISTERED),
        (BEFORE, ORDER, (2,), Phase.SWITCH_TRIGGERED),
        # Somebody changed the registry before the order could: it counts no more.
        (BEFORE.with_deprecated("b", True), ORDER, (3,), Phase.REGISTERED),
        # Killed before the record could say so.
        (AFTER, ORDER, (3,), Phase.LIVE_DUAL_READ),
        (AFTER, ORDER, (3, 2), Phase.LIVE_DUAL_READ),
        (AFTER, None, (3, 2), Phase.LIVE_DUAL_READ),
        (AFTER, None, (3, None), Phase.LIVE_DUAL_READ),
        (AFTER, None, (3, 4), Phase.DONE),
        (AFTER, replace(ORDER, phase=Phase.LIVE_DUAL_READ), (3,), Phase.LIVE_DUAL_READ),
        (AFTER, replace(ORDER, phase=Phase.DONE), (3,), Phase.DONE),
        # A broker came back that does not follow.
        (AFTER, replace(ORDER, phase=Phase.DONE), (3, 2), Phase.LIVE_DUAL_READ),
        (AFTER, replace(ORDER, phase=Phase.DONE_WITH_FAILURES), (2,), Phase.DONE_WITH_FAILURES),
        (AFTER, BACK, (3,), Phase.ROLLBACK),
        (RETURNED, BACK, (4,), Phase.ROLLBACK),
        (RETURNED, replace(BACK, phase=Phase.DONE), (4,), Phase.DONE),
        # The record is of an order before the registry's.
        (RETURNED, replace(ORDER, phase=Phase.DONE), (4,), Phase.DONE),
    ],
)
def test_the_phase_follows_from_registry_record_and_brokers(
    registry: Registry | None, order: Order | None, epochs: tuple[int | None, ...], phase: Phase
) -> None:
    assert phase_of(registry, order, brokers(*epochs)) is phase


def test_a_first_order_is_given_on_the_registry_as_it_is() -> None:
    plan = plan_switch(BEFORE, None, "b", *HERE)
    assert plan.step is NextStep.START
    assert plan.order == Order("a", "b", 2, *HERE, Phase.SWITCH_TRIGGERED)
    assert not plan.order.is_in(BEFORE)
    assert plan.order.is_in(BEFORE.switched("b", *HERE))


@pytest.mark.parametrize("registry", [BEFORE, AFTER, AFTER.with_deprecated("a", True)])
def test_the_same_order_again_is_carried_on(registry: Registry) -> None:
    phase = Phase.SWITCH_TRIGGERED if registry is BEFORE else Phase.LIVE_DUAL_READ
    left = replace(ORDER, phase=phase)
    plan = plan_switch(registry, left, "b", *HERE)
    assert (plan.step, plan.order) == (NextStep.RESUME, left)
    assert plan_resumption(registry, left) == plan


def test_an_order_that_failed_in_part_is_carried_on() -> None:
    left = replace(ORDER, phase=Phase.DONE_WITH_FAILURES, errors=("b2 (epoch 2)",))
    assert plan_switch(AFTER, left, "b", *HERE).step is NextStep.RESUME
    assert plan_resumption(AFTER, left).order is left


def test_what_is_active_is_only_followed() -> None:
    assert plan_switch(AFTER, replace(ORDER, phase=Phase.DONE), "b", *HERE).step is NextStep.VERIFY
    assert plan_switch(AFTER, None, "b", *HERE).step is NextStep.VERIFY
    assert plan_switch(BEFORE, None, "a", *HERE).step is NextStep.VERIFY


def test_an_order_that_came_too_late_is_given_anew() -> None:
    plan = plan_switch(BEFORE.with_deprecated("b", True).with_deprecated("b", False), ORDER, "b", *HERE)
    assert (plan.step, plan.order.after_epoch) == (NextStep.START, 4)


def test_while_brokers_still_follow_only_the_way_back_is_open() -> None:
    registry = registry_of("a", names="abc").switched("b", ORDER.origin, ORDER.time_ms)
    for phase in (Phase.SWITCH_TRIGGERED, Phase.LIVE_DUAL_READ):
        left = replace(ORDER, phase=phase)
        with pytest.raises(RefusedError, match="--resume"):
            plan_switch(registry, left, "c", *HERE)
        assert plan_rollback(registry, left, *HERE).order == Order("b", "a", 3, *HERE, Phase.ROLLBACK, is_rollback=True)


def test_a_rollback_again_never_switches_forward() -> None:
    assert plan_rollback(AFTER, BACK, *HERE).order is BACK
    assert plan_rollback(RETURNED, BACK, *HERE).step is NextStep.RESUME
    done = plan_rollback(RETURNED, replace(BACK, phase=Phase.DONE), *HERE)
    assert (done.step, done.order.target) == (NextStep.VERIFY, "a")


def test_there_is_no_way_back_before_a_switch_nor_to_a_cluster_that_is_gone() -> None:
    with pytest.raises(NotFoundError, match="nothing was switched"):
        plan_rollback(BEFORE, None, *HERE)
    with pytest.raises(RefusedError, match="no bookie cluster 'a'"):
        plan_rollback(AFTER.without_cluster("a"), None, *HERE)
    with pytest.raises(RefusedError, match="DEPRECATED"):
        plan_rollback(AFTER.with_deprecated("a", True), None, *HERE)


@pytest.mark.parametrize(
    ("registry", "last"),
    [
        (AFTER, None),
        (AFTER, replace(ORDER, phase=Phase.DONE)),
        (BEFORE.with_deprecated("b", True), ORDER),
        (BEFORE.switched("b", "another", 7), replace(ORDER, phase=Phase.LIVE_DUAL_READ)),
    ],
)
def test_nothing_that_is_done_or_void_is_resumed(registry: Registry, last: Order | None) -> None:
    with pytest.raises(NotFoundError, match="nothing to carry on"):
        plan_resumption(registry, last)


def test_each_phase_says_what_may_follow() -> None:
    assert set(TRANSITIONS) == set(Phase)
    for before in Phase:
        for after in Phase:
            order = replace(ORDER, phase=before)
            if after in TRANSITIONS[before] or (after is before and before is not Phase.DONE_WITH_FAILURES):
                assert order.advanced(after).phase is after
            else:
                with pytest.raises(RefusedError, match="cannot follow"):
                    order.advanced(after)


def test_a_record_is_read_as_it_was_written() -> None:
    for order in (ORDER, BACK, replace(ORDER, phase=Phase.DONE_WITH_FAILURES, errors=("one", "two"))):
        assert record_of(Order, record_fields(order)) == order
    for field, wrong in {"phase": "OTHER", "source": 1, "afterEpoch": "2", "troubles": None}.items():
        with pytest.raises(FormatError):
            record_of(Order, {**record_fields(ORDER), field: wrong})
