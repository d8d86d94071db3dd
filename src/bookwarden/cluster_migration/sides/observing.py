"""Both clusters of a migration, observed: what the pre-flight judges and what `prepare` plans from."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from bookwarden.cluster_migration.scope import TRANSACTION_SNAPSHOT, is_brokers_own, namespace_of
from bookwarden.cluster_migration.sides.cluster import ClusterSide
from bookwarden.cluster_migration.sides.policies import RETENTION, retains, topic_settings
from bookwarden.cluster_migration.sides.values import (
    BrokerInfo,
    ClusterInfo,
    LookupResult,
    NamespaceInfo,
    Observations,
    ReplicationStats,
    SchemaInfo,
    SubscriptionStats,
    TopicStats,
)
from bookwarden.clusters.pulsar.rest.cluster_migration import ClusterMigrationAdmin
from bookwarden.clusters.pulsar.rest.registered_brokers import RegisteredBroker
from bookwarden.errors import BookwardenError, FormatError, NotFoundError, PulsarError
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.redirects import RedirectUrls

T = TypeVar("T")
R = TypeVar("R")

#: Topics that are asked about at the same time: few, since each may have to be loaded.
_AT_ONCE: Final = 8
_EVENTS: Final = "__change_events"
_POLICIES_SERVICE: Final = "topicPoliciesServiceClassName"
_TOPIC_SERVICE: Final = "org.apache.pulsar.broker.service.SystemTopicBasedTopicPoliciesService"
_STORING_SERVICE: Final = "org.apache.pulsar.broker.service.MetadataStoreTopicPoliciesService"
_BROKERS_OWN: Final = "pulsar"
# In the one namespace that every cluster has; the topic is not created by being looked up.
_SYSTEM: Final = "pulsar/system"
_LOOKED_UP: Final = f"persistent://{_SYSTEM}/bookwarden-lookup"


def all_namespaces(admin: ClusterMigrationAdmin) -> list[str]:
    """List the namespaces of a cluster that applications may use: all but those of tenant ``pulsar``.

    Those of the first version (``tenant/cluster/namespace``) are left out: they cannot be flagged.
    """
    found = (name for tenant in admin.tenants() if tenant != _BROKERS_OWN for name in admin.namespaces(tenant))
    return sorted(name for name in found if name.count("/") == 1)


def still_moving(admin: ClusterMigrationAdmin, namespaces: Iterable[str]) -> list[str]:
    """List those of these namespaces of blue that are flagged and still have topics of applications."""
    return [name for name in namespaces if _is_flagged(admin, name) and not all(map(_is_system, admin.topics(name)))]


def _is_flagged(admin: ClusterMigrationAdmin, name: str) -> bool:
    try:
        return bool(admin.policies(name).get("migrated"))
    except NotFoundError:
        return False


class PreflightObserver:
    """Observes blue and green for the pre-flight and the preparation; ``deletion_topics`` are bookwarden's own."""

    def __init__(
        self, blue: ClusterSide, green: ClusterSide, urls: RedirectUrls, deletion_topics: Iterable[str]
    ) -> None:
        self.blue, self.green = blue, green
        self._urls = urls
        self._kept_out = frozenset({_SYSTEM, *map(namespace_of, deletion_topics)})

    def namespaces(self) -> list[str]:
        """List the namespaces of blue that can be moved: not those of brokers, nor those of bookwarden's topics."""
        return [name for name in all_namespaces(self.blue.admin) if name not in self._kept_out]

    def observe(self, namespaces: Sequence[str], tell: Callable[[str], None] = lambda _name: None) -> Observations:
        """Observe both clusters with these namespaces; each topic of them is loaded. Raises BookwardenError.

        ``tell`` is called with a namespace before it is read.
        """
        blue, green = ClusterObserver(self.blue), ClusterObserver(self.green)
        of_blue, of_green = blue.observe(namespaces, tell), green.observe(namespaces)
        # Addresses of this kind may be those of the brokers' own machines.
        is_one = of_blue.clusters == of_green.clusters
        shared = blue.configurations() & green.configurations() if is_one else ()
        disks, disk_error = _asked(self.green.disk_space, errors=BookwardenError)
        return Observations(
            scope=tuple(namespaces),
            blue=of_blue,
            green=of_green,
            urls=self._urls,
            at_ms=int(time.time() * 1000),
            lookups=tuple(map(self._look_up, self._hosts())),
            web_brokers=self._web_brokers(),
            disks=disks or {},
            disk_error=disk_error,
            kept_out=self._kept_out,
            shared_configuration=min(shared, default=""),
        )

    def _hosts(self) -> list[str]:
        """List the broker addresses for clients, one for each host that they name."""
        found = []
        for url in (self._urls.broker_service_url, self._urls.broker_service_url_tls):
            scheme, _, hosts = url.partition("://")
            found += [f"{scheme}://{host}" for host in urlsplit(f"//{hosts}").netloc.split(",") if host]
        return found

    def _look_up(self, url: str) -> LookupResult:
        found, error = _asked(self.green.look_up, url, _LOOKED_UP, errors=BookwardenError)
        return LookupResult(url, _LOOKED_UP, *(found or ("", "")), error)

    def _web_brokers(self) -> dict[str, frozenset[str] | str]:
        urls = filter(None, (self._urls.web_service_url, self._urls.web_service_url_tls))
        asked = {url: _asked(self.green.web_brokers, url, errors=BookwardenError) for url in urls}
        return {url: error if found is None else found for url, (found, error) in asked.items()}


