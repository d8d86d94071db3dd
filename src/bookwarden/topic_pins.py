"""The search for what holds the ledgers of a topic: metadata, bookies and brokers, read and not changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.bookkeeper.catalog import ReadsLedgers
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
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.trash.generations import is_log
from bookwarden.wire.cursor import acknowledged_behind, decode_cursor, decode_position_info

_Answer = TypeVar("_Answer")
_UNANSWERED: Final = (PulsarError, NotFoundError, FormatError)
_UNSEEN_IN_SNAPSHOT: Final = (
    "A snapshot does not show whether a broker has the topic loaded, readers, consumers, delayed messages in memory, "
    "open transactions, the brokers' settings, policies in __change_events, nor positions in the ledgers of cursors"
)


class LiveSources(NamedTuple):
    """The servers of a cluster that runs."""

    brokers: TrimQuestions
    loaded: LoadedTopics
    last_entries: LastEntries


class PinSearch:
    """Finds what holds the ledgers of topics of a metadata root. Loads no topic.

    ``live`` is None for a snapshot, and ``now_ms`` is then its time.
    """

    def __init__(
        self, store: MetadataStore, catalog: ReadsLedgers, live: LiveSources | None, now_ms: int | None = None
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._live = live
        self._now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        self._ledgers = ManagedLedgers(store)
        self._answers: dict[tuple[str, str], Any] = {}

    def of_topic(self, topic: str) -> list[TopicPins]:
        """Find what holds the ledgers of a topic, of each partition with ledgers; NotFoundError if it has none."""
        name = TopicName.parse(topic)
        states = [state for part in self.parts_of(name) if (state := self.state_of(part)) is not None]
        if not states:
            raise NotFoundError(f"{name} has no ledgers: there is no such topic, or no message was ever sent to it")
        return [self.pins_in(state) for state in states]

    def parts_of(self, name: TopicName) -> list[TopicName]:
        """List the partitions of a topic, as far as they are known; itself where it has none, nothing without either.

        Some may have no ledgers.
        """
        self._store.sync()
        node = self._store.get(partitioned_topic_path(name.managed_ledger))
        if node is not None:
            return [name.partition_name(at) for at in range(_partitions(node, name))]
        if self._store.get(managed_ledger_path(name.managed_ledger)) is not None:
            return [name]
        return self._listed_partitions(name)

    def pins_in(self, state: TopicState) -> TopicPins:
        """Find what holds the ledgers of a topic in this state."""
        return find_pins(state, self._now_ms)

    def of_managed_ledger(self, managed_ledger: str) -> TopicPins | None:
        """Find what holds the ledgers of one managed ledger; None where it is gone, no pins where it is damaged."""
        name = TopicName.of_managed_ledger(managed_ledger)
        try:
            state = self.state_of(name)
            return None if state is None else self.pins_in(state)
        except FormatError as error:
            return TopicPins(str(name), None, (), 0, 0, (), "", (str(error),))

    def _listed_partitions(self, name: TopicName) -> list[TopicName]:
        """List the partitions that have nodes of a topic whose own node is in a configuration store of its own."""
        path = managed_ledger_path(name.managed_ledger)
        folder, _, local = path.rpartition("/")
        before = f"{local}-partition-"
        numbers = [child.removeprefix(before) for child in self._store.children_of(folder) if child.startswith(before)]
        return [name.partition_name(at) for at in sorted(int(number) for number in numbers if number.isdecimal())]

    def state_of(self, name: TopicName) -> TopicState | None:
        """Read all that decides about the trim of a topic without partitions, or of a partition; None without ledgers.

        Raises FormatError where its node is damaged.
        """
        managed = self._ledgers.read(name.managed_ledger)
        if managed is None:
            return None
        reading = _Reading(self._live, self._why_not_asked(name))
        topic = str(name)
        loaded = reading.ask("whether a broker has it loaded", lambda live: live.loaded.has(topic))
        found = reading.ask("its cursors", lambda live: live.brokers.loaded_topic(topic)) if loaded else None
        info, created_ms = self._with_last(managed.info, found, reading)
        policies = self._policies(name, reading)
        settings = policies.of_brokers or {}
        transactions = reading.ask(
            "open transactions", lambda live: self._once("transactions", "", live.brokers.transactions)
        )
        return TopicState(
            topic,
            info,
            self._cursors(name, found, reading),
            loaded,
            retention_of(policies, name.namespace_name),
            deletion_lag_of(policies, name.namespace_name),
            reading.ask("the clusters", lambda live: self._once("clusters", "", live.brokers.clusters)),
            (transactions or {}).get(topic, ()),
            _number(settings.get("retentionCheckIntervalInSeconds")),
            _number(settings.get("managedLedgerMaxLedgerRolloverTimeMinutes")),
            created_ms,
            tuple(reading.unseen),
        )

    def _why_not_asked(self, name: TopicName) -> str:
        if self._live is None:
            return _UNSEEN_IN_SNAPSHOT
        if is_log(name.managed_ledger):
            return (
                "It is a log of acknowledgements in transactions, of which brokers do not say whether they have it open"
            )
        if name.cluster is not None:
            return "It has a name of the first version, which brokers cannot be asked for"
        return ""

    def _once(self, what: str, of: str, question: Callable[[], _Answer]) -> _Answer:
        """Answer what is asked for several topics, once; it fails each time, too, as it failed the first time."""
        if (what, of) not in self._answers:
            try:
                self._answers[what, of] = question()
            except _UNANSWERED as error:
                self._answers[what, of] = error
        answer = self._answers[what, of]
        if isinstance(answer, _UNANSWERED):
            raise answer
        found: _Answer = answer
        return found

    def _with_last(
        self, info: ManagedLedgerInfo, loaded: LoadedTopic | None, reading: _Reading
    ) -> tuple[ManagedLedgerInfo, int]:
        """Add to the last ledger what its list does not have while it is written, and return when it was created."""
        if not info.ledgers:
            return info, 0
        last = info.ledgers[-1]
        (stored,) = self._catalog.read_many([last.ledger_id])
        if not isinstance(stored, StoredLedger):
            return info, 0
        metadata = stored.metadata
        if loaded is not None:
            last = last._replace(entries=loaded.entries, size=loaded.size)
        elif metadata.last_entry_id is not None:
            last = last._replace(entries=metadata.last_entry_id + 1, size=metadata.length)
        elif not last.timestamp_ms:
            last = self._as_written(last, stored, reading)
        changed = ManagedLedgerInfo((*info.ledgers[:-1], last), info.properties, info.puzzling, info.terminated)
        return changed, metadata.ctime_ms or stored.created_ms

    def _as_written(self, last: LedgerInfo, stored: StoredLedger, reading: _Reading) -> LedgerInfo:
        if self._live is None:
            return last
        try:
            entry = self._live.last_entries.last_written(stored)
        except (BookieError, FormatError, NotFoundError) as error:
            reading.unseen.append(f"the length of ledger {last.ledger_id}, which is not closed: {error}")
            return last
        return last if entry is None else last._replace(entries=entry.entry_id + 1, size=entry.length)

    def _cursors(self, name: TopicName, loaded: LoadedTopic | None, reading: _Reading) -> list[CursorState]:
        names = self._store.children_of(managed_ledger_path(name.managed_ledger))
        nodes = self._store.get_many([cursor_path(name.managed_ledger, cursor) for cursor in names])
        found, entries = {}, None if self._live is None or loaded is not None else self._live.last_entries
        for encoded, node in zip(names, nodes, strict=True):
            if node is None:
                continue
            try:
                cursor = _of_node(decode_local_name(encoded), node, entries)
            except FormatError as error:
                reading.unseen.append(f"the cursor {encoded}: {error}")
                continue
            found[cursor.name] = cursor
        if loaded is not None:
            by_broker = {cursor.name: cursor for cursor in loaded.cursors}
            buckets = {cursor.name: cursor.buckets for cursor in found.values()}
            # What has no node is gone with its reader: a broker does not say it of the replicators to shadow topics.
            durable = set(map(decode_local_name, names))
            found |= {
                each: one._replace(buckets=buckets.get(each, ()), durable=each in durable)
                for each, one in by_broker.items()
            }
        return list(found.values())

    def _policies(self, name: TopicName, reading: _Reading) -> PolicySet:
        namespace, topic = name.namespace_name, str(name.base)

        def own_policies() -> Mapping[str, Any]:
            live = reading.live
            if live is None:
                stored = self._once("stored", namespace, lambda: stored_policies(self._store, namespace))
                return stored.get(topic, {})
            if (settings or {}).get("topicLevelPoliciesEnabled") == "false":
                return {}
            return self._once("own", topic, lambda: live.brokers.topic_policies(name))

        settings = reading.ask("the brokers' settings", lambda live: self._once("settings", "", live.brokers.settings))
        of_namespace = reading.read(
            "the policies of the namespace",
            lambda: self._once("namespace", namespace, lambda: self._namespace_policies(namespace)),
        )
        return PolicySet(reading.read("the topic's own policies", own_policies), of_namespace, settings)

    def _namespace_policies(self, namespace: str) -> Mapping[str, Any]:
        if self._live is not None:
            return self._live.brokers.namespace_policies(namespace)
        node = self._store.get(namespace_policies_path(namespace))
        if node is None:
            raise NotFoundError(f"the snapshot has no policies of {namespace}")
        return _object(node.value, f"the policies of {namespace}")


class _Reading:
    """Collects what could not be seen of one topic; ``why_not`` is why no broker is asked, "" where they are."""

    def __init__(self, live: LiveSources | None, why_not: str) -> None:
        self.live = None if why_not else live
        self.unseen: list[str] = [why_not] if why_not else []

    def ask(self, what: str, question: Callable[[LiveSources], _Answer]) -> _Answer | None:
        """Ask brokers; None where they do not say it, and where none is asked."""
        live = self.live
        return None if live is None else self.read(what, lambda: question(live))

    def read(self, what: str, question: Callable[[], _Answer]) -> _Answer | None:
        """Read something; None where that fails as it does where a broker does not say it."""
        try:
            return question()
        except _UNANSWERED as error:
            self.unseen.append(f"{what}: {error}")
            return None


def _of_node(name: str, node: Versioned, entries: LastEntries | None) -> CursorState:
    """Return the state of a cursor by its node, and by its ledger where that may be read."""
    info = decode_cursor(node.value)
    state = CursorState(name, info.mark_delete, buckets=tuple(info.delayed_bucket_ranges))
    own = info.cursors_ledger_id
    if own is None:
        acknowledged = acknowledged_behind(node.value, None) if info.acknowledged else ()
        return state._replace(acknowledged=acknowledged, recorded_ms=node.modified_ms)
    why = f"its position is in ledger {own}, which was not read"
    try:
        entry = None if entries is None else entries.last_entry(own)
    except (BookieError, NotFoundError) as error:
        entry, why = None, f"its position is in ledger {own}: {error}"
    if entry is None:
        return state._replace(inexact=why)
    position = decode_position_info(entry).mark_delete
    return state._replace(position=position, acknowledged=acknowledged_behind(node.value, entry))


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
