"""Trees of nodes in this process, planted by a test, that count how they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.paths import ancestors, parent_of

# In milliseconds since the epoch: the switch to the target, and writes before and after it.
SWITCHED_MS = 1_000
BEFORE, AFTER = 500, 1_500

Nodes = dict[str, Versioned]


class Planted:
    """A tree of the nodes that a test plants; ``tells_children`` as ZooKeeper's reads do, otherwise as Oxia's."""

    def __init__(self, nodes: Nodes, *, tells_children: bool = True, answers_at_once: bool = True) -> None:
        self.nodes = nodes
        self.answers_at_once = answers_at_once
        self.calls: Counter[str] = Counter()
        self.largest_batch = 0
        self.most_listed = 0
        self._tells_children = tells_children
        self._children: dict[str, list[str]] = {path: [] for path in ("/", *nodes)}
        for path in sorted(nodes):
            self._children.setdefault(parent_of(path), []).append(path.rpartition("/")[2])

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        self.calls["get_many"] += 1
        self.largest_batch = max(self.largest_batch, len(paths))
        found = [self.nodes.get(path) for path in paths]
        if not self._tells_children:
            return found
        return [
            node and node._replace(children=len(self._children[path])) for path, node in zip(paths, found, strict=True)
        ]

    def list_many(self, paths: Sequence[str]) -> list[list[str]]:
        self.calls["list_many"] += 1
        found = [self._children.get(path, []) for path in paths]
        if len(paths) > 1:
            self.most_listed = max(self.most_listed, sum(map(len, found)))
        return found

    def parents_among(self, paths: Sequence[str]) -> set[str]:
        assert not self._tells_children
        return {path for path in paths if self._children.get(path)}

    def sync(self) -> None:
        self.calls["sync"] += 1


def node(value: bytes = b"v", version: int = 0, *, modified_ms: int = BEFORE, ephemeral: bool = False) -> Versioned:
    return Versioned(value, version, BEFORE, modified_ms, ephemeral=ephemeral)


def tree(*paths: str) -> Nodes:
    """Plant nodes of these paths and above them."""
    return {path: node() for end in paths for path in (*ancestors(end), end)}
