"""The parts of both clusters that the operations here use, as interfaces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from bookwarden.ledgers.managed_ledger import CursorInfo, ManagedLedgerInfo, Position
from bookwarden.redirects import ClusterFlag


class TopicNodesRead(Protocol):
    """The nodes of one topic; cursors by encoded name."""

    @property
    def managed_ledger(self) -> str:
        """Its name, ``tenant/namespace/persistent/topic`` with the topic encoded."""

    @property
    def info(self) -> ManagedLedgerInfo:
        """The value of its node."""

    @property
    def cursors(self) -> Mapping[str, CursorInfo]:
        """The values of its cursors' nodes, by encoded name."""

    @property
    def created_ms(self) -> Mapping[str, int]:
        """When its cursors' nodes were made, by the store's clock, in ms since the epoch."""


class CursorChanges(Protocol):
    """Cursors that a namespace's topics get, from the moment it was made on; also those that are gone again."""

    def take(self) -> Collection[tuple[str, str]] | None:
        """Return what changed since the last call, by managed ledger and encoded name; None where some may be missing.

        Raises StoreError where the store does not answer; the next call returns them.
        """

    def close(self) -> None:
        """Collect no more."""


class Nodes(Protocol):
    """A cluster's metadata; each call may raise StoreError or FormatError."""

    def is_cluster_flagged(self, cluster: str) -> bool:
        """Return whether all of the cluster is migrated."""

    def is_flagged(self, namespace: str) -> bool:
        """Return whether the namespace itself is migrated."""

    def flagged_namespaces(self) -> Sequence[str]:
        """List the namespaces that are migrated themselves."""

    def topics(self, namespace: str) -> Iterable[TopicNodesRead]:
        """Read all persistent topics of a namespace, each partition."""

    def topic(self, managed_ledger: str) -> TopicNodesRead | None:
        """Read one topic; None if it is gone."""

    def mark_delete(self, cursor: CursorInfo) -> Position | None:
        """Return how far a cursor has acknowledged, never more than that; None if it is not known."""

    def first_position(self, cursor: CursorInfo) -> Position | None:
        """Return where a cursor began, or later than that; None if it is not known."""

    def follow(self, namespace: str) -> CursorChanges:
        """Begin to collect the cursors that a namespace's topics get; StoreError where the store tells no changes."""

    def brokers(self) -> Mapping[str, int]:
        """Return when each live broker registered, in ms since the epoch."""


class RemovalResult(Protocol):
    """The result of a removal; while it is not done the metadata still has the topic."""

    @property
    def done(self) -> bool:
        """True where it was removed."""

    @property
    def problem(self) -> str:
        """The reason why it is not done."""


class RemovalPlan(Protocol):
    """The removal of a topic as it was planned: its ledgers are marked, and then the broker is asked."""

    @property
    def marks(self) -> Sequence[object]:
        """The pending deletions that would be sent."""

    def carry_out(self) -> RemovalResult:
        """Mark, then have the topic removed; raises PulsarError only if nothing was sent and nothing was done."""


class Removals(Protocol):
    """Phase one: deletions of topics and schemas whose ledgers are marked first."""

    def plan_topic(self, topic: str, *, force: bool, check: Callable[[], None] = ...) -> RemovalPlan:
        """Plan to delete a topic with all partitions, cursors and its schema; NotFoundError if it does not exist.

        ``check`` is called once all is marked, right before the topic is deleted; its error leaves the topic.
        """


class MigrationAdmin(Protocol):
    """A cluster's brokers; each call may raise PulsarError, NotFoundError or FormatError."""

    def settings(self) -> Mapping[str, str]:
        """Return the settings that one broker runs with."""

    def clusters(self) -> Sequence[str]:
        """List the clusters that are registered."""

    def read_flag(self, cluster: str) -> ClusterFlag | None:
        """Read the cluster's migration; None where none was ever set."""

    def write_flag(self, cluster: str, flag: ClusterFlag) -> None:
        """Write flag and URLs, both at once."""

    def is_migrated(self, namespace: str) -> bool:
        """Return whether the namespace's own flag is set."""

    def set_migrated(self, namespace: str, migrated: bool) -> None:
        """Write the namespace's flag."""

    def topics(self, namespace: str) -> Sequence[str]:
        """List the persistent topics by full name, each partition."""

    def partitioned_topics(self, namespace: str) -> Sequence[str]:
        """List the partitioned topics by full name."""

    def partition_count(self, topic: str) -> int:
        """Return how many partitions the topic has; 0 for one without."""

    def stats(self, topic: str) -> Mapping[str, Any]:
        """Return the stats of one partition; this loads it, and is refused while a flag gates it."""

    def entries(self, topic: str) -> int:
        """Return how many entries one partition has; this loads it."""

    def create_subscription(self, topic: str, subscription: str, after: Position) -> None:
        """Create a durable subscription whose backlog begins behind an entry; one that is there stays as it is."""

    def unload(self, topic: str) -> None:
        """Have the owner close one partition."""
