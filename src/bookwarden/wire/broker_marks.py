"""Nodes of brokers that mark what leaves their metadata: the outbox, and what these brokers report and are asked to do.

Format: docs/broker-marks.md. The jar's side is broker/src/main/java/bookwarden/broker/marks: `OutboxFormat`,
`DeletionTopic`, `MarksEnabled` and `BrokerMarks`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
#: Whether brokers mark; without this node they do.
ENABLED_NODE: Final = "/bookwarden/broker-marks/enabled"
#: The mode in which the sweep alone deletes what is in the outbox.
TWO_PHASE: Final = "two-phase"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class MarksEnabled:
    """The state that an operator has set for all brokers: that they mark, or do not."""

    enabled: bool
    by: str = ""  #: User and machine; empty where nothing was ever set.
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class LeftToSweep:
    """The ledgers that a broker in mode two-phase left to the sweep, and how far that may be behind."""

    ledgers: int  #: Not deleted yet, about.
    bytes: int  #: Of these.
    oldest_s: int  #: Age of the oldest.
    max_s: int  #: The limit for that.
    max_bytes: int  #: The limit for ``bytes``.
    exceeded: str  #: The limit for which the broker deletes by itself now, ``age`` or ``bytes``; empty if it does not.


@dataclass(frozen=True, slots=True)
class MarkingBroker:
    """A broker with the jar's line, as its own node says. Counts begin with its start."""

    broker: str  #: HOST:PORT, as below /loadbalance/brokers.
    mode: str  #: Of broker.conf: ``mark`` or ``two-phase``.
    enabled: bool  #: Whether it marks now; what is in its outbox it forwards in any case.
    jar: str  #: Version.
    started_ms: int  #: In ms since the epoch, by its own clock.
    told_ms: int  #: When it said so.
    unmarked_writes: int  #: That went on although what they drop is not in the outbox.
    stored: Mapping[str, int]  #: Ledgers put into the outbox, by component, and ``OFFLOADED_COPY``.
    gone: int  #: Of these, deleted by the broker itself.
    sent: Mapping[str, int]  #: Marks that were confirmed, by type of ledger.
    failed: Mapping[str, int]  #: Sends that were not, likewise; they are repeated.
    left: LeftToSweep | None = None  #: Of the mode two-phase.


def encode_deletion_topic(
    topic: str, partitions: int, schema: str, subscription: str, *, retry_topic: str, dlq_topic: str
) -> bytes:
    """Return the value of DELETION_TOPIC_NODE; ``partitions`` is 0 for a topic without."""
    fields = {
        "format": _FORMAT,
        "topic": topic,
        "partitions": partitions,
        "schema": schema,
        "subscription": subscription,
        "retryTopic": retry_topic,
        "dlqTopic": dlq_topic,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_deletion_topic(raw: bytes) -> str:
    """Return the deletion topic that DELETION_TOPIC_NODE names; FormatError as for `decode_marks_enabled`."""
    try:
        return str(_fields(raw, DELETION_TOPIC_NODE)["topic"])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{DELETION_TOPIC_NODE} is not as it must be: {type(error).__name__} {error}") from error


def encode_marks_enabled(state: MarksEnabled) -> bytes:
    """Return the value of ENABLED_NODE."""
    fields = {"format": _FORMAT, "enabled": state.enabled, "by": state.by, "time": state.at_ms}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_marks_enabled(raw: bytes) -> MarksEnabled:
    """Return what ENABLED_NODE says; FormatError for another format, and for what is not as it must be."""
    try:
        fields = _fields(raw, ENABLED_NODE)
        if not isinstance(fields["enabled"], bool):
            raise TypeError("enabled is not true or false")
        return MarksEnabled(fields["enabled"], str(fields["by"]), int(fields["time"]))
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{ENABLED_NODE} is not as it must be: {type(error).__name__} {error}") from error


def decode_marking_broker(raw: bytes) -> MarkingBroker:
    """Return what a node below MARKING_BROKERS says; FormatError as for `decode_marks_enabled`."""
    try:
        fields = _fields(raw, MARKING_BROKERS)
        return MarkingBroker(
            broker=str(fields["broker"]),
            mode=str(fields["mode"]),
            enabled=bool(fields["enabled"]),
            jar=str(fields["jar"]),
            started_ms=int(fields["started"]),
            told_ms=int(fields["time"]),
            unmarked_writes=int(fields["unmarkedWrites"]),
            stored=_counts(fields["stored"]),
            gone=int(fields["gone"]),
            sent=_counts(fields["sent"]),
            failed=_counts(fields["failed"]),
            left=_left(fields.get("leftToSweep")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__} {error}"
        raise FormatError(f"a node below {MARKING_BROKERS} is not as it must be: {problem}") from error


def _left(fields: Mapping[str, Any] | None) -> LeftToSweep | None:
    if fields is None:
        return None
    return LeftToSweep(
        ledgers=int(fields["ledgers"]),
        bytes=int(fields["bytes"]),
        oldest_s=int(fields["oldestSeconds"]),
        max_s=int(fields["maxSeconds"]),
        max_bytes=int(fields["maxBytes"]),
        exceeded=str(fields["exceeded"]),
    )


def _counts(fields: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(count) for name, count in fields.items()}


def _fields(raw: bytes, what: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(raw)
    if fields["format"] != _FORMAT:
        raise FormatError(f"{what}: format {fields['format']!r} is not {_FORMAT}: another bookwarden wrote it")
    return fields


def decode_outbox_node(raw: bytes, reason: str) -> list[PendingDeletion]:
    """Return the marks that a node of the outbox stands for.

    Raises FormatError for another format, and for what is not as it must be.
    """
    try:
        fields = _fields(raw, "outbox")
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
