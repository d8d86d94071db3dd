"""The ledgers of a source cluster, sorted before any of them is copied: to be copied, whole already, or to stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bookwarden.ledgers.custom_metadata import identify_holder, is_unfinished, names_nobody, why_not_superseded
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerReading, LedgerState, place_in
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.switching.inventory import NOT_OURS, OTHER, UNREADABLE
from bookwarden.switching.moving.scope import Route
from bookwarden.switching.owners import is_ours
from bookwarden.switching.registry import Registry


class Candidate(NamedTuple):
    """A ledger of the source; without an outcome it is to be copied."""

    ledger_id: int  #: Of its metadata on the source.
    kind: str  #: For people.
    holder: Holder | None  #: None where nothing tells it.
    size: int  #: In bytes, of one copy of each entry; 0 while it is open.
    entries: int = 0  #: Of it; 0 while it is open.
    outcome: CopyOutcome | None = None  #: COMPLETE or LEFT_OUT; OPEN and FAILED for one that is to be looked at again.


def candidate_of(
    ledger_id: int,
    metadata: LedgerMetadata | None,
    registry: Registry,
    source: str,
    *,
    wanted: Callable[[Holder], bool],
    holder_of: Callable[[int], Holder | None] = lambda _: None,
) -> Candidate | None:
    """Sort a ledger by its metadata on the source, None for what is not understood.

    None if it is another Pulsar cluster's in a shared source; elsewhere each ledger is sorted, and one of Pulsar's that
    is not ours FAILED, since the registry may be wrong. ``holder_of`` says whose a ledger is that does not say it.
    """
    shared = registry.cluster(source).shared
    if metadata is None:
        # Whoever it belongs to: that it cannot be copied has to be told.
        return None if shared else Candidate(ledger_id, UNREADABLE, None, 0)
    ours = is_ours(registry, registry.cluster(source), ledger_id, metadata.custom)
    if shared and not ours:
        return None
    holder = holder_of(ledger_id) if names_nobody(metadata.custom) else identify_holder(metadata.custom)
    size, entries = metadata.length, 1 + (-1 if metadata.last_entry_id is None else metadata.last_entry_id)
    kind = NOT_OURS if not ours else OTHER if holder is None else holder.ledgers_label
    if holder is None or is_unfinished(metadata) or not wanted(holder):
        return Candidate(ledger_id, kind, holder, size, entries, CopyOutcome.LEFT_OUT)
    if not ours:
        return Candidate(ledger_id, kind, holder, size, entries, CopyOutcome.FAILED)
    outcome = None if metadata.state is LedgerState.CLOSED else CopyOutcome.OPEN
    return Candidate(ledger_id, kind, holder, size, entries, outcome)


def with_target(candidate: Candidate, reading: LedgerReading, route: Route) -> Candidate:
    """Return a closed one as complete, if the target is read to have it whole: no bookie needs to be asked then."""
    former, kept = place_in(reading, route.source), place_in(reading, route.target)
    if former is None or kept is None or why_not_superseded(former, kept, route.target) is not None:
        return candidate
    return candidate._replace(outcome=CopyOutcome.COMPLETE)
