"""A metadata store that this process reads and must not write to."""

from __future__ import annotations

from collections.abc import Sequence

from bookwarden.errors import StoreMovedError
from bookwarden.ledgers.metadata import Conditions, DeleteResult
from bookwarden.metastore.forwarding import ForwardingStore
from bookwarden.metastore.interface import MetadataStore


class WriteProtectedStore(ForwardingStore):
    """Passes reads on; each write raises StoreMovedError with the reason.

    So does the question for the next number: it is asked by who is about to write.
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

    def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
        raise StoreMovedError(self._reason)

    def next_number(self, path: str) -> int:
        raise StoreMovedError(self._reason)
