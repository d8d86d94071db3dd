"""A cluster whose metadata is gone for good leaves the registry, once what is lost was counted and confirmed."""

from __future__ import annotations

import json
import re

import pytest

from bookwarden.bookie_clusters.unregistering import LOST_PATH
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.errors import LostRaceError, RefusedError, StoreUnavailableError
from bookwarden.ledgers.kinds import CursorHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.metastore.memory import MemoryStore
from servers.population import Population
from unit.switching.registry_grounds import OTHER, A, B, Ground, first, further

TOPIC = "t/ns/persistent/orders"
C = LedgersRoot("memory:third", "/bookies-c")


@pytest.fixture
def ground() -> Ground:
    """With a, which is active, and b, whose store does not answer."""
    made = Ground()
    made.register(first())
    made.cluster(B, "instance-b", ("b1:3181",))
    made.register(further())
    named = Population(made.pulsar)
    named.names(ManagedLedgerHolder(TOPIC), [1, 2, 3, 4])
    named.names(CursorHolder(TOPIC, "sub"), [5])
    named.names(SchemaHolder("t/ns/orders"), [6, 7])
    for ledger_id in (1, 6):
        made.ledger(A, ledger_id, made.now.owner)
    # A copy that was not finished is read by nobody.
    made.ledger(A, 2, made.now.owner, **{"bookwarden.copy": b"9:1000"})
    made.make(made.pulsar, "/ledgers/00/0000/L0003", b"garbage")
    made.stores[OTHER].close()
    return made


def refused(ground: Ground, name: str, reason: str) -> None:
    before = ground.registry.read()
    with pytest.raises(RefusedError) as caught:
        ground.lost_clusters.plan(name)
    assert re.search(reason, str(caught.value)), str(caught.value)
    assert ground.registry.read() == before


def test_what_names_nothing_elsewhere_is_counted_by_kind(ground: Ground) -> None:
    plan = ground.lost_clusters.plan("b")
    assert "does not answer" in plan.reason
    # Of the topic 2 and 4, the cursor's 5, of the schema 7.
    assert plan.ledgers == 4
    assert plan.references == {"managed ledger": 2, "cursor": 1, "schema": 1}
    assert any("ledger 4 of" in one and TOPIC in one for one in plan.examples)
    assert plan.silent == ()
    assert set(ground.now.clusters) == {"a", "b"}


def test_it_leaves_once_its_name_was_typed_and_is_journaled(ground: Ground) -> None:
    plan = ground.lost_clusters.plan("b")
    with pytest.raises(RefusedError, match="'yes' was typed to confirm it"):
        ground.lost_clusters.carry_out(plan, "yes")
    assert set(ground.now.clusters) == {"a", "b"}
    ground.lost_clusters.carry_out(plan, "b")
    assert (set(ground.now.clusters), ground.now.epoch) == ({"a"}, 3)
    node = ground.pulsar.get(f"{LOST_PATH}/b-3")
    assert node is not None
    told = json.loads(node.value)
    assert (told["instance"], told["ledgers"]) == ("instance-b", 4)


def test_killed_after_the_journal_it_may_be_repeated(ground: Ground) -> None:
    plan = ground.lost_clusters.plan("b")
    seen = ground.registry.require()
    ground.registry.replace(seen, seen.registry.with_deprecated("b", True))
    with pytest.raises(LostRaceError):
        ground.lost_clusters.carry_out(plan, "b")
    ground.lost_clusters.carry_out(ground.lost_clusters.plan("b"), "b")
    assert set(ground.now.clusters) == {"a"}


def test_an_empty_root_in_its_place_is_lost_too(ground: Ground) -> None:
    ground.stores[OTHER] = MemoryStore()
    assert "no INSTANCEID instead of instance-b" in ground.lost_clusters.plan("b").reason


def test_one_that_answers_is_not_lost(ground: Ground) -> None:
    plan = ground.lost_clusters.plan("b")
    ground.stores[OTHER] = MemoryStore()
    ground.cluster(B, "instance-b")
    refused(ground, "b", "answers, and is this cluster: use `unregister` without --lost")
    with pytest.raises(RefusedError, match="answers, and is this cluster"):
        ground.lost_clusters.carry_out(plan, "b")


def test_one_that_a_broker_reads_is_not_lost(ground: Ground) -> None:
    ground.broker("h:8080", 2)
    refused(ground, "b", "broker h:8080 reads its metadata")
    ground.pulsar.delete_many([("/loadbalance/brokers/h:8080", 0)])
    ground.broker("g:8080", 2, unreachable=["b"])
    assert ground.lost_clusters.plan("b")


def test_the_active_one_and_one_that_brokers_may_write_to_stay(ground: Ground) -> None:
    refused(ground, "a", "'a' is active: switch to another first")
    ground.broker("h:8080")
    refused(ground, "b", "may still write there")


def test_a_broker_that_came_after_the_question_keeps_it(ground: Ground) -> None:
    plan = ground.lost_clusters.plan("b")
    ground.broker("h:8080")
    with pytest.raises(RefusedError, match="may still write there"):
        ground.lost_clusters.carry_out(plan, "b")
    assert ground.pulsar.get(f"{LOST_PATH}/b-3") is None


def test_with_two_that_are_lost_what_only_the_other_has_is_counted_and_said(ground: Ground) -> None:
    ground.stores[C.url] = MemoryStore()
    ground.stores[OTHER] = MemoryStore()
    ground.cluster(B, "instance-b", ("b1:3181",))
    ground.cluster(C, "instance-c", ("c1:3181",))
    ground.register(further(C, name="c", uri="uri-of-c"))
    ground.stores[OTHER].close()
    ground.stores[C.url].close()
    plan = ground.lost_clusters.plan("b")
    assert (plan.silent, plan.ledgers) == (("c",), 4)


def test_nothing_is_counted_while_pulsars_own_store_is_silent(ground: Ground) -> None:
    ground.pulsar.close()
    with pytest.raises(StoreUnavailableError):
        ground.lost_clusters.plan("b")
