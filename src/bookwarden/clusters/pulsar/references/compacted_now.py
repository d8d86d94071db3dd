"""The compacted ledger in use, which stands in the last entry of the compaction cursor's ledger while that is open."""

from __future__ import annotations

from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.pulsar.references.nodes import CursorNode
from bookwarden.errors import BookieUnavailableError, BookwardenError
from bookwarden.ledgers.kinds import CompactedHolder, PlaceKind
from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR
from bookwarden.ledgers.references import Doubt, NodeReferences, Place

# Each silent bookie costs its timeout: after so many in a row no further one is asked.
_MOST_FAILURES = 3


class CompactedNow:
    """Completes references from cursors' nodes; for one piece of a scan, since it gives up on silent bookies."""

    def __init__(self, entries: LastEntries | None) -> None:
        self._entries = entries
        self._failures = 0

    def complete(self, node: CursorNode, references: NodeReferences) -> NodeReferences:
        """Add the compacted ledger in use if this is a compaction's cursor, or a doubt about it."""
        cursor = references.cursor
        if node.cursor != COMPACTION_CURSOR or cursor is None or cursor.cursors_ledger_id is None:
            return references
        holder = CompactedHolder(node.managed_ledger)
        try:
            compacted = self._last_recorded(cursor.cursors_ledger_id)
        except _NotReadError as error:
            return references._replace(doubt=Doubt(node.path, references.root, str(error), (holder,)))
        if compacted is None:
            return references
        place = Place(PlaceKind.COMPACTED_NOW, str(holder), node.path, references.root)
        return references._replace(named=(*references.named, (place, frozenset((compacted,)))))

    def _last_recorded(self, ledger_id: int) -> int | None:
        if self._entries is None:
            raise _NotReadError(f"the compacted ledger in use stands in the last entry of ledger {ledger_id}")
        if self._failures >= _MOST_FAILURES:
            raise _NotReadError(
                f"the last entry of ledger {ledger_id} was not asked for: bookies did not answer {_MOST_FAILURES} times"
            )
        try:
            position = self._entries.position(ledger_id)
            self._failures = 0
            return None if position is None else position.compacted_ledger_id
        except BookwardenError as error:
            self._failures = self._failures + 1 if isinstance(error, BookieUnavailableError) else 0
            raise _NotReadError(f"the last entry of ledger {ledger_id} cannot be read: {error}") from error


class _NotReadError(Exception):
    """The compacted ledger in use could not be read, for the reason given."""
