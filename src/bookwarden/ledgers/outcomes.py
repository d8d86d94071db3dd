"""Outcomes of pending deletions, and the record that is kept of each."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Outcome(enum.Enum):
    """The outcome of one pending deletion; the values stand in the outcome table and in metrics."""

    DELETED = "deleted"
    ALREADY_GONE = "already gone"
    STILL_REFERENCED = "still referenced"
    UNDONE = "undone"
    MISMATCH = "mismatch"
    INSIDE_LIST = "inside the list"
    MALFORMED = "malformed"
    RETRY = "retry"
    DELAYED = "delayed"
    WAITING = "waiting"
    GAVE_UP = "gave up"
    POISONOUS = "poisonous"
    WOULD_DELETE = "would delete"


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """One row of the outcome table (schemas/ledger_outcome.avsc); times are in milliseconds since the epoch."""

    ledger_id: int | None  #: None where the message named none.
    holder: str  #: Text of the holder; the message key where nothing could be read.
    component: str  #: Value of a LedgerComponent; empty where nothing could be read.
    ledger_type: str  #: Value of a LedgerType; empty where nothing could be read.
    outcome: Outcome  #: See docs/sweep.md.
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