class ClusterObserver:
    """Observes one cluster; asks about several topics at once."""

    def __init__(self, side: ClusterSide) -> None:
        self._side = side
        self._admin = side.admin
        self._answers: list[RegisteredBroker] | None = None

    def observe(self, scope: Sequence[str], tell: Callable[[str], None] = lambda _name: None) -> ClusterInfo:
        """Observe the cluster and these of its namespaces; each topic of them is loaded.

        ``tell`` is called with a namespace before it is read. Raises BookwardenError where the cluster does not answer
        at all; errors of single topics and brokers are in the result.
        """
        everywhere = all_namespaces(self._admin)
        cluster = self._side.cluster
        open_transactions, error = _asked(self._side.contents.open_transactions, errors=BookwardenError)
        namespaces = {}
        for name in scope:
            if name in everywhere or name.startswith(f"{_BROKERS_OWN}/"):
                tell(name)
                found = self._namespace(name)
                if found is not None:
                    namespaces[name] = found
        wanted = {name.partition("/")[0] for name in scope}
        return ClusterInfo(
            cluster=cluster,
            brokers=self._brokers(),
            clusters=frozenset(self._admin.clusters()),
            flag=self._admin.read_flag(cluster),
            tenants={name: self._admin.tenant(name) for name in self._admin.tenants() if name in wanted},
            namespaces=namespaces,
            flagged=self._flagged(everywhere, namespaces),
            open_transactions=open_transactions or {},
            transaction_error=error,
        )

    def configurations(self) -> frozenset[str]:
        """List the configuration stores of the brokers, as their settings name them."""
        found = set()
        for broker in self._asked_brokers():
            url = broker.other_configuration or (broker.settings or {}).get("metadataStoreUrl")
            if url:
                found.add(url)
        return frozenset(found)

    def _brokers(self) -> tuple[BrokerInfo, ...]:
        addresses, registered = self._side.addresses(), self._side.nodes.brokers()
        return tuple(
            BrokerInfo(
                *(one.name, one.version, one.settings, one.error),
                addresses=addresses.get(one.name, ()),
                registered_ms=registered.get(one.name),
            )
            for one in self._asked_brokers()
        )

    def _asked_brokers(self) -> list[RegisteredBroker]:
        """Ask each broker once."""
        if self._answers is None:
            self._answers = self._side.brokers()
        return self._answers

    def _flagged(self, names: Sequence[str], known: Mapping[str, NamespaceInfo]) -> tuple[str, ...]:
        def is_flagged(name: str) -> bool:
            policies = known[name].policies if name in known else self._admin.policies(name)
            return bool(policies.get("migrated"))

        return tuple(name for name, is_one in zip(names, _each(is_flagged, names), strict=True) if is_one)

    def _namespace(self, name: str) -> NamespaceInfo | None:
        try:
            policies = self._admin.policies(name)
        except NotFoundError:
            return None
        topics = self._admin.topics(name)
        partitioned = [topic for topic in self._admin.partitioned_topics(name) if not _is_system(topic)]
        partitioned += self._side.contents.non_persistent(name)
        own = [topic for topic in topics if not _is_system(topic)]
        whole = sorted({*partitioned, *(str(TopicName.parse(topic).base) for topic in own)})
        schemas, schema_errors = self._schemas(whole)
        events = any(TopicName.parse(topic).base.local_name == _EVENTS for topic in topics)
        topic_policies, policy_errors = self._topic_policies(name, events=events)
        seen = _each(self._topic, own)
        kept = [one for one in seen if self._is_retained(one, policies, topic_policies, is_known=not policy_errors)]
        histories = dict(zip((one.name for one in kept), _each(self._history, kept), strict=True))
        return NamespaceInfo(
            name=name,
            policies=policies,
            partitioned=dict(zip(partitioned, _each(self._admin.partition_count, partitioned), strict=True)),
            topics={one.name: replace(one, history=histories.get(one.name, (0, 0))) for one in seen},
            system_topics=frozenset(topics) - frozenset(own),
            transaction_bytes=sum(_each(self._size, [topic for topic in topics if TRANSACTION_SNAPSHOT in topic])),
            schemas=schemas,
            topic_policies=topic_policies,
            schema_errors=schema_errors,
            policy_errors=policy_errors,
        )

    def _topic(self, name: str) -> TopicStats:
        stats, error = _asked(self._admin.stats, name)
        info, metadata_error = _asked(self._admin.internal_info, name)
        return parse_topic(name, stats, error, info, metadata_error)

    def _is_retained(
        self,
        topic: TopicStats,
        policies: Mapping[str, Any],
        topic_policies: Mapping[str, Mapping[str, Any]],
        *,
        is_known: bool,
    ) -> bool:
        """Return whether retention may keep what a topic's subscriptions have read; without any it is not history."""
        if not topic.copied or not topic.size:
            return False
        own = topic_settings(topic_policies.get(str(TopicName.parse(topic.name).base), {})).get(RETENTION)
        brokers = [broker.settings for broker in self._asked_brokers()]
        return not is_known or retains(own or policies.get("retention_policies"), brokers)

    def _history(self, topic: TopicStats) -> tuple[int, int]:
        stats, _ = _asked(self._admin.internal_stats, topic.name)
        return parse_history(stats, [one.name for one in topic.copied])

    def _size(self, topic: str) -> int:
        stats, _ = _asked(self._admin.stats, topic)
        return int((stats or {}).get("storageSize", 0))

    def _schemas(self, topics: Sequence[str]) -> tuple[dict[str, tuple[SchemaInfo, ...]], tuple[str, ...]]:
        found: dict[str, tuple[SchemaInfo, ...]] = {}
        errors = []
        for topic, (versions, error) in zip(
            topics, _each(lambda topic: _asked(self._side.contents.schemas, topic), topics), strict=True
        ):
            if versions is None:
                errors.append(f"{topic}: {error}")
            elif versions:
                found[topic] = tuple(SchemaInfo(*version) for version in versions)
        return found, tuple(errors)

    def _topic_policies(
        self, namespace: str, *, events: bool
    ) -> tuple[Mapping[str, Mapping[str, Any]], tuple[str, ...]]:
        """Read them from where the brokers have them: the system topic, or without one perhaps the metadata store."""
        if events:
            found, error = _asked(self._side.topic_policies, namespace)
            return (found, ()) if found is not None else ({}, (error,))
        answers = [broker.settings for broker in self._asked_brokers()]
        services = {one.get(_POLICIES_SERVICE) or _TOPIC_SERVICE for one in answers if one is not None}
        unknown = services - {_TOPIC_SERVICE, _STORING_SERVICE}
        if unknown:
            return {}, (f"{namespace}: brokers keep them by {', '.join(sorted(unknown))}, which is not known here",)
        # A broker that does not tell may keep them in the store.
        if None not in answers and _STORING_SERVICE not in services:
            return {}, ()
        found, error = _asked(self._side.stored_policies, namespace)
        errors = [] if found is not None else [f"{namespace}: {error}"]
        others = [broker.other_configuration for broker in self._asked_brokers()]
        elsewhere = next(filter(None, others), None)
        if elsewhere:
            errors.append(f"{namespace}: those for all clusters are in {elsewhere}, which is not read")
        return found or {}, tuple(errors)


