"""Wiring of the move of all ledgers to another bookie cluster while brokers are stopped."""

from __future__ import annotations

from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.bookkeeper.service_uris import authority_of, place_for_brokers
from bookwarden.clusters.copiers import CopiersBetween, RecoveriesAt
from bookwarden.config import Settings
from bookwarden.resources import Resources
from bookwarden.switching.offline.checking import MoveChecks, TargetUri
from bookwarden.switching.offline.move import OfflineMove
from bookwarden.switching.offline.saved_nodes import NodeRestoring
from bookwarden.switching.ports import Place
from bookwarden.wiring.metadata import MetadataContext, bookie_options_of
from bookwarden.wiring.stores import bookkeeper_place_of
from bookwarden.wiring.switch import SwitchContext
from bookwarden.wiring.switching import place_of_uri


class MoveContext(Resources):
    """Everything that moves ledgers for brokers without the jar; close it, or use it in a with statement."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        with self._closed_on_error():
            metadata = self._keep(MetadataContext(settings))
            switching = self._keep(SwitchContext(settings))
            registered = switching.registered
            store_at = registered.store_at
            options = bookie_options_of(settings.bookkeeper)
            used = bookkeeper_place_of(settings.metadata_store)
            open_cluster = registered.registration.open_cluster
            #: Moves, and says how far a move is.
            self.move = OfflineMove(
                registered.pulsar_store,
                registered.pulsar_url,
                Place(used.url, used.ledgers_root),
                open_cluster,
                lambda place: LedgerIds(store_at(place.url), place.ledgers_root),
                metadata.reference_scan.read_all,
                CopiersBetween(
                    store_at, registered.pulsar_store, metadata.references, options, metadata.named_holders.holder_of
                ),
                RecoveriesAt(store_at, options),
                MoveChecks(
                    switching.sources,
                    registered.registry,
                    open_cluster,
                    place_of_uri,
                    len(settings.metadata_store.urls),
                ),
            )
            #: Puts saved nodes back.
            self.restoring = NodeRestoring(registered.pulsar_store, registered.pulsar_url, self.move.live_brokers)


def target_of_uri(uri: str) -> TargetUri:
    """Parse an operator's metadataServiceUri; raises as `place_of_uri`."""
    place = place_for_brokers(uri)
    return TargetUri(uri, Place(place.url, place.ledgers_root), authority_of(place))
