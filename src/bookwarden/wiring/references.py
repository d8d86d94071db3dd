"""Wiring of what reads which ledgers Pulsar's metadata names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial

from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.metadata.ownership import owner_in
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.clusters.pulsar.references.pieces import NamedHolders, ReferencePieces
from bookwarden.clusters.pulsar.references.shadows import ShadowTopics, SharedDoubtSearch
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.brokers import Brokers
from bookwarden.config import Settings
from bookwarden.deletion.node_check import NodeCheck
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wiring.bookkeeper import BookKeeper


class References:
    """The readers of references in all metadata roots of a cluster; ``stores`` are these by their URLs."""

    def __init__(
        self,
        settings: Settings,
        stores: Mapping[str, MetadataStore],
        bookkeeper: BookKeeper,
        admin: PulsarAdmin,
        offload_stores: Callable[[], OffloadStores],
    ) -> None:
        self._bookkeeper = bookkeeper
        self._offload_stores = offload_stores
        self._roots = list(stores.values())
        refresh = settings.deletion.shadow_refresh_seconds
        #: Reads those of single ledgers, now.
        self.live = MetadataReferences(
            self._roots,
            Brokers(admin),
            bookkeeper.last_entries,
            shadow_refresh=refresh,
            seen_from_ledgers=bookkeeper.roots_seen_from_ledgers,
        )
        #: Reads all, piece by piece.
        self.pieces = ReferencePieces(stores, bookkeeper.last_entries)
        shadows = [ShadowTopics(store, refresh, lists=False) for store in self._roots] if refresh > 0 else []
        #: Finds the doubts that concern very many marks.
        self.shared_doubts = SharedDoubtSearch(shadows, bookkeeper.ids.doubt).find

    @cached_property
    def node_check(self) -> NodeCheck:
        """The check of holders' nodes before a ledger is deleted that they do not name."""
        owner = partial(owner_in, self._roots)
        return NodeCheck(self._bookkeeper.catalog, self._bookkeeper.last_entries, self._offload_stores, owner)

    @cached_property
    def named_holders(self) -> NamedHolders:
        """The holders of ledgers that do not say whose they are; looked for when asked."""
        return NamedHolders(self.pieces.read_all)
