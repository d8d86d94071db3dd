"""Schemas of topics: the registry's versions, and schemas of producers that send encoded bytes."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import _pulsar
from pulsar.schema import BytesSchema, Schema

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.errors import NotFoundError, PulsarError
from bookwarden.ledgers.names import TopicName, encode_local_name

# The kinds whose definition a client can announce; others travel as plain bytes.
_KINDS = {"AVRO": _pulsar.SchemaType.AVRO, "JSON": _pulsar.SchemaType.JSON}


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """The schema of a message's writer; ``kind`` is Pulsar's name for it, such as AVRO or JSON."""

    kind: str
    definition: str


class SchemaRegistry:
    """The schemas of a cluster by topic and version; a version never changes, so it is read once. Thread-safe."""

    def __init__(self, admin: PulsarAdmin) -> None:
        self._admin = admin
        self._known: dict[tuple[str, bytes], WriterSchema] = {}
        self._lock = threading.Lock()

    def written_with(self, topic: str, version: bytes) -> WriterSchema:
        """Return the schema of this version, as a message of the topic carries it; NotFoundError if there is none.

        ``version`` is the message's field: eight bytes, big endian (LongSchemaVersion in Pulsar 4.0).
        """
        name = TopicName.parse(topic)
        key = (name.schema_id, version)
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known
        if len(version) != 8:
            raise PulsarError(f"schema version {version.hex()} of {topic} is not the eight bytes that Pulsar writes")
        found = self._read(f"{_path(name)}/{int.from_bytes(version, 'big')}")
        with self._lock:
            self._known[key] = found
        return found

    def current(self, topic: str) -> WriterSchema:
        """Return the topic's newest schema; NotFoundError if it has none."""
        return self._read(_path(TopicName.parse(topic)))

    def versions(self, topic: str) -> list[WriterSchema]:
        """Return the schemas of all versions of the topic, oldest first; none if it has none."""
        path = f"{_path(TopicName.parse(topic))}s"
        try:
            answer = self._admin.get_json(path)
        except NotFoundError:
            return []
        found = answer.get("getSchemaResponses") if isinstance(answer, dict) else None
        if not isinstance(found, list):
            raise PulsarError(f"GET {path}: the answer is no list of schemas")
        return [_schema(path, one) for one in found]

    def register(self, topic: str, schema: WriterSchema) -> None:
        """Add the schema as a new version unless the topic has it already; PulsarConflictError if incompatible."""
        body = {"type": schema.kind, "schema": schema.definition, "properties": {}}
        self._admin.post(_path(TopicName.parse(topic)), body)

    def delete(self, topic: str) -> None:
        """Delete all versions of the topic's schema, with their ledgers."""
        # Without force the broker only adds a version that says deleted, and keeps all ledgers.
        self._admin.delete(_path(TopicName.parse(topic)), params={"force": True})

    def _read(self, path: str) -> WriterSchema:
        return _schema(path, self._admin.get_json(path))


def _schema(path: str, answer: object) -> WriterSchema:
    if not isinstance(answer, dict) or "type" not in answer:
        raise PulsarError(f"GET {path}: the answer is not a schema")
    return WriterSchema(str(answer["type"]), str(answer.get("data") or ""))


class _EncodedSchema(Schema):  # type: ignore[misc]  # pulsar-client ships no types
    """Announces a schema to the broker, and takes payloads already encoded with it."""

    def __init__(self, schema: WriterSchema) -> None:
        definition = json.loads(schema.definition)
        super().__init__(None, _KINDS[schema.kind], definition, schema.kind)

    def encode(self, obj: bytes) -> bytes:
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


def for_encoded(schema: WriterSchema | None) -> Any:
    """Make the client's schema for encoded payloads; the broker adds the version to each message.

    Without a schema, or with one of another kind, the payload travels as plain bytes.
    """
    if schema is None or schema.kind not in _KINDS:
        return BytesSchema()
    return _EncodedSchema(schema)


def _path(topic: TopicName) -> str:
    # The broker decodes this path twice: once as a URL, once by its own Codec.
    local = quote(encode_local_name(topic.base.local_name), safe="")
    return f"/schemas/{quote(topic.tenant)}/{quote(topic.namespace)}/{local}/schema"
