"""A metadata store that is another one, but for what a subclass does its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookwarden.ledgers.metadata import Conditions, DeleteResult
from bookwarden.metastore.interface import MetadataStore, Versioned


class ForwardingStore(MetadataStore):
    """Hands every call on to ``store``, which it closes with itself."""

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

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        return self._store.watch(path, changed)

    def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
        return self._store.ephemeral_sequential(prefix, value)

    def next_number(self, path: str) -> int:
        return self._store.next_number(path)

    def close(self) -> None:
        self._store.close()
