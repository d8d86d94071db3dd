"""Wiring of the metadata stores and of their readers."""

from __future__ import annotations

from functools import cached_property, partial

from bookwarden.bookie_clusters.bookie_clusters import BookieClusters, ConfiguredCluster, MultiClusterCatalog
from bookwarden.bookie_clusters.promoted import Promotions
from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterStores
from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.disk_space import read_writable_disk_space
from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions, Bookies
from bookwarden.clusters.bookkeeper.bookies.tls import BookieTls
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.members import RunningBookies
from bookwarden.clusters.bookkeeper.returning_ids import ReturningIds, SharedCounter
from bookwarden.clusters.bookkeeper.undone import UndoneLedgers
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.metadata.ownership import owner_in
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.clusters.pulsar.references.named_holders import NamedHolders
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.clusters.pulsar.references.shadows import ShadowTopics, SharedDoubtSearch
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.brokers import Brokers
from bookwarden.config import BookKeeperSettings, MetadataStoreSettings, Settings
from bookwarden.deletion.node_check import NodeCheck
from bookwarden.metastore.following.all_stores import Migrations
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import path_before, scheme_of, split_chroot
from bookwarden.metastore.wrappers import throttled
from bookwarden.resources import Resources
from bookwarden.wiring.offload import offload_stores_of
from bookwarden.wiring.pulsar import connection_of
from bookwarden.wiring.stores import bookkeeper_place_of, open_metadata_store


def bookie_options_of(bookkeeper: BookKeeperSettings) -> BookieOptions:
    """Return the options of connections to bookies."""
    tls = BookieTls(
        trust_certs_file=bookkeeper.tls_trust_certs_file,
        certificate_file=bookkeeper.tls_certificate_file,
        private_key_file=bookkeeper.tls_private_key_file,
        validate_hostname=bookkeeper.tls_validate_hostname,
    )
    return BookieOptions(
        connect_timeout_s=bookkeeper.connect_timeout_seconds,
        request_timeout_s=bookkeeper.request_timeout_seconds,
        reads_in_flight=bookkeeper.reads_in_flight,
        bytes_in_flight=bookkeeper.bytes_in_flight,
        tls=tls if bookkeeper.tls else None,
    )


