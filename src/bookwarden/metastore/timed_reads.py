"""A metadata store that tells how long its reads took."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bookwarden.metastore.forwarding import ForwardingStore
from bookwarden.metastore.interface import MetadataStore, Versioned


class TimedStore(ForwardingStore):
    """Hands every call on; ``reading_s`` is the time in reads so far, in seconds, of all threads together."""

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
