"""Delete a topic, a subscription or a schema, or trim a topic: mark its ledgers, then ask the broker (broker mode).

The sweep keeps a marked ledger that the broker's retention still holds: it finds it referenced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.deletion.phase_one.mark import (
    Marker,
    marks_of_compacted,
    marks_of_cursors,
    marks_of_ledgers,
    marks_of_schema,
)
from bookwarden.deletion.phase_one.operation import (
    MarkPlan,
    Mode,
    Operation,
    OperationResult,
    ask_broker,
    refuse_shadow,
)
from bookwarden.deletion.phase_one.trimming import TRIMMED, consumed_ledgers, understood
from bookwarden.errors import NotFoundError, PulsarError
from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR, LedgerInfo, VersionedCursor
from bookwarden.ledgers.names import TopicName, encode_local_name
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.metastore.following.store import Migrations

logger = logging.getLogger(__name__)


class Removal:
    """Plans deletions through the broker; ledgers that it then fails to delete are swept.

    A ledger that the broker makes between the plan and the deletion is not marked, nor is the ledger of a
    compaction under way.
    """

    def __init__(
        self,
        marker: Marker,
        store: ManagedLedgers,
        topics: Topics,
        *,
        migrations: Migrations | None = None,
    ) -> None:
        self._marker = marker
        self._store = store
        self._topics = topics
        self._migrations = migrations

    def plan_topic(self, topic: str, *, force: bool = False, check: Callable[[], None] = lambda: None) -> MarkPlan:
        """Plan to delete a topic with all partitions, cursors and its schema; NotFoundError if it does not exist.

        ``force`` disconnects clients and drops subscriptions. RefusedError for a shadow topic. A partition alone
        leaves the schema to its siblings. ``check`` is called once all is marked, right before the broker is asked: its
        error leaves the topic as it is, and the sweep finds what was marked referenced.
        """

        def ask() -> None:
            check()
            self._topics.delete_topic(str(name), force=force)

        name = TopicName.parse(topic)
        marks: list[PendingDeletion] = []
        for partition in self._topics.partitions(topic):
            marks += self._marks_of_topic(TopicName.parse(partition))
        if name.partition is None:
            marks += marks_of_schema(name, self._store.schema(name.schema_id), "topic deleted")
        return self._plan(Operation.DELETE_TOPIC, str(name), marks, ask)

    def plan_subscription(self, topic: str, subscription: str, *, force: bool = False) -> MarkPlan:
        """Plan to delete a subscription on all partitions; NotFoundError if none has it.

        ``force`` disconnects consumers.
        """
        name, encoded = TopicName.parse(topic), encode_local_name(subscription)
        marks: list[PendingDeletion] = []
        found = False
        for partition in map(TopicName.parse, self._topics.partitions(topic)):
            cursors = self._store.cursors(partition.managed_ledger)
            if encoded in cursors:
                found = True
                marks += self._marks_of_cursors(partition, {encoded: cursors[encoded]}, "subscription deleted")
        if not found:
            raise NotFoundError(f"topic {name} has no subscription {subscription!r}")
        return self._plan(
            Operation.DELETE_SUBSCRIPTION,
            f"{name} {subscription}",
            marks,
            lambda: self._topics.delete_subscription(str(name), subscription, force=force),
        )

    def plan_schema(self, topic: str) -> MarkPlan:
        """Plan to delete all versions of a topic's schema; NotFoundError if it has none."""
        name = TopicName.parse(topic)
        schema = self._store.schema(name.schema_id)
        if schema is None:
            raise NotFoundError(f"topic {name} has no schema")
        marks = marks_of_schema(name, schema, "schema deleted")
        return self._plan(Operation.DELETE_SCHEMA, str(name.base), marks, lambda: self._topics.delete_schema(str(name)))

    def plan_trim(self, topic: str) -> list[MarkPlan]:
        """Plan to trim each partition; the broker decides which ledgers go.

        NotFoundError if the topic does not exist, RefusedError for a shadow topic.
        """
        return [self._plan_trim(TopicName.parse(name)) for name in self._topics.partitions(topic)]

    def _plan_trim(self, topic: TopicName) -> MarkPlan:
        # The store has the positions of the cursors' last switch; the broker knows the current ones.
        positions = self._topics.mark_delete_positions(str(topic))
        read = self._store.read(topic.managed_ledger)
        consumed: list[LedgerInfo] = []
        if read is not None:
            refuse_shadow(topic, read.info)
            consumed = understood(read.info, consumed_ledgers(read.info.ledgers, positions.values()))
        marks = marks_of_ledgers(topic, consumed, TRIMMED)
        return self._plan(Operation.TRIM, str(topic), marks, lambda: self._topics.trim(str(topic)))

    def _plan(
        self, operation: Operation, target: str, marks: Sequence[PendingDeletion], ask: Callable[[], None]
    ) -> MarkPlan:
        def act(plan: MarkPlan) -> OperationResult:
            return ask_broker(self._marker, plan, ask, migrations=self._migrations)

        return MarkPlan(operation, Mode.BROKER, target, tuple(marks), act)

    def _marks_of_topic(self, topic: TopicName) -> list[PendingDeletion]:
        read = self._store.read(topic.managed_ledger)
        if read is None:
            # A partition that no client has used yet has no managed ledger.
            return []
        refuse_shadow(topic, read.info)
        cursors = self._store.cursors(topic.managed_ledger)
        return [
            *marks_of_ledgers(topic, read.info.understood, "topic deleted"),
            *self._marks_of_cursors(topic, cursors, "topic deleted"),
        ]

    def _marks_of_cursors(
        self, topic: TopicName, cursors: Mapping[str, VersionedCursor], reason: str
    ) -> list[PendingDeletion]:
        marks = marks_of_cursors(topic, cursors, reason)
        if COMPACTION_CURSOR not in cursors:
            return marks
        try:
            # The node's value is that of the last switch of the cursor's ledger.
            in_use = self._topics.compacted_ledgers(str(topic))
        except (PulsarError, NotFoundError) as error:
            logger.warning("the compacted ledger of %s is not marked: its owner does not name it: %s", topic, error)
            return marks
        return [*marks, *marks_of_compacted(topic, in_use - {mark.ledger_id for mark in marks}, reason)]
