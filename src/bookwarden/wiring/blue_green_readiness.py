"""Wiring of what comes before a migration of clients: the pre-flight, and the preparation of both clusters."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bookwarden.blue_green.preparing.journal import PreparationJournal
from bookwarden.blue_green.preparing.steps import Side
from bookwarden.blue_green.readying import Readiness, Ways, Written
from bookwarden.blue_green.sides.ports import SideSources
from bookwarden.clusters.pulsar.lookup import look_up
from bookwarden.clusters.pulsar.messages.topic_policies import read_topic_policies
from bookwarden.clusters.pulsar.metadata.topic_policies import stored_policies
from bookwarden.clusters.pulsar.rest.cluster_contents import ClusterContents
from bookwarden.clusters.pulsar.rest.cluster_making import ClusterMaking
from bookwarden.clusters.pulsar.rest.registered_brokers import (
    read_broker_addresses,
    read_registered_brokers,
    read_web_brokers,
)
from bookwarden.config import Settings
from bookwarden.redirects import RedirectUrls
from bookwarden.resources import Resources
from bookwarden.wiring.blue_green import BlueGreenContext, ClusterSide


class ReadinessContext(Resources):
    """The pre-flight and the preparation; close it, or use it in a with statement.

    ``clusters`` are those of a caller who has them open, and closes them.
    """

    def __init__(self, settings: Settings, clusters: BlueGreenContext | None = None) -> None:
        super().__init__()
        with self._closed_on_error():
            self.clusters = clusters or self._keep(BlueGreenContext(settings))
            blue, green, deletion = self.clusters.blue, self.clusters.green, settings.deletion
            #: What was changed on blue and green, with the values from before.
            self.journal = PreparationJournal(Path(settings.cluster_migration.journal))
            readiness = Readiness(
                _sources(blue),
                _sources(green),
                Ways(
                    partial(look_up, green.connection),
                    partial(read_web_brokers, green.connection),
                    green.metadata.disk_space,
                ),
                RedirectUrls(**settings.cluster_migration.green.clients.model_dump()),
                {Side.BLUE: _written(blue), Side.GREEN: _written(green)},
                self.journal,
                (deletion.topic, deletion.retry_topic, deletion.dlq_topic),
            )
            #: These are `Readiness`'s.
            self.namespaces = readiness.namespaces
            self.observe = readiness.observe
            self.preflight = readiness.preflight
            self.preparation = readiness.preparation


def _sources(side: ClusterSide) -> SideSources:
    contents = ClusterContents(side.rest)
    return SideSources(
        cluster=lambda: side.cluster,
        admin=side.admin,
        brokers=partial(read_registered_brokers, side.store, side.connection),
        addresses=partial(read_broker_addresses, side.store),
        registered=side.nodes.brokers,
        schemas=contents.schemas,
        topic_policies=partial(read_topic_policies, side.connection, side.rest),
        stored_policies=partial(stored_policies, side.store),
        non_persistent=contents.non_persistent,
        open_transactions=contents.open_transactions,
    )


def _written(side: ClusterSide) -> Written:
    return Written(side.admin, ClusterMaking(side.rest))
