"""Asks one bookie for the ledgers that it still holds, which changes nothing on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bookwarden.clusters.bookkeeper.bookies.probe import holding_of
from bookwarden.clusters.bookkeeper.bookies.protocol import ReadEntry
from bookwarden.clusters.bookkeeper.bookies.requests import Bookies
from bookwarden.errors import BookieUnavailableError
from bookwarden.ledgers.holdings import Holding, Presence

# A bookie answers with the whole entry, which may be megabytes.
_AT_ONCE: Final = 64


class Bookie:
    """One bookie, asked over connections that the caller closes; for one thread."""

    def __init__(self, bookie_id: str, bookies: Bookies) -> None:
        self._id = bookie_id
        self._bookies = bookies

    def holdings(self, ledger_ids: Sequence[int], entry_id: int = 0) -> dict[int, Holding]:
        """Return for each ledger whether the bookie has this entry of it; a bookie that is down makes all unknown.

        Replicas says whether it should have the entry. The entry's digest is not checked.
        """
        found: dict[int, Holding] = {}
        distinct = list(dict.fromkeys(ledger_ids))
        for start in range(0, len(distinct), _AT_ONCE):
            with self._bookies.exchange():
                for ledger_id in distinct[start : start + _AT_ONCE]:
                    self._bookies.ask(self._id, ReadEntry(ledger_id, entry_id))
                while answers := self._bookies.answers():
                    for answer in answers:
                        assert isinstance(answer.request, ReadEntry)
                        found[answer.request.ledger_id] = holding_of(answer)
        return found

    def holds(self, ledger_ids: Sequence[int]) -> dict[int, bool]:
        """Return the same, but raise BookieUnavailableError if it is unknown for any ledger."""
        found = self.holdings(ledger_ids)
        for ledger_id, holding in found.items():
            if holding.presence is Presence.UNKNOWN:
                raise BookieUnavailableError(f"ledger {ledger_id} on bookie {self._id}: {holding.reason}")
        return {ledger_id: holding.presence is Presence.HELD for ledger_id, holding in found.items()}
