"""Wiring of a migration of clients from one cluster to another: both clusters, from the settings."""

from __future__ import annotations

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.cluster_migration import ClusterMigrationAdmin
from bookwarden.config import ClientUrlSettings, MetadataStoreSettings, PulsarSettings, Settings
from bookwarden.errors import ConfigError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.redirects import RedirectUrls
from bookwarden.resources import Resources
from bookwarden.wiring.pulsar import connection_of
from bookwarden.wiring.stores import open_metadata_store

# A broker asked for the stats of a topic may have to load it first.
_TIMEOUT_S = 30.0


class ClusterSide(Resources):
    """One of both clusters: its brokers and its metadata store; close it, or use it in a with statement.

    ``which`` is blue or green, as in the settings.
    """

    def __init__(self, settings: Settings, which: str) -> None:
        super().__init__()
        side = settings.cluster_migration.blue if which == "blue" else settings.cluster_migration.green
        self.which = which
        self.pulsar, self.metadata_store = sections_of(settings, which)
        self.connection: PulsarConnection = connection_of(self.pulsar)
        store = self.metadata_store
        with self._closed_on_error():
            self.rest = self._keep(PulsarAdmin(self.connection, _TIMEOUT_S))
            self.admin = ClusterMigrationAdmin(self.rest)
            #: Not connected before its first call.
            self.store: MetadataStore = self._keep(open_metadata_store(store, store.urls[0]))
            self._named = side.cluster

    @property
    def cluster(self) -> str:
        """The cluster's name, by the settings or its broker."""
        self._named = self._named or self.admin.cluster_name()
        return self._named


class BlueGreenContext(Resources):
    """Both clusters of a migration; close it, or use it in a with statement."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        with self._closed_on_error():
            self.blue = self._keep(ClusterSide(settings, "blue"))
            self.green = self._keep(ClusterSide(settings, "green"))
            #: Where clients are to be sent; ConfigError in `redirect_urls` where the settings do not say.
            self.clients = settings.cluster_migration.green.clients


def sections_of(settings: Settings, which: str) -> tuple[PulsarSettings, MetadataStoreSettings]:
    """Return the settings of blue or green: Pulsar's and the metadata store's; ConfigError if green has none."""
    if which == "blue":
        blue = settings.cluster_migration.blue
        return blue.pulsar or settings.pulsar, blue.metadata_store or settings.metadata_store
    green = settings.cluster_migration.green
    if green.pulsar is None or green.metadata_store is None:
        missing = "pulsar" if green.pulsar is None else "metadata_store"
        raise ConfigError(f"cluster_migration.green.{missing} is not set: it says where green is")
    return green.pulsar, green.metadata_store


def redirect_urls(clients: ClientUrlSettings) -> RedirectUrls:
    """Return where clients are to be sent; ConfigError unless both broker URLs are set, of which each may be needed."""
    for name in ("broker_service_url", "broker_service_url_tls"):
        if not getattr(clients, name):
            raise ConfigError(
                f"cluster_migration.green.clients.{name} is not set: clients may need either URL, and some Java "
                "clients fail without the one for TLS even if they do not use it; where green has none, any will do"
            )
    return RedirectUrls(**clients.model_dump())
