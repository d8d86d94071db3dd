"""Wiring of the cleanup of former bookie clusters."""

from __future__ import annotations

from bookwarden.clusters.bookkeeper.every_ledger import read_every_ledger
from bookwarden.config import Settings
from bookwarden.metastore.store_clock import StoreClock
from bookwarden.resources import Resources
from bookwarden.switching.cleanup import Cleanup
from bookwarden.wiring.deletion import PhaseOneContext
from bookwarden.wiring.switch import SwitchContext


class CleanupContext(Resources):
    """Everything that finds and marks what former bookie clusters have; close it, or use it in a with statement."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        with self._closed_on_error():
            marking = self._keep(PhaseOneContext(settings))
            switching = self._keep(SwitchContext(settings))
            metadata = marking.metadata
            #: Finds and marks.
            self.cleanup = Cleanup(
                metadata.bookie_clusters,
                metadata.catalog,
                read_every_ledger,
                marking.marker,
                switching.switch.state,
                settings.deletion.rollback_window_hours * 3600,
                StoreClock(metadata.store),
            )
