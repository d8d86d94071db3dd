"""A bookie cluster leaves the registry only when no ledger of ours can be there."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace

import pytest

from bookwarden.bookie_clusters.operation import ORDER_PATH
from bookwarden.bookie_clusters.order import Order, Phase
from bookwarden.bookie_clusters.unregistering import UnregistrationPlan
from bookwarden.errors import LostRaceError, RefusedError, StoreUnavailableError
from bookwarden.leases import holder_here
from bookwarden.records import record_fields
from servers.switching.ground import follower_value
from unit.switching.registry_grounds import OTHER, PULSAR, A, B, Ground, first, further


@pytest.fixture
def ground() -> Ground:
    """With a, which is active, and b registered."""
    made = Ground()
    made.register(first())
    made.cluster(B, "instance-b", ("b1:3181",))
    made.register(further())
    return made


def switched(ground: Ground) -> Ground:
    seen = ground.registry.require()
    ground.registry.replace(seen, seen.registry.switched("b", "host:1", 5))
    return ground


def refused(ground: Ground, name: str, reason: str) -> None:
    before = ground.registry.read()
    with pytest.raises(RefusedError) as caught:
        ground.unregistration.plan(name)
    assert re.search(reason, str(caught.value)), str(caught.value)
    assert ground.registry.read() == before


def test_a_cluster_without_ledgers_leaves(ground: Ground) -> None:
    plan = ground.unregistration.plan("b")
    assert (plan.cluster.name, plan.foreign) == ("b", 0)
    ground.unregistration.carry_out(plan)
    assert (set(ground.now.clusters), ground.now.epoch) == ({"a"}, 3)
    refused(ground, "b", "no bookie cluster 'b' is registered")


def test_the_active_one_stays(ground: Ground) -> None:
    refused(ground, "a", "'a' is active: switch to another first")
    refused(switched(ground), "b", "'b' is active")


def test_one_with_a_ledger_of_ours_stays_and_what_is_nowhere_else_is_counted(ground: Ground) -> None:
    owner = ground.now.owner
    for ledger_id in (5, 6, 7):
        ground.ledger(B, ledger_id, owner)
    ground.ledger(A, 6, owner)
    refused(ground, "b", r"3 ledgers are there .*, such as 5, 6, 7; 2 of them are in no other registered cluster")


def test_all_is_looked_at_again_once_it_was_confirmed(ground: Ground) -> None:
    def come(_: UnregistrationPlan) -> None:
        ground.ledger(B, 5, ground.now.owner)

    with pytest.raises(RefusedError, match="1 ledgers are there"):
        ground.unregistration.unregister("b", confirm=come)
    assert set(ground.now.clusters) == {"a", "b"}


def test_a_ledger_without_a_mark_is_ours_where_nobody_else_writes(ground: Ground) -> None:
    ground.ledger(A, 5)
    refused(switched(ground), "a", r"1 ledgers are there .*, such as 5; 1 of them")


@pytest.mark.parametrize("value", [b"", b"garbage"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_ledger_that_cannot_be_understood_may_be_ours(value: bytes, shared: bool) -> None:
    ground = Ground()
    ground.register(first())
    ground.cluster(B, "instance-b")
    ground.register(further(shared=shared))
    ground.make(ground.stores[OTHER], "/bookies-b/00/0000/L0009", value)
    refused(ground, "b", "such as 9")


def test_what_brokers_read_keeps_it_whatever_its_mark(ground: Ground) -> None:
    ground.ledger(A, 5, "0badc0de")
    refused(switched(ground), "a", r"1 ledgers are there .*, such as 5; 1 of them")


def test_ledgers_of_others_do_not_keep_it() -> None:
    shared = Ground()
    shared.register(first())
    shared.cluster(B, "instance-b")
    shared.ledger(B, 5)
    shared.register(further(shared=True))
    plan = shared.unregistration.plan("b")
    assert plan.foreign == 1
    shared.unregistration.carry_out(plan)
    assert set(shared.now.clusters) == {"a"}


def test_a_trial_ledger_that_was_left_keeps_no_cluster(ground: Ground) -> None:
    ground.ledger(B, 5, ground.now.owner, **{"bookwarden.trial": b"precheck"})
    assert ground.unregistration.plan("b").foreign == 0
    # Whose it is tells the mark.
    ground.ledger(B, 6, "0badc0de", **{"bookwarden.trial": b"precheck"})
    assert ground.unregistration.plan("b").foreign == 1


def test_right_after_a_switch_a_ledger_may_still_come(ground: Ground) -> None:
    ground.later_s = 20.0
    assert ground.unregistration.plan("b")
    refused(
        switched(ground), "a", r"switched from a to b, and until the registry is 60 s old .* try again in (40|41) s"
    )
    # Also after another change.
    seen = ground.registry.require()
    ground.registry.replace(seen, seen.registry.with_deprecated("a", True))
    refused(ground, "a", "try again in")
    slept: list[float] = []
    waiting = replace(ground.unregistration, sleep=slept.append)
    with pytest.raises(RefusedError, match="try again in"):
        waiting.plan("a", wait_s=30.0)
    assert not slept
    said: list[str] = []
    assert waiting.plan("a", wait_s=60.0, say=said.append)
    assert [one.rpartition(": ")[2][:8] for one in said] == ["waiting "]
    assert slept == [pytest.approx(40.0, abs=5)]
    ground.later_s = 60.0
    assert ground.unregistration.plan("a")


def test_an_empty_root_where_the_cluster_was_proves_nothing(ground: Ground) -> None:
    ground.stores[OTHER].put("/bookies-b/INSTANCEID", b"formatted anew", 0)
    refused(ground, "b", "has the INSTANCEID formatted anew instead of instance-b, so its ledgers cannot be counted")


@pytest.mark.parametrize(("epoch", "told"), [(2, "h:8080 (epoch 2)"), (None, "h:8080 (without the jar)")])
def test_a_broker_that_does_not_follow_may_still_write_there(ground: Ground, epoch: int | None, told: str) -> None:
    # It does not know b.
    ground.broker("f:8080", 1)
    seen = ground.registry.require()
    ground.registry.replace(seen, seen.registry.with_deprecated("b", True))
    ground.broker("g:8080", 3)
    assert ground.unregistration.plan("b")
    ground.broker("h:8080", epoch)
    refused(ground, "b", re.escape(f"1 brokers do not follow epoch 3, such as {told}, and may still write there"))


def test_a_broker_that_is_late_is_waited_for(ground: Ground) -> None:
    seen = ground.registry.require()
    ground.registry.replace(seen, seen.registry.with_deprecated("b", True))
    follower = ground.broker("g:8080", 2)
    following = threading.Timer(0.3, lambda: ground.pulsar.put(follower, follower_value(ground.now), 0))
    following.start()
    assert ground.unregistration.plan("b", wait_s=60)
    following.join()


@pytest.mark.parametrize(
    ("phase", "after_epoch", "source", "target", "stays"),
    [
        (Phase.SWITCH_TRIGGERED, 2, "a", "b", True),
        (Phase.ROLLBACK, 2, "b", "a", True),
        # It was never carried out, and cannot be any more.
        (Phase.SWITCH_TRIGGERED, 1, "a", "b", False),
        (Phase.SWITCH_TRIGGERED, 2, "a", "c", False),
        (Phase.DONE, 2, "a", "b", False),
    ],
)
def test_one_that_an_order_is_under_way_for_stays(
    ground: Ground, phase: Phase, after_epoch: int, source: str, target: str, stays: bool
) -> None:
    fields = record_fields(Order(source, target, after_epoch, "h:1", 5, phase))
    value = json.dumps({**fields, "holder": holder_here(), "isHeld": True}).encode()
    ground.make(ground.pulsar, ORDER_PATH, value)
    if stays:
        refused(
            ground, "b", rf"from {source} to {target} is not over \({phase.value}\): see `bookwarden bookie-clusters"
        )
    else:
        assert ground.unregistration.plan("b")


@pytest.mark.parametrize("silent", [PULSAR, OTHER])
def test_a_store_that_does_not_answer_keeps_it(ground: Ground, silent: str) -> None:
    ground.stores[silent].close()
    with pytest.raises(StoreUnavailableError):
        ground.unregistration.plan("b")


def test_a_switch_to_it_in_between_keeps_it(ground: Ground) -> None:
    plan = ground.unregistration.plan("b")
    switched(ground)
    with pytest.raises(LostRaceError, match="has epoch 3, and bookie cluster 'b' is active"):
        ground.unregistration.carry_out(plan)
    assert set(ground.now.clusters) == {"a", "b"}
