"""Nodes as a broker and a bookie make them: below a ZooKeeper root of a test's own, or in a store in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

from bookwarden.metadata_migration.rehearsal import MARKER
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.urls import open_store

LEDGERS = [f"/ledgers/00/{directory:04d}/L{number:04d}" for directory in range(3) for number in range(60)]
CURSORS = [f"/managed-ledgers/t/n/persistent/topic-{topic:02d}/{name}" for topic in range(25) for name in ("a", "ü%2F")]
WRITTEN_AGAIN = CURSORS[:10]
# Of the nodes in memory the first that has as many bytes as any.
LARGEST = CURSORS[1]


def empty_root(hosts: str) -> str:
    """Make a chroot; return its URL."""
    url = f"zk:{hosts}/m-{uuid4().hex}"
    with closing(open_store(f"zk:{hosts}")) as store:
        store.create(f"/{url.partition('/')[2]}", b"")
    return url


def filled_root(hosts: str) -> str:
    """Make a chroot with ledgers and topics, some of them written again; return its URL."""
    url = empty_root(hosts)
    with closing(open_store(url)) as store:
        _create_ledgers_and_topics(store)
        store.create("/empty", b"")
        for path in WRITTEN_AGAIN:
            assert store.put(path, b"again", store.put(path, b"once", 0)) == 2
    return url


def fill(store: MemoryStore) -> None:
    """Make ledgers and topics, a broker's ephemeral node, and a node as ZooKeeper has of its own."""
    _create_ledgers_and_topics(store)
    store.create("/loadbalance/brokers", b"", make_parents=True)
    store.ephemeral_sequential("/loadbalance/brokers/b-", b"here")
    store.create("/zookeeper/config", b"own", make_parents=True)


def remove_tree(store: MetadataStore, path: str) -> None:
    """Remove a node with everything below it."""
    for name in store.children_of(path):
        remove_tree(store, f"{path}/{name}")
    node = store.get(path)
    if node is not None:
        store.delete_many([(path, node.version)])


def nodes_below(store: MetadataStore, root: str = "") -> dict[str, Versioned]:
    """Read a node and all nodes below it, but ZooKeeper's own; without a root all nodes."""
    found: dict[str, Versioned] = {}
    level = [root] if root else [f"/{name}" for name in store.list_children("/") if name != "zookeeper"]
    while level:
        found.update((path, node) for path, node in zip(level, store.get_many(level), strict=True) if node is not None)
        level = [f"{path}/{name}" for path, names in zip(level, store.list_many(level), strict=True) for name in names]
    return found


def paths_of(store: MemoryStore, below: str = "/") -> Iterator[str]:
    """Yield the paths of all nodes below one, those above first."""
    for name in store.list_children(below):
        path = f"{below.rstrip('/')}/{name}"
        yield path
        yield from paths_of(store, path)


def persistent(store: MemoryStore) -> dict[str, bytes]:
    """Return the values of the nodes that outlive sessions, by path, but that of a rehearsal's marker."""
    found = {path: node for path in paths_of(store) if (node := store.get(path)) is not None}
    return {path: node.value for path, node in found.items() if not node.ephemeral and path != MARKER}


def _create_ledgers_and_topics(store: MetadataStore) -> None:
    for path in (*LEDGERS, *CURSORS):
        store.create(path, path.encode(), make_parents=True)
