"""The address of a registered cluster changes only where the same cluster is proven to be there."""

from __future__ import annotations

import re

import pytest

from bookwarden.bookie_clusters.registering import ClusterSpec
from bookwarden.bookie_clusters.registry import REGISTRY_PATH
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.errors import LostRaceError, RefusedError, StoreUnavailableError
from bookwarden.metastore.memory import MemoryStore
from servers.switching.ground import follower_value
from unit.switching.registry_grounds import OTHER, PULSAR, B, Ground, first, further

MOVED = LedgersRoot("memory:moved", "/bookies-b")
WANTED = ClusterSpec("b", "uri-of-b-moved", MOVED)


@pytest.fixture
def ground() -> Ground:
    """With a, which is active, and b, whose store has moved: the old one does not answer any more."""
    made = Ground()
    made.register(first())
    made.cluster(B, "instance-b", ("b1:3181",))
    made.register(further())
    made.stores[MOVED.url] = MemoryStore()
    made.cluster(MOVED, "instance-b", ("b1:3181",))
    made.stores[OTHER].close()
    return made


def refused(ground: Ground, reason: str, wanted: ClusterSpec = WANTED) -> None:
    before = ground.registry.read()
    with pytest.raises(RefusedError) as caught:
        ground.uri_change.change(wanted, wait_s=0)
    assert re.search(reason, str(caught.value)), str(caught.value)
    assert ground.registry.read() == before


def test_name_registration_instance_and_root_stay(ground: Ground) -> None:
    before = ground.now.clusters["b"]
    assert ground.uri_change.plan(WANTED).bookies == {"b1:3181"}
    assert ground.now.clusters["b"] == before
    ground.uri_change.change(WANTED, wait_s=0)
    after = ground.now.clusters["b"]
    assert (after.store_url, after.metadata_service_uri) == (MOVED.url, "uri-of-b-moved")
    assert (after.name, after.since, after.instance, after.ledgers_root) == ("b", 2, "instance-b", "/bookies-b")
    assert (ground.now.epoch, ground.now.active) == (3, "a")
    # Given again it waits alone.
    node = ground.broker("h:8080", 2)
    again = ground.uri_change.change(WANTED, wait_s=0)
    assert (again.behind, ground.now.epoch) == (("h:8080 (epoch 2)",), 3)
    ground.pulsar.put(node, follower_value(ground.now, unreachable=["b"]), 0)
    assert ground.uri_change.change(WANTED, wait_s=0).behind == ("h:8080 (epoch 3)",)
    ground.pulsar.put(node, follower_value(ground.now), 1)
    assert ground.uri_change.change(WANTED, wait_s=0).behind == ()


def test_one_store_by_another_name_is_the_same_cluster(ground: Ground) -> None:
    ground.stores[OTHER] = ground.stores[MOVED.url]
    assert ground.uri_change.plan(WANTED)


def test_another_cluster_or_root_is_refused(ground: Ground) -> None:
    ground.stores[MOVED.url].put("/bookies-b/INSTANCEID", b"another", 0)
    refused(ground, "it is the instance instance-b, and at the URI there is another: another cluster")
    ground.cluster(LedgersRoot(MOVED.url, "/bookies-c"), "instance-b", ("b1:3181",))
    elsewhere = ClusterSpec("b", "uri", LedgersRoot(MOVED.url, "/bookies-c"))
    refused(ground, "its ledgers root is /bookies-b, and that of the URI is /bookies-c", elsewhere)
    refused(ground, "has no /nothing", ClusterSpec("b", "uri", LedgersRoot(MOVED.url, "/nothing")))


def test_a_copy_that_no_bookie_uses_is_refused(ground: Ground) -> None:
    ground.stores[MOVED.url].delete_many([("/bookies-b/available/b1:3181", 0)])
    refused(ground, "no bookie is registered at the URI")


def test_a_present_address_that_only_brokers_reach_is_in_use(ground: Ground) -> None:
    ground.broker("h:8080", 2)
    refused(ground, "its present address does not answer this machine, and h:8080 reads it there")


def test_brokers_are_waited_for_and_nothing_is_asked_of_a_dry_run(ground: Ground) -> None:
    node = ground.broker("h:8080", 2, unreachable=["b"])
    asked: list[str] = []
    looked = ground.uri_change.change(WANTED, wait_s=60, dry_run=True, confirm=lambda plan: asked.append("no"))
    assert (looked.behind, asked, ground.now.epoch) == ((), [], 2)

    def follow(_: object) -> None:
        ground.pulsar.put(node, follower_value(ground.now), 0)

    said: list[str] = []
    ground.pulsar.watch(REGISTRY_PATH, follow)
    done = ground.uri_change.change(WANTED, wait_s=60, confirm=lambda plan: asked.append("yes"), say=said.append)
    assert (done.behind, asked, ground.now.epoch) == ((), ["yes"], 3)
    assert said == ["b has this address since epoch 3; waiting until all brokers reach it there"]


def test_a_copy_is_refused_while_the_present_address_answers(ground: Ground) -> None:
    ground.stores[OTHER] = MemoryStore(lambda: 7.0)
    ground.cluster(B, "instance-b", ("b1:3181",))
    refused(ground, "its present address answers too, and is another store")


def test_bookies_and_roots_of_other_clusters_are_refused(ground: Ground) -> None:
    for path in ("available", "cookies"):
        ground.make(ground.stores[MOVED.url], f"/bookies-b/{path}/a1:3181")
    refused(ground, "a1:3181 is in both this cluster and 'a'")


@pytest.mark.parametrize("fields", [None, {"understands": ["unmarkedBelow"]}, {"understands": []}])
def test_a_broker_whose_jar_would_refuse_it_keeps_the_address(ground: Ground, fields: dict[str, object] | None) -> None:
    ground.broker("g:8080", 2, unreachable=["b"])
    assert ground.uri_change.plan(WANTED)
    ground.broker("h:8080", *(() if fields is None else (2,)), **(fields or {}))
    refused(ground, "brokers do not follow a change of an address: h:8080")


def test_another_text_for_the_same_store_needs_nothing_of_brokers(ground: Ground) -> None:
    ground.broker("h:8080", 2, understands=[])
    ground.uri_change.change(ClusterSpec("a", "other-uri-of-a", LedgersRoot(PULSAR, "/ledgers")), wait_s=0)
    assert ground.now.clusters["a"].metadata_service_uri == "other-uri-of-a"
    assert ground.now.clusters["a"].store_url is None


def test_a_silent_address_and_a_change_in_between_change_nothing(ground: Ground) -> None:
    plan = ground.uri_change.plan(WANTED)
    seen = ground.registry.require()
    ground.registry.replace(seen, seen.registry.with_deprecated("b", True))
    with pytest.raises(LostRaceError):
        ground.registry.replace(plan.before, plan.after)
    ground.stores[MOVED.url].close()
    with pytest.raises(StoreUnavailableError):
        ground.uri_change.change(WANTED, wait_s=0)