class MetadataContext(Resources):
    """The metadata stores and their readers; close it, or use it in a with statement.

    ``max_reads_per_second`` is for each store of this process; None sets no limit. ``one_of_many`` is as for
    `open_metadata_store`, and so is ``deletes``. ``migrations`` has the state of the stores that Pulsar may move.
    ``admin`` is that of a caller who has one, and closes it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        max_reads_per_second: float | None = None,
        one_of_many: bool = False,
        deletes: bool = False,
        admin: PulsarAdmin | None = None,
    ) -> None:
        super().__init__()
        self._settings = settings
        self.migrations = Migrations()
        urls = settings.metadata_store.urls
        with self._closed_on_error():
            open_store = partial(
                self._open, settings.metadata_store, max_reads_per_second, one_of_many=one_of_many, deletes=deletes
            )
            #: Opens stores by their URLs, each once, however its hosts are ordered.
            self.opened = self._keep(ClusterStores(open_store))
            opened = self.opened.at
            self.stores = {url: opened(url) for url in dict.fromkeys(urls)}
            place = bookkeeper_place_of(settings.metadata_store)
            shared = next((url for url in self.stores if split_chroot(url) == split_chroot(place.url)), None)
            ledgers_url = shared or place.url
            bookkeeper = opened(ledgers_url)
            #: The registered bookie clusters; without a registry there is the one that the settings name.
            alone = BookKeeperCatalog(bookkeeper, place.ledgers_root)
            settled = ConfiguredCluster(bookkeeper, place.ledgers_root, alone, f"{place.url}, {place.ledgers_root}")
            seen_from_ledgers = [path_before(place.url, url) for url in self.stores]
            self.bookie_clusters = BookieClusters(
                *(self.store, settled, opened),
                other_roots=list(self.stores)[1:],
                prefix=seen_from_ledgers[0],
            )
            clusters = self.bookie_clusters
            #: Those of the cluster that takes new ledgers. One that is only read, and has none any more, stops nothing.
            self.running_bookies = RunningBookies(clusters.of_new_ledgers, clusters.name_of_new_ledgers)
            self.promotions = Promotions(self.store, seen_from_ledgers[0])
            self.catalog = MultiClusterCatalog(alone, self.bookie_clusters)
            #: The same for deletions: stricter where an owner mark is unknown.
            self.deletion_catalog = MultiClusterCatalog(alone, self.bookie_clusters, for_deletion=True)
            self.bookkeeper_store = bookkeeper
            self.undone = UndoneLedgers(bookkeeper)
            #: Returns the URL of the store that BookKeeper's metadata was moved to, as far as this process knows.
            self.ledgers_moved_to = moved_to = partial(self.migrations.moved_to, ledgers_url)
            pulsars_moved_to = partial(self.migrations.moved_to, urls[0])
            self.ids = ReturningIds(
                bookkeeper,
                place.ledgers_root,
                lambda: scheme_of(moved_to() or ledgers_url) == "oxia",
                shared_counter=SharedCounter(
                    self.bookie_clusters.counter,
                    self.bookie_clusters.roots,
                    lambda: scheme_of(pulsars_moved_to() or urls[0]) == "oxia",
                ),
            )
            self.admin = admin or self._keep(PulsarAdmin(connection_of(settings.pulsar)))
            self.last_entries = LastEntries(self.catalog, lambda: self.bookies)
            self.references = MetadataReferences(
                list(self.stores.values()),
                Brokers(self.admin),
                self.last_entries,
                shadow_refresh=settings.deletion.shadow_refresh_seconds,
                seen_from_ledgers=seen_from_ledgers,
            )
            refresh = settings.deletion.shadow_refresh_seconds
            searched = list(self.stores.values()) if refresh > 0 else []
            #: Finds the doubts that concern very many marks.
            self.shared_doubts = SharedDoubtSearch(
                [ShadowTopics(store, refresh, lists=False) for store in searched], self.ids.doubt
            ).find
            self._addresses = BookieAddresses(bookkeeper, place.ledgers_root, self.bookie_clusters.roots)
            self._bookie_options = bookie_options_of(settings.bookkeeper)
            #: Asks the bookies that take new ledgers for the space on their disks.
            self.disk_space = partial(
                read_writable_disk_space, self.bookie_clusters.of_new_ledgers, options=self._bookie_options
            )

    def _open(self, settings: MetadataStoreSettings, limit: float | None, url: str, **options: bool) -> MetadataStore:
        store = open_metadata_store(settings, url, **options)
        self.migrations.follow(url, store)
        return throttled(store, limit)

    @cached_property
    def bookies(self) -> Bookies:
        """The bookies of the catalog, for one thread; connected when asked."""
        return self._keep(Bookies(self._addresses, self._bookie_options))

    @cached_property
    def offload_stores(self) -> OffloadStores:
        """The stores of offloaded copies; MissingExtraError if a driver's library is not installed."""
        return self._keep(offload_stores_of(self._settings.offload))

    @cached_property
    def node_check(self) -> NodeCheck:
        """The check of holders' nodes before a ledger is deleted that they do not name."""
        owner = partial(owner_in, list(self.stores.values()))
        return NodeCheck(self.catalog, self.last_entries, lambda: self.offload_stores, owner)

    @property
    def reference_scan(self) -> ReferencePieces:
        """The reader of all references in all metadata roots."""
        return ReferencePieces(self.stores, self.last_entries)

    @cached_property
    def named_holders(self) -> NamedHolders:
        """The holders of ledgers that do not say whose they are; looked for when asked."""
        return NamedHolders(self.reference_scan.read_all)

    @property
    def store(self) -> MetadataStore:
        """The first metadata root: the one of the cluster that the settings name."""
        return next(iter(self.stores.values()))
