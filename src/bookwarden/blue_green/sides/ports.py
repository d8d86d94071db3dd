"""Interfaces of what is asked of one cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bookwarden.redirects import ClusterFlag


class ClusterAdmin(Protocol):
    """The admin REST of a cluster, in the form of its answers. Each call may raise BookwardenError."""

    def clusters(self) -> list[str]:
        """List the clusters that are registered."""

    def read_flag(self, cluster: str) -> ClusterFlag | None:
        """Read a cluster's migration; None where none was ever set."""

    def tenants(self) -> list[str]:
        """List the tenants."""

    def tenant(self, tenant: str) -> Mapping[str, Any]:
        """Return TenantInfo."""

    def namespaces(self, tenant: str) -> list[str]:
        """List the tenant's namespaces."""

    def policies(self, namespace: str) -> Mapping[str, Any]:
        """Return the namespace's Policies."""

    def topics(self, namespace: str) -> list[str]:
        """List the persistent topics, each partition, system topics too."""

    def partitioned_topics(self, namespace: str) -> list[str]:
        """List the partitioned topics."""

    def partition_count(self, topic: str) -> int:
        """Return how many partitions the topic has."""

    def stats(self, topic: str) -> Mapping[str, Any]:
        """Return TopicStats of one partition; this loads it."""

    def internal_stats(self, topic: str) -> Mapping[str, Any]:
        """Return ManagedLedgerInternalStats of one partition; this loads it."""

    def internal_info(self, topic: str) -> Mapping[str, Any]:
        """Return ManagedLedgerInfo of one partition."""


#: Of a broker: name, version, settings, why it did not tell them, its configuration store if that is another one.
BrokerAnswer = tuple[str, str | None, Mapping[str, str] | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class SideSources:
    """Sources of one cluster. Every call may raise BookwardenError."""

    cluster: Callable[[], str]  #: Returns its name.
    admin: ClusterAdmin  #: Of one of its brokers.
    #: Asks each registered broker.
    brokers: Callable[[], Iterable[BrokerAnswer]]
    #: Returns by broker the addresses that it has registered for clients.
    addresses: Callable[[], Mapping[str, tuple[str, ...]]]
    #: Returns by broker when it registered, in ms since 1970.
    registered: Callable[[], Mapping[str, int]]
    #: Lists the versions of a topic's schema: kind, definition, properties.
    schemas: Callable[[str], Sequence[tuple[str, str, Mapping[str, str]]]]
    #: Reads the policies of the topics of a namespace that have some, by topic, from its system topic.
    topic_policies: Callable[[str], Mapping[str, Mapping[str, Any]]]
    #: Reads them from the nodes of the metadata store, where brokers may keep them for namespaces without that topic.
    stored_policies: Callable[[str], Mapping[str, Mapping[str, Any]]]
    #: Lists the partitioned topics of a namespace that are not persistent.
    non_persistent: Callable[[str], list[str]]
    #: Returns by id the transactions that are open at all coordinators, with the topics that each has touched.
    open_transactions: Callable[[], Mapping[str, frozenset[str]]]
