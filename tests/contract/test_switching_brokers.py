"""Brokers and what their jars say, on real stores, matched by the client that made both nodes; and switches of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from bookwarden.bookie_clusters.brokers import BROKERS_PATH, read_brokers, read_followers
from bookwarden.bookie_clusters.operation import ORDER_PATH, Switch
from bookwarden.bookie_clusters.order import Phase
from bookwarden.bookie_clusters.registry import FOLLOWERS_PATH, REGISTRY_PATH, serialize_registry
from bookwarden.bookie_clusters.registry_node import RegistryNode
from bookwarden.errors import RefusedError, StoreUnavailableError
from bookwarden.leases import LeaseTimes
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.oxia.channels import OxiaConnection
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.zookeeper.session import ZooKeeperConnection
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from servers.each_store import on_oxia
from servers.switching.ground import follower_value, registry_of
from servers.waiting import eventually

pytestmark = pytest.mark.servers
BROKERS = 5


@pytest.fixture(params=["zookeeper", on_oxia()])
def clients(request: pytest.FixtureRequest) -> Iterator[list[MetadataStore]]:
    """Stores of several processes on one server, the last of them ours; on Oxia's three shards each has sessions."""
    with ExitStack() as opened:
        made: list[MetadataStore] = []
        for _ in range(BROKERS + 1):
            if request.param == "oxia":
                address = request.getfixturevalue("oxia_server").address
                made.append(OxiaStore(OxiaConnection(address, session_timeout_s=2.0)))
            else:
                made.append(ZooKeeperStore(ZooKeeperConnection(hosts=request.getfixturevalue("zookeeper").hosts)))
            opened.callback(made[-1].close)
        ours = made[-1]
        for root in (BROKERS_PATH, FOLLOWERS_PATH):
            ours.create(root, b"", make_parents=True)
        yield made
        for client in made[:-1]:
            client.close()
        for root in (BROKERS_PATH, FOLLOWERS_PATH):
            left = [(f"{root}/{name}", ours.get(f"{root}/{name}")) for name in ours.children_of(root)]
            ours.delete_many([(path, node.version) for path, node in left if node is not None])
            top = ours.get(root)
            assert top is not None
            ours.delete_many([(root, top.version)])


def test_each_broker_is_matched_with_its_own_jar(clients: list[MetadataStore]) -> None:
    *brokers, ours = clients
    with_jar = brokers[:-1]
    names = [broker.ephemeral_sequential(f"{BROKERS_PATH}/br-", b"{}").rpartition("/")[2] for broker in brokers]
    # In another order, each with an epoch of its own.
    for epoch, broker in reversed(list(enumerate(with_jar))):
        broker.ephemeral_sequential(f"{FOLLOWERS_PATH}/f-", follower_value(registry_of(epoch=epoch + 2)))
    found = {one.name: one.follower and one.follower.epoch for one in read_brokers(ours)}
    assert found == {**{name: epoch + 2 for epoch, name in enumerate(names[:-1])}, names[-1]: None}
    assert [one.epoch for one in read_followers(ours)] == [5, 4, 3, 2]


class Broker:
    """A broker whose jar follows the registry, from a thread of its client of the store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._changed = threading.Event()
        self._ended = False
        self._path = ""
        store.ephemeral_sequential(f"{BROKERS_PATH}/br-", b"{}")
        self._follow()
        self._end_watch = store.watch(REGISTRY_PATH, lambda _: self._changed.set())
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended = True
        self._changed.set()
        self._thread.join()
        self._end_watch()

    def _run(self) -> None:
        while self._changed.wait() and not self._ended:
            self._changed.clear()
            self._follow()

    def _follow(self) -> None:
        found = RegistryNode(self._store, "").require()
        before, self._path = (
            self._path,
            self._store.ephemeral_sequential(f"{FOLLOWERS_PATH}/f-", follower_value(found.registry)),
        )
        node = self._store.get(before) if before else None
        if node is not None:
            self._store.delete_many([(before, node.version)])


@pytest.fixture
def brokers(clients: list[MetadataStore]) -> Iterator[MetadataStore]:
    """Our store, on which some brokers follow a registry."""
    ours = clients[-1]
    ours.create(REGISTRY_PATH, serialize_registry(registry_of()), make_parents=True)
    running = [Broker(client) for client in clients[:2]]
    yield ours
    for broker in running:
        broker.stop()
    for path in (REGISTRY_PATH, ORDER_PATH):
        node = ours.get(path)
        assert node is not None
        ours.delete_many([(path, node.version)])


def switch_on(store: MetadataStore, origin: str, **options: Any) -> Switch:
    times = LeaseTimes(renew_s=0.2, lease_s=30.0, given_up_s=2.0)
    return Switch(RegistryNode(store, ""), SimpleNamespace(send=lambda _: None), origin, times=times, **options)


def test_a_switch_there_and_back_and_a_process_that_dies_between(
    brokers: MetadataStore, clients: list[MetadataStore]
) -> None:
    refused: list[str] = []
    theirs = switch_on(clients[2], "another")

    def second_at_once(_: float) -> None:
        if not refused:
            with pytest.raises(RefusedError) as caught:
                theirs.carry_out(theirs.plan("b"), wait_s=60)
            refused.append(str(caught.value))

    first = switch_on(brokers, "one", sleep=second_at_once)
    clients[3].ephemeral_sequential(f"{BROKERS_PATH}/br-", b"{}")
    late = clients[3].ephemeral_sequential(f"{FOLLOWERS_PATH}/f-", follower_value(registry_of()))
    result = first.carry_out(first.plan("b"), wait_s=3)
    assert (result.order.phase, len(result.followed), len(result.behind)) == (Phase.DONE_WITH_FAILURES, 2, 1)
    assert all(0 <= one.seconds < 60 for one in result.followed)
    assert "a switch to b is under way" in refused[0]

    node = brokers.get(late)
    assert node is not None
    brokers.delete_many([(late, node.version)])
    clients[3].close()
    assert eventually(lambda: len(read_brokers(brokers)) == 2)
    assert first.carry_out(first.plan_rest(), wait_s=60).is_whole

    # Its store is closed under it, as if it were killed: its record stays held until it was given up.
    dying = switch_on(clients[2], "another")
    planned = dying.plan_back()
    with pytest.raises(StoreUnavailableError):
        dying.carry_out(planned, wait_s=60, tell=lambda _: clients[2].close())
    assert first.state().phase is Phase.ROLLBACK
    assert first.carry_out(first.plan_back(), wait_s=60).is_whole
    found = RegistryNode(brokers, "").require().registry
    assert (found.active, found.epoch) == ("a", 4)
    assert first.state().phase is Phase.DONE
