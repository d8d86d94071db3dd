"""The pending deletion: the message that phase one sends and phase two sweeps (PIP-186)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from bookwarden.errors import FormatError, MalformedMarkError
from bookwarden.ledgers.kinds import KIND_BY_COMPONENT, Holder, LedgerComponent
from bookwarden.ledgers.managed_ledger import OffloadInfo, OffloadSegment, as_uuid
from bookwarden.ledgers.offloaded_copies import LEGACY_SEGMENT

# The end of the year 9999: tables, and most of their readers, know no later time.
LAST_MS: Final = 253_402_300_799_999
MAX_LEDGER_ID = 2**63 - 1


def is_time(milliseconds: int) -> bool:
    """Return whether a number can be the time of a clock."""
    return 0 <= milliseconds <= LAST_MS


class LedgerType(enum.Enum):
    """The copy of the ledger that is to go: the bookies' or the offloaded one."""

    LEDGER = "LEDGER"
    OFFLOAD_LEDGER = "OFFLOAD_LEDGER"


class Waiver(enum.Enum):
    """A reason to keep a ledger that an operator has overruled; the value travels in a property of the message."""

    INSIDE_LIST = "inside-list"  #: Its topic lists older ledgers without it.
    EMPTIED = "emptied"  #: Its topic lists no ledger at all.
    SUPERSEDED = "superseded"  #: Its holder names it, which brokers read from another bookie cluster.
    ROLLBACK_WINDOW = "rollback-window"  #: The switch to that other one can still be rolled back.


Request = tuple[LedgerType, int, str, UUID | None, str, frozenset[Waiver]]


@dataclass(frozen=True, slots=True)
class OffloadContext:
    """The place of an offloaded copy; ``msb`` and ``lsb`` make its UUID, signed 64-bit as in Java."""

    msb: int
    lsb: int
    driver_name: str
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def uuid(self) -> UUID:
        """The id that names the copy's objects."""
        return as_uuid(self.msb, self.lsb)


def contexts_of(offload: OffloadInfo | None) -> list[OffloadContext]:
    """List the places of the offloaded copies: of the whole ledger, and the segments of the former streaming offload.

    An incomplete attempt has a UUID too, and may have left objects; without a UUID nothing was begun.
    """
    if offload is None:
        return []
    copies: list[OffloadInfo | OffloadSegment] = [offload, *offload.segments]
    return [_context(copy) for copy in copies if copy.uid_msb != 0 or copy.uid_lsb != 0]


def _context(copy: OffloadInfo | OffloadSegment) -> OffloadContext:
    metadata = dict(copy.driver_metadata)
    if isinstance(copy, OffloadSegment):
        metadata[LEGACY_SEGMENT] = "true"
    return OffloadContext(copy.uid_msb, copy.uid_lsb, copy.driver_name, metadata)


@dataclass(frozen=True, slots=True)
class PendingDeletion:
    """One ledger, or one offloaded copy, that its holder wants gone."""

    topic_name: str  #: A full topic name, or the name of a managed ledger.
    component: LedgerComponent  #: The kind of its holder.
    ledger_type: LedgerType  #: The bookies' copy or the offloaded one.
    ledger_id: int  #: At most MAX_LEDGER_ID.
    cursor_name: str | None = None  #: The subscription, decoded; None where the kind needs none.
    schema_id: str | None = None  #: ``tenant/namespace/encoded``; None but for a schema.
    offload_context: OffloadContext | None = None  #: Of an offloaded copy; else None.
    bookie_cluster: str = ""  #: Empty where only one is known.
    marked_at: int = 0  #: In ms since the epoch; 0 where no time was written.
    reason: str = ""  #: For people.
    #: No field of the message but a property, which stays on it when it is sent on.
    waives: frozenset[Waiver] = frozenset()

    # Fast path of dataclasses.replace, must equal it: tests/unit/wire/test_avro.py
    def stamped(self, now_ms: int) -> PendingDeletion:
        """Return the same mark, made at this time."""
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

    @property
    def request(self) -> Request:
        """Return what is asked for: equal for marks of the same, whenever, why and by whom they were made."""
        uuid = self.offload_context.uuid if self.offload_context is not None else None
        return self.ledger_type, self.ledger_id, str(self.holder()), uuid, self.bookie_cluster, self.waives

    def validate(self) -> None:
        """Raise MalformedMarkError when a field that this component needs is missing or impossible."""
        if not 0 <= self.ledger_id <= MAX_LEDGER_ID:
            raise MalformedMarkError(f"ledgerId {self.ledger_id} is not between 0 and {MAX_LEDGER_ID}")
        if self.ledger_type is LedgerType.OFFLOAD_LEDGER and self.offload_context is None:
            raise MalformedMarkError(f"ledger {self.ledger_id}: an offloaded copy needs offloadContext")
        self.holder()

    def holder(self) -> Holder:
        """Return the holder whose metadata decides; raise MalformedMarkError when there is none."""
        try:
            return KIND_BY_COMPONENT[self.component].of_mark(self.topic_name, self.cursor_name, self.schema_id)
        except FormatError as error:
            raise MalformedMarkError(f"ledger {self.ledger_id}: {error}") from error


def mark_of_holder(ledger_id: int, holder: Holder, reason: str) -> PendingDeletion:
    """Make the mark of a holder's ledger in BookKeeper."""
    topic_name, cursor_name, schema_id = holder.mark_fields()
    return PendingDeletion(
        topic_name, holder.component, LedgerType.LEDGER, ledger_id, cursor_name, schema_id, reason=reason
    )


@dataclass(frozen=True, slots=True)
class MarkedLedger:
    """One pending deletion and the result of its send: confirmed, or failed for a reason."""

    mark: PendingDeletion
    failure: str | None = None

    @property
    def sent(self) -> bool:
        """Whether the broker confirmed it."""
        return self.failure is None


@dataclass(frozen=True, slots=True)
class MarkReport:
    """The pending deletions in the order given, each with the result of its send."""

    ledgers: tuple[MarkedLedger, ...] = ()

    @property
    def failed(self) -> tuple[MarkedLedger, ...]:
        """Those that were not confirmed."""
        return tuple(ledger for ledger in self.ledgers if not ledger.sent)

    def confirmed_ids(self) -> frozenset[int]:
        """The ledgers that may leave the metadata: every mark of theirs is confirmed."""
        return frozenset(ledger.mark.ledger_id for ledger in self.ledgers) - {
            ledger.mark.ledger_id for ledger in self.failed
        }
