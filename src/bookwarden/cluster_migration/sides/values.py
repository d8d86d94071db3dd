"""Observations of one cluster: its brokers, tenants, namespaces, topics, subscriptions and clients.

What could not be read is not empty: ``error`` says why, and no check takes it for absent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bookwarden.cluster_migration.scope import is_subscription
from bookwarden.disk_space import DiskSpace
from bookwarden.ledgers.names import TopicName
from bookwarden.redirects import ClusterFlag, RedirectUrls

#: The subscription of a topic's compaction.
COMPACTION = "__compaction"
#: The end of the names of topics by which brokers keep acknowledgements in open transactions.
PENDING_ACKNOWLEDGEMENTS = "__transaction_pending_ack"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A registered broker."""

    name: str  #: Its id.
    version: str | None = None  #: None where it is not known.
    settings: Mapping[str, str] | None = None  #: None where it did not tell them.
    error: str | None = None  #: Why it did not.
    addresses: tuple[str, ...] = ()  #: By which clients reach it, all that it has registered.
    registered_ms: int | None = None  #: When it did so, as it does at its start; since 1970.


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """A subscription of one partition, as the topic's owner has it."""

    name: str  #: Of the subscription.
    backlog: int = 0  #: Entries that are not acknowledged.
    consumers: int = 0  #: Connected now.
    durable: bool = True  #: False for a reader's.
    replicated: bool = False  #: Its position goes along with the topic's replication.
    properties: Mapping[str, str] = field(default_factory=dict)  #: Set by applications.
    delayed: int = 0  #: Messages that are due later.

    @property
    def is_copied(self) -> bool:
        """True for what green needs as well: an application's, and durable."""
        return self.durable and is_subscription(self.name)


@dataclass(frozen=True, slots=True)
class ReplicationStats:
    """The replication of one partition to another cluster."""

    cluster: str
    backlog: int
    connected: bool


@dataclass(frozen=True, slots=True)
class TopicStats:
    """One partition, or a topic without; where ``error`` is set its owner gave no statistics."""

    name: str  #: Full, with that of the partition.
    error: str = ""  #: Why there are no statistics.
    size: int = 0  #: Bytes of its ledgers.
    entries_received: int = 0  #: Since it was loaded.
    producers: int = 0  #: Connected now.
    subscriptions: tuple[SubscriptionStats, ...] = ()  #: Readers' too.
    remotes: tuple[ReplicationStats, ...] = ()  #: Clusters that it is replicated to.
    client_versions: frozenset[str] = frozenset()  #: Of all its producers and consumers.
    transactions: int = 0  #: Begun on it since it was loaded.
    terminated: bool = False  #: By its user, or by a migration.
    migrated: bool = False  #: By a migration.
    #: Subscriptions in its metadata, those that its owner does not tell among them.
    cursors: frozenset[str] = frozenset()
    #: Entries and bytes that all durable subscriptions have behind them and retention keeps; -1 where it is not known.
    history: tuple[int, int] = (0, 0)
    metadata_error: str = ""  #: Why ``terminated``, ``migrated`` and ``cursors`` are not known.

    @property
    def copied(self) -> tuple[SubscriptionStats, ...]:
        """The durable subscriptions of applications."""
        return tuple(one for one in self.subscriptions if one.is_copied)


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """A version of a topic's schema."""

    kind: str  #: By Pulsar's name, as AVRO.
    definition: str
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[str, str]:
        """The part that a registry compares: schemas that are equal in it are one version."""
        return self.kind, self.definition


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """A namespace with all that is in it."""

    name: str  #: As tenant/namespace.
    policies: Mapping[str, Any]  #: Policies, as the broker returns them.
    partitioned: Mapping[str, int] = field(default_factory=dict)  #: Number of partitions by full name.
    topics: Mapping[str, TopicStats] = field(default_factory=dict)  #: By full name, each partition; no system topics.
    system_topics: frozenset[str] = frozenset()  #: Full names of those that brokers keep for themselves.
    transaction_bytes: int = 0  #: In the topics by which brokers keep what was aborted; more than 0: they were used.
    schemas: Mapping[str, tuple[SchemaInfo, ...]] = field(default_factory=dict)  #: By full name, without partitions.
    topic_policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: Those that are set, by full name.
    schema_errors: tuple[str, ...] = ()  #: Why schemas are not known, by topic.
    policy_errors: tuple[str, ...] = ()  #: Why the policies of its topics are not known.

    @property
    def tenant(self) -> str:
        """The tenant's name."""
        return self.name.partition("/")[0]

    @property
    def clusters(self) -> frozenset[str]:
        """The clusters that it is replicated to, with its own."""
        return frozenset(map(str, self.policies.get("replication_clusters") or ()))

    @property
    def whole_topics(self) -> tuple[str, ...]:
        """All topics by full name, partitioned ones once and without their partitions."""
        loose = (topic for topic in self.topics if str(TopicName.parse(topic).base) not in self.partitioned)
        return tuple(sorted({*self.partitioned, *loose}))

    def partitions_of(self, topic: str) -> Iterator[str]:
        """Return the names of a topic's partitions; a topic without partitions is its own only one."""
        count = self.partitioned.get(topic)
        if count is None:
            yield topic
        else:
            name = TopicName.parse(topic)
            yield from (str(name.partition_name(index)) for index in range(count))


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """One of both clusters; ``namespaces`` has those of the scope that exist."""

    cluster: str  #: Its name.
    brokers: tuple[BrokerInfo, ...] = ()  #: All that are registered.
    clusters: frozenset[str] = frozenset()  #: That are registered.
    flag: ClusterFlag | None = None  #: Of the whole cluster.
    tenants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: TenantInfo by name, of the scope.
    namespaces: Mapping[str, NamespaceInfo] = field(default_factory=dict)  #: By name.
    flagged: tuple[str, ...] = ()  #: All its namespaces that are migrated somewhere.
    #: Of all its coordinators, by id, with the topics that each has touched.
    open_transactions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    transaction_error: str = ""  #: Why ``open_transactions`` is not known.

    def settings(self, name: str) -> dict[str, str | None]:
        """Return what each broker says of a setting, by broker; None where it says nothing."""
        return {one.name: None if one.settings is None else one.settings.get(name) for one in self.brokers}

    def values_of(self, name: str) -> frozenset[str]:
        """Return the values of a setting that brokers report; more than one where they differ."""
        return frozenset(value for value in self.settings(name).values() if value is not None)

    def numbers(self, name: str) -> frozenset[int]:
        """Return those of them that are numbers."""
        return frozenset(int(value) for value in self.values_of(name) if value.isdigit())

    def all_have(self, name: str, value: str) -> bool:
        """Return whether there are brokers, and each one is known to have this value of the setting."""
        values = self.settings(name).values()
        return bool(values) and all(one is not None and one.lower() == value for one in values)


