"""Answers of brokers that decide about the trim of a topic: its cursors, its transactions, the policies that apply.

Formats: ``stats``, ``internalStats``, ``slowTransactions``, Policies, RetentionPolicies and OffloadPoliciesImpl of
Pulsar 4.0 and 4.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.cluster_contents import ClusterContents
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import FormatError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.ledgers.pins import CursorState, DeletionLag, OpenTransaction, Retention

_RANGE: Final = re.compile(r"\((\d+:-?\d+)\.\.(\d+:-?\d+)\]")
_TOPIC: Final = "the topic"
_DEFAULTS: Final = "the brokers' settings"


class LoadedTopic(NamedTuple):
    """A topic as the broker knows it that has it loaded."""

    cursors: tuple[CursorState, ...]
    entries: int  #: Of the ledger that is written.
    size: int  #: Of that, in bytes.


class PolicySet(NamedTuple):
    """The policies of a topic, of its namespace, and the brokers' settings; None for what is not known."""

    of_topic: Mapping[str, Any] | None
    of_namespace: Mapping[str, Any] | None
    of_brokers: Mapping[str, str] | None


class TrimQuestions:
    """Asks brokers. Errors are those of `PulsarAdmin`, and FormatError for an answer of another form."""

    def __init__(self, admin: PulsarAdmin) -> None:
        self._admin = admin

    def loaded_topic(self, topic: str) -> LoadedTopic:
        """Ask for the cursors of a partition, or a topic without; it has to be loaded, or this loads it."""
        path = topic_path(topic)
        stats, internal = (self._admin.get_json(f"{path}/{which}") for which in ("stats", "internalStats"))
        try:
            named = stats["subscriptions"]
            cursors = tuple(
                _cursor(name, cursor, named.get(decode_local_name(name)) or named.get(name) or {})
                for name, cursor in internal["cursors"].items()
            )
            return LoadedTopic(cursors, int(internal["currentLedgerEntries"]), int(internal["currentLedgerSize"]))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise FormatError(f"what the broker says of {topic} lacks or misshapes {error}") from error

    def clusters(self) -> frozenset[str]:
        """List the clusters that brokers can replicate to."""
        return frozenset(map(str, self._admin.get_json("/clusters")))

    def settings(self) -> Mapping[str, str]:
        """Return the settings of the brokers."""
        found = self._admin.get_json("/brokers/configuration/runtime")
        return {str(name): str(value) for name, value in found.items()}

    def namespace_policies(self, namespace: str) -> Mapping[str, Any]:
        """Return the policies of a namespace."""
        found: Mapping[str, Any] = self._admin.get_json(f"/namespaces/{quote(namespace)}")
        return found

    def topic_policies(self, topic: TopicName) -> dict[str, Any]:
        """Return what a topic has of its own of retention and offload policies; loads no topic."""
        path = topic_path(str(topic.base))
        found = {}
        for name, part in (("retentionPolicies", "retention"), ("offloadPolicies", "offloadPolicies")):
            answer = self._admin.request("GET", f"{path}/{part}", params={"applied": False})
            if answer.data:
                found[name] = answer.json()
        return found

    def transactions(self) -> dict[str, list[OpenTransaction]]:
        """List the open transactions by the topics that they touched."""
        found: dict[str, list[OpenTransaction]] = {}
        try:
            for name, one in ClusterContents(self._admin).slow_transactions().items():
                produced, acknowledged = (one.get(f"{what}Partitions") or {} for what in ("produced", "acked"))
                for topic in {*produced, *acknowledged}:
                    made = OpenTransaction(
                        str(name),
                        int(one["openTimestamp"]),
                        int(one["timeoutAt"]),
                        _position(produced.get(topic)),
                        frozenset(acknowledged.get(topic) or ()),
                    )
                    found.setdefault(topic, []).append(made)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise FormatError(f"what brokers say of open transactions lacks or misshapes {error}") from error
        return found


def _position(produced: Any) -> Position | None:
    """Return the first position that a transaction wrote in a topic; None where it wrote nothing there."""
    if produced is None:
        return None
    return Position.parse(produced["startPosition"]) if produced.get("startPosition") else None


def _cursor(name: str, cursor: Mapping[str, Any], stats: Mapping[str, Any]) -> CursorState:
    ranges = _RANGE.findall(cursor["individuallyDeletedMessages"])
    consumers = stats.get("consumers")
    return CursorState(
        decode_local_name(name),
        Position.parse(cursor["markDeletePosition"]),
        acknowledged=tuple((Position.parse(before), Position.parse(last)) for before, last in ranges),
        advanced_ms=stats.get("lastMarkDeleteAdvancedTimestamp"),
        behind=stats.get("msgBacklog"),
        delayed=stats.get("msgDelayed"),
        consumers=None if consumers is None else len(consumers),
    )


def retention_of(policies: PolicySet, namespace: str) -> Retention | None:
    """Return the retention that applies; None where it is not known."""
    if policies.of_topic is None or policies.of_namespace is None:
        return None
    for found, source in (
        (policies.of_topic.get("retentionPolicies"), _TOPIC),
        (policies.of_namespace.get("retention_policies"), f"the namespace {namespace}"),
    ):
        if found:
            return Retention(int(found["retentionTimeInMinutes"]), int(found["retentionSizeInMB"]), source)
    settings = policies.of_brokers
    if settings is None:
        return None
    minutes, megabytes = (settings[f"defaultRetention{name}"] for name in ("TimeInMinutes", "SizeInMB"))
    return Retention(int(minutes), int(megabytes), _DEFAULTS)


def deletion_lag_of(policies: PolicySet, namespace: str) -> DeletionLag | None:
    """Return the lag that applies to ledgers that are offloaded; None where it is not known."""
    name = "managedLedgerOffloadDeletionLagInMillis"
    if policies.of_topic is None or policies.of_namespace is None:
        return None
    of_namespace = policies.of_namespace
    for value, source in (
        ((policies.of_topic.get("offloadPolicies") or {}).get(name), _TOPIC),
        ((of_namespace.get("offload_policies") or {}).get(name), f"the namespace {namespace}"),
        (of_namespace.get("offload_deletion_lag_ms"), f"the namespace {namespace}"),
        ((policies.of_brokers or {}).get("managedLedgerOffloadDeletionLagMs"), _DEFAULTS),
    ):
        if value not in (None, ""):
            return DeletionLag(int(value) if int(value) >= 0 else None, source)
    return None if policies.of_brokers is None else DeletionLag(None, _DEFAULTS)
