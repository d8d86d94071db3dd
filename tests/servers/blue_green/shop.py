"""A namespace of blue with something of everything that green needs as well, and what green has of one, compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bookwarden.cluster_migration.sides.policies import grants, namespace_settings, topic_settings
from bookwarden.cluster_migration.sides.values import NamespaceInfo
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import subscription_path, topic_path

BEGINNING = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
RATE = {"dispatchThrottlingRateInMsg": 100_000, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 3600,
    "deleteWhileInactive": True,
}
#: Policies of a namespace by the last part of the path, and the method.
POLICIES: dict[str, tuple[str, Any]] = {
    "retention": ("POST", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}),
    "messageTTL": ("POST", 86_400),
    "deduplication": ("POST", True),
    "autoTopicCreation": ("POST", {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}),
    "dispatchRate": ("POST", RATE),
    "subscribeRate": ("POST", {"subscribeThrottlingRatePerConsumer": 100, "ratePeriodInSecond": 30}),
    "publishRate": ("POST", {"publishThrottlingRateInMsg": 100_000, "publishThrottlingRateInByte": -1}),
    "delayedDelivery": ("POST", {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}),
    "inactiveTopicPolicies": ("POST", INACTIVE),
    "maxConsumersPerTopic": ("POST", 1000),
    "maxTopicsPerNamespace": ("POST", 100),
    "schemaCompatibilityStrategy": ("PUT", "BACKWARD"),
    "isAllowAutoUpdateSchema": ("POST", True),
    "properties": ("PUT", {"owner": "shop"}),
    "permissions/reader": ("POST", ["consume"]),
    "permissions/subscription/app": ("POST", ["reader"]),
}
TOPIC_POLICIES: dict[str, Any] = {
    "retention": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10},
    "maxConsumers": 50,
    "dispatchRate": RATE,
    "delayedDelivery": {"active": True, "tickTime": 500, "maxDeliveryDelayInMillis": 0},
    "inactiveTopicPolicies": INACTIVE,
}


def fill(admin: PulsarAdmin, namespace: str) -> None:
    """Give the namespace, which is there, policies, topics of several kinds, schemas and subscriptions."""
    for name, (method, value) in POLICIES.items():
        admin.request(method, f"/namespaces/{namespace}/{name}", body=value)
    orders, mail, odd = (f"persistent://{namespace}/{name}" for name in ("orders", "mail", "o d+é"))
    admin.put(f"{topic_path(orders)}/partitions", 3)
    for topic in (mail, odd, f"persistent://{namespace}/unused"):
        admin.put(topic_path(topic))
    admin.put(f"/non-persistent/{namespace}/noise/partitions", 2)
    for index in range(3):
        subscribe(admin, f"{orders}-partition-{index}", "app")
    subscribe(admin, mail, "app", replicated=False, region="north")
    subscribe(admin, odd, "o d+é")
    for fields in (1, 2, 3):
        add_schema(admin, mail, fields)
    for name, value in TOPIC_POLICIES.items():
        admin.post(f"{topic_path(mail)}/{name}", value)
    admin.request("POST", f"{topic_path(mail)}/messageTTL", params={"messageTTL": 600})
    admin.post(f"{topic_path(mail)}/permissions/writer", ["produce"])


def subscribe(admin: PulsarAdmin, partition: str, name: str, *, replicated: bool = False, **properties: str) -> None:
    body = {**BEGINNING, "properties": properties}
    admin.put(subscription_path(partition, name), body, params={"replicated": replicated})


def add_schema(admin: PulsarAdmin, topic: str, fields: int) -> None:
    """Add a version with so many fields."""
    parts = [{"name": f"f{index}", "type": ["null", "string"], "default": None} for index in range(fields)]
    record = json.dumps({"type": "record", "name": "Mail", "fields": parts})
    local = topic.rpartition("/")[2]
    tenant, namespace = topic.removeprefix("persistent://").split("/")[:2]
    body = {"type": "AVRO", "schema": record, "properties": {"fields": str(fields)}}
    admin.post(f"/schemas/{tenant}/{namespace}/{local}/schema", body)


def contents(seen: NamespaceInfo, cluster: str) -> Mapping[str, Any]:
    """Return all that a copy takes along, in the same form for a namespace of another name."""

    def named(text: str) -> str:
        return text.replace(f"{seen.name}/", "")

    subscriptions = {
        (named(topic.name), one.name): (dict(one.properties), one.replicated, one.backlog)
        for topic in seen.topics.values()
        for one in topic.copied
    }
    return {
        "policies": namespace_settings(seen.policies, cluster),
        "rights": sorted((one.kind, named(one.where), one.role, one.actions) for one in grants(seen.policies)),
        "partitioned": {named(name): count for name, count in seen.partitioned.items()},
        "topics": sorted(map(named, seen.topics)),
        "subscriptions": subscriptions,
        "schemas": {named(topic): versions for topic, versions in seen.schemas.items()},
        "topic policies": {named(topic): topic_settings(own) for topic, own in seen.topic_policies.items()},
    }
