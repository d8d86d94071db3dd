"""Marks that wait for a shared doubt in their batch, since the retry topic has enough that wait.

What waits on the retry topic is sent again after each retry delay, for as long as the doubt lasts: with a backlog of
100,000 marks that is 600,000 messages an hour, and none of them can be carried out. So the retry topic takes them up to
a limit. Beyond it the batch waits for the doubt to end, with all other marks of the batch carried out: it is not
finished, so no mark of it is acknowledged, and a process that ends meanwhile leaves it to be replayed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bookwarden.deletion.phase_two.decide import Decision
from bookwarden.errors import SharedDoubtError
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.ledgers.shared_doubts import SharedDoubt
from bookwarden.signs_of_life import SIGNS_OF_LIFE

logger = logging.getLogger(__name__)
_COUNT_AGAIN_SECONDS: Final = 5.0
# Between two looks whether the doubt is gone; the sweep goes on within a minute of that.
_LOOK_AGAIN_SECONDS: Final = 10.0
_SIGN_SECONDS: Final = 1.0
_Decided = tuple[ReceivedMark, Decision]


class RetryTopicRoom:
    """The number of marks of a shared doubt that the retry topic may still take.

    ``waiting`` counts the messages on it, whatever they wait for. It is asked for each step, so that tasks that send at
    the same time get no more than a step of each above the limit; a topic that is full stays so for some seconds.
    """

    def __init__(self, limit: int, waiting: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._waiting = waiting
        self._clock = clock
        self._full_until = float("-inf")

    def take(self, wanted: int) -> int:
        """Return for how many of these marks there is room; PulsarError if that is not known."""
        if self._clock() < self._full_until:
            return 0
        room = min(wanted, self._limit - self._waiting())
        if room < wanted:
            self._full_until = self._clock() + _COUNT_AGAIN_SECONDS
        return max(0, room)


class _WaitingMarks(NamedTuple):
    """A doubt, and the messages that wait for its end by topic and id."""

    doubt: SharedDoubt
    messages: dict[tuple[str, str], ReceivedMark]


class HeldMarks:
    """The marks of the running batch that wait for a shared doubt; one object per process.

    Without a ``room`` all such marks go to the retry topic. With ``once`` nothing is waited for.
    """

    def __init__(self, room: RetryTopicRoom | None = None, *, once: bool = False) -> None:
        self._room = room
        self._once = once
        # By the path of what is in doubt.
        self._held: dict[str, _WaitingMarks] = {}
        self._waited_for: set[str] = set()

    def begin(self) -> None:
        """Begin a try of a batch."""
        self._held.clear()
        self._waited_for.clear()

    def hold_back(self, decided: Sequence[_Decided]) -> list[_Decided]:
        """Return what is to be settled now, and hold the marks of shared doubts for which there is no room."""
        doubtful = sum(decision.doubt is not None for _, decision in decided)
        room = doubtful
        if doubtful and self._room is not None:
            # Once the batch waits nothing ends that but the doubt: the backlog has marks of this very batch.
            room = 0 if self._waited_for else self._room.take(doubtful)
        settled = []
        for message, decision in decided:
            key = message.topic, message.message_id
            for held in self._held.values():
                held.messages.pop(key, None)
            if decision.doubt is not None and room <= 0:
                self._held.setdefault(decision.doubt.path, _WaitingMarks(decision.doubt, {})).messages[key] = message
                continue
            room -= decision.doubt is not None
            settled.append((message, decision))
        return settled

    @property
    def marks(self) -> int:
        """The number of marks held."""
        return sum(len(held.messages) for held in self._held.values())

    def by_doubt(self) -> list[list[ReceivedMark]]:
        """Return the marks held, those of each doubt together."""
        return [list(held.messages.values()) for held in self._held.values()]

    def wait(self, pause: Callable[[float], None]) -> bool:
        """Wait for some seconds, with signs of life, if marks are held; return whether they are.

        Raises SharedDoubtError instead of waiting with ``once``.
        """
        doubts = [held.doubt for held in self._held.values() if held.messages]
        if not doubts:
            if self._waited_for:
                logger.info("the doubt is gone: the batch goes on")
            return False
        if self._once:
            raise SharedDoubtError(f"{self.marks} marks, and all that come after them, wait: {doubts[0]}")
        for doubt in doubts:
            if doubt.path not in self._waited_for:
                self._waited_for.add(doubt.path)
                logger.warning("the batch waits, with %d marks: %s", self.marks, doubt)
        for _ in range(round(_LOOK_AGAIN_SECONDS / _SIGN_SECONDS)):
            pause(_SIGN_SECONDS)
            SIGNS_OF_LIFE.give()
        return True
