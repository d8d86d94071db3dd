"""Steps of something that is watched, as lines for a log or for a program."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Watched(Protocol):
    """A step of what is watched."""

    @property
    def differs_from(self) -> tuple[object, ...]:
        """The part of it by which it differs from others."""

    @property
    def ending(self) -> object | None:
        """The way in which it is over; None while it goes on."""


StepT = TypeVar("StepT", bound=Watched)


class StepLines(Generic[StepT]):
    """Writes a step after a change, at the end, and from time to time."""

    def __init__(self, render: Callable[[StepT], str], every_s: float) -> None:
        self._render = render
        self._every_s = every_s
        self._last: tuple[object, ...] | None = None
        self._said_at = 0.0

    def tell(self, step: StepT) -> None:
        """Write the step if it is worth a line."""
        now = time.monotonic()
        if step.differs_from == self._last and step.ending is None and now < self._said_at + self._every_s:
            return
        self._last, self._said_at = step.differs_from, now
        sys.stdout.write(self._render(step))
        sys.stdout.flush()
