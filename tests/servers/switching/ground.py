"""A Pulsar cluster in memory that can be switched: a registry, and brokers whose jar follows it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from bookwarden.bookie_clusters.brokers import BROKERS_PATH
from bookwarden.bookie_clusters.registry import (
    FOLLOWERS_PATH,
    REGISTRY_PATH,
    BookieCluster,
    Registry,
    parse_registry,
    serialize_registry,
)
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.memory import MemoryStore

OWNER = "5f2c9a41"


def registry_of(active: str = "a", *, epoch: int = 2, names: str = "ab", **fields: Any) -> Registry:
    """Make a registry of clusters with these names, whose instances are ``instance-NAME``."""
    clusters = {
        name: BookieCluster(
            *(name, f"zk+hierarchical://zk:2181/{name}", None, f"/{name}", f"instance-{name}", number),
            unmarked_below=None if number == 0 else 0,
        )
        for number, name in enumerate(names)
    }
    return Registry(epoch, OWNER, "/a", active, clusters, **fields)


def follower_value(registry: Registry, **fields: Any) -> bytes:
    """Return what the jar of a broker says that acts by this registry."""
    told = {
        "epoch": registry.epoch,
        "active": registry.active,
        "owner": registry.owner,
        "host": "broker",
        "pid": 7,
        "jar": "0.1.0",
        "instances": {name: each.instance for name, each in registry.clusters.items()},
        "unreachable": [],
        "understands": ["unmarkedBelow", "storeUrl"],
    }
    return json.dumps({**told, **fields}).encode()


class SessionStore(MemoryStore):
    """A store in memory that tells the sessions that the test says nodes end with."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self.sessions: dict[str, int] = {}

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        found = super().get_many(paths)
        return [
            node and (node._replace(ephemeral=True, session=self.sessions[path]) if path in self.sessions else node)
            for path, node in zip(paths, found, strict=True)
        ]


class Ground:
    """The store, its registry, and brokers."""

    def __init__(self, registry: Registry | None = None) -> None:
        self.store = SessionStore()
        self.store.create(REGISTRY_PATH, serialize_registry(registry or registry_of()), make_parents=True)
        self._session = 0

    @property
    def registry(self) -> Registry:
        """The registry as it is now."""
        node = self.store.get(REGISTRY_PATH)
        assert node is not None
        return parse_registry(node.value)

    def change(self, changed: Registry) -> None:
        """Change the registry as another process does."""
        node = self.store.get(REGISTRY_PATH)
        assert node is not None
        self.store.put(REGISTRY_PATH, serialize_registry(changed), node.version)

    def broker(self, name: str, *, jar: bool = True, follows: bool = True, **fields: Any) -> str:
        """Start a broker; return its follower's path, "" without the jar. One that ``follows`` does so at once."""
        self._session += 1
        self._add(f"{BROKERS_PATH}/{name}", b"{}")
        if not jar:
            return ""
        path = f"{FOLLOWERS_PATH}/{name}"
        self._add(path, follower_value(self.registry, **fields))
        if follows:
            self.store.watch(REGISTRY_PATH, lambda _: self.follow(path))
        return path

    def follow(self, path: str) -> None:
        """Let the broker of this follower's path act by the registry as it is now."""
        node = self.store.get(path)
        assert node is not None
        self.store.put(path, follower_value(self.registry), node.version)

    def _add(self, path: str, value: bytes) -> None:
        self.store.create(path, value, make_parents=True)
        self.store.sessions[path] = self._session
