"""Changed nodes below some prefixes, collected until they are taken."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

_MOST: Final = 500_000


class ChangedNodes(NamedTuple):
    """The nodes that changed, each once however often it did."""

    paths: frozenset[str]  #: Created, written or deleted since they were last taken.
    #: Why changes may be missing here, for people: all nodes have to be read again. Empty if none may be.
    gap: str = ""
    #: The store reports no changes at all, so that only comparing again and again finds any.
    unwatched: bool = False


class ChangeFeed(ABC):
    """Changes below some prefixes, from the moment it was made on; safe to use from several threads."""

    @abstractmethod
    def take(self) -> ChangedNodes:
        """Return what changed since the last call; at once, unless the store has to be reached again.

        A read that follows, after a `sync`, sees every change that was taken. A gap is reported only when later changes
        are collected again, so that a comparison with the present which follows it misses none. Raises
        StoreUnavailableError where that is not possible now; nothing is lost, and the next call reports the gap.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop collecting."""


class ChangeLog:
    """Paths and gaps that other threads report; beyond ``most`` paths there is a gap instead of them.

    With the prefix /a/b it takes paths below it, and not /a/b itself.
    """

    def __init__(self, prefixes: Sequence[str], *, most: int = _MOST) -> None:
        self._below = tuple(f"{prefix.rstrip('/')}/" for prefix in prefixes)
        self._most = most
        self._lock = threading.Lock()
        self._paths: set[str] = set()
        self._gap = ""

    def add(self, paths: Iterable[str]) -> None:
        """Note changed nodes; those below no prefix are passed over."""
        with self._lock:
            self._paths.update(path for path in paths if path.startswith(self._below))
            if len(self._paths) > self._most:
                self._paths.clear()
                self._gap = f"more than {self._most:,} nodes changed before they were read"

    def lose(self, why: str) -> None:
        """Note that changes may be missing."""
        with self._lock:
            self._gap = why

    def take(self) -> ChangedNodes:
        """Return what was noted since the last call."""
        with self._lock:
            found = ChangedNodes(frozenset(self._paths), self._gap)
            self._paths, self._gap = set(), ""
            return found
