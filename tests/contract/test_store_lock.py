"""The sweep's lock on real stores: it ends with the session of its driver, and not before."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from bookwarden.errors import RefusedError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.lock import StoreLock
from bookwarden.metastore.oxia.channels import OxiaConnection
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.zookeeper.session import ZooKeeperConnection
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from servers.each_store import on_oxia
from servers.waiting import eventually

pytestmark = pytest.mark.servers


@dataclass
class Drivers:
    """The stores of two drivers, and what ends the session of one of them as if its process were killed."""

    stores: tuple[MetadataStore, MetadataStore]
    end_session: Callable[[MetadataStore], None]


def drivers_on_zookeeper(request: pytest.FixtureRequest) -> Drivers:
    server = request.getfixturevalue("zookeeper")

    def end_session(store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        server.end_session(*store._session._client.client_id)

    connection = ZooKeeperConnection(hosts=server.hosts)
    return Drivers((ZooKeeperStore(connection), ZooKeeperStore(connection)), end_session)


def drivers_on_oxia(request: pytest.FixtureRequest) -> Drivers:
    def end_session(store: MetadataStore) -> None:
        assert isinstance(store, OxiaStore)
        ((shard, session),) = store._sessions._sessions.items()
        leader = next(one for one in store._cluster.shards(store._cluster.deadline()).shards if one.id == shard)
        store._cluster.server(leader).close_session(shard, session, 30.0)

    # Short, since a driver learns with a heartbeat that its session ended.
    connection = OxiaConnection(request.getfixturevalue("oxia_server").address, session_timeout_s=2.0)
    return Drivers((OxiaStore(connection), OxiaStore(connection)), end_session)


@pytest.fixture(params=["zookeeper", on_oxia()])
def drivers(request: pytest.FixtureRequest) -> Iterator[Drivers]:
    made = drivers_on_oxia(request) if request.param == "oxia" else drivers_on_zookeeper(request)
    with closing(made.stores[0]), closing(made.stores[1]):
        yield made


def test_the_lock_goes_with_the_session_of_its_holder_who_takes_it_again_unless_another_was_first(
    drivers: Drivers,
) -> None:
    stores = drivers.stores
    path = f"/sweep-lock-{secrets.token_hex(4)}/sweeps/one"
    first, second = (StoreLock(store, path, look_s=0.1) for store in stores)
    first.acquire(0)
    with pytest.raises(RefusedError, match="as process"):
        second.acquire(0)
    # As when the driver is killed: nothing is released.
    drivers.end_session(stores[0])
    second.acquire(60)
    with pytest.raises(RefusedError, match="as process"):
        first.acquire(0)
    with second.kept(lambda: pytest.fail("stopped")):
        (held,) = stores[1].list_children(path)
        drivers.end_session(stores[1])
        eventually(lambda: stores[0].list_children(path) not in ([], [held]), 60)
    stores[1].close()
    eventually(lambda: stores[0].list_children(path) == [])
