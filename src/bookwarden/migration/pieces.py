"""Pieces of work that threads share while they find more of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Piece = TypeVar("Piece")


class Pieces(Generic[Piece]):
    """A queue with room for ``most`` pieces; it ends when it is empty and no thread works on one of its pieces.

    ``first`` are in it from the start, however many there are.
    """

    def __init__(self, first: Iterable[Piece], most: int) -> None:
        self._waiting = deque(first)
        self._most = most
        self._changed = threading.Condition()
        self._under_way = 0
        self._stopped = False

    @property
    def is_stopped(self) -> bool:
        """Whether threads should stop working."""
        return self._stopped

    def each(self) -> Iterator[Piece]:
        """Yield pieces to a thread, which finishes one by asking for the next, until all are done or stopped."""
        while (piece := self._take()) is not None:
            try:
                yield piece
            finally:
                self._done()

    def offer(self, piece: Piece) -> bool:
        """Leave a piece to any thread; False if there is no room, and the caller has to do it."""
        with self._changed:
            if len(self._waiting) >= self._most:
                return False
            self._waiting.append(piece)
            self._changed.notify()
            return True

    def stop(self) -> None:
        """Stop handing out pieces."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _take(self) -> Piece | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopped or not self._under_way)
            if self._stopped or not self._waiting:
                return None
            self._under_way += 1
            return self._waiting.popleft()

    def _done(self) -> None:
        with self._changed:
            self._under_way -= 1
            if not self._under_way:
                self._changed.notify_all()
