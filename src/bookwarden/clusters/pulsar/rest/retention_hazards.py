"""Policies that could remove pending deletions, or the subscription that keeps them, from the deletion topics.

Pure: from the answers of the admin REST of Pulsar 4.0. In ``pulsar/system`` every topic is a SystemTopic, which
message TTL, backlog eviction and the removal of inactive topics pass over (SystemTopic in Pulsar 4.0); the expiry
of subscriptions is not among the exceptions. Retention removes nothing that a subscription has not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

SYSTEM_NAMESPACE = "pulsar/system"
_EVICTION = "consumer_backlog_eviction"
_CAUGHT_UP = "delete_when_subscriptions_caught_up"


def namespace_hazards(namespace: str, policies: Mapping[str, Any], broker: Mapping[str, str] | None) -> list[str]:
    """List the policies of a namespace, or the brokers' defaults for them, that could lose pending deletions.

    ``broker`` is the brokers' running configuration; None when it may not be read: then only the namespace's own
    policies are judged.
    """
    defaults = broker or {}
    found = list(_subscription_expiry(namespace, policies, defaults))
    if namespace != SYSTEM_NAMESPACE:
        found += _message_ttl(namespace, policies, defaults)
        found += _backlog_eviction(namespace, policies, defaults)
        found += _inactive_topics(namespace, policies, defaults)
    return found


def topic_hazards(
    topic: str,
    ttl_seconds: int | None,
    backlog_quotas: Mapping[str, Mapping[str, Any]],
    inactive: Mapping[str, Any] | None,
) -> list[str]:
    """List a topic's own policies that could lose pending deletions; not for topics of `pulsar/system`."""
    found = []
    if ttl_seconds:
        found.append(f"topic {topic} has a message TTL of {ttl_seconds} s")
    if any(quota.get("policy") == _EVICTION for quota in backlog_quotas.values()):
        found.append(f"topic {topic} has a backlog quota with the policy {_EVICTION}")
    if inactive and inactive.get("deleteWhileInactive") and inactive.get("inactiveTopicDeleteMode") == _CAUGHT_UP:
        found.append(f"topic {topic} is deleted while inactive ({_CAUGHT_UP})")
    return found


def _message_ttl(namespace: str, policies: Mapping[str, Any], defaults: Mapping[str, str]) -> Iterator[str]:
    ttl = policies.get("message_ttl_in_seconds")
    if ttl is None and _number(defaults.get("ttlDurationDefaultInSeconds")) > 0:
        yield f"the brokers' ttlDurationDefaultInSeconds gives namespace {namespace} a message TTL"
    elif ttl:
        yield f"namespace {namespace} has a message TTL of {ttl} s"


def _backlog_eviction(namespace: str, policies: Mapping[str, Any], defaults: Mapping[str, str]) -> Iterator[str]:
    quotas = policies.get("backlog_quota_map") or {}
    for kind, quota in sorted(quotas.items()):
        if quota.get("policy") == _EVICTION:
            yield f"namespace {namespace} has a backlog quota ({kind}) with the policy {_EVICTION}"
    if defaults.get("backlogQuotaDefaultRetentionPolicy") == _EVICTION and _default_quota_has_limit(quotas, defaults):
        yield f"the brokers' backlogQuotaDefaultRetentionPolicy is {_EVICTION}, with a limit"


def _default_quota_has_limit(quotas: Mapping[str, Any], defaults: Mapping[str, str]) -> bool:
    bytes_names = ("backlogQuotaDefaultLimitBytes", "backlogQuotaDefaultLimitGB")
    by_size = "destination_storage" not in quotas and any(_number(defaults.get(name)) > 0 for name in bytes_names)
    by_age = "message_age" not in quotas and _number(defaults.get("backlogQuotaDefaultLimitSecond")) > 0
    return by_size or by_age


def _inactive_topics(namespace: str, policies: Mapping[str, Any], defaults: Mapping[str, str]) -> Iterator[str]:
    inactive = policies.get("inactive_topic_policies")
    if inactive:
        if inactive.get("deleteWhileInactive") and inactive.get("inactiveTopicDeleteMode") == _CAUGHT_UP:
            yield f"namespace {namespace} deletes inactive topics with their subscriptions ({_CAUGHT_UP})"
    elif (
        defaults.get("brokerDeleteInactiveTopicsEnabled") == "true"
        and defaults.get("brokerDeleteInactiveTopicsMode") == _CAUGHT_UP
    ):
        yield f"the brokers delete inactive topics with subscriptions (brokerDeleteInactiveTopicsMode={_CAUGHT_UP})"


def _subscription_expiry(namespace: str, policies: Mapping[str, Any], defaults: Mapping[str, str]) -> Iterator[str]:
    minutes = policies.get("subscription_expiration_time_minutes")
    if minutes is None and _number(defaults.get("subscriptionExpirationTimeMinutes")) > 0:
        yield f"the brokers' subscriptionExpirationTimeMinutes removes subscriptions of namespace {namespace}"
    elif minutes:
        yield f"namespace {namespace} removes subscriptions that were not used for {minutes} min"


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
