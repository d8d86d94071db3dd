"""Wiring of a migration of clients from one cluster to another: both clusters, from the settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from bookwarden.blue_green.aborting import Aborting
from bookwarden.blue_green.broker_health import BrokerHealth
from bookwarden.blue_green.finishing import Finishing
from bookwarden.blue_green.green_resources import GreenResources
from bookwarden.blue_green.observing import Observer
from bookwarden.blue_green.record import MigrationRecord
from bookwarden.blue_green.releasing import Releasing
from bookwarden.blue_green.reopening import Reopening
from bookwarden.blue_green.starting import Starting
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.metadata.migrations import MigrationNodes, TerminatedNodes
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.cluster_making import ClusterMaking
from bookwarden.clusters.pulsar.rest.cluster_migration import ClusterMigrationAdmin
from bookwarden.clusters.pulsar.rest.registered_brokers import read_deadlocked_brokers, read_loaded_topics
from bookwarden.config import ClientUrlSettings, Settings
from bookwarden.errors import ConfigError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.lock import locked
from bookwarden.redirects import RedirectUrls
from bookwarden.resources import Resources
from bookwarden.wiring.deletion import PhaseOneContext
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.pulsar import connection_of

# A broker asked for the stats of a topic may have to load it first.
_TIMEOUT_S = 30.0
LEASES_PATH: Final = "/bookwarden/cluster-migration-leases"
# A session that lost its process ends a little later than it has to.
_SESSION_GRACE_S: Final = 5.0


class ClusterSide(Resources):
    """One of both clusters: its brokers and its metadata store; close it, or use it in a with statement.

    ``which`` is blue or green, as in the settings; ``settings`` are those with the sections of this side.
    """

    def __init__(self, settings: Settings, which: str) -> None:
        super().__init__()
        side = settings.cluster_migration.blue if which == "blue" else settings.cluster_migration.green
        self.which = which
        self.settings = settings_of_side(settings, which)
        self.connection: PulsarConnection = connection_of(self.settings.pulsar)
        with self._closed_on_error():
            self.rest = self._keep(PulsarAdmin(self.connection, _TIMEOUT_S))
            self.admin = ClusterMigrationAdmin(self.rest, side.cluster)
            self.metadata = self._keep(MetadataContext(self.settings))
            #: Not connected before its first call.
            self.store: MetadataStore = self.metadata.store
            self.nodes = MigrationNodes(
                self.store, self.metadata.last_entries.last_entry, self.metadata.last_entries.first_entry
            )
            #: Asks every registered broker for the topics that it has loaded; loads none.
            self.loaded_topics = partial(read_loaded_topics, self.store, self.connection)
            #: Asks every registered broker for its health.
            self.deadlocked_brokers = partial(read_deadlocked_brokers, self.store, self.connection)

    @property
    def cluster(self) -> str:
        """The cluster's name, by the settings or its broker."""
        return self.admin.cluster


