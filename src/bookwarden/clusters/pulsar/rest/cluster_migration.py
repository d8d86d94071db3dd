"""A cluster's REST about its migration to another (PIP-188): flags, policies, and what its topics have.

Formats: ClustersBase and NamespacesBase (ClusterPolicies, ``migrated`` in Policies) and ``internal-info``
(ManagedLedgerInfo of the admin API) of Pulsar 4.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from bookwarden.clusters.pulsar.rest.admin import Params, PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import (
    create_subscription,
    entries_passed,
    reset_to_earliest,
    topic_path,
)
from bookwarden.errors import FormatError, NotFoundError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.redirects import ClusterFlag, RedirectUrls

_FIELDS: Final = {
    "serviceUrl": "web_service_url",
    "serviceUrlTls": "web_service_url_tls",
    "brokerServiceUrl": "broker_service_url",
    "brokerServiceUrlTls": "broker_service_url_tls",
}
_EVERYTHING: Final = {"includeSystemTopic": True}


class ClusterMigrationAdmin:
    """Asks the brokers of one of both clusters. Errors are those of `PulsarAdmin`, and FormatError."""

    def __init__(self, admin: PulsarAdmin, named: str = "") -> None:
        self._admin = admin
        self._named = named

    @property
    def cluster(self) -> str:
        """The cluster's name, as it was given or else as a broker has it; asked for once."""
        if not self._named:
            self._named = self.settings().get("clusterName", "")
        if not self._named:
            raise FormatError("the broker's settings have no clusterName: set cluster_migration.<side>.cluster")
        return self._named

    def settings(self) -> dict[str, str]:
        """Return the settings that one broker runs with, by name; only a superuser may read them."""
        found = self._mapping("/brokers/configuration/runtime")
        return {str(name): str(value) for name, value in found.items()}

    def clusters(self) -> list[str]:
        """List the clusters that are registered."""
        return self._names("/clusters")

    def read_flag(self, cluster: str) -> ClusterFlag | None:
        """Read the cluster's migration; None where none was ever set."""
        path = f"/clusters/{quote(cluster)}/migrate"
        try:
            found = self._mapping(path)
        except NotFoundError:
            return None
        urls = found.get("migratedClusterUrl") or {}
        if not isinstance(urls, Mapping) or not isinstance(found.get("migrated"), bool):
            raise FormatError(f"GET {path}: the answer is no migration of a cluster")
        named = {ours: str(urls.get(theirs) or "") for theirs, ours in _FIELDS.items()}
        return ClusterFlag(found["migrated"], RedirectUrls(**named))

    def write_flag(self, cluster: str, flag: ClusterFlag) -> None:
        """Write flag and URLs, both at once: the broker replaces both. It takes an unknown cluster, and creates it."""
        body = {theirs: getattr(flag.urls, ours) for theirs, ours in _FIELDS.items() if getattr(flag.urls, ours)}
        self._admin.post(f"/clusters/{quote(cluster)}/migrate", body, params={"migrated": flag.migrated})

    def tenants(self) -> list[str]:
        """List the tenants."""
        return self._names("/tenants")

    def tenant(self, tenant: str) -> Mapping[str, Any]:
        """Return TenantInfo: adminRoles and allowedClusters."""
        return self._mapping(f"/tenants/{quote(tenant)}")

    def namespaces(self, tenant: str) -> list[str]:
        """List the tenant's namespaces, ``tenant/namespace``."""
        return self._names(f"/namespaces/{quote(tenant)}")

    def policies(self, namespace: str) -> Mapping[str, Any]:
        """Return the namespace's Policies; its ``migrated`` is the flag."""
        return self._mapping(f"/namespaces/{namespace}")

    def is_migrated(self, namespace: str) -> bool:
        """Return whether the namespace's own flag is set."""
        return bool(self.policies(namespace).get("migrated", False))

    def set_migrated(self, namespace: str, migrated: bool) -> None:
        """Write the namespace's flag; it has an effect only while the cluster has URLs to send clients to."""
        self._admin.post(f"/namespaces/{namespace}/migration", migrated)

    def topics(self, namespace: str) -> list[str]:
        """List the persistent topics by full name, each partition, system topics too; loads none."""
        found = self._admin.get_json(f"/persistent/{namespace}", params=_EVERYTHING)
        return self._as_names(f"/persistent/{namespace}", found)

    def partitioned_topics(self, namespace: str) -> list[str]:
        """List the partitioned topics by full name, without their partitions."""
        found = self._admin.get_json(f"/persistent/{namespace}/partitioned", params=_EVERYTHING)
        return self._as_names(f"/persistent/{namespace}/partitioned", found)

    def partition_count(self, topic: str) -> int:
        """Return how many partitions the topic has; 0 for one without, also for one that does not exist."""
        return int(self._mapping(f"{topic_path(topic)}/partitions").get("partitions", 0))

    def stats(self, topic: str) -> Mapping[str, Any]:
        """Return the TopicStats of one partition; this loads it, and is refused while a flag gates it."""
        return self._mapping(f"{topic_path(topic)}/stats", {"getPreciseBacklog": True})

    def entries(self, topic: str) -> int:
        """Return how many entries one partition has, those of its open ledger too; this loads it."""
        return int(self._mapping(f"{topic_path(topic)}/internalStats")["numberOfEntries"])

    def internal_stats(self, topic: str) -> Mapping[str, Any]:
        """Return ManagedLedgerInternalStats of one partition; this loads it."""
        return self._mapping(f"{topic_path(topic)}/internalStats")

    def internal_info(self, topic: str) -> Mapping[str, Any]:
        """Return ManagedLedgerInfo of one partition, from the metadata: the one answer that no flag prevents."""
        return self._mapping(f"{topic_path(topic)}/internal-info")

    def create_subscription(self, topic: str, subscription: str, after: Position) -> None:
        """Create a durable subscription whose backlog begins behind an entry; one that is there stays as it is."""
        create_subscription(self._admin, topic, subscription, after)

    def entries_passed(self, topic: str, subscription: str) -> int:
        """Count the entries of a partition that a subscription has behind it; this loads it."""
        return entries_passed(self._admin, topic, subscription)

    def reset_to_earliest(self, topic: str, subscription: str) -> None:
        """Move a subscription of a partition to its first message."""
        reset_to_earliest(self._admin, topic, subscription)

    def unload(self, topic: str) -> None:
        """Have the owner close one partition."""
        self._admin.put(f"{topic_path(topic)}/unload")

    def _mapping(self, path: str, params: Params | None = None) -> Mapping[str, Any]:
        found = self._admin.get_json(path, params=params)
        if not isinstance(found, Mapping):
            raise FormatError(f"GET {path}: the answer is not of the form that Pulsar 4 has")
        return found

    def _names(self, path: str) -> list[str]:
        return self._as_names(path, self._admin.get_json(path))

    @staticmethod
    def _as_names(path: str, found: object) -> list[str]:
        if not isinstance(found, list):
            raise FormatError(f"GET {path}: the answer is no list")
        return sorted(str(name) for name in found)