def parse_topic(
    name: str,
    stats: Mapping[str, Any] | None,
    error: str,
    info: Mapping[str, Any] | None,
    metadata_error: str,
) -> TopicStats:
    """Make a topic of TopicStats and ManagedLedgerInfo; None is one that was not given, for the reason next to it."""
    stats, info = stats or {}, info or {}
    try:
        subscriptions = stats.get("subscriptions") or {}
        consumers = [one for each in subscriptions.values() for one in each.get("consumers") or ()]
        publishers = list(stats.get("publishers") or ())
        return TopicStats(
            name=name,
            error=error,
            size=int(stats.get("storageSize", 0)),
            entries_received=int(stats.get("msgInCounter", 0)),
            producers=len(publishers),
            subscriptions=tuple(_subscription(each, one) for each, one in sorted(subscriptions.items())),
            remotes=tuple(_remote(each, one) for each, one in sorted((stats.get("replication") or {}).items())),
            client_versions=frozenset(str(one.get("clientVersion") or "") for one in (*publishers, *consumers)),
            transactions=sum(int(stats.get(f"{state}TxnCount", 0)) for state in ("ongoing", "committed", "aborted")),
            terminated=info.get("terminatedPosition") is not None,
            migrated=str((info.get("properties") or {}).get("migrated", "")).lower() == "true",
            cursors=frozenset(decode_local_name(str(name)) for name in info.get("cursors") or ()),
            metadata_error=metadata_error,
        )
    except (AttributeError, TypeError, ValueError) as cause:
        return TopicStats(name, error=error or f"statistics of a form that is not known: {cause}")


