"""The outbox of brokers that mark, as it is measured: each node is read once, the oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bookwarden.clusters.pulsar.broker_marks import Outbox, OutboxSize
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.wrappers import ForwardingStore
from bookwarden.wire.broker_marks import OUTBOX_ROOT

FOLDER = f"{OUTBOX_ROOT}/b1:8080-00000001"


class WatchedStore(ForwardingStore):
    """Says which nodes were read."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.read: list[str] = []

    def get_many(self, paths: Sequence[str]) -> Any:
        self.read += paths
        return self._store.get_many(paths)


def test_a_node_is_read_once_and_forgotten_when_it_is_gone() -> None:
    inner = MemoryStore(lambda: 50.0)
    store = WatchedStore(inner)
    outbox = Outbox(store)
    assert outbox.size() == OutboxSize(0, 0, None)
    inner.create(f"{FOLDER}/0/0", bytes(10), make_parents=True)
    inner.create(f"{FOLDER}/0/1", bytes(5))
    assert outbox.size() == OutboxSize(2, 15, 50_000)
    inner.create(f"{FOLDER}/1/1000", bytes(3), make_parents=True)
    inner.delete_many([(f"{FOLDER}/0/0", 0)])
    assert outbox.size() == OutboxSize(2, 8, 50_000)
    assert store.read == [f"{FOLDER}/0/0", f"{FOLDER}/0/1", f"{FOLDER}/1/1000"]


def test_nodes_come_by_number() -> None:
    store = MemoryStore()
    for number in (2000, 10_000, 999, 3, 20):
        store.create(f"{FOLDER}/{number // 1000}/{number}", b"", make_parents=True)
    read = [found.path.rpartition("/")[2] for some in Outbox(store).read("b1:8080-00000001") for found in some]
    assert read == ["3", "20", "999", "2000", "10000"]


def test_a_folder_goes_only_when_it_is_empty() -> None:
    store = MemoryStore()
    store.create(f"{FOLDER}/0/0", b"", make_parents=True)
    outbox = Outbox(store)
    assert not outbox.delete_if_empty("b1:8080-00000001")
    store.delete_many([(f"{FOLDER}/0/0", 0)])
    assert outbox.delete_if_empty("b1:8080-00000001")
    assert outbox.folders() == []
