"""Decodes messages of the deletion topics by the schemas that their writers registered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry
from bookwarden.errors import MalformedMarkError, NotFoundError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.wire.avro import ParsedSchema, PendingDeletionCodec, parse_writer_schema

# Messages without a fitting schema ask the registry no more often than this.
_REFRESH_SECONDS: Final = 1.0
_AVRO: Final = "AVRO"


class MarkDecoder:
    """Decodes by a message's own schema, or, if it lost that on the retry topic, by the registered one that fits.

    A Java consumer that takes messages as bytes sends them on without a schema version.
    """

    def __init__(self, registry: SchemaRegistry, topic: str, retry_topic: str) -> None:
        self._registry = registry
        self._topics = (topic, retry_topic)
        self._retry_topic = TopicName.parse(retry_topic).base
        self._codec = PendingDeletionCodec()
        # By topic and schema version: a batch has few of these, and thousands of messages.
        self._written_with: dict[tuple[str, bytes], ParsedSchema | None] = {}
        self._registered: list[ParsedSchema] = []
        self._asked_at = float("-inf")

    def decode(self, topic: str, payload: bytes, schema_version: bytes | None) -> PendingDeletion:
        """Return the pending deletion; MalformedMarkError for any other message."""
        try:
            return self._codec.decode(payload, self._writer_schema(topic, schema_version))
        except MalformedMarkError:
            if schema_version or payload.startswith(b"{") or TopicName.parse(topic).base != self._retry_topic:
                raise
            found = self._by_registered(payload)
            if found is None:
                raise
            return found

    def _by_registered(self, payload: bytes) -> PendingDeletion | None:
        """Decode by each schema that was ever registered; those that fit, to the last byte, must agree."""
        found = list(self._fitting(payload))
        if not found and time.monotonic() - self._asked_at >= _REFRESH_SECONDS:
            self._registered, self._asked_at = list(self._read_registered()), time.monotonic()
            found = list(self._fitting(payload))
        if any(mark != found[0] for mark in found):
            raise MalformedMarkError(
                f"payload of {len(payload)} bytes without a schema version: {len(found)} registered schemas fit it "
                "and disagree about what it says"
            )
        return found[0] if found else None

    def _fitting(self, payload: bytes) -> Iterator[PendingDeletion]:
        for schema in self._registered:
            try:
                mark = self._codec.decode(payload, schema)
                mark.validate()
            except MalformedMarkError:
                # Written by another one.
                continue
            yield mark

    def _read_registered(self) -> Iterator[ParsedSchema]:
        schemas = [schema for topic in self._topics for schema in self._registry.versions(topic)]
        for schema in dict.fromkeys(schema for schema in schemas if schema.kind == _AVRO):
            try:
                yield parse_writer_schema(schema.definition)
            except MalformedMarkError:
                # Nothing of it can be read, by any schema.
                continue

    def _writer_schema(self, topic: str, version: bytes | None) -> ParsedSchema | None:
        if not version:
            return None
        key = (topic, version)
        if key not in self._written_with:
            self._written_with[key] = self._read_writer_schema(topic, version)
        return self._written_with[key]

    def _read_writer_schema(self, topic: str, version: bytes) -> ParsedSchema | None:
        try:
            schema = self._registry.written_with(topic, version)
        except NotFoundError as error:
            raise MalformedMarkError(f"schema version {version.hex()} is not in the registry of {topic}") from error
        return parse_writer_schema(schema.definition) if schema.kind == _AVRO else None
