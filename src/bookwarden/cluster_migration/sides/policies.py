"""Policies of namespaces and topics: which are set, by the names that the admin REST has, and for which cluster.

Formats: Policies of Pulsar 4 as ``GET /namespaces/T/N`` returns it, and TopicPolicies of its ``__change_events``.
A key is the last part of the path that sets it, with what that asks for: ``retention``, ``backlogQuota/message_age``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

INACTIVE: Final = "inactiveTopicPolicies"
AUTO_CREATION: Final = "autoTopicCreation"
REPLICATION: Final = "replication"
_ALIVE: Final = "deleteWhileInactive"
_CREATES: Final = "allowAutoTopicCreation"
_BROKERS_INACTIVE: Final = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
}

RETENTION: Final = "retention"
_BROKERS_RETENTION: Final = ("defaultRetentionTimeInMinutes", "defaultRetentionSizeInMB")

_OF_NAMESPACE: Final = {
    "retention_policies": "retention",
    "message_ttl_in_seconds": "messageTTL",
    "subscription_expiration_time_minutes": "subscriptionExpirationTime",
    "persistence": "persistence",
    "deduplicationEnabled": "deduplication",
    "deduplicationSnapshotIntervalSeconds": "deduplicationSnapshotInterval",
    "autoTopicCreationOverride": AUTO_CREATION,
    "autoSubscriptionCreationOverride": "autoSubscriptionCreation",
    "encryption_required": "encryptionRequired",
    "delayed_delivery_policies": "delayedDelivery",
    "inactive_topic_policies": INACTIVE,
    "subscription_auth_mode": "subscriptionAuthMode",
    "max_producers_per_topic": "maxProducersPerTopic",
    "max_consumers_per_topic": "maxConsumersPerTopic",
    "max_consumers_per_subscription": "maxConsumersPerSubscription",
    "max_unacked_messages_per_consumer": "maxUnackedMessagesPerConsumer",
    "max_unacked_messages_per_subscription": "maxUnackedMessagesPerSubscription",
    "max_subscriptions_per_topic": "maxSubscriptionsPerTopic",
    "max_topics_per_namespace": "maxTopicsPerNamespace",
    "compaction_threshold": "compactionThreshold",
    "schema_compatibility_strategy": "schemaCompatibilityStrategy",
    "is_allow_auto_update_schema": "isAllowAutoUpdateSchema",
    "schema_validation_enforced": "schemaValidationEnforced",
    "subscription_types_enabled": "subscriptionTypesEnabled",
    "entryFilters": "entryFilters",
    "dispatcherPauseOnAckStatePersistentEnabled": "dispatcherPauseOnAckStatePersistent",
}
#: One value for each cluster, by its name.
_BY_CLUSTER: Final = {
    "publishMaxMessageRate": "publishRate",
    "topicDispatchRate": "dispatchRate",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
    "replicatorDispatchRate": "replicatorDispatchRate",
    "clusterSubscribeRate": "subscribeRate",
}
#: One value for each key.
_BY_KEY: Final = {"backlog_quota_map": "backlogQuota", "properties": "properties"}
#: Where offloaded copies are, and groups of another cluster's metadata, are no matter of a copy.
NOT_COPIED: Final = {
    "offload_policies": None,
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "offload_deletion_lag_ms": None,
    "resource_group_name": None,
}
_STATE: Final = ("deleted", "migrated", "clusterThatCanDeleteNamespace", "clusterDispatchRate")
_UNSET: Final = {
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "schema_compatibility_strategy": "UNDEFINED",
    "schema_validation_enforced": False,
    "dispatcherPauseOnAckStatePersistentEnabled": False,
}

_OF_TOPIC: Final = {
    "retentionPolicies": "retention",
    "messageTTLInSeconds": "messageTTL",
    "compactionThreshold": "compactionThreshold",
    "deduplicationEnabled": "deduplicationEnabled",
    "deduplicationSnapshotIntervalSeconds": "deduplicationSnapshotInterval",
    "dispatchRate": "dispatchRate",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
    "replicatorDispatchRate": "replicatorDispatchRate",
    "publishRate": "publishRate",
    "subscribeRate": "subscribeRate",
    "inactiveTopicPolicies": INACTIVE,
    "maxConsumerPerTopic": "maxConsumers",
    "maxProducerPerTopic": "maxProducers",
    "maxConsumersPerSubscription": "maxConsumersPerSubscription",
    "maxMessageSize": "maxMessageSize",
    "maxSubscriptionsPerTopic": "maxSubscriptionsPerTopic",
    "maxUnackedMessagesOnConsumer": "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesOnSubscription": "maxUnackedMessagesOnSubscription",
    "persistence": "persistence",
    "replicationClusters": REPLICATION,
    "schemaCompatibilityStrategy": "schemaCompatibilityStrategy",
    "schemaValidationEnforced": "schemaValidationEnforced",
    "subscriptionTypesEnabled": "subscriptionTypesEnabled",
    "entryFilters": "entryFilters",
    "autoSubscriptionCreationOverride": "autoSubscriptionCreation",
    "dispatcherPauseOnAckStatePersistentEnabled": "dispatcherPauseOnAckStatePersistent",
}
_DELAYED: Final = {
    "delayedDeliveryEnabled": "active",
    "delayedDeliveryTickTimeMillis": "tickTime",
    "delayedDeliveryMaxDelayInMillis": "maxDeliveryDelayInMillis",
}
_ELSEWHERE: Final = ("isGlobal", "backLogQuotaMap", "subscriptionPolicies", *_DELAYED)
_TOPIC_UNSET: Final = {"schemaValidationEnforced": False, "dispatcherPauseOnAckStatePersistentEnabled": False}

Settings = dict[str, Any]


class Grant(NamedTuple):
    """A right that a role has: ``where`` is "" for the namespace, a topic's full name or a subscription's."""

    kind: str  #: "namespace", "topic" or "subscription".
    where: str
    role: str
    actions: tuple[str, ...] = ()


def namespace_settings(policies: Mapping[str, Any], cluster: str) -> Settings:
    """Return the policies that are set, by key, of those that a copy takes along; for this cluster where it matters."""
    found = {key: policies.get(field) for field, key in _OF_NAMESPACE.items() if _is_set(field, policies.get(field))}
    for field, key in _BY_CLUSTER.items():
        value = (policies.get(field) or {}).get(cluster)
        if value:
            found[key] = value
    for field, key in _BY_KEY.items():
        found |= {f"{key}/{name}": value for name, value in (policies.get(field) or {}).items()}
    return {key: _plain(value) for key, value in found.items()}


def not_copied(policies: Mapping[str, Any]) -> list[str]:
    """List the policies of a namespace that are set and that no copy takes along."""
    return [field for field, unset in NOT_COPIED.items() if policies.get(field, unset) not in (unset, None)]


def topic_settings(policies: Mapping[str, Any], blue: str = "", green: str = "") -> Settings:
    """Return the policies of a topic that are set, by key; with names, green takes blue's place among clusters."""
    found = {
        key: policies[field]
        for field, key in _OF_TOPIC.items()
        if policies.get(field) is not None and policies[field] != _TOPIC_UNSET.get(field)
    }
    delayed = {ours: policies[theirs] for theirs, ours in _DELAYED.items() if policies.get(theirs) is not None}
    if delayed:
        found["delayedDelivery"] = delayed
    found |= {f"backlogQuota/{kind}": quota for kind, quota in (policies.get("backLogQuotaMap") or {}).items()}
    for subscription, own in (policies.get("subscriptionPolicies") or {}).items():
        if (own or {}).get("dispatchRate"):
            found[f"subscription/{subscription}"] = own["dispatchRate"]
    if blue and found.get(REPLICATION):
        found[REPLICATION] = rename(found[REPLICATION], blue, green)
    return {key: _plain(value) for key, value in found.items() if value != []}