def parse_history(stats: Mapping[str, Any] | None, subscriptions: Collection[str]) -> tuple[int, int]:
    """Return the entries and bytes behind the slowest of these subscriptions, by internal stats; -1 where not known."""
    try:
        cursors = {decode_local_name(name): one["markDeletePosition"] for name, one in (stats or {})["cursors"].items()}
        slowest = min(tuple(map(int, cursors[name].split(":"))) for name in subscriptions)
        entries, size = 0, 0
        for ledger in (stats or {})["ledgers"]:
            number, count, total = (int(ledger[name]) for name in ("ledgerId", "entries", "size"))
            if count == 0 and ledger is (stats or {})["ledgers"][-1]:
                # The one that is being written.
                count, total = (int((stats or {})[f"currentLedger{name}"]) for name in ("Entries", "Size"))
            behind = count if number < slowest[0] else min(count, slowest[1] + 1) if number == slowest[0] else 0
            entries += behind
            size += total * behind // count if count else 0
        return entries, size
    except (AttributeError, KeyError, TypeError, ValueError):
        return -1, -1


def _subscription(name: str, stats: Mapping[str, Any]) -> SubscriptionStats:
    return SubscriptionStats(
        name=name,
        backlog=int(stats.get("msgBacklog", 0)),
        consumers=len(stats.get("consumers") or ()),
        durable=bool(stats.get("durable", stats.get("isDurable", True))),
        replicated=bool(stats.get("replicated", stats.get("isReplicated", False))),
        properties={str(key): str(value) for key, value in (stats.get("subscriptionProperties") or {}).items()},
        delayed=int(stats.get("msgDelayed", 0)),
    )


def _remote(cluster: str, stats: Mapping[str, Any]) -> ReplicationStats:
    return ReplicationStats(cluster, int(stats.get("replicationBacklog", 0)), bool(stats.get("connected", False)))


def _is_system(topic: str) -> bool:
    return is_brokers_own(TopicName.parse(topic))


def _asked(
    ask: Callable[..., R],
    *about: object,
    errors: type[BookwardenError] | tuple[type[BookwardenError], ...] = (PulsarError, NotFoundError, FormatError),
) -> tuple[R | None, str]:
    """Return the answer, or None and why there is none."""
    try:
        return ask(*about), ""
    except errors as error:
        return None, str(error)


def _each(ask: Callable[[T], R], what: Iterable[T]) -> list[R]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(ask, what))
