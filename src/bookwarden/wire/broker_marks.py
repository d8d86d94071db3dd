"""Nodes of brokers that mark what leaves their metadata: the outbox, and the deletion topic that they send to.

Format: docs/broker-marks.md. The jar's side is broker/src/main/java/bookwarden/broker/marks: `OutboxFormat` and
`DeletionTopic`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Final
from uuid import UUID

from bookwarden.errors import FormatError
from bookwarden.ledgers.kinds import BucketHolder, CursorHolder, Holder, ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion, mark_of_holder

#: Below it a folder for each start of a broker, in that blocks, in these the nodes.
OUTBOX_ROOT: Final = "/bookwarden/outbox"
#: An ephemeral node of each broker that marks, named as its folder of the outbox.
MARKING_BROKERS: Final = "/bookwarden/broker-marks/brokers"
#: The deletion topic, for brokers.
DELETION_TOPIC_NODE: Final = "/bookwarden/broker-marks/deletion-topic"
_FORMAT: Final = 1


def encode_deletion_topic(topic: str, partitions: int, schema: str, subscription: str) -> bytes:
    """Return the value of DELETION_TOPIC_NODE; ``partitions`` is 0 for a topic without."""
    fields = {
        "format": _FORMAT,
        "topic": topic,
        "partitions": partitions,
        "schema": schema,
        "subscription": subscription,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_outbox_node(raw: bytes, reason: str) -> list[PendingDeletion]:
    """Return the marks that a node of the outbox stands for.

    Raises FormatError for another format, and for what is not as it must be.
    """
    try:
        fields = json.loads(raw)
        if fields["format"] != _FORMAT:
            raise FormatError(f"outbox: format {fields['format']!r} is not {_FORMAT}: another bookwarden wrote it")
        drivers = [(driver["name"], driver["metadata"]) for driver in fields["drivers"]]
        return [mark for drop in fields["drops"] for mark in _marks(drop, drivers, reason)]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FormatError(f"outbox: a node is not as it must be: {type(error).__name__} {error}") from error


def _marks(
    drop: Mapping[str, Any], drivers: list[tuple[str, Mapping[str, str]]], reason: str
) -> Iterable[PendingDeletion]:
    managed_ledger, cursor, time_ms = drop["managedLedger"], drop.get("cursor"), drop["time"]
    topic = ManagedLedgerHolder(managed_ledger)
    named: list[tuple[str, Holder]] = [("data", topic)]
    if cursor is not None:
        named = [
            ("cursors", CursorHolder(managed_ledger, cursor)),
            ("buckets", BucketHolder(managed_ledger, cursor)),
        ]
    for field, holder in named:
        # Each id is written as its distance from the one before.
        for ledger_id in accumulate(drop.get(field, ())):
            yield mark_of_holder(ledger_id, holder, reason).stamped(time_ms)
    for ledger_id, uuid, driver in drop.get("copies", ()):
        name, metadata = drivers[driver]
        half = UUID(uuid).int
        msb, lsb = (_signed(part) for part in (half >> 64, half & (2**64 - 1)))
        yield PendingDeletion(
            managed_ledger,
            topic.component,
            LedgerType.OFFLOAD_LEDGER,
            ledger_id,
            offload_context=OffloadContext(msb, lsb, name, metadata),
            marked_at=time_ms,
            reason=reason,
        )


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
