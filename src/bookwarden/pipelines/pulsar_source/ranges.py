"""Exact ranges of entries between two positions of a topic: counting, capping, sharing, progress. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bookwarden.clusters.pulsar.rest.topic_positions import LedgerSpan, TopicPositions
from bookwarden.errors import DataGoneError
from bookwarden.ledgers.managed_ledger import Position


@dataclass(frozen=True, slots=True)
class EntryRange:
    """The entries `first` to `last` of one ledger, both included."""

    ledger_id: int
    first: int
    last: int

    @property
    def count(self) -> int:
        """The number of entries."""
        return self.last - self.first + 1


def ranges_between(positions: TopicPositions, start: Position, end: Position) -> list[EntryRange]:
    """List the entries behind `start` up to `end` inclusive, as far as their ledgers still exist."""
    found = []
    for ledger in positions.ledgers:
        if start.ledger_id <= ledger.ledger_id <= end.ledger_id:
            first = start.entry_id + 1 if ledger.ledger_id == start.ledger_id else 0
            last = min(ledger.entries - 1, end.entry_id) if ledger.ledger_id == end.ledger_id else ledger.entries - 1
            if first <= last:
                found.append(EntryRange(ledger.ledger_id, first, last))
    return found


def count_between(positions: TopicPositions, start: Position, end: Position) -> int:
    """Count the entries behind `start` up to `end` inclusive, as far as their ledgers still exist."""
    return sum(entries.count for entries in ranges_between(positions, start, end))


def advance(positions: TopicPositions, start: Position, end: Position, entries: int) -> Position:
    """Return the position `entries` entries behind `start`, but never behind `end`."""
    reached, left = start, entries
    for entry_range in ranges_between(positions, start, end):
        if left <= 0:
            return reached
        taken = min(left, entry_range.count)
        reached = Position(entry_range.ledger_id, entry_range.first + taken - 1)
        left -= taken
    return reached


def fair_shares(available: Mapping[str, int], limit: int, turn: int = 0) -> dict[str, int]:
    """Share a limit over topics so that none gets less than its fair part unless it has less.

    The remainder goes to topics in rotation by `turn`, so that a limit below their number starves none.
    """
    shares = dict.fromkeys(available, 0)
    left = limit
    open_topics = sorted(topic for topic, count in available.items() if count > 0)
    while left > 0 and open_topics:
        part = left // len(open_topics)
        if part == 0:
            for offset in range(left):
                shares[open_topics[(turn + offset) % len(open_topics)]] += 1
            return shares
        for topic in open_topics:
            taken = min(part, available[topic] - shares[topic])
            shares[topic] += taken
            left -= taken
        open_topics = [topic for topic in open_topics if shares[topic] < available[topic]]
    return shares


def check_start(
    positions: TopicPositions, start: Position, subscription: str | None, previous: TopicPositions | None = None
) -> None:
    """Raise DataGoneError if `start` is not of this topic, or entries behind it were trimmed, or skipped by the cursor.

    A start whose ledger is gone is innocent if a durable cursor guarded it: a broker trims a ledger when the cursor
    is at its end, and then puts the cursor before the first entry of the next ledger. Without a cursor it is
    innocent only if the `previous` snapshot shows that everything in it was read.
    """
    topic = positions.topic
    span = _span_of(positions, start)
    last = positions.ledgers[-1].ledger_id
    if _is_past_the_end(positions, start):
        raise DataGoneError(
            f"{topic}: offset {start} lies past the end of the topic, whose last entry is {positions.latest} and last "
            f"ledger {last}: it is another topic's, of another cluster or from before this one was made again. Start "
            "with a new checkpoint"
        )
    # Ledgers are trimmed from the oldest on, so one that is missing among others was empty, or never the topic's.
    if span is None and start.ledger_id > positions.earliest.ledger_id and start.entry_id >= 0:
        raise DataGoneError(
            f"{topic}: the ledger of offset {start} is not among the topic's, which are "
            f"{positions.earliest.ledger_id} to {last}: it is another topic's, of another cluster or from before this "
            "one was made again. Start with a new checkpoint"
        )
    cursor = positions.cursors.get(subscription) if subscription is not None else None
    if cursor is not None and subscription is not None:
        _check_cursor(positions, start if span else max(start, positions.earliest), cursor, subscription)
    elif start.ledger_id < positions.earliest.ledger_id and not _was_read(previous, start):
        raise DataGoneError(
            f"{topic}: entries behind offset {start} may have been trimmed, the first that exists is behind "
            f"{positions.earliest}; read with a subscription, or set failOnDataLoss to false"
        )


def _check_cursor(positions: TopicPositions, start: Position, cursor: Position, subscription: str) -> None:
    skipped = count_between(positions, start, cursor)
    if skipped > 0:
        raise DataGoneError(
            f"{positions.topic}: subscription {subscription} is at {cursor}, {skipped} existing entries past {start}; "
            "something else acknowledged, skipped or expired them. Start with a new checkpoint to go on from the "
            "subscription, or set failOnDataLoss to false"
        )


def place_to_read_again(positions: TopicPositions, start: Position, subscription: str) -> Position | None:
    """Return the place of a subscription that entries part from a later `start`; None where nothing lies between.

    A broker that is killed puts a cursor back to where it last stored it; a checkpoint that was never this topic's may
    be ahead of it too. To read again from the cursor loses nothing in either case.
    """
    cursor = positions.cursors.get(subscription)
    if cursor is None:
        return None
    if count_between(positions, cursor, start) == 0 and not _is_past_the_end(positions, start):
        return None
    return max(cursor, positions.earliest)


def _is_past_the_end(positions: TopicPositions, position: Position) -> bool:
    span = _span_of(positions, position)
    if span is None:
        return position.ledger_id > positions.ledgers[-1].ledger_id
    return position.entry_id >= span.entries


def _was_read(previous: TopicPositions | None, start: Position) -> bool:
    if previous is None or _span_of(previous, start) is None:
        return False
    return count_between(previous, start, previous.latest) == 0


def _span_of(positions: TopicPositions, position: Position) -> LedgerSpan | None:
    return next((ledger for ledger in positions.ledgers if ledger.ledger_id == position.ledger_id), None)


def check_end(positions: TopicPositions, end: Position) -> None:
    """Raise DataGoneError if `end` is not an entry that exists.

    The place before a ledger's first entry, where a topic without entries ends, needs none: a broker that loads the
    topic again replaces an empty ledger by another.
    """
    if end.entry_id < 0:
        return
    span = _span_of(positions, end)
    if span is None or end.entry_id >= span.entries:
        raise DataGoneError(
            f"{positions.topic}: the planned end {end} does not exist, the topic has entries behind "
            f"{positions.earliest} up to {positions.latest}; they were trimmed, or the topic was created again"
        )


class ReadProgress:
    """The next entry that a plan expects; every entry must be taken or passed in order."""

    def __init__(self, ranges: Sequence[EntryRange]) -> None:
        self._ranges = [entries for entries in ranges if entries.count > 0]
        self._index = 0
        self._entry_id = self._ranges[0].first if self._ranges else -1

    @property
    def is_done(self) -> bool:
        """True once everything planned was taken or passed."""
        return self._index >= len(self._ranges)

    @property
    def expected(self) -> Position:
        """The entry expected next."""
        return Position(self._ranges[self._index].ledger_id, self._entry_id)

    @property
    def last_of_ledger(self) -> Position:
        """The last planned entry of the expected one's ledger."""
        entries = self._ranges[self._index]
        return Position(entries.ledger_id, entries.last)

    def pass_entry(self) -> None:
        """Go on to the next planned entry."""
        self.pass_to(self._entry_id)

    def pass_to(self, last_entry_id: int) -> None:
        """Go on behind this entry of the expected one's ledger."""
        if last_entry_id < self._ranges[self._index].last:
            self._entry_id = last_entry_id + 1
            return
        self._index += 1
        if not self.is_done:
            self._entry_id = self._ranges[self._index].first


def first_readable(lost: int, last: int, is_readable: Callable[[int], bool]) -> int:
    """Return the first entry behind `lost` that can be read, or the one behind `last`; entries of one ledger.

    What cannot be read is taken for one run: it is asked of few entries, further and further away.
    """
    step, unreadable = 1, lost
    while unreadable + step <= last and not is_readable(unreadable + step):
        unreadable, step = unreadable + step, step * 2
    readable = min(unreadable + step, last + 1)
    while readable - unreadable > 1:
        between = (unreadable + readable) // 2
        if is_readable(between):
            readable = between
        else:
            unreadable = between
    return readable
