"""Metadata stores that wrap another one: with limited reads, with timed reads, or without writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bookwarden.errors import StoreError, StoreMovedError
from bookwarden.ledgers.metadata import Conditions, DeleteResult
from bookwarden.metastore.changes import ChangeFeed
from bookwarden.metastore.interface import MetadataStore, Versioned, Write
from bookwarden.metastore.pacing import Rate


class ForwardingStore(MetadataStore):
    """Base class of wrappers: delegates every call to ``store``, and closes it."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        return self._store.get_many(paths)

    def list_children(self, path: str) -> list[str]:
        return self._store.list_children(path)

    def list_many(self, paths: Sequence[str]) -> list[list[str]]:
        return self._store.list_many(paths)

    def parents_among(self, paths: Sequence[str]) -> set[str]:
        return self._store.parents_among(paths)

    def sync(self) -> None:
        self._store.sync()

    def delete_many(
        self,
        expected: Sequence[tuple[str, int]],
        *,
        created_ms: Sequence[int] | None = None,
        conditions: Sequence[Conditions] | None = None,
    ) -> list[DeleteResult]:
        return self._store.delete_many(expected, created_ms=created_ms, conditions=conditions)

    def put(self, path: str, value: bytes, version: int) -> int:
        return self._store.put(path, value, version)

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        self._store.create(path, value, make_parents=make_parents)

    def write_many(self, writes: Sequence[Write]) -> list[StoreError | None]:
        return self._store.write_many(writes)

    def write_together(self, writes: Sequence[Write]) -> None:
        self._store.write_together(writes)

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        return self._store.watch(path, changed)

    def follow_below(self, prefixes: Sequence[str]) -> ChangeFeed:
        return self._store.follow_below(prefixes)

    def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
        return self._store.ephemeral_sequential(prefix, value)

    def next_number(self, path: str) -> int:
        return self._store.next_number(path)

    def close(self) -> None:
        self._store.close()


def throttled(store: MetadataStore, max_reads_per_second: float | None) -> MetadataStore:
    """Limit the store to a number of nodes a second; None reads as fast as it can.

    The limit is that of this process: with several, it has to be divided among them.
    """
    return store if max_reads_per_second is None else ThrottledStore(store, max_reads_per_second)


class ThrottledStore(ForwardingStore):
    """Delays reads, in the order of the calls over all threads; everything else goes straight to the store.

    Each path read, and each directory listed, counts as one. Idle time is not made up for
    later. Raises ConfigError for a limit that is not above 0.
    """

    def __init__(
        self,
        store: MetadataStore,
        max_reads_per_second: float,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(store)
        self._rate = Rate(max_reads_per_second, "max_reads_per_second", now=now)
        self._sleep = sleep

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        return [node for batch in self._batches(paths) for node in self._store.get_many(batch)]

    def list_children(self, path: str) -> list[str]:
        self._wait_for(1)
        return self._store.list_children(path)

    def list_many(self, paths: Sequence[str]) -> list[list[str]]:
        return [names for batch in self._batches(paths) for names in self._store.list_many(batch)]

    def parents_among(self, paths: Sequence[str]) -> set[str]:
        return {path for batch in self._batches(paths) for path in self._store.parents_among(batch)}

    def next_number(self, path: str) -> int:
        self._wait_for(1)
        return self._store.next_number(path)

    def _batches(self, paths: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yield paths to be read, each batch at its time."""
        size = self._rate.most_at_once
        for begin in range(0, len(paths), size):
            batch = paths[begin : begin + size]
            self._wait_for(len(batch))
            yield batch

    def _wait_for(self, reads: int) -> None:
        seconds = self._rate.reserve(reads)
        if seconds > 0:
            self._sleep(seconds)


class TimedStore(ForwardingStore):
    """Delegates every call; ``reading_s`` is the time in reads so far, in seconds, of all threads together."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.answers_at_once = store.answers_at_once
        self._lock = threading.Lock()
        self.reading_s = 0.0

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        with self._timed():
            return super().get_many(paths)

    def list_children(self, path: str) -> list[str]:
        with self._timed():
            return super().list_children(path)

    def list_many(self, paths: Sequence[str]) -> list[list[str]]:
        with self._timed():
            return super().list_many(paths)

    def parents_among(self, paths: Sequence[str]) -> set[str]:
        with self._timed():
            return super().parents_among(paths)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - begin
            with self._lock:
                self.reading_s += seconds


class WriteProtectedStore(ForwardingStore):
    """Passes reads on; each write raises StoreMovedError with the reason.

    So does a request for the next number, which comes before a write.
    """

    def __init__(self, store: MetadataStore, reason: str) -> None:
        super().__init__(store)
        self._reason = reason

    def delete_many(
        self,
        expected: Sequence[tuple[str, int]],
        *,
        created_ms: Sequence[int] | None = None,
        conditions: Sequence[Conditions] | None = None,
    ) -> list[DeleteResult]:
        raise StoreMovedError(self._reason)

    def put(self, path: str, value: bytes, version: int) -> int:
        raise StoreMovedError(self._reason)

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        raise StoreMovedError(self._reason)

    def write_many(self, writes: Sequence[Write]) -> list[StoreError | None]:
        raise StoreMovedError(self._reason)

    def write_together(self, writes: Sequence[Write]) -> None:
        raise StoreMovedError(self._reason)

    def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
        raise StoreMovedError(self._reason)

    def next_number(self, path: str) -> int:
        raise StoreMovedError(self._reason)
