"""The registry's node: each change is one compare-and-set, and an answer that is lost is looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookwarden.bookie_clusters.registry import REGISTRY_PATH, BookieCluster, Registry
from bookwarden.bookie_clusters.registry_node import RegistryNode, StoredRegistry
from bookwarden.errors import FormatError, LostRaceError, OutcomeUnknownError, RefusedError
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.wrappers import ForwardingStore

A = BookieCluster("a", "metadata-store:zk:h:2181", None, "/ledgers", "instance-a", since=1, bootstrap=True)
B = BookieCluster("b", "zk+hierarchical://h:2181/bookies-b", None, "/bookies-b", "instance-b", since=0)
FIRST = Registry(1, "5f2c9a41", "/ledgers", "a", {"a": A})


class AnswerLost(ForwardingStore):
    """A store whose answers to writes are lost, after or before they were carried out."""

    def __init__(self, store: MemoryStore, *, carried_out: bool) -> None:
        super().__init__(store)
        self._carried_out = carried_out

    def put(self, path: str, value: bytes, version: int) -> int:
        return self._lose(lambda: super(AnswerLost, self).put(path, value, version))

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        self._lose(lambda: super(AnswerLost, self).create(path, value, make_parents=make_parents))

    def _lose(self, write: Callable[[], object]) -> int:
        if self._carried_out:
            write()
        raise OutcomeUnknownError("the connection broke")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def node(store: MemoryStore) -> RegistryNode:
    return RegistryNode(store, "memory:x")


def read(node: RegistryNode) -> StoredRegistry:
    return node.require()


def test_without_a_node_nothing_is_registered(node: RegistryNode) -> None:
    assert node.read() is None
    with pytest.raises(RefusedError, match=r"no bookie cluster is registered in memory:x: .* register --bootstrap"):
        node.require()


def test_what_is_created_and_changed_is_read(node: RegistryNode) -> None:
    node.create(FIRST)
    seen = read(node)
    assert seen.registry == FIRST
    node.replace(seen, FIRST.with_cluster(B))
    assert read(node).registry == FIRST.with_cluster(B)
    assert read(node).version != seen.version


def test_the_second_of_two_first_registrations_is_told_of_the_other(node: RegistryNode) -> None:
    node.create(FIRST)
    with pytest.raises(LostRaceError, match=r"has epoch 1, and bookie cluster 'a' is active"):
        node.create(replace(FIRST, owner="00000000"))
    assert read(node).registry.owner == "5f2c9a41"


def test_a_change_of_what_somebody_else_changed_meanwhile_is_not_made(node: RegistryNode) -> None:
    node.create(FIRST)
    seen = read(node)
    node.replace(seen, FIRST.with_cluster(B))
    with pytest.raises(LostRaceError, match=r"this change was not made.* has epoch 2.* bookie-clusters list"):
        node.replace(seen, FIRST.with_cluster(replace(B, name="c")))
    assert set(read(node).registry.clusters) == {"a", "b"}


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_lost_answer_is_looked_up(store: MemoryStore, node: RegistryNode, carried_out: bool) -> None:
    losing = RegistryNode(AnswerLost(store, carried_out=carried_out), "memory:x")
    if carried_out:
        losing.create(FIRST)
        losing.replace(read(losing), FIRST.with_cluster(B))
        assert read(node).registry.epoch == 2
        return
    with pytest.raises(LostRaceError, match="is not there"):
        losing.create(FIRST)
    node.create(FIRST)
    with pytest.raises(LostRaceError, match="has epoch 1"):
        losing.replace(read(losing), FIRST.with_cluster(B))


@pytest.mark.parametrize("epoch", [1, 3])
def test_no_epoch_is_left_out_or_given_twice(node: RegistryNode, epoch: int) -> None:
    node.create(FIRST)
    with pytest.raises(FormatError, match="after epoch 1"):
        node.replace(read(node), replace(FIRST, epoch=epoch))
    with pytest.raises(FormatError, match="epoch 1, not 2"):
        node.create(replace(FIRST, epoch=2))


def test_what_brokers_would_refuse_is_not_written(node: RegistryNode) -> None:
    node.create(FIRST)
    with pytest.raises(FormatError, match="the same ledgers root"):
        node.replace(read(node), FIRST.with_cluster(replace(B, ledgers_root="/ledgers")))
    assert read(node).registry == FIRST


def test_garbage_is_neither_believed_nor_replaced(store: MemoryStore, node: RegistryNode) -> None:
    store.create(REGISTRY_PATH, b"{}", make_parents=True)
    with pytest.raises(FormatError, match="no registry"):
        node.read()
