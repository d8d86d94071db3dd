"""Explanation of one ledger: its metadata, its references, and the sweep's judgement of a mark of it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.deletion.phase_two.decide import in_cluster
from bookwarden.deletion.phase_two.verifying import Verifier
from bookwarden.errors import FormatError
from bookwarden.ledgers.custom_metadata import identify_holder
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.live_references import LiveReferences, References
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, UnreadableLedger
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.ledgers.received import FIRST_READ, RECONSUME_TIMES, ReceivedMark
from bookwarden.ledgers.references import Doubt, Reference, ReferenceIndex

_VERDICTS = {
    Outcome.DELETED: "it would be deleted: nothing in its holder's metadata names it",
    Outcome.DELAYED: "it would be deleted once it has waited: nothing in its holder's metadata names it",
    Outcome.WAITING: "nothing yet: the mark would wait, without a retry on its count",
    Outcome.STILL_REFERENCED: "it would be kept: its holder, or a shadow topic of it, names it",
    Outcome.INSIDE_LIST: "it would be kept, and its mark would go to the DLQ: its topic's list lost it",
    Outcome.DAMAGED_HOLDER: "it would be kept, and its mark would go to the DLQ: a node of its holder may be damaged",
    Outcome.UNDONE: "it would be kept: an undo has put it back",
    Outcome.ALREADY_GONE: "nothing: it is gone already",
    Outcome.MISMATCH: "it would be kept: its custom metadata does not fit its holder",
    Outcome.RETRY: "nothing yet: the mark would be retried",
    Outcome.GAVE_UP: "nothing: the mark would go to the DLQ",
}
# Some reasons are taken for lasting ones only at the second look.
_ATTEMPTS: Final = 1
_LEFT_BEHIND = "it would be deleted: the broker let go of it, since it was offloaded, and left it behind"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A ledger, its holder and its references, and the sweep's judgement of a mark of it."""

    reading: LedgerReading  #: Its metadata now.
    holder: Holder | None  #: Named by its custom metadata; None if that names none.
    references: References | None  #: What the holder names; None if there is no holder that a mark could name.
    outcome: Outcome | None  #: Of a mark; None if no mark of it can be made.
    verdict: str  #: The sweep's action on a mark, for people.
    reason: str  #: Of the verdict, for people.
    everywhere: tuple[Reference, ...] | None = None  #: All places in the metadata that name it; None if not searched.
    doubts: tuple[Doubt, ...] = ()  #: Places that could name it and cannot be read.

    @property
    def referenced(self) -> bool | None:
        """Whether the holder, or a shadow topic of it, names the ledger; None when that is not known."""
        if not isinstance(self.references, LiveReferences):
            return None
        return self.references.names(self.reading.ledger_id)


def explain_ledger(ledger_id: int, verifier: Verifier) -> Explanation:
    """Read a ledger's state, and verify a mark of it after its grace period, as the sweep does; nothing is changed."""
    readings = verifier.read([ledger_id])
    # Phase one's marks by id name no bookie cluster.
    reading = in_cluster("", readings[ledger_id])
    if isinstance(reading, AbsentLedger):
        return _without_mark(reading, _VERDICTS[Outcome.ALREADY_GONE], "BookKeeper has no metadata of this ledger")
    if isinstance(reading, UnreadableLedger):
        return _without_mark(reading, _VERDICTS[Outcome.RETRY], reading.reason)
    holder = identify_holder(reading.metadata.custom)
    if holder is None:
        text = "its custom metadata names no topic, cursor or schema of Pulsar's"
        return _without_mark(reading, "it would be kept, whatever a mark of it says", text)
    try:
        mark = mark_of_holder(ledger_id, holder, "")
        mark.validate()
    except FormatError as error:
        return _without_mark(reading, "it would be kept, whatever a mark of it says", str(error), holder)
    first_read_ms = verifier.now_ms() - math.ceil(verifier.policy.still_referenced_grace * 1000)
    properties = {FIRST_READ: str(first_read_ms), RECONSUME_TIMES: str(_ATTEMPTS)}
    message = ReceivedMark("", "", str(holder), b"", properties, first_read_ms, mark=mark)
    ((found,), _) = verifier.verify([(holder, message)], readings)
    decision, references = found.decision, found.references
    left_behind = isinstance(references, LiveReferences) and ledger_id in references.left_behind
    is_left = left_behind and decision.outcome is Outcome.DELETED
    verdict = _LEFT_BEHIND if is_left else _VERDICTS[decision.outcome]
    reason = decision.reason
    if decision.outcome is Outcome.STILL_REFERENCED and not left_behind:
        reason = "a ledger that is referenced is never deleted"
    if decision.outcome is Outcome.DELETED and isinstance(references, LiveReferences) and not references.exists:
        reason = "the holder does not exist any more"
    return Explanation(reading, holder, references, decision.outcome, verdict, reason)


def in_trash(explanation: Explanation, kept: Collection[int]) -> Explanation:
    """Return it with a verdict that says so if brokers keep its ledger in the trash."""
    if explanation.reading.ledger_id not in kept or isinstance(explanation.reading, AbsentLedger):
        return explanation
    verdict = (
        f"it is kept in the trash (docs/trash.md), and its mark is sent later. By a mark now {explanation.verdict}"
    )
    return replace(explanation, verdict=verdict)


def find_everywhere(explanation: Explanation, search: ReferencePieces) -> Explanation:
    """Search the metadata of all roots for the ledger; StoreError if one of them does not answer."""
    index = ReferenceIndex([explanation.reading.ledger_id])
    search.read_into(index)
    named = index.who_names(explanation.reading.ledger_id)
    return replace(explanation, everywhere=named, doubts=index.doubts_about(explanation.holder))


def _without_mark(reading: LedgerReading, verdict: str, reason: str, holder: Holder | None = None) -> Explanation:
    return Explanation(reading, holder, None, None, verdict, reason)
