"""Progress through a planned set of entries, in order and complete. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookwarden.clusters.pulsar.rest.topic_positions import Position
from bookwarden.pipelines.pulsar_source.ranges import EntryRange


class Progress:
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
