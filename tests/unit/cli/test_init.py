"""Which policies could lose pending deletions, and which cannot."""

from __future__ import annotations

from typing import Any

import pytest

from bookwarden.clusters.pulsar.rest.deletion_topics import DeletionTopics, namespace_hazards, topic_hazards
from bookwarden.errors import ConfigError

EVICTION = "consumer_backlog_eviction"
CAUGHT_UP = {"deleteWhileInactive": True, "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up"}

DANGERS: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"message_ttl_in_seconds": 60}, {}, "TTL of 60 s"),
    ({}, {"ttlDurationDefaultInSeconds": "3600"}, "ttlDurationDefaultInSeconds"),
    ({"backlog_quota_map": {"destination_storage": {"policy": EVICTION, "limit": 1}}}, {}, EVICTION),
    (
        {},
        {"backlogQuotaDefaultRetentionPolicy": EVICTION, "backlogQuotaDefaultLimitBytes": "1000"},
        "backlogQuotaDefaultRetentionPolicy",
    ),
    (
        {"backlog_quota_map": {"destination_storage": {"policy": "producer_exception"}}},
        {"backlogQuotaDefaultRetentionPolicy": EVICTION, "backlogQuotaDefaultLimitSecond": "60"},
        "backlogQuotaDefaultRetentionPolicy",
    ),
    ({"inactive_topic_policies": CAUGHT_UP}, {}, "inactive"),
    (
        {},
        {
            "brokerDeleteInactiveTopicsEnabled": "true",
            "brokerDeleteInactiveTopicsMode": "delete_when_subscriptions_caught_up",
        },
        "brokerDeleteInactiveTopicsMode",
    ),
]
EXPIRY: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"subscription_expiration_time_minutes": 5}, {}, "5 min"),
    ({}, {"subscriptionExpirationTimeMinutes": "5"}, "subscriptionExpirationTimeMinutes"),
]
HARMLESS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {}),
    ({"message_ttl_in_seconds": 0}, {"ttlDurationDefaultInSeconds": "60"}),
    ({"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}}, {}),
    ({"backlog_quota_map": {"destination_storage": {"policy": "producer_request_hold", "limit": 1}}}, {}),
    ({}, {"backlogQuotaDefaultRetentionPolicy": EVICTION, "backlogQuotaDefaultLimitGB": "-1.0"}),
    ({"inactive_topic_policies": {**CAUGHT_UP, "deleteWhileInactive": False}}, {}),
    (
        {"inactive_topic_policies": {**CAUGHT_UP, "inactiveTopicDeleteMode": "delete_when_no_subscriptions"}},
        {"brokerDeleteInactiveTopicsMode": "delete_when_subscriptions_caught_up"},
    ),
    ({"subscription_expiration_time_minutes": 0}, {"subscriptionExpirationTimeMinutes": "5"}),
]


@pytest.mark.parametrize(("policies", "broker", "text"), DANGERS + EXPIRY)
def test_a_namespace_that_could_lose_messages_is_told(
    policies: dict[str, Any], broker: dict[str, str], text: str
) -> None:
    (hazard,) = namespace_hazards("tenant/ns", policies, broker)
    assert text in hazard


@pytest.mark.parametrize(("policies", "broker"), HARMLESS)
def test_harmless_policies_pass(policies: dict[str, Any], broker: dict[str, str]) -> None:
    assert namespace_hazards("tenant/ns", policies, broker) == []


@pytest.mark.parametrize(("policies", "broker", "text"), DANGERS)
def test_system_topics_are_exempt(policies: dict[str, Any], broker: dict[str, str], text: str) -> None:
    assert namespace_hazards("pulsar/system", policies, broker) == []


@pytest.mark.parametrize(("policies", "broker", "text"), EXPIRY)
def test_even_system_topics_lose_their_subscriptions(
    policies: dict[str, Any], broker: dict[str, str], text: str
) -> None:
    assert namespace_hazards("pulsar/system", policies, broker) != []


def test_unknown_defaults_leave_what_the_namespace_says() -> None:
    assert namespace_hazards("tenant/ns", {}, None) == []
    assert len(namespace_hazards("tenant/ns", {"message_ttl_in_seconds": 1}, None)) == 1


def test_a_topics_own_policies_count() -> None:
    quotas = {"destination_storage": {"policy": EVICTION}}
    assert len(topic_hazards("t", 5, quotas, CAUGHT_UP)) == 3
    assert topic_hazards("t", None, {}, None) == []
    assert topic_hazards("t", 0, {"destination_storage": {"policy": "producer_exception"}}, {}) == []


@pytest.mark.parametrize(
    "names", [("a", "persistent://public/default/a", "c"), ("a", "b", "a"), ("a-partition-1", "b", "c")]
)
def test_the_three_topics_are_three_whole_topics(names: tuple[str, str, str]) -> None:
    with pytest.raises(ConfigError, match="deletion"):
        DeletionTopics(*names, subscription="s", partitions=4, schema="{}", switch_topic="d", switch_schema="{}")
