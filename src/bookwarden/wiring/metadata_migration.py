"""Wiring of migrations of a metadata store: prepared, rehearsed, begun, followed, verified, its counters advanced."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Final

from bookwarden.bookie_clusters.registry_node import RegistryNode, read_id_counter, read_registered
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.migration import MigrationAdmin
from bookwarden.config import MetadataStoreSettings, Settings
from bookwarden.errors import ConfigError
from bookwarden.metadata_migration.control import ConfiguredStores, MigrationControl
from bookwarden.metadata_migration.counters import Counters, completed_target
from bookwarden.metastore.interface import MetadataStore, MigrationTarget
from bookwarden.metastore.urls import scheme_of, split_chroot
from bookwarden.metastore.wrappers import throttled
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from bookwarden.resources import Resources
from bookwarden.wiring.cluster_migration import LEASES_PATH
from bookwarden.wiring.pulsar import connection_of
from bookwarden.wiring.stores import bookkeeper_place_of, open_single_store

_SOON_SECONDS: Final = 5.0


def movable_stores_of(settings: MetadataStoreSettings) -> dict[str, Callable[[], MetadataStore]]:
    """Return an opener for each metadata store that Pulsar may move; the store does not wait long for an answer."""
    waiting = min(settings.operation_timeout_seconds, _SOON_SECONDS)
    hurried = settings.model_copy(update={"operation_timeout_seconds": waiting})
    urls = (*settings.urls, bookkeeper_place_of(settings).url)
    return {url: partial(open_single_store, hurried, url) for url in urls if scheme_of(url) == "zk"}


class MigrationStores(Resources):
    """The store that is moved, or was, and others that a command opens; close it, or use it in a with statement.

    ``source`` is a URL, also of a snapshot, None for the only store of the settings. Stores are those of exactly their
    URLs, during and after a migration too.
    """

    def __init__(self, settings: Settings, source: str | None = None) -> None:
        super().__init__()
        self.settings = settings
        store = settings.metadata_store
        with self.closed_on_error():
            self.source_url = source or former_store(store)
            self.source = self.open(self.source_url)
            #: URLs of all stores that the settings, or the caller, name.
            self.in_use = (self.source_url, *store.urls, bookkeeper_place_of(store).url)

    def open(self, url: str) -> MetadataStore:
        """Open another store, closed with this one."""
        return self.keep(open_single_store(self.settings.metadata_store, url))

    @cached_property
    def admin(self) -> MigrationAdmin:
        """The broker's side of a migration."""
        return MigrationAdmin(self.keep(PulsarAdmin(connection_of(self.settings.pulsar))))


def control_of(stores: MigrationStores, *, max_reads_per_second: float | None = None) -> MigrationControl:
    """Make what prepares, begins and follows a migration; ``max_reads_per_second`` is for the survey of the source."""
    settings, url, source = stores.settings, stores.source_url, stores.source
    store = settings.metadata_store
    place, whole = bookkeeper_place_of(store), split_chroot(url)
    others = {other for other in stores.in_use if split_chroot(other) != whole}
    configured = ConfiguredStores(
        source_url=url,
        chroot=whole[1],
        ledgers_root=place.ledgers_root,
        other_stores=tuple(sorted(others)),
        session_timeout_s=store.session_timeout_seconds,
        drain_limit_s=store.migration_drain_seconds,
        own_locks=(settings.sweep.lock, settings.follow.lock, LEASES_PATH),
    )
    return MigrationControl(
        configured,
        source,
        throttled(source, max_reads_per_second),
        stores.admin,
        connection_of(settings.pulsar),
        stores.open,
        partial(read_registered, RegistryNode(source, url)),
        is_zookeeper=scheme_of(url) == "zk",
        keeps_ledgers=split_chroot(place.url) == whole,
    )


def counters_of(stores: MigrationStores) -> Counters:
    """Return the counters of a finished migration, of the former store and of the new one, which its flag names.

    Raises ConfigError where these are not ZooKeeper and Oxia, and RefusedError for a migration that is not COMPLETED.
    """
    source, source_url = stores.source, stores.source_url
    if not isinstance(source, ZooKeeperStore):
        raise ConfigError(f"{source_url} is no ZooKeeper: name the store that was moved with --source")
    target_url = completed_target(source, source_url)
    target = stores.open(target_url)
    if not isinstance(target, MigrationTarget):
        raise ConfigError(f"{target_url}, to which the metadata was moved, is no Oxia")
    place = bookkeeper_place_of(stores.settings.metadata_store)
    # The settings may name either store by now.
    is_here = split_chroot(place.url) in (split_chroot(source_url), split_chroot(target_url))
    # The copy has the newest registry.
    ledgers = read_id_counter(
        RegistryNode(target, target_url), place.ledgers_root, None if is_here else place.url, stores.open, target
    )
    return Counters(source, source_url, target, target_url, *ledgers)


def former_store(settings: MetadataStoreSettings) -> str:
    """Return the store that a migration moves, or moved: the settings' only one; ConfigError if it cannot be that."""
    urls = settings.urls
    if len(urls) > 1:
        raise ConfigError(f"metadata_store.urls names {len(urls)} stores: say with --source which was migrated")
    if scheme_of(urls[0]) == "oxia":
        raise ConfigError(
            f"metadata_store.urls names {urls[0]}: name the store from before the migration with --source"
        )
    return urls[0]