class BlueGreenContext(Resources):
    """Both clusters of a migration; close it, or use it in a with statement."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        with self._closed_on_error():
            self.blue = self._keep(ClusterSide(settings, "blue"))
            self.green = self._keep(ClusterSide(settings, "green"))
            #: Where clients are to be sent; ConfigError in `redirect_urls` where the settings do not say.
            self.clients = settings.cluster_migration.green.clients
            deletion = settings.deletion
            on_blue = self.blue.settings.pulsar.admin_url == settings.pulsar.admin_url
            #: The topics of two-phase deletion, as far as they are on blue.
            self.deletion_topics = (deletion.topic, deletion.retry_topic, deletion.dlq_topic) if on_blue else ()
            self.record = MigrationRecord(Path(settings.cluster_migration.journal))
            blue = self.blue
            #: Holds the lease of each of some namespaces, for whatever changes their migration; as `locked`.
            self.alone = partial(
                locked,
                blue.store,
                LEASES_PATH,
                what="command that changes the migration of",
                wait_s=blue.settings.metadata_store.session_timeout_seconds + _SESSION_GRACE_S,
            )
            self.observer = Observer(
                partial(self.record.cluster, lambda: blue.cluster),
                blue.nodes,
                blue.admin,
                blue.loaded_topics,
                self.green.admin,
            )

    @property
    def aborting(self) -> Aborting:
        """Takes flags off."""
        blue = self.blue
        return Aborting(lambda: blue.cluster, blue.admin, self.observer, self.record, blue.deadlocked_brokers)

    @property
    def health(self) -> BrokerHealth:
        """Asks blue's brokers for deadlocks."""
        return BrokerHealth(self.blue.deadlocked_brokers)

    @property
    def releasing(self) -> Releasing:
        """Lets producers go that blue keeps fenced."""
        return Releasing(self.observer, self.blue.admin, self.record)

    @property
    def reopening(self) -> Reopening:
        """Makes topics accept messages again."""
        blue = self.blue
        return Reopening(
            lambda: blue.cluster, blue.nodes, TerminatedNodes(blue.store), blue.admin, blue.loaded_topics, self.record
        )

    @property
    def green_resources(self) -> Callable[..., GreenResources]:
        """Makes what gives green what blue has got since `prepare`; takes a policy, and what says what is made."""
        blue, green, making = self.blue, self.green, ClusterMaking(self.green.rest)
        both = (blue.admin, blue.nodes, green.admin, green.nodes, making, green.admin)
        return lambda *options: self._keep(GreenResources(*both, self.record, *options))

    @property
    def starting(self) -> Callable[..., Starting]:
        """Makes what begins migrations; takes what gives green its resources, and what says what is done.

        ConfigError where the settings have no URLs to send clients to.
        """
        blue, urls = self.blue, redirect_urls(self.clients)
        common = (lambda: blue.cluster, blue.admin, self.observer, blue.loaded_topics, self.record, urls)
        return partial(Starting, *common)


class FinishingContext(Resources):
    """Phase one on blue; close it, or use it in a with statement.

    Raises ConfigError where blue is another cluster than the one whose deletion topics the settings name: a sweep would
    look for references elsewhere.
    """

    def __init__(self, settings: Settings, both: BlueGreenContext, say: Callable[[str], None]) -> None:
        super().__init__()
        blue = settings_of_side(settings, "blue")
        if (blue.pulsar, blue.metadata_store) != (settings.pulsar, settings.metadata_store):
            raise ConfigError(
                "blue is not the cluster of the sections pulsar and metadata_store: marks are sent to, and swept from, "
                "the cluster that holds the ledgers; run finish with settings whose sections are those of blue"
            )
        with self._closed_on_error():
            phase_one = self._keep(PhaseOneContext(settings))
            self.finishing = Finishing(
                both.observer,
                both.blue.nodes,
                both.blue.admin,
                both.green.admin,
                phase_one.removal,
                both.record,
                say,
                both.blue.metadata.catalog.read_many,
            )


def settings_of_side(settings: Settings, which: str) -> Settings:
    """Return the settings with the sections of blue or green as pulsar and metadata_store; ConfigError without."""
    if which == "blue":
        blue = settings.cluster_migration.blue
        store = blue.metadata_store or settings.metadata_store
        return settings.model_copy(update={"pulsar": blue.pulsar or settings.pulsar, "metadata_store": store})
    green = settings.cluster_migration.green
    missing = [name for name in ("pulsar", "metadata_store") if getattr(green, name) is None]
    if missing:
        raise ConfigError(f"cluster_migration.green.{missing[0]} is not set: it says where green is")
    return settings.model_copy(update={"pulsar": green.pulsar, "metadata_store": green.metadata_store})


def redirect_urls(clients: ClientUrlSettings) -> RedirectUrls:
    """Return where clients are to be sent; ConfigError unless both broker URLs are set, of which each may be needed."""
    missing = [name for name in ("broker_service_url", "broker_service_url_tls") if not getattr(clients, name)]
    if missing:
        raise ConfigError(
            f"cluster_migration.green.clients.{missing[0]} is not set: clients may need either URL, and some Java "
            "clients fail without the one for TLS even if they do not use it; where green has none, any will do"
        )
    return RedirectUrls(**clients.model_dump())
