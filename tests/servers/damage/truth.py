"""What a cluster holds, read past bookwarden: nodes and ledgers in the metadata store, objects in the bucket.

ZooKeeper is read by kazoo alone. Oxia has no other client in Python than bookwarden's, of which nothing but the reading
and writing of records is used.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from bookwarden.ledgers.kinds import CompactedHolder
from bookwarden.ledgers.pending_deletion import PendingDeletion, mark_of_holder
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import DevCluster
from bookwarden_dev.devcluster.servers.object_store import ObjectStore
from servers.damage.nodes import (
    MANAGED_LEDGERS,
    SCHEMAS,
    Node,
    NodeKind,
    copies_named,
    kind_of,
    ledgers_named,
    mark_of_copy,
)

_LEDGER_FOLDERS: Final = (re.compile(r"\d{2}"), re.compile(r"\d{4}"))
_LEDGER: Final = re.compile(r"/ledgers/(\d{2})/(\d{4})/L(\d{4})")


class Tree(ABC):
    """The nodes of a metadata store, as they are."""

    @abstractmethod
    def get(self, paths: Sequence[str]) -> list[bytes | None]:
        """Read these nodes."""

    @abstractmethod
    def children(self, paths: Sequence[str]) -> list[list[str]]:
        """List the names below each of these nodes; none where there is no node."""

    @abstractmethod
    def set(self, path: str, value: bytes) -> None:
        """Write a node, which may have any version."""

    @abstractmethod
    def create(self, path: str, value: bytes) -> None:
        """Make a node, and those above it."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a node."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def below(self, root: str) -> dict[str, bytes]:
        """Read all nodes below one."""
        found: dict[str, bytes] = {}
        level = [root]
        while level:
            level = [
                f"{path}/{name}" for path, names in zip(level, self.children(level), strict=True) for name in names
            ]
            values = zip(level, self.get(level), strict=True)
            found |= {path: value for path, value in values if value is not None}
        return found

    def ledgers(self) -> dict[int, str]:
        """List the ledgers that BookKeeper has, with their paths."""
        level = ["/ledgers"]
        for folder in _LEDGER_FOLDERS:
            names = zip(level, self.children(level), strict=True)
            level = [f"{path}/{name}" for path, below in names for name in below if folder.fullmatch(name)]
        paths = [f"{path}/{name}" for path, below in zip(level, self.children(level), strict=True) for name in below]
        matches = ((path, _LEDGER.fullmatch(path)) for path in paths)
        return {int("".join(match.groups())): path for path, match in matches if match}


class ZooKeeperTree(Tree):
    """The nodes of a ZooKeeper."""

    def __init__(self, hosts: str) -> None:
        self._client = KazooClient(hosts, timeout=60)
        self._client.start()

    def get(self, paths: Sequence[str]) -> list[bytes | None]:
        return [None if found is None else found[0] for found in self._each(self._client.get_async, paths)]

    def children(self, paths: Sequence[str]) -> list[list[str]]:
        return [found or [] for found in self._each(self._client.get_children_async, paths)]

    def set(self, path: str, value: bytes) -> None:
        self._client.set(path, value)

    def create(self, path: str, value: bytes) -> None:
        self._client.create(path, value, makepath=True)

    def delete(self, path: str) -> None:
        self._client.delete(path)

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    @staticmethod
    def _each(ask: Callable[[str], Any], paths: Sequence[str]) -> Iterator[Any]:
        for answer in [ask(path) for path in paths]:
            try:
                yield answer.get(timeout=60)
            except NoNodeError:
                yield None


class OxiaTree(Tree):
    """The records of an Oxia."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url)

    def get(self, paths: Sequence[str]) -> list[bytes | None]:
        return [None if found is None else found.value for found in self._store.get_many(paths)] if paths else []

    def children(self, paths: Sequence[str]) -> list[list[str]]:
        return [self._store.children_of(path) for path in paths]

    def set(self, path: str, value: bytes) -> None:
        found = self._store.get(path)
        assert found is not None, path
        self._store.put(path, value, found.version)

    def create(self, path: str, value: bytes) -> None:
        self._store.create(path, value, make_parents=True)

    def delete(self, path: str) -> None:
        found = self._store.get(path)
        assert found is not None, path
        self._store.delete_many([(path, found.version)])

    def close(self) -> None:
        self._store.close()


def tree_of(cluster: DevCluster) -> Tree:
    """Open the metadata store of a cluster."""
    if cluster.options.metadata == "zookeeper":
        return ZooKeeperTree(cluster.store_url.removeprefix("zk:"))
    return OxiaTree(cluster.store_url)


class Bucket:
    """The objects of the bucket that brokers offload to, which can be put back."""

    def __init__(self, objects: ObjectStore, name: str) -> None:
        self._client, self._objects, self._name = objects.client, objects, name
        self._kept: dict[str, tuple[bytes, dict[str, str]]] = {}

    def keys(self) -> set[str]:
        return self._objects.keys(self._name)

    def keep(self) -> None:
        """Remember all objects."""
        for key in self.keys():
            found = self._client.get_object(Bucket=self._name, Key=key)
            self._kept[key] = found["Body"].read(), found["Metadata"]

    def put_back(self, keys: Collection[str]) -> None:
        for key in keys:
            body, metadata = self._kept[key]
            self._client.put_object(Bucket=self._name, Key=key, Body=body, Metadata=metadata)


@dataclass(frozen=True, slots=True)
class LiveMark:
    """A mark, whether of a ledger or of a copy, of what must not go; ``keys`` are the copy's objects."""

    mark: PendingDeletion
    keys: frozenset[str] = frozenset()

    @property
    def ledger_id(self) -> int:
        return self.mark.ledger_id

    def is_there(self, ledgers: Collection[int], keys: Collection[str]) -> bool:
        """Return whether it is still there as a whole."""
        return all(key in keys for key in self.keys) if self.keys else self.ledger_id in ledgers

    def __str__(self) -> str:
        return f"{'copy of ' if self.keys else ''}ledger {self.ledger_id} of {self.mark.holder()}"


