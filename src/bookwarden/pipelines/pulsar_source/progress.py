"""Progress through a planned set of entries, in order and complete. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from bookwarden.clusters.pulsar.rest.topic_positions import Position
from bookwarden.errors import FormatError
from bookwarden.pipelines.pulsar_source.ranges import EntryRange

_BATCH_SIZE = 6
_FIRST_CHUNK = 7


class Verdict(Enum):
    """The decision on a delivered message: take it, skip it as seen before, or look for missing ones before it."""

    TAKE = "take"
    SEEN = "seen"
    GAP = "gap"


class Progress:
    """The next message that a plan expects; every entry and every message of a batched entry must come in order."""

    def __init__(self, ranges: Sequence[EntryRange]) -> None:
        self._ranges = [entries for entries in ranges if entries.count > 0]
        self._index = 0
        self._ledger_id = self._ranges[0].ledger_id if self._ranges else -1
        self._entry_id = self._ranges[0].first if self._ranges else -1
        self._row = 0

    @property
    def is_done(self) -> bool:
        """True once everything planned was taken or skipped."""
        return self._index >= len(self._ranges)

    @property
    def expected(self) -> Position:
        """The entry expected next, or under way."""
        return Position(self._ledger_id, self._entry_id)

    @property
    def is_inside_entry(self) -> bool:
        """True while some messages of the expected entry were taken, but not all."""
        return self._row > 0

    def judge(self, ledger_id: int, entry_id: int, row: int, rows: int) -> Verdict:
        """Decide on message `row` of the `rows` of an entry, and count it if it is the expected one."""
        if ledger_id == self._ledger_id and entry_id == self._entry_id:
            if row == self._row:
                self._row += 1
                if self._row >= rows:
                    self.skip_entry()
                return Verdict.TAKE
            return Verdict.SEEN if row < self._row else Verdict.GAP
        return Verdict.SEEN if (ledger_id, entry_id) < (self._ledger_id, self._entry_id) else Verdict.GAP

    def skip_entry(self) -> None:
        """Go on to the next planned entry."""
        self._row = 0
        if self._entry_id < self._ranges[self._index].last:
            self._entry_id += 1
        else:
            self.skip_ledger()

    def skip_ledger(self) -> None:
        """Go on to the first planned entry of the next ledger."""
        self._row = 0
        self._index += 1
        if not self.is_done:
            self._ledger_id = self._ranges[self._index].ledger_id
            self._entry_id = self._ranges[self._index].first


def rows_of_entry(message_id: bytes) -> int:
    """Read the batch size out of a serialized message id, 1 for an unbatched entry (MessageIdData, PulsarApi.proto).

    The client exposes the size nowhere else.
    """
    return _varint_fields(message_id).get(_BATCH_SIZE, 1) or 1


def is_chunked(message_id: bytes) -> bool:
    """Return whether a serialized message id belongs to a message of several chunks."""
    return _FIRST_CHUNK in _varint_fields(message_id)


def _varint_fields(data: bytes) -> dict[int, int]:
    fields: dict[int, int] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        if tag & 7 == 2:
            at += value
        elif tag & 7 != 0:
            raise FormatError(f"serialized message id holds a field of wire type {tag & 7}")
        fields[tag >> 3] = value
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise FormatError("serialized message id is cut off")
