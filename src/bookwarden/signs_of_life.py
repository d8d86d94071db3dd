"""Signs of life of this process: it may go on asking, or was answered; so what is slow is told from what hangs."""

from __future__ import annotations

import itertools


class SignsOfLife:
    """Counts what this process got on with; safe for threads."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._last = 0

    @property
    def count(self) -> int:
        """How many there were; whoever sees another number than before has seen one more, or several."""
        return self._last

    def give(self) -> None:
        """Count one."""
        self._last = next(self._numbers)


# Of this process. Who may go on asking a store, or got an answer of a broker, gives one.
SIGNS_OF_LIFE = SignsOfLife()
