"""Wiring of what comes before a migration of clients: the pre-flight, and the preparation of both clusters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from bookwarden.blue_green.preparing.journal import PreparationJournal
from bookwarden.blue_green.preparing.operation import Cluster, Preparation
from bookwarden.blue_green.preparing.steps import Side
from bookwarden.blue_green.readiness.findings import Judged
from bookwarden.blue_green.readiness.judging import judge
from bookwarden.blue_green.scope import namespace_of
from bookwarden.blue_green.sides.observing import SideObserver, all_namespaces
from bookwarden.blue_green.sides.ports import SideSources
from bookwarden.blue_green.sides.values import LookupSeen, Observations
from bookwarden.clusters.pulsar.lookup import hosts_of, lookup
from bookwarden.clusters.pulsar.messages.topic_policies import read_topic_policies
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.cluster_contents import ClusterContents
from bookwarden.clusters.pulsar.rest.cluster_making import ClusterMaking
from bookwarden.clusters.pulsar.rest.registered_brokers import read_broker_addresses, read_registered_brokers
from bookwarden.config import Settings
from bookwarden.errors import BookwardenError
from bookwarden.redirects import RedirectUrls
from bookwarden.resources import Resources
from bookwarden.wiring.blue_green import BlueGreenContext, ClusterSide

Tell = Callable[[str], None]

# In the one namespace that every cluster has; the topic is not created by being looked up.
_LOOKED_UP: Final = "persistent://pulsar/system/bookwarden-lookup"
_BROKERS_OWN: Final = "pulsar/system"
_WEB_TIMEOUT_S: Final = 10.0


def _quiet(_namespace: str) -> None:
    """Report to nobody."""


class ReadinessContext(Resources):
    """The pre-flight and the preparation; close it, or use it in a with statement.

    ``clusters`` are those of a caller who has them open, and closes them.
    """

    def __init__(self, settings: Settings, clusters: BlueGreenContext | None = None) -> None:
        super().__init__()
        with self._closed_on_error():
            self.clusters = clusters or self._keep(BlueGreenContext(settings))
            deletion = settings.deletion
            own = (deletion.topic, deletion.retry_topic, deletion.dlq_topic)
            self._kept_out = frozenset({_BROKERS_OWN, *map(namespace_of, own)})
            self._urls = RedirectUrls(**settings.cluster_migration.green.clients.model_dump())
            #: What was changed on blue and green, with the values from before.
            self.journal = PreparationJournal(Path(settings.cluster_migration.journal))

    def namespaces(self) -> list[str]:
        """List the namespaces of blue that can be moved: not those of brokers, nor those of bookwarden's topics."""
        return [name for name in all_namespaces(self.clusters.blue.admin) if name not in self._kept_out]

    def observe(self, namespaces: Sequence[str], tell: Tell = _quiet) -> Observations:
        """Observe both clusters with these namespaces; each topic of them is loaded. Raises BookwardenError."""
        blue, green = (SideObserver(_sources(side)) for side in (self.clusters.blue, self.clusters.green))
        of_blue, of_green = blue.observe(namespaces, tell), green.observe(namespaces)
        # Addresses of this kind may be those of the brokers' own machines.
        is_one = of_blue.clusters == of_green.clusters
        shared = blue.configurations() & green.configurations() if is_one else ()
        return Observations(
            scope=tuple(namespaces),
            blue=of_blue,
            green=of_green,
            urls=self._urls,
            lookups=tuple(self._looked_up()),
            web_brokers={url: self._web_brokers(url) for url in self._web_urls()},
            kept_out=self._kept_out,
            shared_configuration=min(shared, default=""),
        )

    def preflight(self, namespaces: Sequence[str], tell: Tell = _quiet) -> tuple[Judged, ...]:
        """Judge whether these namespaces can be moved; changes nothing but that their topics are loaded."""
        return judge(self.observe(namespaces, tell))

    def preparation(self, namespaces: Sequence[str], tell: Tell = _quiet) -> Preparation:
        """Return what plans and carries out the preparation of these namespaces."""
        return Preparation(
            partial(self.observe, namespaces, tell),
            {
                side: Cluster(one.cluster, one.admin, ClusterMaking(one.rest))
                for side, one in ((Side.BLUE, self.clusters.blue), (Side.GREEN, self.clusters.green))
            },
            self.journal,
        )

    def _looked_up(self) -> list[LookupSeen]:
        told = (self._urls.broker_service_url, self._urls.broker_service_url_tls)
        return [self._look_up(host) for url in told if url for host in hosts_of(url)]

    def _look_up(self, url: str) -> LookupSeen:
        try:
            found = lookup(self.clusters.green.connection, url, _LOOKED_UP)
        except BookwardenError as error:
            return LookupSeen(url, _LOOKED_UP, trouble=str(error))
        return LookupSeen(url, _LOOKED_UP, found.owner, found.server)

    def _web_urls(self) -> list[str]:
        return [url for url in (self._urls.web_service_url, self._urls.web_service_url_tls) if url]

    def _web_brokers(self, url: str) -> frozenset[str] | str:
        connection = dataclasses.replace(self.clusters.green.connection, admin_url=url)
        try:
            with closing(PulsarAdmin(connection, _WEB_TIMEOUT_S)) as admin:
                return ClusterContents(admin).web_brokers()
        except BookwardenError as error:
            return str(error)


def preflight(settings: Settings, context: BlueGreenContext, namespaces: Sequence[str]) -> tuple[Judged, ...]:
    """Judge whether these namespaces can be moved, over clusters that are open already."""
    with ReadinessContext(settings, context) as readiness:
        return readiness.preflight(namespaces)


def _sources(side: ClusterSide) -> SideSources:
    contents = ClusterContents(side.rest)
    return SideSources(
        cluster=side.cluster,
        admin=side.admin,
        brokers=partial(read_registered_brokers, side.store, side.connection),
        addresses=partial(read_broker_addresses, side.store),
        schemas=contents.schemas,
        topic_policies=partial(read_topic_policies, side.connection, side.rest),
        non_persistent=contents.non_persistent,
        open_transactions=contents.open_transactions,
    )