def topic_not_copied(policies: Mapping[str, Any]) -> list[str]:
    """List what is set of a topic's policies and that no copy takes along, what is unknown among it."""
    return [name for name, value in policies.items() if value and name not in _OF_TOPIC and name not in _ELSEWHERE]


def grants(policies: Mapping[str, Any]) -> Iterator[Grant]:
    """Return the rights that roles have in a namespace, on its topics and on subscriptions."""
    rights = policies.get("auth_policies") or {}
    for role, actions in (rights.get("namespace_auth") or {}).items():
        yield Grant("namespace", "", role, tuple(sorted(actions)))
    for topic, roles in (rights.get("destination_auth") or {}).items():
        for role, actions in roles.items():
            yield Grant("topic", topic, role, tuple(sorted(actions)))
    for subscription, roles in (rights.get("subscription_auth_roles") or {}).items():
        for role in roles:
            yield Grant("subscription", subscription, role)


def for_green(policies: Mapping[str, Any], blue: str, green: str) -> dict[str, Any]:
    """Return the policies by which green makes the namespace: of another cluster, and not moved."""
    made = {field: value for field, value in policies.items() if field not in _STATE and field not in NOT_COPIED}
    for field in ("replication_clusters", "allowed_clusters"):
        if made.get(field):
            made[field] = rename(made[field], blue, green)
    for field in _BY_CLUSTER:
        if made.get(field):
            made[field] = {green if name == blue else name: value for name, value in made[field].items()}
    made["replication_clusters"] = sorted({green, *made.get("replication_clusters", ())})
    return made


