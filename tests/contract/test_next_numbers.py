"""What the stores say of the next sequential node is what the server does, on a real ZooKeeper and a real Oxia."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest

from bookwarden.errors import NotFoundError
from bookwarden.metastore.oxia.store import OxiaStore
from bookwarden.metastore.zookeeper.session import ZooKeeperConnection
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from contract.conftest import OxiaStoreMaker
from servers.lone_zookeeper import LoneZooKeeper

pytestmark = pytest.mark.servers


@pytest.fixture
def parent() -> str:
    return f"/t-{uuid4().hex}"


@pytest.fixture
def zookeeper_store(zookeeper: LoneZooKeeper) -> Iterator[ZooKeeperStore]:
    with closing(ZooKeeperStore(ZooKeeperConnection(zookeeper.hosts))) as store:
        yield store


def number_of(path: str) -> int:
    return int(path.rpartition("-")[2])


def assert_told(store: ZooKeeperStore | OxiaStore, parent: str) -> None:
    with pytest.raises(NotFoundError, match=parent):
        store.next_number(parent)
    store.create(parent, b"")
    for _ in range(3):
        expected = store.next_number(parent)
        assert number_of(store.ephemeral_sequential(f"{parent}/ID-", b"")) == expected
    (first, *_) = sorted(store.list_children(parent))
    node = store.get(f"{parent}/{first}")
    assert node is not None
    store.delete_many([(f"{parent}/{first}", node.version)])
    # What is deleted counts for the next number, and so does what has none.
    store.create(f"{parent}/other", b"")
    expected = store.next_number(parent)
    assert number_of(store.ephemeral_sequential(f"{parent}/ID-", b"")) == expected


def test_zookeeper_counts_what_was_created(zookeeper_store: ZooKeeperStore, parent: str) -> None:
    assert_told(zookeeper_store, parent)


def test_oxia_counts_what_was_numbered(connect_oxia: OxiaStoreMaker, parent: str) -> None:
    assert_told(connect_oxia(), parent)


def test_oxia_of_0_14_is_counted_up(connect_oxia: OxiaStoreMaker, parent: str) -> None:
    store = connect_oxia()
    store.create(parent, b"")
    assert store.set_next_number(parent, 30_000) == 2
    told: list[int] = []
    assert store.count_up(parent, 30_000, progress=told.append) == 30_000
    assert told == sorted(told)
    assert told[-1] == 30_000
    assert number_of(store.ephemeral_sequential(f"{parent}/ID-", b"")) == 30_000