@dataclass(frozen=True, slots=True)
class LookupResult:
    """A topic looked up through the address that clients will be given; ``error`` says why that failed."""

    url: str
    topic: str
    owner: str = ""  #: Address of the broker that serves it; "" where clients stay with the address itself.
    server: str = ""  #: Version by which the server introduced itself.
    error: str = ""


@dataclass(frozen=True, slots=True)
class Observations:
    """Both clusters, and the way from one to the other."""

    scope: tuple[str, ...]  #: Namespaces that are to be moved.
    blue: ClusterInfo  #: Left by clients.
    green: ClusterInfo  #: Their target.
    urls: RedirectUrls  #: By which clients are to be sent to green, from the settings.
    at_ms: int = 0  #: When it was observed, since 1970.
    lookups: tuple[LookupResult, ...] = ()  #: Through green's broker URLs that are set.
    #: By each of the web addresses for clients: ids of the brokers that it lists, or why it does not.
    web_brokers: Mapping[str, frozenset[str] | str] = field(default_factory=dict)
    disks: Mapping[str, DiskSpace] = field(default_factory=dict)  #: By id of green's writable bookies.
    disk_error: str = ""  #: Why ``disks`` is not known.
    kept_out: frozenset[str] = frozenset()  #: Namespaces of bookwarden's own topics.
    shared_configuration: str = ""  #: URL of the configuration store that both use; "" if each has its own.

    def is_other(self, cluster: str, clusters: Collection[str]) -> bool:
        """Return whether a list of clusters names one of both, which has a name of its own."""
        return self.blue.cluster != self.green.cluster and cluster in clusters

    def contents(self) -> Iterator[tuple[NamespaceInfo, NamespaceInfo]]:
        """Return each namespace of the scope that blue has, with green's; one that green lacks has nothing in it."""
        for ours, theirs in self.pairs():
            yield ours, theirs or NamespaceInfo(ours.name, {})

    def pairs(self) -> Iterator[tuple[NamespaceInfo, NamespaceInfo | None]]:
        """Return each namespace of the scope that blue has, with green's of that name."""
        for name in self.scope:
            if name in self.blue.namespaces:
                yield self.blue.namespaces[name], self.green.namespaces.get(name)
