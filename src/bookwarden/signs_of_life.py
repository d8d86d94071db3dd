"""Signs of life of this process, which tell slow from hung: a store may be asked, or a broker answered."""

from __future__ import annotations

import itertools


class SignsOfLife:
    """Counter of the steps this process has got on with; safe for threads."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._last = 0

    @property
    def count(self) -> int:
        """The signs given so far: a number that changed means at least one more."""
        return self._last

    def give(self) -> None:
        """Count one."""
        self._last = next(self._numbers)


# Of this process: given whenever a store may be asked on, or a broker answered.
SIGNS_OF_LIFE = SignsOfLife()
