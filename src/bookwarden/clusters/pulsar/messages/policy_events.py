"""The events by which brokers keep the policies of topics: the last ones that had any, followed, and sent again.

Format: as in `topic_policies`. Source: SystemTopicBasedTopicPoliciesService of Pulsar 4.0: the key is the topic's full
name, that of policies for all clusters has a prefix; an event without a value says that its policies are gone. Brokers
compact these topics every minute, so that of a deleted topic the event before that one is soon not there any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Final, NamedTuple

import fastavro
import pulsar

from bookwarden.clusters.pulsar.client_errors import translate
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.readers import received_message
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path, partitioned_topic_path
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry, WriterSchema, for_encoded
from bookwarden.clusters.pulsar.rest.topic_positions import list_partitions
from bookwarden.errors import BookwardenError, FormatError, NotFoundError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.writer_schema import parse_writer_schema

logger = logging.getLogger(__name__)
EVENTS: Final = "__change_events"
#: TopicPoliciesService.GLOBAL_POLICIES_MSG_KEY_PREFIX.
_FOR_ALL: Final = "__G__"
_TIMEOUT_S: Final = 5
# Each namespace has a topic that has to be opened, and what waits for this does other things too.
_BUDGET_S: Final = 20.0
_FORGET_MS: Final = 86_400_000


class _Event(NamedTuple):
    value: bytes
    schema_version: bytes
    partition: str
    gone_ms: int = 0  #: When an event without a value came; 0: none did.


@dataclass
class _Namespace:
    """The events that were read of a namespace."""

    #: When all was read for the first time, in ms since the epoch: what was deleted before may have been missed.
    since_ms: int | None = None
    readers: dict[str, pulsar.Reader] = field(default_factory=dict)
    events: dict[str, _Event] = field(default_factory=dict)  #: By key, the last with a value.

    def close(self) -> None:
        for partition, reader in self.readers.items():
            try:
                reader.close()
            except pulsar.PulsarException as error:
                logger.debug("closing the reader of %s: %s", partition, error)
        self.readers.clear()


class LastPolicyEvents:
    """The last events that had policies of each topic, of namespaces that are followed; for one thread."""

    def __init__(
        self,
        connection: PulsarConnection,
        admin: PulsarAdmin,
        store: MetadataStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._connection = connection
        self._admin = admin
        self._store = store
        self._clock = clock
        self._registry = SchemaRegistry(admin)
        self._client: pulsar.Client | None = None
        self._namespaces: dict[str, _Namespace] = {}

    def follow(self, namespaces: Collection[str]) -> dict[str, str]:
        """Read all events of these until now, for 20 s at most; return those that were not read, and why.

        What was read of others is remembered for a day.
        """
        deadline = time.monotonic() + _BUDGET_S
        for name in self._namespaces.keys() - set(namespaces):
            self._namespaces[name].close()
        unread: dict[str, str] = {}
        with_events = self._with_events(sorted(namespaces))
        # Those that were never read come last, since they take the longest.
        for name in sorted(namespaces, key=lambda name: (self.seen_since_ms(name) is None, name)):
            found = self._namespaces.setdefault(name, _Namespace())
            now_ms = int(self._clock() * 1000)
            if time.monotonic() > deadline:
                unread[name] = "there was no time"
                continue
            if name in with_events:
                try:
                    self._read(name, found)
                except BookwardenError as error:
                    found.close()
                    unread[name] = str(error)
                    continue
            if found.since_ms is None:
                found.since_ms = now_ms
        self._forget()
        return unread

    def seen_since_ms(self, namespace: str) -> int | None:
        """Return since when everything there was seen; None where it never was."""
        found = self._namespaces.get(namespace)
        return None if found is None else found.since_ms

    def last(self, topic: str) -> list[tuple[str, bytes, str]]:
        """Return the last events that had policies of a topic: key, value, and the definition of its schema.

        Raises PulsarError, and NotFoundError where the broker does not have the schema any more.
        """
        name = TopicName.parse(topic)
        found = self._namespaces.get(name.namespace_name)
        events = {} if found is None else {key: found.events.get(key) for key in (topic, f"{_FOR_ALL}{topic}")}
        return [
            (key, event.value, self._registry.written_with(event.partition, event.schema_version).definition)
            for key, event in events.items()
            if event is not None
        ]

    def close(self) -> None:
        """End all readers."""
        client, self._client = self._client, None
        self._namespaces.clear()
        if client is not None:
            client.close()

    def _with_events(self, namespaces: Sequence[str]) -> set[str]:
        names = [name for name in namespaces if not self._is_followed(name)]
        topics = [f"{name}/persistent/{EVENTS}" for name in names]
        alone = self._store.get_many(list(map(managed_ledger_path, topics)))
        parted = self._store.get_many(list(map(partitioned_topic_path, topics)))
        pairs = zip(names, alone, parted, strict=True)
        return {name for name, one, other in pairs if one is not None or other is not None} | {
            name for name in namespaces if self._is_followed(name)
        }

    def _is_followed(self, namespace: str) -> bool:
        found = self._namespaces.get(namespace)
        return found is not None and bool(found.readers)

    def _read(self, name: str, found: _Namespace) -> None:
        if not found.readers:
            try:
                for partition in list_partitions(self._admin, f"persistent://{name}/{EVENTS}"):
                    found.readers[partition] = self._open(partition)
            except NotFoundError:
                # It was deleted just now.
                return
        for partition, reader in found.readers.items():
            for received in _received(partition, reader):
                key = received.key or ""
                before = found.events.get(key)
                if received.payload and received.schema_version is not None:
                    found.events[key] = _Event(received.payload, received.schema_version, partition)
                    # Now, while the broker has it.
                    self._registry.written_with(partition, received.schema_version)
                elif before is not None and not received.payload:
                    found.events[key] = before._replace(gone_ms=received.published_at)

    def _open(self, partition: str) -> pulsar.Reader:
        if self._client is None:
            self._client = self._connection.client(operation_timeout_seconds=_TIMEOUT_S)
        return open_reader(self._client, partition)

    def _forget(self) -> None:
        before_ms = int(self._clock() * 1000) - _FORGET_MS
        for found in self._namespaces.values():
            for key in [key for key, event in found.events.items() if event.gone_ms and event.gone_ms < before_ms]:
                del found.events[key]


def open_reader(client: pulsar.Client, partition: str) -> pulsar.Reader:
    """Open a reader of the newest events by key, and all that follow."""
    try:
        return client.create_reader(partition, pulsar.MessageId.earliest, is_read_compacted=True)
    except pulsar.PulsarException as error:
        raise translate(error, f"reading {partition}") from error


def _received(partition: str, reader: pulsar.Reader) -> Iterator[ReceivedMark]:
    try:
        while reader.has_message_available():
            yield received_message(partition, reader.read_next(_TIMEOUT_S * 1000))
    except pulsar.PulsarException as error:
        raise translate(error, f"reading {partition}") from error


class PolicyEventSender:
    """Sends events of policies once more, and reads what is there."""

    def __init__(self, connection: PulsarConnection, admin: PulsarAdmin) -> None:
        self._connection = connection
        self._admin = admin

    def current(self, namespace: str, keys: Collection[str]) -> dict[str, bytes]:
        """Return the newest events of these keys, of those whose newest has a value; PulsarError without an answer."""
        topic = f"persistent://{namespace}/{EVENTS}"
        try:
            partitions = list_partitions(self._admin, topic)
        except NotFoundError:
            return {}
        newest: dict[str, bytes] = {}
        client = self._connection.client(operation_timeout_seconds=_TIMEOUT_S)
        try:
            for partition in partitions:
                reader = open_reader(client, partition)
                for received in _received(partition, reader):
                    if received.key is not None and received.key in keys:
                        newest[received.key] = received.payload
        finally:
            client.close()
        return {key: value for key, value in newest.items() if value}

    def send(self, namespace: str, events: Sequence[tuple[str, bytes, str]]) -> None:
        """Send events, each a key, a value and the definition of its schema; all are confirmed when it returns."""
        topic = f"persistent://{namespace}/{EVENTS}"
        client = self._connection.client()
        try:
            for key, value, definition in events:
                # As the broker's own: local policies are for its cluster alone.
                clusters = _replicate_to(value, definition)
                producer = client.create_producer(
                    topic, schema=for_encoded(WriterSchema("AVRO", definition)), batching_enabled=False
                )
                producer.send(value, partition_key=key, replication_clusters=clusters)
                producer.close()
        except pulsar.PulsarException as error:
            raise translate(error, f"sending policies to {topic}") from error
        finally:
            client.close()


def _replicate_to(value: bytes, definition: str) -> list[str] | None:
    """Return the clusters that an event is for; None: all."""
    try:
        event = fastavro.schemaless_reader(BytesIO(value), parse_writer_schema(definition).definition, None)
        assert isinstance(event, Mapping)
        return sorted(event["replicateTo"]) if event.get("replicateTo") else None
    except (EOFError, ValueError, IndexError, OverflowError, KeyError, TypeError) as error:
        raise FormatError(f"an event of policies is not as its schema says: {error!r}") from error
