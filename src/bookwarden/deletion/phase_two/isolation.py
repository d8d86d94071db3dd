"""Cut out messages that make a step fail: the step is halved until such a message is alone.

A message or ledger with unforeseen contents must not stop all others for ever. Errors of the stores or the brokers are
not a message's fault, nor are errors that many messages meet: those are bookwarden's, and nothing is cut out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from bookwarden.errors import (
    BookieError,
    ConfigError,
    PoisonedBatchError,
    PulsarError,
    RefusedError,
    ServerError,
    SparkError,
    StoreError,
)

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_R = TypeVar("_R")

# The limit of messages to cut out of a share, and in a row with nothing settled in between.
MAX_CUT_OUT: Final = 10
_LONGEST: Final = 500
_NO_MESSAGES_FAULT: Final = (
    StoreError,
    PulsarError,
    BookieError,
    ConfigError,
    RefusedError,
    SparkError,
    ServerError,
    PoisonedBatchError,
    OSError,
    MemoryError,
)


def may_be_of_a_message(error: Exception) -> bool:
    """Return whether a message may be to blame: the error is not that of a store, a broker, a disk or the settings."""
    return not isinstance(error, _NO_MESSAGES_FAULT)


class Isolation:
    """Carries out steps, one object per process; it remembers how many messages it cut out since one was settled."""

    def __init__(self) -> None:
        self._cut_out = 0

    def carry_out(
        self,
        step: Sequence[_T],
        act: Callable[[Sequence[_T]], _R],
        cut_out: Callable[[_T, Exception], _R],
    ) -> Iterator[_R]:
        """Yield the results of `act` for the step or its parts, and of `cut_out` for each message that fails alone.

        `act` may be called again for messages that it has carried out. Raises what `act` raises when no message is to
        blame, and PoisonedBatchError when more than MAX_CUT_OUT would be.
        """
        settled = False
        parts = [step]
        while parts:
            part = parts.pop(0)
            try:
                made = _twice(act, part) if part is step else act(part)
            except Exception as error:
                if not may_be_of_a_message(error):
                    raise
                if len(part) > 1:
                    logger.warning("%d messages fail together (%s): halving them", len(part), describe_error(error))
                    middle = len(part) // 2
                    parts[:0] = [part[:middle], part[middle:]]
                    continue
                self._count(error)
                made = cut_out(part[0], error)
            else:
                settled = True
            yield made
        if settled:
            self._cut_out = 0

    def _count(self, error: Exception) -> None:
        if self._cut_out >= MAX_CUT_OUT:
            raise PoisonedBatchError(
                f"more than {MAX_CUT_OUT} messages fail one by one, which is hardly their fault: no more of them "
                f"goes to the DLQ, and the batch is not done; the last failed by {describe_error(error)}"
            ) from error
        self._cut_out += 1


def describe_error(error: Exception) -> str:
    """Format an error's type and text, on one line."""
    text = " ".join(str(error).split())[:_LONGEST]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _twice(act: Callable[[Sequence[_T]], _R], part: Sequence[_T]) -> _R:
    try:
        return act(part)
    except Exception as error:
        if not may_be_of_a_message(error):
            raise
        logger.warning(
            "%d messages fail, and are tried once more: %s", len(part), describe_error(error), exc_info=error
        )
    return act(part)
