"""Operations on topics over a broker's admin REST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.brokers import read_compacted_ledgers
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry
from bookwarden.clusters.pulsar.rest.topic_positions import (
    list_partitions,
    read_positions,
    subscription_path,
    topic_path,
)
from bookwarden.errors import FormatError, NotFoundError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName


class Topics:
    """The topics of a cluster, by their full names.

    ``unload_timeout_s`` is for what may have a broker flush much, or load a topic: unloads and subscriptions'
    properties. None is the admin client's own timeout.
    """

    def __init__(self, admin: PulsarAdmin, *, unload_timeout_s: float | None = None) -> None:
        self._admin = admin
        self._unload_timeout_s = unload_timeout_s
        self._schemas = SchemaRegistry(admin)

    def partitions(self, topic: str) -> list[str]:
        """List the partitions in order; a topic without partitions is its own only one. NotFoundError if absent."""
        return list_partitions(self._admin, topic)

    def partition_count(self, topic: str) -> int:
        """Return how many partitions the topic was created with; 0 for one that has none."""
        return int(self._admin.get_json(f"{topic_path(topic)}/partitions")["partitions"])

    def create(self, topic: str, partitions: int = 0) -> None:
        """Create a topic, partitioned unless `partitions` is 0; PulsarConflictError if it exists."""
        if partitions > 0:
            self._admin.put(f"{topic_path(topic)}/partitions", partitions)
        else:
            self._admin.put(topic_path(topic))

    def subscriptions(self, topic: str) -> list[str]:
        """List the subscriptions; this loads the topic."""
        return [str(name) for name in self._admin.get_json(f"{topic_path(topic)}/subscriptions")]

    def why_nothing_is_kept(self, topic: str, subscription: str) -> str | None:
        """Return what is missing for a topic to keep messages for a subscription; None where it does; loads the topic.

        Missing may be the topic, or the subscription of one of its partitions.
        """
        try:
            for partition in self.partitions(topic):
                if subscription not in self.subscriptions(partition):
                    return f"{partition} has no subscription {subscription!r}: `bookwarden init` creates it"
        except NotFoundError:
            return f"there is no topic {topic}: `bookwarden init` creates the deletion topics"
        return None

    def internal_stats(self, topic: str) -> Mapping[str, Any]:
        """Return ManagedLedgerInternalStats of one partition; this loads the topic."""
        answer: Mapping[str, Any] = self._admin.get_json(f"{topic_path(topic)}/internalStats")
        return answer

    def compacted_ledgers(self, topic: str) -> frozenset[int]:
        """List the compacted ledgers of one partition, in use or recorded; this loads the topic."""
        return read_compacted_ledgers(self.internal_stats(topic))

    def mark_delete_positions(self, topic: str) -> Mapping[str, Position]:
        """Return how far each subscription of one partition has acknowledged; this loads the topic."""
        return read_positions(self._admin, topic).cursors

    def trim(self, topic: str) -> None:
        """Remove the consumed ledgers that retention no longer holds, on all partitions."""
        self._admin.post(f"{topic_path(topic)}/trim")

    def unload(self, topic: str) -> None:
        """Have the owner close a partition, or a topic without; clients reconnect. NotFoundError if it is absent.

        The owner loads it first if it is not loaded (PersistentTopicsBase, Pulsar 4.0).
        """
        if TopicName.parse(topic).cluster is not None:
            raise FormatError(f"{topic} has a name of the first version, which the admin REST cannot be asked for")
        self._admin.request("PUT", f"{topic_path(topic)}/unload", timeout_s=self._unload_timeout_s)

    def delete_topic(self, topic: str, *, force: bool) -> None:
        """Delete the topic with all its partitions; `force` disconnects clients and drops subscriptions."""
        partitioned = TopicName.parse(topic).partition is None and self.partition_count(topic) > 0
        path = f"{topic_path(topic)}/partitions" if partitioned else topic_path(topic)
        self._admin.delete(path, params={"force": force})

    def delete_subscription(self, topic: str, subscription: str, *, force: bool) -> None:
        """Delete the subscription on all partitions; `force` disconnects its consumers."""
        self._admin.delete(subscription_path(topic, subscription), params={"force": force})

    def set_subscription_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        """Replace all properties of a subscription; this loads the topic. NotFoundError if it has none such.

        The broker keeps those of its own, and refuses them here.
        """
        path = f"{subscription_path(topic, subscription)}/properties"
        self._admin.request("PUT", path, body=dict(properties), timeout_s=self._unload_timeout_s)

    def delete_schema(self, topic: str) -> None:
        """Delete all versions of the topic's schema, with their ledgers."""
        self._schemas.delete(topic)
