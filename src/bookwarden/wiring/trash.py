"""Wiring of the trash."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final

from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.config import Settings
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.resources import Resources
from bookwarden.trash.closing import LedgerCloser
from bookwarden.trash.records import TrashRecords
from bookwarden.trash.restore import Restore
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.pulsar import mark_sender_of
from bookwarden.wiring.stores import bookkeeper_place_of

#: An unload may have a broker flush much, and load the topic first.
_UNLOAD_TIMEOUT_S: Final = 60.0


class TrashContext(Resources):
    """Everything about the trash; close it, or use it in a with statement. ``operator`` is who restores."""

    def __init__(
        self, settings: Settings, *, operator: str = "", say: Callable[[str], object] = lambda _: None
    ) -> None:
        super().__init__()
        self._settings = settings
        with self._closed_on_error():
            metadata = self.metadata = self._keep(MetadataContext(settings))
            self.records = TrashRecords(metadata.store)
            root = bookkeeper_place_of(settings.metadata_store).ledgers_root
            closer = LedgerCloser(
                *(metadata.catalog, metadata.bookie_clusters, metadata.bookkeeper_store, root),
                lambda: metadata.bookies,
            )
            self.restore = Restore(
                *(metadata.store, self.records, metadata.catalog, metadata.last_entries),
                *(Topics(metadata.admin, unload_timeout_s=_UNLOAD_TIMEOUT_S), closer.close),
                operator=operator,
                say=say,
            )

    @cached_property
    def marker(self) -> Marker:
        """What sends the marks of what is let go."""
        deletion = self._settings.deletion
        sender = self._keep(mark_sender_of(self._settings, deletion.topic))
        return Marker(sender, enabled=deletion.topic_two_phase_deletion_enabled)
