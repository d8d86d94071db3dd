"""The policies in an event of ``__change_events``, by which Pulsar keeps those of single topics.

Format: common.events.PulsarEvent of Pulsar 4.0, as Avro by its writer's schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final

import fastavro

from bookwarden.errors import FormatError
from bookwarden.wire.writer_schema import ParsedSchema

Quorums = tuple[int, int, int]

_SIZES: Final = ("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum")
# What fastavro raises for bytes that do not fit the schema, and a record of other fields.
_UNDECODABLE: Final = (EOFError, ValueError, IndexError, OverflowError, KeyError, TypeError, AttributeError)


def decode_topic_quorums(payload: bytes, written: ParsedSchema) -> tuple[str, Quorums] | None:
    """Decode a topic's full name, with ensemble, write and acknowledgement; None if it takes its namespace's.

    Raises FormatError for anything else than such an event.
    """
    found = decode_topic_policies(payload, written)
    persistence = None if found is None else found[1].get("persistence")
    if found is None or not persistence:
        return None
    try:
        first, second, third = (int(persistence[name]) for name in _SIZES)
    except _UNDECODABLE as error:
        raise _unlike(error) from error
    return found[0], (first, second, third)


def decode_topic_policies(payload: bytes, written: ParsedSchema) -> tuple[str, Mapping[str, Any]] | None:
    """Decode a topic's full name, and its policies by the fields of TopicPolicies; None where it has none any more.

    Raises FormatError for anything else than such an event.
    """
    try:
        event = fastavro.schemaless_reader(BytesIO(payload), written.definition, None)
        found = event["topicPoliciesEvent"] or {}
        policies = found.get("policies")
        if not policies:
            return None
        return f"{found['domain']}://{found['tenant']}/{found['namespace']}/{found['topic']}", dict(policies)
    except _UNDECODABLE as error:
        raise _unlike(error) from error


def _unlike(error: Exception) -> FormatError:
    return FormatError(f"an event about policies of topics is not as Pulsar writes it: {error!r}")
