"""The quorums in an event of ``__change_events``, by which Pulsar keeps the policies of single topics.

Format: common.events.PulsarEvent of Pulsar 4.0, as Avro by its writer's schema.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

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
    try:
        event = fastavro.schemaless_reader(BytesIO(payload), written.definition, None)
        found = event["topicPoliciesEvent"]
        persistence = ((found or {}).get("policies") or {}).get("persistence")
        if not persistence:
            return None
        first, second, third = (int(persistence[name]) for name in _SIZES)
        name = f"{found['domain']}://{found['tenant']}/{found['namespace']}/{found['topic']}"
    except _UNDECODABLE as error:
        raise FormatError(f"an event about policies of topics is not as Pulsar writes it: {error!r}") from error
    return name, (first, second, third)
