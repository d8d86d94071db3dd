"""Wiring of the trash."""

from __future__ import annotations

from collections.abc import Callable

from bookwarden.clusters.pulsar.messages.policy_events import PolicyEventSender
from bookwarden.trash.former_ledgers import LedgerCloser
from bookwarden.trash.from_ledgers import FromLedgers
from bookwarden.trash.namespace_restore import NamespaceRestore
from bookwarden.trash.policy_restore import PolicyRestore
from bookwarden.trash.records import TrashRecords
from bookwarden.trash.restore import Restore
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import marker_of


class TrashOperations:
    """The trash of a cluster, listed, restored and let go; ``operator`` is who restores."""

    def __init__(self, cluster: Cluster, *, operator: str = "", say: Callable[[str], object] = lambda _: None) -> None:
        bookkeeper = cluster.bookkeeper
        self.cluster = cluster
        self.records = TrashRecords(cluster.store)
        closer = LedgerCloser(
            *(bookkeeper.catalog, bookkeeper.clusters, bookkeeper.store, bookkeeper.place.ledgers_root),
            lambda: bookkeeper.bookies,
        )
        #: Finds topics that are in no trash.
        self.from_ledgers = FromLedgers(
            *(cluster.store, bookkeeper.clusters.all_roots, bookkeeper.clusters.owner),
            *(bookkeeper.catalog, bookkeeper.last_entries),
            say=say,
        )
        self.restore = Restore(
            *(cluster.store, self.records, bookkeeper.catalog, bookkeeper.last_entries, cluster.topics, closer.close),
            operator=operator,
            say=say,
            policies=PolicyRestore(cluster.store, PolicyEventSender(cluster.connection, cluster.admin)),
            copies=lambda: cluster.offload_stores,
            marker=lambda: marker_of(cluster),
        )
        self.namespaces = NamespaceRestore(cluster.store)
