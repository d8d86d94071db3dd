"""Interfaces of what writes to a cluster, and of what is read again right before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Making(Protocol):
    """Writer to one cluster. Each call may raise BookwardenError."""

    def create_tenant(self, tenant: str, info: Mapping[str, Any]) -> None:
        """Create a tenant; one that exists is left as it is."""

    def change_tenant(self, tenant: str, info: Mapping[str, Any]) -> None:
        """Replace a tenant's roles and clusters."""

    def create_namespace(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """Create a namespace with all of these policies."""

    def set_policy(self, namespace: str, key: str, value: Any) -> None:
        """Set a policy of a namespace."""

    def remove_policy(self, namespace: str, key: str) -> None:
        """Remove a policy of a namespace."""

    def set_topic_policy(self, topic: str, key: str, value: Any) -> None:
        """Set a policy of a topic."""

    def remove_topic_policy(self, topic: str, key: str) -> None:
        """Remove a policy of a topic."""

    def grant(self, namespace: str, kind: str, where: str, role: str, actions: Sequence[str]) -> None:
        """Grant a role rights on a namespace or a topic."""

    def grant_subscription(self, namespace: str, subscription: str, roles: Sequence[str]) -> None:
        """Set the roles that may use a subscription."""

    def create_topic(self, topic: str, partitions: int | None) -> None:
        """Create a topic, or the partitions that it lacks; what exists is left as it is."""

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of partitions of a topic."""

    def add_schema(self, topic: str, kind: str, definition: str, properties: Mapping[str, str]) -> None:
        """Add a version of a topic's schema unless it has it already."""

    def subscribe(self, partition: str, subscription: str, properties: Mapping[str, str], *, replicated: bool) -> bool:
        """Create a durable subscription from the first message on; return False for one that exists, which stays."""


class Reading(Protocol):
    """Reader of what is about to be replaced."""

    def tenant(self, tenant: str) -> Mapping[str, Any]:
        """Return TenantInfo."""

    def policies(self, namespace: str) -> Mapping[str, Any]:
        """Return the namespace's Policies."""
