"""A cluster's own counter of ids is raised above every id of all, with no broker there, and proven again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bookwarden.bookie_clusters.registering import OWN_ID_ROOT
from bookwarden.bookie_clusters.repair import RaisePlan
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.errors import RefusedError, StoreError
from unit.switching.registry_grounds import OTHER, PULSAR, A, B, Ground, first, further


@pytest.fixture
def ground() -> Ground:
    """With a, where ids are counted up to 40, and b, whose own counter was raised to 3 at its registration."""
    made = Ground()
    made.register(first())
    made.cluster(B, "instance-b", ("b1:3181",))
    made.give_ids(B, 3)
    made.register(further())
    made.give_ids(A, 40 - made.ids_at(A).next_id())
    return made


def test_it_is_raised_above_what_any_cluster_has_and_what_the_brokers_counter_gave(ground: Ground) -> None:
    plan = ground.id_raising.plan("b")
    assert (plan.next_id, plan.free_id, plan.behind, plan.leaps) == (3, 40, 37, False)
    ground.ledger(A, 57)
    ground.ledger(B, 99, ground.now.owner)
    told: list[int] = []
    after = ground.id_raising.carry_out(ground.id_raising.plan("b"), told.append)
    assert (after.next_id, after.free_id, after.behind) == (100, 100, 0)
    assert told[0] == 0
    assert (ground.ids_at(B).next_id(), ground.ids_at(A).next_id()) == (100, 40)
    assert ground.id_raising.carry_out(after) == after


def test_an_order_raises_what_is_behind_once_that_is_confirmed(ground: Ground) -> None:
    asked: list[int] = []

    @contextmanager
    def confirm(plan: RaisePlan) -> Iterator[Callable[[int], object]]:
        asked.append(plan.behind)
        yield lambda _: None

    looked = ground.id_raising.raise_ids("b", dry_run=True, confirm=confirm)
    assert (looked.raised, looked.plan.next_id, looked.dry_run, asked) == (37, 3, True, [])
    done = ground.id_raising.raise_ids("b", confirm=confirm)
    assert (done.raised, done.plan.next_id, asked) == (37, 40, [37])
    assert (ground.id_raising.raise_ids("b", confirm=confirm).raised, asked) == (0, [37])


def test_ids_that_are_counted_outside_of_all_clusters_are_passed() -> None:
    ground = Ground()
    ground.cluster(B, "instance-b", ("b1:3181",))
    ground.brokers_place = B
    counted = LedgersRoot(PULSAR, ground.register(first(B)).id_root)
    assert counted.ledgers_root == OWN_ID_ROOT
    ground.give_ids(counted, 20)
    assert ground.ids_at(B).next_id() < ground.id_raising.plan("a").free_id == 20
    assert ground.id_raising.carry_out(ground.id_raising.plan("a")).next_id == 20


def test_that_of_all_clusters_is_raised_while_brokers_live(ground: Ground) -> None:
    ground.ledger(B, 45)
    ground.broker("br1", epoch=2)
    plan = ground.id_raising.plan(None)
    assert (plan.name, plan.place, plan.next_id, plan.free_id) == (None, A, 40, 46)
    assert ground.id_raising.raise_ids(None).plan.next_id == ground.ids_at(A).next_id() == 46


def test_no_broker_without_the_jar_may_live_over_a_leap(ground: Ground) -> None:
    ground.ledger(B, 3_000_000)
    ground.broker("br1", epoch=2)
    assert ground.id_raising.plan(None).leaps
    ground.broker("br2")
    with pytest.raises(RefusedError, match=r"all clusters are not raised: they have to leap .* br2, without the jar"):
        ground.id_raising.plan(None)


def test_it_is_refused_while_a_broker_lives(ground: Ground) -> None:
    plan = ground.id_raising.plan("b")
    ground.broker("br1", epoch=2)
    with pytest.raises(RefusedError, match=r"brokers are live, such as br1, .* stop all of them first"):
        ground.id_raising.plan("b")
    # One that came after the look may have taken an id.
    with pytest.raises(RefusedError, match="brokers are live"):
        ground.id_raising.carry_out(plan)


def test_an_id_that_is_given_meanwhile_is_told(ground: Ground) -> None:
    raising = ground.id_raising
    plan = raising.plan("b")
    ground.give_ids(A, 5)
    with pytest.raises(RefusedError, match="ids up to 44 were given meanwhile"):
        raising.carry_out(plan)
    assert raising.carry_out(raising.plan("b")).next_id == 45


@pytest.mark.parametrize(
    ("spoil", "kind", "says"),
    [
        (
            lambda ground: ground.stores[OTHER].put("/bookies-b/INSTANCEID", b"x", 0),
            RefusedError,
            "INSTANCEID x instead",
        ),
        (lambda ground: ground.stores[OTHER].close(), StoreError, "bookie cluster 'b'"),
    ],
)
@pytest.mark.parametrize("name", ["a", "b"])
def test_ids_that_are_not_known_are_not_passed(
    ground: Ground, spoil: Callable[[Ground], object], kind: type[Exception], says: str, name: str
) -> None:
    """Whichever cluster it is that does not tell its ids."""
    spoil(ground)
    with pytest.raises(kind, match=says):
        ground.id_raising.plan(name)


def test_what_cannot_be_counted_is_leapt_over(ground: Ground) -> None:
    ground.ledger(A, 3_000_000)
    plan = ground.id_raising.plan("b")
    assert plan.leaps
    assert ground.id_raising.carry_out(plan).next_id == 1 << 32
    assert ground.ids_at(LedgersRoot(OTHER, "/bookies-b")).next_id() == 1 << 32
