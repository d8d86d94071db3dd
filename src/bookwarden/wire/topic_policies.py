"""The policies of a topic, as Pulsar keeps them: in an event of ``__change_events``, or in a node.

Formats: common.events.PulsarEvent of Pulsar 4.0, as Avro by its writer's schema; and TopicPolicies of Pulsar 4.2.4 as
JSON (MetadataStoreTopicPoliciesService).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final

import fastavro

from bookwarden.errors import FormatError
from bookwarden.ledgers.names import TopicName
from bookwarden.wire.writer_schema import ParsedSchema

Quorums = tuple[int, int, int]

_SIZES: Final = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
# One value for each key.
_BY_KEY: Final = ("backLogQuotaMap", "subscriptionPolicies")
_FIELDS: Final = frozenset(
    (
        *("backLogQuotaMap", "subscriptionTypesEnabled", "replicationClusters", "shadowTopics", "isGlobal"),
        *("persistence", "retentionPolicies", "deduplicationEnabled", "messageTTLInSeconds"),
        *("subscriptionExpirationTimeInMinutes", "maxProducerPerTopic", "maxConsumerPerTopic"),
        *("maxConsumersPerSubscription", "maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnSubscription"),
        *("delayedDeliveryTickTimeMillis", "delayedDeliveryEnabled", "delayedDeliveryMaxDelayInMillis"),
        *("dispatcherPauseOnAckStatePersistentEnabled", "offloadPolicies", "inactiveTopicPolicies", "dispatchRate"),
        *("subscriptionDispatchRate", "compactionThreshold", "publishRate", "subscribeRate"),
        *("deduplicationSnapshotIntervalSeconds", "maxMessageSize", "maxSubscriptionsPerTopic"),
        *("replicatorDispatchRate", "schemaCompatibilityStrategy", "entryFilters"),
        *("autoSubscriptionCreationOverride", "subscriptionPolicies", "schemaValidationEnforced"),
    )
)
# What fastavro raises for bytes that do not fit the schema, and a record of other fields.
_UNDECODABLE: Final = (EOFError, ValueError, IndexError, OverflowError, KeyError, TypeError, AttributeError)


def decode_topic_quorums(payload: bytes, written: ParsedSchema) -> tuple[str, Quorums] | None:
    """Decode a topic's full name, with ensemble, write and acknowledgement; None if it takes its namespace's.

    Raises FormatError for anything else than such an event.
    """
    found = decode_topic_policies(payload, written)
    quorums = None if found is None else quorums_of(found[1])
    return None if found is None or quorums is None else (found[0], quorums)


def decode_topic_policies(payload: bytes, written: ParsedSchema) -> tuple[str, Mapping[str, Any]] | None:
    """Decode a topic's full name, and its policies by the fields of TopicPolicies; None where it has none any more.

    Raises FormatError for anything else than such an event.
    """
    try:
        event = fastavro.schemaless_reader(BytesIO(payload), written.definition, None)
        found = event["topicPoliciesEvent"] or {}
        policies = found.get("policies")
        if not policies:
            return None
        return f"{found['domain']}://{found['tenant']}/{found['namespace']}/{found['topic']}", dict(policies)
    except _UNDECODABLE as error:
        raise _unlike(error) from error


def event_of_topic(payload: bytes, written: ParsedSchema, topic: TopicName) -> bytes:
    """Encode an event of policies as that of another topic; FormatError for anything else than such an event."""
    try:
        event = fastavro.schemaless_reader(BytesIO(payload), written.definition, None)
        names = {
            "domain": topic.domain,
            "tenant": topic.tenant,
            "namespace": topic.namespace,
            "topic": topic.local_name,
        }
        renamed = BytesIO()
        fastavro.schemaless_writer(
            renamed, written.definition, {**event, "topicPoliciesEvent": {**event["topicPoliciesEvent"], **names}}
        )
        return renamed.getvalue()
    except _UNDECODABLE as error:
        raise _unlike(error) from error


def decode_stored_policies(value: bytes) -> dict[str, Any]:
    """Decode a node's value to the policies that are set, by the fields of TopicPolicies, as an event has them.

    Raises FormatError for anything else, also for a field that is not known here: it may be a policy.
    """
    try:
        found = json.loads(value)
    except ValueError as error:
        raise FormatError(f"policies of a topic are no JSON: {error}") from error
    if not isinstance(found, dict):
        raise FormatError("policies of a topic are no JSON object")
    # Jackson writes what its getters tell, too: isGlobalPolicies, and whether each policy is set.
    own = {name: item for name, item in found.items() if not (name.endswith("Set") or name == "globalPolicies")}
    unknown = sorted(own.keys() - _FIELDS)
    if unknown:
        raise FormatError(f"policies of a topic have fields that are not known here: {', '.join(unknown)}")
    own = {name: item for name, item in own.items() if item is not None}
    for quota in (own.get("backLogQuotaMap") or {}).values():
        # The deprecated name of limitSize.
        if isinstance(quota, dict) and "limitSize" in quota:
            quota.pop("limit", None)
    return own


def quorums_of(policies: Mapping[str, Any]) -> Quorums | None:
    """Return the ensemble, write and acknowledgement that policies ask for; None if they take the namespace's."""
    persistence = policies.get("persistence")
    if not persistence:
        return None
    try:
        first, second, third = (int(persistence[name]) for name in _SIZES)
    except _UNDECODABLE as error:
        raise _unlike(error) from error
    return first, second, third


def merged_policies(for_all: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policies of a topic that brokers apply: its own come before those that it has for all clusters."""
    found = dict(for_all)
    for name, value in own.items():
        if name in _BY_KEY and value:
            found[name] = {**(for_all.get(name) or {}), **value}
        elif value is not None and value not in ([], {}):
            found[name] = value
    return found


def _unlike(error: Exception) -> FormatError:
    return FormatError(f"the policies of a topic are not as Pulsar writes them: {error!r}")
