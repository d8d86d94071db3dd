"""Dead letters: marks that phase two gave up, to be looked at, sent back or dropped."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from bookwarden.clusters.pulsar.messages.readers import DeadLetterConsumer, DeadLetterTopic
from bookwarden.errors import NotFoundError, RefusedError
from bookwarden.ledgers.received import ATTEMPTS, OF_PHASE_TWO, OUTCOME, REAL_TOPIC, REASON, ReceivedMark

_CONFIRM_EVERY = 500
# The parts that differ between reasons of one kind: quoted text, names with slashes, numbers.
_PARTICULARS = (
    (re.compile(r"'[^']*'|\"[^\"]*\""), "<text>"),
    (re.compile(r"[^\s'\"(]*/[^\s'\":;,)]*"), "<name>"),
    (re.compile(r"\b(?=\w*\d)[0-9a-f]{8,}\b|\d[\d.,]*(?<=\d)"), "#"),
)
_GROUP_LENGTH = 200


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message of the DLQ with phase two's properties; ``outcome`` is "" if a Java client sent it."""

    received: ReceivedMark
    reason: str
    outcome: str
    attempts: int

    @property
    def message_id(self) -> str:
        """Its id on the DLQ, by which it is shown, replayed or dropped."""
        return self.received.message_id


@dataclass(slots=True)
class ReasonGroup:
    """Dead letters whose reasons are of one kind; times of publishing in milliseconds."""

    reason: str
    count: int
    oldest: int
    newest: int
    example: DeadLetter


class LetterBounds:
    """The dead letters that were looked at, so that the same and no later ones are taken afterwards."""

    def __init__(self) -> None:
        #: Of the letters that were noted.
        self.count = 0
        self._last: dict[str, tuple[int, ...]] = {}

    def note(self, letter: DeadLetter) -> None:
        """Note a letter; those of a partition come in order."""
        self.count += 1
        self._last[letter.received.topic] = _place_of(letter.received)

    def has(self, received: ReceivedMark) -> bool:
        """Return whether it is no later than the last one noted of its partition."""
        last = self._last.get(received.topic)
        return last is not None and _place_of(received) <= last


def _place_of(received: ReceivedMark) -> tuple[int, ...]:
    ledger_id, entry_id, _, *batch_index = map(int, received.message_id.split(":"))
    return ledger_id, entry_id, *batch_index


class DeadLetters:
    """An operator's work on dead letters: list, show, replay, drop.

    ``directives`` is the topic of switch directives: what came from there and was none is no mark to be replayed.
    """

    def __init__(self, box: DeadLetterTopic, directives: str = "") -> None:
        self._box = box
        self._directives = directives

    def read(self, limit: int | None = None, *, reason: str | None = None) -> Iterator[DeadLetter]:
        """Yield at most `limit` dead letters that have the reason, oldest first on each partition."""
        with self._box.open() as reading:
            for received in _chosen(reading, None, reason, limit):
                yield _dead_letter(received)

    def show(self, message_id: str) -> DeadLetter:
        """Return one dead letter; NotFoundError if there is none of this id."""
        for letter in self.read():
            if letter.message_id == message_id:
                return letter
        raise _absent({message_id})

    def replay(
        self,
        message_ids: Collection[str] | None = None,
        *,
        reason: str | None = None,
        limit: int | None = None,
        bounds: LetterBounds | None = None,
        dry_run: bool = False,
    ) -> Iterator[DeadLetter]:
        """Send these, or all, to the deletion topic with their counts reset; yield each that is done.

        ``reason`` chooses those that have it, ``limit`` bounds their number where no ids are given, ``bounds`` chooses
        those that it has. A message leaves the DLQ only after its copy is confirmed, so a failure in between leaves two
        rather than none. What came from the topic of switch directives stays; RefusedError where it is named.
        NotFoundError, after all others are done, for an id that is not there.
        """
        absent, pending = set(message_ids or ()), list[ReceivedMark]()
        with self._box.open() as reading:
            for received in self._marks_among(_chosen(reading, message_ids, reason, limit, bounds), message_ids):
                absent.discard(received.message_id)
                if dry_run:
                    yield _dead_letter(received)
                    continue
                reading.send_back(received, reset_properties(received.properties))
                pending.append(received)
                if len(pending) >= _CONFIRM_EVERY:
                    yield from _finished(reading, pending)
            yield from _finished(reading, pending)
        if absent:
            raise _absent(absent)

    def _marks_among(
        self, letters: Iterable[ReceivedMark], message_ids: Collection[str] | None
    ) -> Iterator[ReceivedMark]:
        for received in letters:
            if not self._directives or received.properties.get(REAL_TOPIC) != self._directives:
                yield received
            elif message_ids is not None:
                raise RefusedError(
                    f"dead letter {received.message_id} came from {self._directives} and is no mark: it cannot be "
                    "replayed, only dropped"
                )

    def drop(
        self,
        message_ids: Collection[str] | None = None,
        *,
        reason: str | None = None,
        limit: int | None = None,
        bounds: LetterBounds | None = None,
        dry_run: bool = False,
    ) -> Iterator[DeadLetter]:
        """Remove these, or all, from the DLQ for good; yield each. The choice, and NotFoundError, as for `replay`."""
        absent = set(message_ids or ())
        with self._box.open() as reading:
            for received in _chosen(reading, message_ids, reason, limit, bounds):
                absent.discard(received.message_id)
                if not dry_run:
                    reading.acknowledge(received)
                yield _dead_letter(received)
        if absent:
            raise _absent(absent)


