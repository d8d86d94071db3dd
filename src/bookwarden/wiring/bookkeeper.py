"""Wiring of a cluster's BookKeeper: the catalog of ledgers, over all bookie clusters, their bookies and ids."""

from __future__ import annotations

from functools import cached_property, partial

from bookwarden.bookie_clusters.bookie_clusters import BookieClusters, ConfiguredCluster, MultiClusterCatalog
from bookwarden.bookie_clusters.promoted import Promotions
from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterStores, RunningBookies
from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.disk_space import read_all_disk_space, read_writable_disk_space
from bookwarden.clusters.bookkeeper.bookies.http_server import BookieServer, read_registered, read_reports
from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions, Bookies
from bookwarden.clusters.bookkeeper.bookies.tls import BookieTls
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.returning_ids import ReturningIds, SharedCounter
from bookwarden.clusters.bookkeeper.undone import UndoneLedgers
from bookwarden.config import BookKeeperSettings, Settings
from bookwarden.metastore.following.store import Migrations
from bookwarden.metastore.urls import path_before, scheme_of, split_chroot
from bookwarden.resources import Resources
from bookwarden.wiring.stores import bookkeeper_place_of


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


class BookKeeper(Resources):
    """The BookKeeper of a cluster; without registered bookie clusters it is the one that the settings name.

    ``opened`` has the metadata stores of a cluster, and ``migrations`` the state of those that Pulsar may move.
    """

    def __init__(self, settings: Settings, opened: ClusterStores, migrations: Migrations) -> None:
        super().__init__()
        roots = tuple(dict.fromkeys(settings.metadata_store.urls))
        pulsar = opened.at(roots[0])
        #: Where the settings have its metadata.
        self.place = bookkeeper_place_of(settings.metadata_store)
        shared = next((url for url in roots if split_chroot(url) == split_chroot(self.place.url)), None)
        url = shared or self.place.url
        #: Has the metadata of ledgers.
        self.store = opened.at(url)
        alone = BookKeeperCatalog(self.store, self.place.ledgers_root)
        title = f"{self.place.url}, {self.place.ledgers_root}"
        #: How each metadata root is named in this store.
        self.roots_seen_from_ledgers = [path_before(self.place.url, root) for root in roots]
        #: All bookie clusters.
        self.clusters = BookieClusters(
            pulsar,
            ConfiguredCluster(self.store, self.place.ledgers_root, alone, title),
            opened.at,
            other_roots=roots[1:],
            prefix=self.roots_seen_from_ledgers[0],
        )
        #: Those of the cluster that takes new ledgers. One that is only read, and has none any more, stops nothing.
        self.running_bookies = RunningBookies(self.clusters.of_new_ledgers, self.clusters.name_of_new_ledgers)
        self.promotions = Promotions(pulsar, self.roots_seen_from_ledgers[0])
        self.catalog = MultiClusterCatalog(alone, self.clusters)
        #: The same for deletions: stricter where an owner mark is unknown.
        self.deletion_catalog = MultiClusterCatalog(alone, self.clusters, for_deletion=True)
        self.undone = UndoneLedgers(self.store)
        #: Returns the URL of the store that its metadata was moved to, as far as this process knows.
        self.moved_to = moved_to = partial(migrations.moved_to, url)
        pulsars_moved_to = partial(migrations.moved_to, roots[0])
        self.ids = ReturningIds(
            self.store,
            self.place.ledgers_root,
            lambda: scheme_of(moved_to() or url) == "oxia",
            shared_counter=SharedCounter(
                self.clusters.counter,
                self.clusters.roots,
                lambda: scheme_of(pulsars_moved_to() or roots[0]) == "oxia",
            ),
        )
        self.last_entries = LastEntries(self.catalog, lambda: self.bookies)
        self._addresses = BookieAddresses(self.store, self.place.ledgers_root, self.clusters.roots)
        self._options = bookie_options_of(settings.bookkeeper)
        #: Asks the bookies that take new ledgers for the space on their disks.
        self.disk_space = partial(read_writable_disk_space, self.clusters.of_new_ledgers, options=self._options)
        #: Asks all bookies of all clusters for it.
        self.all_disk_space = partial(read_all_disk_space, self.clusters.all_roots, options=self._options)
        #: Reads the registered bookies of all clusters.
        self.registered = partial(read_registered, self.clusters.all_roots)
        #: Asks the HTTP servers of registered bookies.
        self.reports = partial(read_reports, options=self._options)
        #: Makes the HTTP server of one of them, which whoever asks for it closes.
        self.server_of = partial(BookieServer, options=self._options)

    @cached_property
    def bookies(self) -> Bookies:
        """The bookies of the catalog, for one thread; connected when asked."""
        return self.keep(Bookies(self._addresses, self._options))
