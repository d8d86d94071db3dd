"""A metadata store that reads no faster than it is told, so that a scan leaves the servers to those who need them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from bookwarden.metastore.forwarding import ForwardingStore
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.pacing import Rate


def throttled(store: MetadataStore, max_reads_per_second: float | None) -> MetadataStore:
    """Let the store read so many nodes a second at most; None lets it read as fast as it can.

    The limit is this process's: whoever reads in several divides it among them.
    """
    return store if max_reads_per_second is None else ThrottledStore(store, max_reads_per_second)


class ThrottledStore(ForwardingStore):
    """Waits before reads, in the order of the calls over all threads; everything else goes straight to the store.

    Each path read, and each directory listed, counts as one. Time in which nothing is read is not made up for
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
        """Give paths to be read, each batch when it may be."""
        size = self._rate.most_at_once
        for begin in range(0, len(paths), size):
            batch = paths[begin : begin + size]
            self._wait_for(len(batch))
            yield batch

    def _wait_for(self, reads: int) -> None:
        seconds = self._rate.reserve(reads)
        if seconds > 0:
            self._sleep(seconds)
