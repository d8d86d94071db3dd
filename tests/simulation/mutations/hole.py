"""What a hole is: a change of the product that puts it back, and what the simulation has to say of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest


class Hole(NamedTuple):
    """A hole that was closed.

    ``harm`` is the kind of violation that it ends in. ``only`` are the features that befall the lives in which it is
    looked for, None for all that the product stands, and ``often`` the operations that come often in them; ``first`` is
    the number of the first of these lives, so that nobody waits for those in which nothing is found.
    """

    put_back: Callable[[pytest.MonkeyPatch], None]
    harm: str
    only: tuple[str, ...] | None = None
    often: tuple[str, ...] = ()
    first: int = 0

    def is_told_by(self, kind: str) -> bool:
        """Whether a violation of this kind tells of it: a ledger that is needed is planned or lost, as it comes."""
        return kind == self.harm or {kind, self.harm} == {"lost", "planned"}
