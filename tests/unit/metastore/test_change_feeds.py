"""Feeds of changes that do not begin leave nothing behind: whoever plans batches tries again, for minutes."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from bookwarden.errors import StoreUnavailableError
from bookwarden.metastore.urls import open_store
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from servers.scripted_oxia import NOBODY, ScriptedOxia
from servers.waiting import eventually

TREES = ("/managed-ledgers", "/schemas")


def test_a_feed_of_zookeeper_that_does_not_begin_leaves_no_listener() -> None:
    with closing(open_store("zk:127.0.0.1:1", connect_timeout_s=0.2, operation_timeout_s=0.2)) as store:
        assert isinstance(store, ZooKeeperStore)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                store.follow_below(TREES)
        assert store._session._listeners == ()


def test_a_feed_of_oxia_that_does_not_begin_leaves_no_stream() -> None:
    def streams() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("the changes of shard")}

    server = ScriptedOxia(shards=2)
    with closing(server):
        server.move(1, NOBODY)
        server.tell()
        with closing(open_store(server.url, operation_timeout_s=1.0)) as store:
            with pytest.raises(StoreUnavailableError):
                store.follow_below(TREES)
            eventually(lambda: not streams(), 10.0)
            server.move(1, 0)
            server.tell()
            eventually(lambda: store.follow_below(TREES), 10.0)
            assert streams() == {"the changes of shard 0", "the changes of shard 1"}
