"""Dead letters: marks that phase two gave up, to be looked at, sent back or dropped."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from bookwarden.errors import NotFoundError
from bookwarden.ledgers.received import (
    ATTEMPTS,
    DELAY_TIME,
    FIRST_PUBLISHED,
    ORIGIN_MESSAGE_ID,
    ORIGIN_MESSAGE_ID_MISSPELT,
    OUTCOME,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    REASON,
    RECONSUME_TIMES,
    VERIFIED_AT,
    ReceivedMark,
)

_OF_EARLIER_ROUNDS = frozenset(
    (
        ATTEMPTS,
        DELAY_TIME,
        FIRST_PUBLISHED,
        ORIGIN_MESSAGE_ID,
        ORIGIN_MESSAGE_ID_MISSPELT,
        OUTCOME,
        REAL_SUBSCRIPTION,
        REAL_TOPIC,
        REASON,
        RECONSUME_TIMES,
        VERIFIED_AT,
    )
)
_CONFIRM_EVERY = 500


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message of the DLQ with what phase two wrote on it; an outcome is missing if a Java client sent it."""

    received: ReceivedMark
    reason: str
    outcome: str
    attempts: int

    @property
    def message_id(self) -> str:
        """Its id on the DLQ, by which it is shown, replayed or dropped."""
        return self.received.message_id


class DeadLetterReading(Protocol):
    """The unacknowledged messages of the DLQ while it is held open; each call may raise PulsarError."""

    def __iter__(self) -> Iterator[ReceivedMark]:
        """Yield each message that was there when reading began."""

    def send_back(self, received: ReceivedMark, properties: Mapping[str, str]) -> None:
        """Send the payload to the deletion topic with these properties, without waiting."""

    def confirm(self) -> None:
        """Wait until everything that was sent back is confirmed; raises PulsarError when something is not."""

    def acknowledge(self, received: ReceivedMark) -> None:
        """Take the message off the DLQ."""


class DeadLetterBox(Protocol):
    """The DLQ and its subscription."""

    def open(self) -> AbstractContextManager[DeadLetterReading]:
        """Hold the subscription until the context ends; what was not acknowledged then stays on the DLQ."""


class DeadLetters:
    """What an operator does with dead letters."""

    def __init__(self, box: DeadLetterBox) -> None:
        self._box = box

    def read(self, limit: int | None = None) -> Iterator[DeadLetter]:
        """Yield the dead letters, oldest first on each partition, at most so many."""
        with self._box.open() as reading:
            for count, received in enumerate(reading):
                if limit is not None and count >= limit:
                    return
                yield _dead_letter(received)

    def show(self, message_id: str) -> DeadLetter:
        """Return one dead letter; NotFoundError if there is none of this id."""
        for letter in self.read():
            if letter.message_id == message_id:
                return letter
        raise _absent({message_id})

    def replay(self, message_ids: Collection[str] | None = None, *, dry_run: bool = False) -> list[DeadLetter]:
        """Send these, or all, to the deletion topic with their counts reset; return them.

        A message leaves the DLQ only after its copy is confirmed, so a failure in between leaves it twice, not
        never. NotFoundError, after all others are done, if an id is not there.
        """
        done: list[DeadLetter] = []
        pending: list[ReceivedMark] = []
        with self._box.open() as reading:
            for received in _chosen(reading, message_ids):
                done.append(_dead_letter(received))
                if dry_run:
                    continue
                reading.send_back(received, reset_properties(received.properties))
                pending.append(received)
                if len(pending) >= _CONFIRM_EVERY:
                    _finish(reading, pending)
            _finish(reading, pending)
        _require_all(message_ids, done)
        return done

    def drop(self, message_ids: Collection[str] | None = None, *, dry_run: bool = False) -> list[DeadLetter]:
        """Take these, or all, off the DLQ for good; return them. NotFoundError, at the end, as for `replay`."""
        done: list[DeadLetter] = []
        with self._box.open() as reading:
            for received in _chosen(reading, message_ids):
                if not dry_run:
                    reading.acknowledge(received)
                done.append(_dead_letter(received))
        _require_all(message_ids, done)
        return done


def reset_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Keep only what the first sender wrote, so that the message counts as new."""
    return {name: value for name, value in properties.items() if name not in _OF_EARLIER_ROUNDS}


def _dead_letter(received: ReceivedMark) -> DeadLetter:
    properties = received.properties
    attempts = properties.get(ATTEMPTS, "")
    return DeadLetter(
        received,
        reason=properties.get(REASON, ""),
        outcome=properties.get(OUTCOME, ""),
        attempts=int(attempts) if attempts.isascii() and attempts.isdigit() else received.attempts,
    )


def _chosen(reading: DeadLetterReading, message_ids: Collection[str] | None) -> Iterator[ReceivedMark]:
    wanted = None if message_ids is None else set(message_ids)
    for received in reading:
        if wanted is None:
            yield received
        elif received.message_id in wanted:
            wanted.discard(received.message_id)
            yield received
        if wanted is not None and not wanted:
            return


def _finish(reading: DeadLetterReading, pending: list[ReceivedMark]) -> None:
    if not pending:
        return
    reading.confirm()
    for received in pending:
        reading.acknowledge(received)
    pending.clear()


def _require_all(message_ids: Collection[str] | None, done: Collection[DeadLetter]) -> None:
    absent = set(message_ids or ()) - {letter.message_id for letter in done}
    if absent:
        raise _absent(absent)


def _absent(message_ids: Collection[str]) -> NotFoundError:
    return NotFoundError(f"no dead letter {', '.join(sorted(message_ids))}; `bookwarden dlq list` names them all")
