"""Cache of a worker process for its later tasks: sessions and clients, which do not survive a fork."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

KeptT = TypeVar("KeptT")


class PerProcess(Generic[KeptT]):
    """Things by key, each only for the process that made it."""

    def __init__(self) -> None:
        # Things inherited by a fork stay here untouched: closing one would close it for the parent too.
        self._kept: dict[tuple[int, Hashable], KeptT] = {}

    def get(self, key: Hashable, make: Callable[[], KeptT]) -> KeptT:
        """Return this process's own, made if it has none."""
        mine = (os.getpid(), key)
        if mine not in self._kept:
            self._kept[mine] = make()
        return self._kept[mine]

    def take(self, key: Hashable) -> KeptT | None:
        """Remove and return this process's own; None if it has none."""
        return self._kept.pop((os.getpid(), key), None)

    def put(self, key: Hashable, value: KeptT) -> None:
        """Keep it as this process's own."""
        self._kept[os.getpid(), key] = value
