"""The sweep's lock on a real ZooKeeper: it ends with the session of its driver, and not before."""

from __future__ import annotations

import secrets

import pytest

from bookwarden.errors import RefusedError
from bookwarden.metastore.zookeeper import ZooKeeperStore
from bookwarden.metastore.zookeeper_session import ZooKeeperConnection
from bookwarden.pipelines.sweep_lock import SweepLock
from servers.lone_zookeeper import LoneZooKeeper
from servers.waiting import eventually

pytestmark = pytest.mark.servers


def end_session_of(store: ZooKeeperStore, server: LoneZooKeeper) -> None:
    server.end_session(*store._session._client.client_id)


def test_the_lock_goes_with_the_session_of_its_holder_who_takes_it_again_unless_another_was_first(
    zookeeper: LoneZooKeeper,
) -> None:
    stores = [ZooKeeperStore(ZooKeeperConnection(hosts=zookeeper.hosts)) for _ in range(2)]
    path = f"/sweep-lock-{secrets.token_hex(4)}/sweeps/one"
    first, second = (SweepLock(store, path, look_s=0.1) for store in stores)
    first.acquire(0)
    with pytest.raises(RefusedError, match="as process"):
        second.acquire(0)
    # As when the driver is killed: nothing is released.
    end_session_of(stores[0], zookeeper)
    second.acquire(60)
    with pytest.raises(RefusedError, match="as process"):
        first.acquire(0)
    with second.kept(lambda: pytest.fail("stopped")):
        (held,) = stores[1].list_children(path)
        end_session_of(stores[1], zookeeper)
        eventually(lambda: stores[0].list_children(path) not in ([], [held]), 60)
    stores[1].close()
    eventually(lambda: stores[0].list_children(path) == [])
    stores[0].close()
