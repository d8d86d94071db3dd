"""Policies of single topics, read from the system topics that keep them; for quorums also from the nodes that do.

Format: the events of ``__change_events`` in each namespace, by key the newest of a topic; one without a payload says
that its policies are gone. Pulsar 4.0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import pulsar

from bookwarden.clusters.pulsar.client_errors import translate
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.readers import received_message
from bookwarden.clusters.pulsar.metadata.namespaces import known_namespaces
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.clusters.pulsar.metadata.topic_policies import namespaces_with_stored_policies, stored_policies
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry
from bookwarden.clusters.pulsar.rest.topic_positions import list_partitions
from bookwarden.errors import BookwardenError, FormatError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.topic_policies import (
    Quorums,
    decode_topic_policies,
    decode_topic_quorums,
    merged_policies,
    quorums_of,
)
from bookwarden.wire.writer_schema import ParsedSchema, parse_writer_schema

T = TypeVar("T")

_EVENTS: Final = "__change_events"
_TIMEOUT_S: Final = 5
# There may be very many namespaces, each with a topic that has to be opened; and a rollback must not wait long.
_BUDGET_S: Final = 20.0


class TopicQuorums(NamedTuple):
    """``asked`` are topics with ensemble, write and acknowledgement; ``unread`` says which namespaces are not known."""

    asked: tuple[tuple[str, Quorums], ...]
    unread: tuple[str, ...]


def read_topic_quorums(
    store: MetadataStore,
    connection: PulsarConnection,
    admin: PulsarAdmin,
    clock: Callable[[], float] = time.monotonic,
) -> TopicQuorums:
    """Read the policies of all topics of all namespaces, for 20 s at most; the rest is in ``unread``.

    Each namespace that has its policies in a system topic has that opened by a broker. Nodes are read of the others
    alone, as by brokers that keep policies there; where brokers no longer do, that asks for too much.
    """
    deadline = clock() + _BUDGET_S
    asked: list[tuple[str, Quorums]] = []
    unread: list[str] = []
    namespaces = _with_events(store)
    try:
        stored = namespaces_with_stored_policies(store)
    except FormatError as error:
        stored, unread = frozenset(), [str(error)]
    for namespace in sorted(stored.difference(namespaces)):
        if clock() > deadline:
            unread.append(f"{namespace}: there was no time")
            continue
        try:
            asked += _asking(stored_policies(store, namespace))
        except FormatError as error:
            unread.append(f"{namespace}: {error}")
    if not namespaces:
        return TopicQuorums(tuple(asked), tuple(unread))
    client = connection.client(operation_timeout_seconds=_TIMEOUT_S)
    try:
        reader = _Policies(client, admin)
        for namespace in namespaces:
            if clock() > deadline:
                unread.append(f"{namespace}: there was no time")
                continue
            try:
                asked += reader.of_namespace(namespace)
            except BookwardenError as error:
                unread.append(f"{namespace}: {error}")
    finally:
        client.close()
    return TopicQuorums(tuple(asked), tuple(unread))


def read_topic_policies(
    connection: PulsarConnection, admin: PulsarAdmin, namespace: str
) -> dict[str, Mapping[str, Any]]:
    """Read the policies of the topics of a namespace that have some, by full name and the fields of TopicPolicies.

    A topic's own replace those that it has for all clusters. Raises NotFoundError where no topic there ever had any,
    and BookwardenError where they cannot be read.
    """
    client = connection.client(operation_timeout_seconds=_TIMEOUT_S)
    try:
        return _Policies(client, admin).all_of_namespace(namespace)
    finally:
        client.close()


def _asking(policies: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Quorums]]:
    found = ((topic, quorums_of(own)) for topic, own in policies.items())
    return [(topic, quorums) for topic, quorums in found if quorums is not None]


def _with_events(store: MetadataStore) -> list[str]:
    names = sorted(known_namespaces(store) or ())
    tops = [managed_ledger_path(f"{name}/persistent/{_EVENTS}") for name in names]
    alone, parted = store.get_many(tops), store.get_many([f"{top}-partition-0" for top in tops])
    return [name for name, one, other in zip(names, alone, parted, strict=True) if one is not None or other is not None]


class _Policies:
    """Reads the events of namespaces."""

    def __init__(self, client: pulsar.Client, admin: PulsarAdmin) -> None:
        self._client = client
        self._admin = admin
        self._registry = SchemaRegistry(admin)
        self._schemas: dict[str, ParsedSchema] = {}

    def of_namespace(self, namespace: str) -> Iterable[tuple[str, Quorums]]:
        """Return the topics there that ask for quorums."""
        newest = self._newest(namespace, decode_topic_quorums)
        return [found for found in newest.values() if found is not None]

    def all_of_namespace(self, namespace: str) -> dict[str, Mapping[str, Any]]:
        """Return the policies of each topic there that has some."""
        found: dict[str, Mapping[str, Any]] = {}
        newest = self._newest(namespace, decode_topic_policies).values()
        for name, policies in sorted(filter(None, newest), key=lambda one: not one[1].get("isGlobal")):
            found[name] = merged_policies(found.get(name, {}), policies)
        return found

    def _newest(self, namespace: str, decode: Callable[[bytes, ParsedSchema], T | None]) -> dict[str, T | None]:
        """Decode the newest event by key."""
        newest: dict[str, T | None] = {}
        for partition in list_partitions(self._admin, f"persistent://{namespace}/{_EVENTS}"):
            for message in self._messages(partition):
                received = received_message(partition, message)
                payload, key = received.payload, received.key or ""
                written = self._written(partition, received.schema_version) if payload else None
                newest[key] = None if written is None else decode(payload, written)
        return newest

    def _messages(self, partition: str) -> Iterator[pulsar.Message]:
        try:
            reader = self._client.create_reader(partition, pulsar.MessageId.earliest, is_read_compacted=True)
            try:
                while reader.has_message_available():
                    yield reader.read_next(_TIMEOUT_S * 1000)
            finally:
                reader.close()
        except pulsar.PulsarException as error:
            raise translate(error, f"reading {partition}") from error

    def _written(self, partition: str, version: bytes | None) -> ParsedSchema:
        if version is None:
            raise FormatError(f"an event of {partition} has no schema")
        written = self._registry.written_with(partition, version)
        if written.definition not in self._schemas:
            self._schemas[written.definition] = parse_writer_schema(written.definition)
        return self._schemas[written.definition]
