"""Wiring of a migration of clients from one cluster to another: both clusters, from the settings."""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path
from typing import Final

from bookwarden.cluster_migration.observing import MigrationObserver
from bookwarden.cluster_migration.preparing.operation import PreparationJournal
from bookwarden.cluster_migration.record import MigrationRecord
from bookwarden.cluster_migration.sides.cluster import ClusterSide
from bookwarden.cluster_migration.sides.observing import PreflightObserver
from bookwarden.config import ClientUrlSettings, Settings
from bookwarden.deletion.phase_one.removal import Removal
from bookwarden.errors import ConfigError
from bookwarden.metastore.lock import locked
from bookwarden.redirects import RedirectUrls
from bookwarden.resources import Resources
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import PhaseOne

# A broker asked for the stats of a topic may have to load it first.
_TIMEOUT_S: Final = 30.0
LEASES_PATH: Final = "/bookwarden/cluster-migration-leases"
# A session that lost its process ends a little later than it has to.
_SESSION_GRACE_S: Final = 5.0


class ClusterMigration(Resources):
    """Blue and green, and what observes and records the migration of clients between them; close it.

    Nothing is connected before its first call.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        migration, deletion = settings.cluster_migration, settings.deletion
        topics = (deletion.topic, deletion.retry_topic, deletion.dlq_topic)
        with self.closed_on_error():
            self._blue = self._cluster_of("blue")
            self.blue = _side_of(self._blue, migration.blue.cluster)
            self.green = _side_of(self._cluster_of("green"), migration.green.cluster)
            #: Where clients are to be sent; ConfigError in `redirect_urls` where the settings do not say.
            self.clients = migration.green.clients
            blue = self._blue.settings
            #: The topics of two-phase deletion, as far as they are on blue.
            self.deletion_topics = topics if blue.pulsar.admin_url == settings.pulsar.admin_url else ()
            self.record = MigrationRecord(Path(migration.journal))
            #: What was changed on blue and green by the preparation, with the values from before.
            self.journal = PreparationJournal(Path(migration.journal))
            #: Of a migration that was begun.
            self.observer = MigrationObserver(self.blue, self.record, self.green)
            #: Of both clusters before one.
            self.preflight = PreflightObserver(self.blue, self.green, RedirectUrls(**self.clients.model_dump()), topics)
            #: Holds the lease of each of some namespaces, for whatever changes their migration; as `locked`.
            self.alone = partial(
                locked,
                self.blue.store,
                LEASES_PATH,
                what="command that changes the migration of",
                wait_s=blue.metadata_store.session_timeout_seconds + _SESSION_GRACE_S,
            )

    @cached_property
    def removal(self) -> Removal:
        """Phase one on blue, over the connections that are open.

        Raises ConfigError where blue is another cluster than the one whose deletion topics the settings name: a sweep
        would look for references elsewhere.
        """
        settings, blue = self._settings, self._blue.settings
        if (blue.pulsar, blue.metadata_store) != (settings.pulsar, settings.metadata_store):
            raise ConfigError(
                "blue is not the cluster of the sections pulsar and metadata_store: marks are sent to, and swept from, "
                "the cluster that holds the ledgers; run finish with settings whose sections are those of blue"
            )
        return PhaseOne(self._blue).removal

    def _cluster_of(self, which: str) -> Cluster:
        return self.keep(Cluster(settings_of_side(self._settings, which), request_timeout_s=_TIMEOUT_S))


def _side_of(cluster: Cluster, named: str) -> ClusterSide:
    bookkeeper = cluster.bookkeeper
    return ClusterSide(
        cluster.connection,
        cluster.admin,
        cluster.store,
        bookkeeper.last_entries,
        bookkeeper.catalog.read_many,
        bookkeeper.disk_space,
        named,
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
        names = " and ".join(f"cluster_migration.green.{name}" for name in missing)
        raise ConfigError(
            f"{names} {'is' if len(missing) == 1 else 'are'} not set: green's brokers and metadata store; "
            "docs/cluster-migration.md has all settings of a migration"
        )
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