def reason_group(reason: str) -> str:
    """Reduce a reason to its kind: ids, names and figures are replaced, so that many letters share it."""
    for pattern, placeholder in _PARTICULARS:
        reason = pattern.sub(placeholder, reason)
    return reason[:_GROUP_LENGTH]


def has_reason(letter: DeadLetter, text: str) -> bool:
    """Return whether a dead letter's reason, or its kind, contains the text."""
    return text in letter.reason or text in reason_group(letter.reason)


def group_by_reason(letters: Iterable[DeadLetter]) -> list[ReasonGroup]:
    """Group dead letters by the kind of their reason, the largest group first."""
    groups: dict[str, ReasonGroup] = {}
    for letter in letters:
        kind, at = reason_group(letter.reason), letter.received.published_at
        group = groups.setdefault(kind, ReasonGroup(kind, 0, at, at, letter))
        group.count += 1
        group.oldest, group.newest = min(group.oldest, at), max(group.newest, at)
    return sorted(groups.values(), key=lambda group: (-group.count, group.reason))


def reset_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Keep only what the first sender wrote, so that the message counts as new."""
    return {name: value for name, value in properties.items() if name not in OF_PHASE_TWO}


def _dead_letter(received: ReceivedMark) -> DeadLetter:
    properties = received.properties
    attempts = properties.get(ATTEMPTS, "")
    return DeadLetter(
        received,
        reason=properties.get(REASON, ""),
        outcome=properties.get(OUTCOME, ""),
        attempts=int(attempts) if attempts.isascii() and attempts.isdigit() else received.attempts,
    )


def _chosen(
    reading: DeadLetterConsumer,
    message_ids: Collection[str] | None,
    reason: str | None,
    limit: int | None,
    bounds: LetterBounds | None = None,
) -> Iterator[ReceivedMark]:
    wanted = None if message_ids is None else set(message_ids)
    most = len(wanted) if wanted is not None else limit
    count = 0
    for received in reading:
        if wanted is not None and received.message_id not in wanted:
            continue
        if bounds is not None and not bounds.has(received):
            continue
        if reason is not None and not has_reason(_dead_letter(received), reason):
            continue
        yield received
        count += 1
        if count == most:
            return


def _finished(reading: DeadLetterConsumer, pending: list[ReceivedMark]) -> Iterator[DeadLetter]:
    """Take those off whose copies are confirmed; they are done whether anybody asks for them or not."""
    if pending:
        reading.confirm()
    for received in pending:
        reading.acknowledge(received)
    yield from map(_dead_letter, pending)
    pending.clear()


def _absent(message_ids: Collection[str]) -> NotFoundError:
    return NotFoundError(f"no dead letter {', '.join(sorted(message_ids))}; `bookwarden dlq list` names them all")
