"""Brokers and what their jars say, on real stores: matched by the client of the store that made both nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.oxia.connection import OxiaConnection
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.zookeeper.session import ZooKeeperConnection
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from bookwarden.switching.brokers import read_brokers
from bookwarden.switching.followers import BROKERS_PATH, brokers_without_jar, read_followers
from bookwarden.switching.registry import FOLLOWERS_PATH
from servers.each_store import on_oxia
from servers.switching.ground import follower_value, registry_of

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
    assert brokers_without_jar(ours, read_followers(ours)) == [names[-1]]