def with_setting(policies: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return policies of a namespace with one of them, which has one value, changed."""
    field = next(field for field, named in _OF_NAMESPACE.items() if named == key)
    return {**policies, field: value}


def rename(clusters: Iterable[str], blue: str, green: str) -> list[str]:
    """Return the clusters with green in the place of blue, once each, in order."""
    return sorted({green if name == blue else str(name) for name in clusters})


def held(inactive: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return policies of inactive topics by which none is deleted, otherwise as they are."""
    return {**_BROKERS_INACTIVE, **(inactive or {}), _ALIVE: False}


def deletes_inactive(inactive: Mapping[str, Any] | None, *, brokers_delete: bool) -> bool:
    """Return whether inactive topics are deleted, by their policies or, without any, by the brokers' setting."""
    return brokers_delete if not inactive else bool(inactive.get(_ALIVE))


def retains(retention: Mapping[str, Any] | None, brokers: Iterable[Mapping[str, str] | None]) -> bool:
    """Return whether retention keeps what was read, by the policy or, without one, by the brokers' settings.

    A broker that does not tell its settings may.
    """
    if retention:
        return bool(retention.get("retentionTimeInMinutes")) and bool(retention.get("retentionSizeInMB"))
    return any(one is None or all(one.get(name, "0") != "0" for name in _BROKERS_RETENTION) for one in brokers)


def creates_topics(override: Mapping[str, Any] | None, *, brokers_create: bool) -> bool:
    """Return whether a client that asks for a topic creates it, by the namespace or else by the brokers' setting."""
    return brokers_create if not override else bool(override.get(_CREATES))


NO_AUTO_CREATION: Final[Mapping[str, Any]] = {_CREATES: False}


def differing(ours: Settings, theirs: Settings) -> list[str]:
    """List the keys of policies that are not the same, but for those by which topics are kept during a migration."""
    keys = {key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)}
    if any(one and not one.get(_ALIVE) for one in (ours.get(INACTIVE), theirs.get(INACTIVE))):
        keys.discard(INACTIVE)
    creation = ours.get(AUTO_CREATION)
    if creation and not creation.get(_CREATES):
        keys.discard(AUTO_CREATION)
    return sorted(keys)


def _is_set(field: str, value: Any) -> bool:
    return value is not None and value not in ([], {}) and value != _UNSET.get(field)


def _plain(value: Any) -> Any:
    """Return the value in a form that does not depend on the broker: without nulls, lists in order."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | tuple | set | frozenset):
        return sorted(str(item) for item in value)
    return value
