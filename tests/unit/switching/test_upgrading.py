"""A registry of 0.1.0 is taken over: ranges are closed, and former owners named, once every broker heeds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookwarden.bookie_clusters import repair
from bookwarden.bookie_clusters.repair import UpgradePlan
from bookwarden.errors import RefusedError
from unit.switching.registry_grounds import A, B, Ground, first, further


@pytest.fixture
def ground() -> Ground:
    """With a and b registered as 0.1.0 did."""
    made = Ground()
    made.give_ids(A, 20)
    made.register(first())
    made.cluster(B, "instance-b", ("b1:3181",))
    made.register(further())
    seen = made.registry.require()
    clusters = {**seen.registry.clusters, "b": replace(seen.registry.clusters["b"], unmarked_below=None)}
    made.registry.replace(seen, replace(seen.registry, epoch=3, clusters=clusters))
    return made


def refused(ground: Ground, reason: str, *owners: str) -> None:
    before = ground.registry.read()
    with pytest.raises(RefusedError, match=reason):
        ground.upgrade.plan(owners)
    assert ground.registry.read() == before


def test_the_range_of_a_cluster_that_counts_no_ids_is_closed_at_the_next_id(ground: Ground) -> None:
    ground.ledger(B, 7)
    ground.broker("h:8080", 3)
    plan = ground.upgrade.plan()
    assert (plan.closed, plan.below) == (("b",), 20)
    assert ground.upgrade.carry_out() == plan
    assert {name: each.unmarked_below for name, each in ground.now.clusters.items()} == {"a": None, "b": 20}
    assert (ground.now.epoch, ground.ids_at(B).next_id()) == (4, 20)
    assert not ground.upgrade.carry_out().changes
    assert ground.now.epoch == 4


def test_owners_of_earlier_registries_are_added_once(ground: Ground) -> None:
    asked: list[UpgradePlan] = []
    ground.upgrade.upgrade(("0badc0de",), dry_run=True, confirm=asked.append)
    assert (asked, ground.now.former_owners) == ([], ())
    for _ in range(2):
        ground.upgrade.upgrade(("0badc0de", "0badc0de", ground.now.owner), confirm=asked.append)
    assert ground.now.former_owners == ("0badc0de",)
    # Where nothing is to be written, nothing is asked.
    assert len(asked) == 1
    refused(ground, "'0badc0' is not eight hexadecimal digits", "0badc0")


def test_a_broker_that_would_not_heed_it_keeps_it_back(ground: Ground) -> None:
    ground.broker("g:8080", 3, understands=["storeUrl"])
    refused(ground, "g:8080 is with the jar of an earlier bookwarden")
    refused(ground, "g:8080 is with the jar of an earlier bookwarden", "0badc0de")


def test_a_broker_without_the_jar_keeps_a_range_open(ground: Ground) -> None:
    ground.broker("g:8080")
    refused(ground, "g:8080 is without the jar, and makes ledgers without an owner mark in b")


def test_ids_of_another_client_above_the_counter_are_passed_first(ground: Ground) -> None:
    ground.ledger(B, 25)
    refused(ground, r"'b' has ids up to 25, .* the next one of all clusters is 20: .* `bookie-clusters raise-ids`")
    ground.broker("h:8080", 3)
    assert ground.id_raising.raise_ids(None).raised == 6
    assert ground.upgrade.carry_out().below == 26


def test_a_broker_that_came_after_the_question_keeps_it_back(ground: Ground) -> None:
    assert ground.upgrade.plan().changes
    ground.broker("g:8080")
    with pytest.raises(RefusedError, match="g:8080 is without the jar"):
        ground.upgrade.carry_out()
    assert ground.now.epoch == 3


def test_a_broker_that_came_while_counters_were_raised_keeps_it_back(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "raise_own_counters", lambda *_: ground.broker("g:8080"))
    with pytest.raises(RefusedError, match="g:8080 is without the jar"):
        ground.upgrade.carry_out()
    assert ground.now.epoch == 3


def test_a_cluster_that_is_registered_alone_keeps_all() -> None:
    made = Ground()
    made.register(first())
    assert not made.upgrade.plan().changes
