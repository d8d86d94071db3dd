"""A store under a process that is killed at one of its writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bookwarden.errors import StoreError, StoreUnavailableError
from bookwarden.metastore.interface import DeleteResult, MetadataStore, Write
from bookwarden.metastore.wrappers import ForwardingStore


class Killed(Exception):
    """The process is gone."""


class Mortal(ForwardingStore):
    """Stops everything right before, or right after, one of its writes."""

    def __init__(self, inner: MetadataStore, kill_at: int = 1_000, *, before: bool = False) -> None:
        super().__init__(inner)
        self.left = kill_at
        self._before = before

    def _write(self, write: Callable[[], Any]) -> Any:
        if self.left < 0:
            raise StoreUnavailableError("nobody is there any more")
        self.left -= 1
        if self.left < 0:
            if not self._before:
                write()
            raise Killed
        return write()

    def put(self, path: str, value: bytes, version: int) -> int:
        written: int = self._write(lambda: super(Mortal, self).put(path, value, version))
        return written

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        self._write(lambda: super(Mortal, self).create(path, value, make_parents=make_parents))

    def write_many(self, writes: Sequence[Write]) -> list[StoreError | None]:
        written: list[StoreError | None] = self._write(lambda: super(Mortal, self).write_many(writes))
        return written

    def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
        taken: str = self._write(lambda: super(Mortal, self).ephemeral_sequential(prefix, value))
        return taken

    def delete_many(self, expected: Sequence[tuple[str, int]], **options: Any) -> list[DeleteResult]:
        deleted: list[DeleteResult] = self._write(lambda: super(Mortal, self).delete_many(expected, **options))
        return deleted