@dataclass(frozen=True)
class Truth:
    """A healthy cluster: its nodes, and the ledgers and objects that they name and that are there."""

    nodes: Mapping[str, Node]
    ledgers: Mapping[int, tuple[str, bytes]]  #: Path and value of each ledger's node.
    keys: frozenset[str]
    #: Compacted ledgers that brokers use, by the path of the cursor that names them in the last entry of its ledger.
    in_use: Mapping[str, int] = field(default_factory=dict)

    def live_marks(self, *paths: str) -> list[LiveMark]:
        """Make the marks of all that is there and that these nodes name; a topic's with those of its cursors."""
        wanted = dict.fromkeys(
            each for path in paths for each in self.nodes if each == path or each.startswith(f"{path}/")
        )
        marks = [mark for each in wanted for mark in self.live_marks_of(each)]
        return list({(mark.ledger_id, mark.keys, str(mark.mark.holder())): mark for mark in marks}.values())

    def lines(self) -> Iterator[str]:
        """Say how much there is."""
        kinds = Counter(node.kind.value for node in self.nodes.values())
        older = sum(len(node.older) for node in self.nodes.values())
        yield f"{len(self.nodes)} nodes ({_counted(kinds)}), and {older} older values of them"
        marks = self.live_marks(*self.nodes)
        yield f"live: {_counted(Counter('copy' if mark.keys else mark.mark.component.value for mark in marks))}"
        only = sum(bool(mark.keys) and mark.ledger_id not in self.ledgers for mark in marks)
        yield f"copies of ledgers that BookKeeper has no more: {only}"

    def live_marks_of(self, path: str) -> Iterator[LiveMark]:
        """Make the marks of what this node names, and no node below it."""
        node = self.nodes[path]
        name = node.path.removeprefix(f"{MANAGED_LEDGERS}/")
        named = ledgers_named(node.path, node.kind, node.value)
        if node.path in self.in_use:
            named[self.in_use[node.path]] = CompactedHolder(name.rpartition("/")[0])
        for ledger_id, holder in named.items():
            if ledger_id in self.ledgers:
                yield LiveMark(mark_of_holder(ledger_id, holder, "damage"))
        if node.kind is NodeKind.MANAGED_LEDGER:
            for copy in copies_named(node.value):
                if copy.keys <= self.keys:
                    yield LiveMark(mark_of_copy(name, copy), copy.keys)


def read_nodes(tree: Tree, *, without: Sequence[str] = ()) -> dict[str, bytes]:
    """Read all nodes that can name ledgers, but for those below these namespaces."""
    found = tree.below(MANAGED_LEDGERS) | tree.below(SCHEMAS)
    return {path: value for path, value in found.items() if kind_of(path) and not _is_of(path, without)}


def read_truth(
    tree: Tree,
    bucket: Bucket,
    *,
    older: Mapping[str, Sequence[bytes]] | None = None,
    in_use: Mapping[str, int] | None = None,
    without: Sequence[str] = (),
) -> Truth:
    """Read a healthy cluster."""
    nodes = {
        path: Node(path, kind, value, tuple((older or {}).get(path, ())))
        for path, value in read_nodes(tree, without=without).items()
        if (kind := kind_of(path))
    }
    paths = tree.ledgers()
    values = zip(paths.items(), tree.get(list(paths.values())), strict=True)
    ledgers = {ledger_id: (path, value) for (ledger_id, path), value in values if value is not None}
    return Truth(nodes, ledgers, frozenset(bucket.keys()), in_use or {})


@contextmanager
def noting_older_values(open_tree: Callable[[], Tree], without: Sequence[str]) -> Iterator[Mapping[str, list[bytes]]]:
    """Read all nodes again and again for the block; yield the values that each had, oldest first."""
    seen: dict[str, list[bytes]] = {}
    ended = threading.Event()

    def read() -> None:
        with closing(open_tree()) as tree:
            while not ended.is_set():
                for path, value in read_nodes(tree, without=without).items():
                    values = seen.setdefault(path, [])
                    if value not in values[-1:]:
                        values.append(value)

    with ThreadPoolExecutor(1, thread_name_prefix="older-values") as pool:
        reading = pool.submit(read)
        try:
            yield seen
        finally:
            ended.set()
            reading.result()


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.most_common())


def _is_of(path: str, namespaces: Sequence[str]) -> bool:
    below = path.removeprefix(MANAGED_LEDGERS).removeprefix(SCHEMAS)
    return any(below.startswith(f"/{namespace}/") for namespace in namespaces)
