"""The pending deletion: the message that phase one sends and phase two sweeps (PIP-186)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import UUID

from bookwarden.errors import FormatError, MalformedMarkError
from bookwarden.ledgers.holders import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.managed_ledger import as_uuid
from bookwarden.ledgers.names import TopicName, encode_local_name

MAX_LEDGER_ID = 2**63 - 1


class LedgerComponent(enum.Enum):
    """What of Pulsar the ledger belonged to.

    The first three are PIP-186's enum names; the others are ours, since the proposal has none for these ledgers.
    """

    MANAGED_LEDGER = "MANAGED_LEDGER"
    MANAGED_CURSOR = "MANAGED_CURSOR"
    SCHEMA_STORAGE = "SCHEMA_STORAGE"
    COMPACTED_LEDGER = "COMPACTED_LEDGER"
    DELAYED_INDEX_BUCKET = "DELAYED_INDEX_BUCKET"


class LedgerType(enum.Enum):
    """Whether the bookies' copy or the offloaded copy is to go."""

    LEDGER = "LEDGER"
    OFFLOAD_LEDGER = "OFFLOAD_LEDGER"


class Waiver(enum.Enum):
    """What an operator has said to be no reason to keep a ledger; the values travel in a property of the message."""

    INSIDE_LIST = "inside-list"
    EMPTIED = "emptied"


@dataclass(frozen=True, slots=True)
class OffloadContext:
    """Where an offloaded copy lies: ``msb`` and ``lsb`` make its UUID, signed 64-bit as in Java."""

    msb: int
    lsb: int
    driver_name: str
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def uuid(self) -> UUID:
        """The id that names the copy's objects."""
        return as_uuid(self.msb, self.lsb)


@dataclass(frozen=True, slots=True)
class PendingDeletion:
    """One ledger, or one offloaded copy, that its holder wants gone.

    ``topic_name`` is a full topic name or that of a managed ledger; ``cursor_name`` the subscription, decoded;
    ``schema_id`` is ``tenant/namespace/encoded`` for a schema; ``marked_at`` is in milliseconds since the epoch.
    ``waives`` is not among the fields of the message but one of its properties, which stays on it when it is sent on.
    """

    topic_name: str
    component: LedgerComponent
    ledger_type: LedgerType
    ledger_id: int
    cursor_name: str | None = None
    schema_id: str | None = None
    offload_context: OffloadContext | None = None
    bookie_cluster: str = ""
    marked_at: int = 0
    reason: str = ""
    waives: frozenset[Waiver] = frozenset()

    def stamped(self, now_ms: int) -> PendingDeletion:
        """Return the same mark, made at this time; dataclasses.replace takes three times as long."""
        return PendingDeletion(
            self.topic_name,
            self.component,
            self.ledger_type,
            self.ledger_id,
            self.cursor_name,
            self.schema_id,
            self.offload_context,
            self.bookie_cluster,
            now_ms,
            self.reason,
            self.waives,
        )

    def validate(self) -> None:
        """Raise MalformedMarkError when a field that this component needs is missing or impossible."""
        if not 0 <= self.ledger_id <= MAX_LEDGER_ID:
            raise MalformedMarkError(f"ledgerId {self.ledger_id} is not between 0 and {MAX_LEDGER_ID}")
        if self.ledger_type is LedgerType.OFFLOAD_LEDGER and self.offload_context is None:
            raise MalformedMarkError(f"ledger {self.ledger_id}: an offloaded copy needs offloadContext")
        self.holder()

    def holder(self) -> Holder:
        """Name the holder whose metadata decides; raise MalformedMarkError when there is none."""
        try:
            if self.component is LedgerComponent.SCHEMA_STORAGE:
                return _schema_holder(self.topic_name, self.schema_id)
            if self.component is LedgerComponent.MANAGED_LEDGER:
                return _managed_ledger_holder(self.topic_name)
            managed_ledger = _managed_ledger_holder(self.topic_name).name
            if self.component is LedgerComponent.COMPACTED_LEDGER:
                return CompactedHolder(_of_named_topic(managed_ledger))
            if not self.cursor_name:
                raise FormatError("the ledger of a cursor, or of its delayed messages, needs cursorName")
            cursor = encode_local_name(self.cursor_name)
            if self.component is LedgerComponent.DELAYED_INDEX_BUCKET:
                return BucketHolder(_of_named_topic(managed_ledger), cursor)
            return CursorHolder(managed_ledger, cursor)
        except FormatError as error:
            raise MalformedMarkError(f"ledger {self.ledger_id}: {error}") from error


def _schema_holder(topic_name: str, schema_id: str | None) -> SchemaHolder:
    """Name the schema by its id, unless that is the number that Pulsar's own code has instead."""
    if schema_id and "/" in schema_id:
        TopicName.of_schema(schema_id)
        return SchemaHolder(schema_id)
    return SchemaHolder(_topic(topic_name).schema_id)


# The marks of one topic come together; reading its name anew for each would cost more than decoding them.
@lru_cache(maxsize=8192)
def _managed_ledger_holder(topic_name: str) -> ManagedLedgerHolder:
    return ManagedLedgerHolder(_topic(topic_name).managed_ledger)


def _of_named_topic(managed_ledger: str) -> str:
    """Return the managed ledger; FormatError if its topic's full name, which the ledger has, means another one."""
    name = str(TopicName.of_managed_ledger(managed_ledger))
    if TopicName.parse(name).managed_ledger != managed_ledger:
        raise FormatError(f"the topic of managed ledger {managed_ledger} has the full name of another")
    return managed_ledger


def _topic(topic_name: str) -> TopicName:
    if not topic_name:
        raise FormatError("topicName is missing")
    if "://" not in topic_name and topic_name.count("/") >= 3:
        topic = TopicName.of_managed_ledger(topic_name)
    else:
        topic = TopicName.parse(topic_name)
    if topic.domain != "persistent":
        raise FormatError(f"topic {topic_name!r} has no ledgers, since it is {topic.domain}")
    return topic
