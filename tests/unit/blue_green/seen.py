"""Observations of two clusters between which a move loses nothing, to be spoilt one thing at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bookwarden.cluster_migration.sides.values import (
    BrokerInfo,
    ClusterInfo,
    LookupResult,
    NamespaceInfo,
    Observations,
    SchemaInfo,
    SubscriptionStats,
    TopicStats,
)
from bookwarden.disk_space import DiskSpace
from bookwarden.redirects import ClusterFlag, RedirectUrls

NAME = "shop/orders"
SINGLE = f"persistent://{NAME}/single"
PARTED = f"persistent://{NAME}/parted"
PARTS = tuple(f"{PARTED}-partition-{index}" for index in range(2))
PLAIN, TLS = "pulsar://green:6650", "pulsar+ssl://green:6651"
URLS = RedirectUrls("http://green:8080", "", PLAIN, TLS)
SCHEMA = SchemaInfo("AVRO", '{"type": "record"}')
STARTED_MS = 1_700_000_000_000
HELD = {"deleteWhileInactive": False, "inactiveTopicDeleteMode": "x", "maxInactiveDurationSeconds": 60}
SETTINGS = {
    "clusterMigrationCheckDurationSeconds": "60",
    "clusterMigrationAutoResourceCreation": "false",
    "loadBalancerEnabled": "false",
    "brokerDeleteInactiveTopicsEnabled": "true",
    "allowAutoTopicCreation": "true",
}


def policies(cluster: str, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "replication_clusters": [cluster],
        "auth_policies": {"namespace_auth": {"reader": ["consume"]}},
        "inactive_topic_policies": HELD,
        "message_ttl_in_seconds": 60,
        "topicDispatchRate": {cluster: {"dispatchThrottlingRateInMsg": 5}},
        "encryption_required": False,
        "schema_compatibility_strategy": "UNDEFINED",
        "subscription_types_enabled": [],
        "autoTopicCreationOverride": {"allowAutoTopicCreation": False},
    }
    return {**found, **changes}


def topic(name: str, **changes: Any) -> TopicStats:
    made = TopicStats(
        name,
        subscriptions=(SubscriptionStats("app", consumers=1), SubscriptionStats("pulsar.dedup", backlog=9)),
        client_versions=frozenset({"Pulsar-Java-v4.0.8"}),
        cursors=frozenset({"app", "pulsar.dedup"}),
    )
    return replace(made, **changes)


def namespace(cluster: str, **changes: Any) -> NamespaceInfo:
    made = NamespaceInfo(
        NAME,
        policies(cluster),
        partitioned={PARTED: 2},
        topics={name: topic(name) for name in (SINGLE, *PARTS)},
        schemas={SINGLE: (SCHEMA,)},
        topic_policies={SINGLE: {"maxConsumerPerTopic": 5, "replicationClusters": [cluster]}},
    )
    return replace(made, **changes)


def side(cluster: str, **changes: Any) -> ClusterInfo:
    broker = BrokerInfo(
        f"{cluster}:8080",
        "4.0.8",
        {**SETTINGS, "clusterName": cluster},
        None,
        (f"pulsar://{cluster}:6650",),
        STARTED_MS,
    )
    made = ClusterInfo(
        cluster,
        brokers=(broker,),
        clusters=frozenset({cluster}),
        flag=ClusterFlag(False, URLS) if cluster == "blue" else None,
        tenants={"shop": {"adminRoles": ["boss"], "allowedClusters": [cluster]}},
        namespaces={NAME: namespace(cluster)},
    )
    return replace(made, **changes)


def ready(**changes: Any) -> Observations:
    """Return what is seen where nothing stands in the way."""
    made = Observations(
        (NAME,),
        side("blue"),
        side("green"),
        URLS,
        lookups=(LookupResult(PLAIN, "t", "pulsar://green:6650", "4.0.8"), LookupResult(TLS, "t", error="no TLS")),
        web_brokers={"http://green:8080": frozenset({"green:8080"})},
        at_ms=STARTED_MS + 3_600_000,
        disks={"bookie-1": DiskSpace(1000, 500)},
        kept_out=frozenset({"pulsar/system"}),
    )
    return replace(made, **changes)


def with_blue(**changes: Any) -> Observations:
    """Return it with another namespace on blue."""
    return ready(blue=side("blue", namespaces={NAME: namespace("blue", **changes)}))


def with_green(**changes: Any) -> Observations:
    """Return it with another namespace on green."""
    return ready(green=side("green", namespaces={NAME: namespace("green", **changes)}))


def with_topic(**changes: Any) -> Observations:
    """Return it with another topic without partitions on blue."""
    topics = {**namespace("blue").topics, SINGLE: topic(SINGLE, **changes)}
    return with_blue(topics=topics)


def both_with(blue: dict[str, str], green: dict[str, str], size: int = 0) -> Observations:
    """Return it with further settings of brokers, and with a topic of this size on blue."""
    seen = with_topic(size=size)
    sides = (
        replace(one, brokers=tuple(replace(each, settings={**(each.settings or {}), **told}) for each in one.brokers))
        for one, told in ((seen.blue, blue), (seen.green, green))
    )
    return replace(seen, **dict(zip(("blue", "green"), sides, strict=True)))


def broker_of_blue(version: str = "4.0.8", **settings: str) -> Observations:
    """Return it with another broker of blue."""
    told = {**SETTINGS, "clusterName": "blue", **settings}
    broker = BrokerInfo("blue:8080", version, told, None, ("pulsar://blue:6650",))
    return ready(blue=side("blue", brokers=(broker,)))
