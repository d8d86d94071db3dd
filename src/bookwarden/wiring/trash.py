"""Wiring of the trash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

from bookwarden.clusters.bookkeeper.copying.recovery import LedgerRecovery
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.config import Settings
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.ledgers.metadata import LedgerReading, StoredLedger
from bookwarden.resources import Resources
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.trash.records import TrashRecords
from bookwarden.trash.restore import Restore
from bookwarden.trash.summary import Summary, summarize
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.pulsar import mark_sender_of
from bookwarden.wiring.stores import bookkeeper_place_of

#: An unload may have a broker flush much, and load the topic first.
_UNLOAD_TIMEOUT_S: Final = 60.0
_LEDGERS_AT_ONCE: Final = 5_000


class TrashContext(Resources):
    """Everything about the trash; close it, or use it in a with statement. ``operator`` is who restores."""

    def __init__(
        self, settings: Settings, *, operator: str = "", say: Callable[[str], object] = lambda _: None
    ) -> None:
        super().__init__()
        self._settings = settings
        with self._closed_on_error():
            self.metadata = self._keep(MetadataContext(settings))
            self.records = TrashRecords(self.metadata.store)
            self.restore = Restore(
                *(self.metadata.store, self.records, self.metadata.catalog, self.metadata.last_entries),
                *(Topics(self.metadata.admin, unload_timeout_s=_UNLOAD_TIMEOUT_S), self._recover),
                operator=operator,
                say=say,
            )

    @cached_property
    def marker(self) -> Marker:
        """What sends the marks of what is let go."""
        deletion = self._settings.deletion
        sender = self._keep(mark_sender_of(self._settings, deletion.topic))
        return Marker(sender, enabled=deletion.topic_two_phase_deletion_enabled)

    def summarize(self, generations: Sequence[TrashedGeneration]) -> list[Summary]:
        """Describe each, with what BookKeeper still has of it."""
        lease, under_way = self.records.lease(), self.restore.under_way()
        ids = sorted(frozenset().union(*(trashed.ledger_ids for trashed in generations)))
        found: dict[int, LedgerReading] = {}
        for at in range(0, len(ids), _LEDGERS_AT_ONCE):
            some = ids[at : at + _LEDGERS_AT_ONCE]
            found |= zip(some, self.metadata.catalog.read_many(some), strict=True)
        return [
            summarize(trashed, [found[one] for one in sorted(trashed.ledger_ids)], lease, under_way)
            for trashed in generations
        ]

    def _recover(self, ledger_id: int) -> StoredLedger:
        """Close a ledger of a topic that is gone at its true end, in the bookie cluster that has it."""
        (found,) = self.metadata.catalog.read_many([ledger_id])
        name = found.bookie_cluster if isinstance(found, StoredLedger) else ""
        store, root = self.metadata.bookkeeper_store, bookkeeper_place_of(self._settings.metadata_store).ledgers_root
        if name:
            store, root = self.metadata.bookie_clusters.roots_by_name()[name]
        return LedgerRecovery(store, root, self.metadata.bookies).recover(ledger_id)
