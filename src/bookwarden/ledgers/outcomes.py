"""Outcomes of pending deletions, of what brokers dropped, and of copying ledgers; and the record kept of each."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from bookwarden.ledgers.kinds import Holder


class Outcome(enum.Enum):
    """The outcome of one pending deletion; the values stand in the outcome table and in metrics."""

    DELETED = "deleted"
    ALREADY_GONE = "already gone"
    STILL_REFERENCED = "still referenced"
    UNDONE = "undone"
    MISMATCH = "mismatch"
    INSIDE_LIST = "inside the list"
    DAMAGED_HOLDER = "damaged holder"  #: A node of its holder may be damaged (ledgers.node_doubts).
    MALFORMED = "malformed"
    RETRY = "retry"
    DELAYED = "delayed"
    WAITING = "waiting"
    GAVE_UP = "gave up"
    POISONOUS = "poisonous"
    WOULD_DELETE = "would delete"
    DIRECTIVE = "directive"  #: A switch directive, which is no mark.


class DropOutcome(enum.Enum):
    """The outcome of a look at what was dropped; the values stand in the outcome table and in metrics."""

    GONE = "gone"  #: As it should be.
    NAMED = "named again"  #: By this node or by another.
    MARKED = "marked"
    WOULD_MARK = "would mark"  #: In a dry run.
    INSIDE_LIST = "inside the list"  #: A topic lists older ledgers, or none at all: no trim, but a bad write.
    IN_TRASH = "in the trash"  #: Its marks are sent when its time there is over.
    LEFT = "left to the scan"  #: It cannot be marked from here.
    WAITING = "waiting"  #: It is looked at again.
    HANDED_OVER = "left to the sweep"  #: Too many are pending: it was marked before its time of grace was over.

    @property
    def is_there(self) -> bool:
        """Whether the ledger, or copy, is still there although nothing names it."""
        return self not in (
            *(DropOutcome.GONE, DropOutcome.NAMED, DropOutcome.WAITING, DropOutcome.HANDED_OVER),
            DropOutcome.IN_TRASH,
        )


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """One row of the outcome table (schemas/ledger_outcome.avsc); times are in milliseconds since the epoch."""

    ledger_id: int | None  #: None where the message named none.
    holder: str  #: Text of the holder; the message key where nothing could be read.
    component: str  #: Value of a LedgerComponent; empty where nothing could be read.
    ledger_type: str  #: Value of a LedgerType; empty where nothing could be read.
    outcome: Outcome | DropOutcome  #: See docs/sweep.md, and docs/follow.md.
    reason: str  #: For people; empty where the outcome says it all.
    attempts: int  #: Retries before this one.
    marked_at: int | None  #: By the clock of phase one; None where it wrote no time.
    published_at: int  #: When this message was published.
    decided_at: int  #: When the evidence was read.
    ledger_created_at: int | None  #: By the ledger's metadata, else by its node; None where unreadable.
    ledger_bytes: int | None  #: Length of the ledger; 0 while it is open, None where it was not readable.
    topic: str  #: Partition of the deletion topic that the message came from.
    message: str  #: ``ledger:entry:partition``, with ``:batch index`` behind it for a batched message.
    bookie_cluster: str  #: Those of the ledger, with commas, or the one in the mark; empty where none is registered.


class CopyOutcome(enum.Enum):
    """The outcome of copying one ledger to another bookie cluster; the values stand in reports and in metrics."""

    COPIED = "copied"  #: Written, read back from every bookie, and closed.
    COMPLETE = "complete"  #: A proven copy was there already.
    OPEN = "open"  #: It is still written where it is.
    GONE = "gone"  #: No node names it any more, or it was deleted; nothing of it is left on the target.
    DEFERRED = "deferred"  #: Nothing is wrong with it, and a later build may copy it.
    FAILED = "failed"  #: An operator has to look; the ledger stays where it is.
    LEFT_OUT = "left out"  #: It is outside what was asked for.


class CopyResult(NamedTuple):
    """The result of copying one ledger."""

    ledger_id: int  #: Of both, since a copy keeps it.
    outcome: CopyOutcome  #: What became of it.
    holder: Holder | None  #: None where its custom metadata names none, or was not read.
    entries: int = 0  #: Entries of the ledger; 0 where the outcome is neither COPIED nor COMPLETE.
    size: int = 0  #: Likewise its bytes, of one copy of each entry.
    reason: str = ""  #: For people; empty where the outcome says it all.
