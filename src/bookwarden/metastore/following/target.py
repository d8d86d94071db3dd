"""The target of a metadata migration: opened once, with our ephemeral nodes, and versions unlike the source's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from bookwarden.errors import ConfigError, LostRaceError
from bookwarden.ledgers.metadata import Conditions, DeleteResult
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.paths import parent_of
from bookwarden.metastore.wrappers import ForwardingStore

# ZooKeeper's versions have 32 bits: one below this was read from the source.
FIRST_VERSION: Final = 1 << 32


class TargetStore(ForwardingStore):
    """The target for callers that may have read the source before: its versions begin at 2**32.

    A version of the source never fits: a write or delete with one loses the race, so that the node is read again.
    """

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        return [
            None if node is None else node._replace(version=node.version + FIRST_VERSION)
            for node in self._store.get_many(paths)
        ]

    def delete_many(
        self,
        expected: Sequence[tuple[str, int]],
        *,
        created_ms: Sequence[int] | None = None,
        conditions: Sequence[Conditions] | None = None,
    ) -> list[DeleteResult]:
        read_here = [index for index, (_, version) in enumerate(expected) if version >= FIRST_VERSION]
        done = self._store.delete_many(
            [(expected[index][0], expected[index][1] - FIRST_VERSION) for index in read_here],
            created_ms=None if created_ms is None else [created_ms[index] for index in read_here],
        )
        results = [DeleteResult.LOST_RACE] * len(expected)
        for index, result in zip(read_here, done, strict=True):
            results[index] = result
        return results

    def put(self, path: str, value: bytes, version: int) -> int:
        if version < FIRST_VERSION:
            raise LostRaceError(f"{path} was read, as version {version}, before the metadata moved: read it again")
        return self._store.put(path, value, version - FIRST_VERSION) + FIRST_VERSION


class TargetSession:
    """Opens the target and makes our ephemeral nodes there too; only the remembered nodes are safe for threads.

    A node may get another number in the target than it has in the source.
    """

    def __init__(self, open_store: Callable[[str], MetadataStore]) -> None:
        self._open_store = open_store
        self._lock = threading.Lock()
        self._ephemerals: dict[str, tuple[str, bytes]] = {}
        self._made: set[str] = set()
        self._url: str | None = None
        self.store: MetadataStore | None = None

    def connect(self, url: str | None) -> None:
        """Open the store of this URL, unless it is open, and make sure that it answers."""
        if url is None:
            raise ConfigError("the flag of the migration names no target")
        if self.store is not None and self._url != url:
            self.discard()
        if self.store is None:
            self.store, self._url = TargetStore(self._open_store(url)), url
        # A read, since `sync` of an Oxia may write (`prove_leaders`), and before all is copied nothing may be written.
        self.store.get("/")

    def discard(self) -> None:
        """Close the store, and with its session our nodes there."""
        store, self.store, self._url = self.store, None, None
        self._made.clear()
        if store is not None:
            store.close()

    def remember(self, path: str, prefix: str, value: bytes) -> None:
        """Remember an ephemeral node of the source."""
        with self._lock:
            self._ephemerals[path] = (prefix, value)

    def replace(self, path: str, value: bytes) -> None:
        """Replace the value of a node, if it is remembered."""
        with self._lock:
            if path in self._ephemerals:
                self._ephemerals[path] = (self._ephemerals[path][0], value)

    def forget(self, paths: Sequence[str] | None = None) -> None:
        """Forget nodes that are gone from the source; without paths, all."""
        with self._lock:
            for path in list(self._ephemerals) if paths is None else paths:
                self._ephemerals.pop(path, None)

    def recreate(self) -> None:
        """Make each remembered node in the target, in the order they were made, once."""
        with self._lock:
            missing = {path: node for path, node in self._ephemerals.items() if path not in self._made}
        for path, (prefix, value) in missing.items():
            assert self.store is not None
            with suppress(LostRaceError):
                self.store.create(parent_of(prefix), b"", make_parents=True)
            self.store.ephemeral_sequential(prefix, value)
            self._made.add(path)
