"""Wiring of the search for what holds the ledgers of a topic: metadata, bookies and brokers, read and not changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any, Final, TypeVar

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.paths import (
    cursor_path,
    managed_ledger_path,
    namespace_policies_path,
    partitioned_topic_path,
)
from bookwarden.clusters.pulsar.metadata.topic_policies import stored_policies
from bookwarden.clusters.pulsar.rest.registered_brokers import LoadedTopics
from bookwarden.clusters.pulsar.rest.trimming import (
    LoadedTopic,
    PolicySet,
    TrimQuestions,
    deletion_lag_of,
    retention_of,
)
from bookwarden.errors import BookieError, FormatError, NotFoundError, PulsarError
from bookwarden.ledgers.managed_ledger import LedgerInfo, ManagedLedgerInfo
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.ledgers.pins import CursorState, TopicPins, TopicState, find_pins
from bookwarden.metastore.interface import Versioned
from bookwarden.wire.cursor import acknowledged_behind, decode_cursor, decode_position_info
from bookwarden.wiring.cluster import Cluster

_Answer = TypeVar("_Answer")
_UNSEEN_IN_SNAPSHOT: Final = (
    "A snapshot does not show whether a broker has the topic loaded, readers, consumers, delayed messages in memory, "
    "open transactions, the brokers' settings, policies in __change_events, nor positions in the ledgers of cursors"
)


class PinSearch:
    """Finds what holds the ledgers of topics of a cluster. Loads no topic.

    ``of_snapshot`` says that its stores are a snapshot: then no broker and no bookie is asked, and ``now_ms`` is the
    time of the snapshot.
    """

    def __init__(self, cluster: Cluster, *, of_snapshot: bool = False, now_ms: int | None = None) -> None:
        self._cluster = cluster
        self._is_live = not of_snapshot
        self._now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        self._store = cluster.store
        self._ledgers = ManagedLedgers(self._store)
        self._namespace_policies = cache(self._read_namespace_policies)
        self._stored_policies = cache(lambda namespace: stored_policies(self._store, namespace))

    def of_topic(self, topic: str) -> list[TopicPins]:
        """Find what holds the ledgers of a topic, of each partition with ledgers; NotFoundError if it has none."""
        name = TopicName.parse(topic)
        self._store.sync()
        node = self._store.get(partitioned_topic_path(name.managed_ledger))
        parts = [name] if node is None else [name.partition_name(at) for at in range(_partitions(node, name))]
        found = [one for one in map(self._of_partition, parts) if one is not None]
        if not found:
            raise NotFoundError(f"{name} has no ledgers: there is no such topic, or no message was ever sent to it")
        return found

    def of_managed_ledger(self, managed_ledger: str) -> TopicPins | None:
        """Find what holds the ledgers of one managed ledger; None where it is gone, no pins where it is damaged."""
        name = TopicName.of_managed_ledger(managed_ledger)
        try:
            return self._of_partition(name)
        except FormatError as error:
            return TopicPins(str(name), None, (), 0, 0, (), "", (str(error),))

    @cached_property
    def _brokers(self) -> TrimQuestions:
        return TrimQuestions(self._cluster.admin)

    @cached_property
    def _loaded(self) -> LoadedTopics:
        return LoadedTopics(self._store, self._cluster.connection)

    def _of_partition(self, name: TopicName) -> TopicPins | None:
        managed = self._ledgers.read(name.managed_ledger)
        if managed is None:
            return None
        reading = _Reading(self._is_live)
        topic = str(name)
        loaded = reading.ask("whether a broker has it loaded", lambda: self._loaded.has(topic))
        live = reading.ask("its cursors", lambda: self._brokers.loaded_topic(topic)) if loaded else None
        info, created_ms = self._with_last(managed.info, live, reading)
        policies = self._policies(name, reading)
        settings = policies.of_brokers or {}
        state = TopicState(
            topic,
            info,
            self._cursors(name, live, reading),
            loaded,
            retention_of(policies, name.namespace_name),
            deletion_lag_of(policies, name.namespace_name),
            reading.ask("the clusters", self._clusters),
            reading.ask("open transactions", lambda: self._brokers.transactions(topic)) or (),
            _number(settings.get("retentionCheckIntervalInSeconds")),
            _number(settings.get("managedLedgerMaxLedgerRolloverTimeMinutes")),
            created_ms,
            tuple(reading.unseen),
        )
        return find_pins(state, self._now_ms)

    @cached_property
    def _clusters(self) -> Callable[[], frozenset[str]]:
        return cache(self._brokers.clusters)

    def _with_last(
        self, info: ManagedLedgerInfo, live: LoadedTopic | None, reading: _Reading
    ) -> tuple[ManagedLedgerInfo, int]:
        """Add to the last ledger what its list does not have while it is written, and return when it was created."""
        if not info.ledgers:
            return info, 0
        last = info.ledgers[-1]
        (stored,) = self._cluster.bookkeeper.catalog.read_many([last.ledger_id])
        if not isinstance(stored, StoredLedger):
            return info, 0
        metadata = stored.metadata
        if live is not None:
            last = last._replace(entries=live.entries, size=live.size)
        elif metadata.last_entry_id is not None:
            last = last._replace(entries=metadata.last_entry_id + 1, size=metadata.length)
        elif not last.timestamp_ms:
            last = self._as_written(last, stored, reading)
        changed = ManagedLedgerInfo((*info.ledgers[:-1], last), info.properties, info.puzzling, info.terminated)
        return changed, metadata.ctime_ms or stored.created_ms

    def _as_written(self, last: LedgerInfo, stored: StoredLedger, reading: _Reading) -> LedgerInfo:
        if not self._is_live:
            return last
        try:
            entry = self._cluster.bookkeeper.last_entries.last_written(stored)
        except (BookieError, FormatError, NotFoundError) as error:
            reading.unseen.append(f"the length of ledger {last.ledger_id}, which is not closed: {error}")
            return last
        return last if entry is None else last._replace(entries=entry.entry_id + 1, size=entry.length)

    def _cursors(self, name: TopicName, live: LoadedTopic | None, reading: _Reading) -> list[CursorState]:
        names = self._store.children_of(managed_ledger_path(name.managed_ledger))
        nodes = self._store.get_many([cursor_path(name.managed_ledger, cursor) for cursor in names])
        found = {}
        for encoded, node in zip(names, nodes, strict=True):
            if node is None:
                continue
            try:
                cursor = self._of_node(decode_local_name(encoded), node, is_live=self._is_live and live is None)
            except FormatError as error:
                reading.unseen.append(f"the cursor {encoded}: {error}")
                continue
            found[cursor.name] = cursor
        if live is not None:
            by_broker = {cursor.name: cursor for cursor in live.cursors}
            buckets = {cursor.name: cursor.buckets for cursor in found.values()}
            found |= {each: one._replace(buckets=buckets.get(each, ())) for each, one in by_broker.items()}
        return list(found.values())

    def _of_node(self, name: str, node: Versioned, *, is_live: bool) -> CursorState:
        info = decode_cursor(node.value)
        state = CursorState(name, info.mark_delete, buckets=tuple(info.delayed_bucket_ranges))
        entry = None
        if info.cursors_ledger_id is not None:
            why = f"its position is in ledger {info.cursors_ledger_id}, which was not read"
            if is_live:
                try:
                    entry = self._cluster.bookkeeper.last_entries.last_entry(info.cursors_ledger_id)
                except (BookieError, NotFoundError) as error:
                    why = f"its position is in ledger {info.cursors_ledger_id}: {error}"
            if entry is None:
                return state._replace(inexact=why)
            return state._replace(
                position=decode_position_info(entry).mark_delete,
                acknowledged=acknowledged_behind(node.value, entry) if info.mark_delete is not None else (),
            )
        acknowledged = acknowledged_behind(node.value, None) if info.acknowledged else ()
        return state._replace(acknowledged=acknowledged, recorded_ms=node.modified_ms)

    def _policies(self, name: TopicName, reading: _Reading) -> PolicySet:
        settings = reading.ask("the brokers' settings", lambda: self._brokers.settings)
        of_namespace = reading.read("the policies of the namespace", lambda: self._namespace_policies(name))
        own: Mapping[str, Any] | None = {}
        if not self._is_live:
            own = self._stored_policies(name.namespace_name).get(str(name.base), {})
        elif (settings or {}).get("topicLevelPoliciesEnabled") != "false":
            own = reading.ask("the topic's own policies", lambda: self._brokers.topic_policies(name))
        return PolicySet(own, of_namespace, settings)

    def _read_namespace_policies(self, name: TopicName) -> Mapping[str, Any]:
        if self._is_live:
            return self._brokers.namespace_policies(name.namespace_name)
        node = self._store.get(namespace_policies_path(name.namespace_name))
        if node is None:
            raise NotFoundError(f"the snapshot has no policies of {name.namespace_name}")
        return _object(node.value, f"the policies of {name.namespace_name}")


class _Reading:
    """Collects what could not be seen of one topic."""

    def __init__(self, is_live: bool) -> None:
        self._is_live = is_live
        self.unseen: list[str] = [] if is_live else [_UNSEEN_IN_SNAPSHOT]

    def ask(self, what: str, question: Callable[[], _Answer]) -> _Answer | None:
        """Ask brokers; None where they do not say it, and where there are none."""
        return self.read(what, question) if self._is_live else None

    def read(self, what: str, question: Callable[[], _Answer]) -> _Answer | None:
        """Read something; None where that fails as it does where a broker does not say it."""
        try:
            return question()
        except (PulsarError, NotFoundError, FormatError) as error:
            self.unseen.append(f"{what}: {error}")
            return None


def _partitions(node: Versioned, name: TopicName) -> int:
    try:
        return int(_object(node.value, f"the node of the partitioned topic {name}")["partitions"])
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"the node of the partitioned topic {name} has no number of partitions: {error!r}") from error


def _object(value: bytes, what: str) -> Mapping[str, Any]:
    try:
        found = json.loads(value)
    except ValueError as error:
        raise FormatError(f"{what}: no JSON: {error}") from error
    if not isinstance(found, dict):
        raise FormatError(f"{what}: no JSON object")
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
