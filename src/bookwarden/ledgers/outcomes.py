"""Outcomes: what can become of a pending deletion, and the record that is kept of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Outcome(enum.Enum):
    """What became of one pending deletion; the values stand in the outcome table and in metrics."""

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
    """One row of the outcome table (schemas/ledger_outcome.avsc); times are in milliseconds since the epoch.

    ``attempts`` counts the retries before this one. ``ledger_bytes`` is the ledger's length when it was read and
    None where it was not readable or still open. ``message`` is ``ledger:entry:partition:batch index``.
    """

    ledger_id: int | None
    holder: str
    component: str
    ledger_type: str
    outcome: Outcome
    reason: str
    attempts: int
    marked_at: int | None
    published_at: int
    decided_at: int
    ledger_created_at: int | None
    ledger_bytes: int | None
    topic: str
    message: str
    bookie_cluster: str
