"""Wiring of what is done about former bookie clusters: their ledgers promoted and cleaned up, and they drained."""

from __future__ import annotations

import time
from functools import partial

from bookwarden.clusters.bookkeeper.every_ledger import read_every_ledger
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.ownership import read_all_started
from bookwarden.clusters.pulsar.references.shadows import read_shadows
from bookwarden.clusters.pulsar.rest.registered_brokers import read_loaded_topics
from bookwarden.config import Settings
from bookwarden.metastore.store_clock import StoreClock
from bookwarden.resources import Resources
from bookwarden.switching.moving.cleanup import Cleanup
from bookwarden.switching.moving.draining import Draining
from bookwarden.switching.moving.former import FormerPlaces
from bookwarden.switching.moving.promotion import Promoting, Stamping
from bookwarden.wiring.deletion import PhaseOneContext
from bookwarden.wiring.pulsar import connection_of
from bookwarden.wiring.switch import SwitchContext


class FormerClustersContext(Resources):
    """Everything that empties former bookie clusters; close it, or use it in a with statement.

    With ``looks_only`` times are this machine's: a store is asked for its own by a write.
    """

    def __init__(self, settings: Settings, *, looks_only: bool = False) -> None:
        super().__init__()
        with self._closed_on_error():
            marking = self._keep(PhaseOneContext(settings))
            #: The switch, the registry and the topics.
            self.switching = switching = self._keep(SwitchContext(settings))
            metadata = marking.metadata
            places = FormerPlaces(
                *(metadata.bookie_clusters, metadata.catalog, read_every_ledger),
                metadata.named_holders.holder_of,
                metadata.references.read,
            )
            loaded = partial(read_loaded_topics, metadata.store, connection_of(settings.pulsar))
            #: Has brokers read copies.
            self.promoting = Promoting(
                places,
                metadata.store,
                switching.switch.state,
                StoreClock,
                partial(read_shadows, metadata.store),
                loaded,
                switching.topics.unload,
                partial(read_all_started, metadata.store),
            )
            #: Writes the proposal's attribution.
            self.stamping = Stamping(ManagedLedgers(metadata.store), switching.topics, metadata.catalog, loaded)
            #: Finds and marks what may go.
            self.cleanup = Cleanup(
                places,
                switching.promotion,
                marking.marker,
                switching.switch.state,
                settings.deletion.rollback_window_hours * 3600,
                time.time if looks_only else StoreClock(metadata.store),
            )
            #: Does all of it, and says how far it is.
            self.draining = Draining(
                switching.registered.registry,
                switching.inventory,
                self.cleanup,
                self.promoting,
                switching.topics.unload,
                switching.build,
            )
