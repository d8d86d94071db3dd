"""Last checks of a data ledger whose topic exists, with the bookies and BookKeeper's metadata, right before its delete.

A ledger that is not closed may have entries, which its metadata does not say: one inside its topic's list goes only if
the bookies say that it has none. And a topic whose listed ledgers are all gone from BookKeeper does not lose this one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bookwarden.deletion.phase_two.decide import Action, Decision, DeletionPolicy, judge_proven, limit_retries, retry
from bookwarden.deletion.ports import LastEntryReader, LedgerCatalog
from bookwarden.errors import BookieError, FormatError, NotFoundError
from bookwarden.ledgers.holes import has_entries
from bookwarden.ledgers.kinds import Holder, ManagedLedgerHolder
from bookwarden.ledgers.live_references import LiveReferences, References
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, StoredLedger
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion, Waiver
from bookwarden.ledgers.received import ReceivedMark

logger = logging.getLogger(__name__)
_Decided = tuple[ReceivedMark, Decision]

# Each silent bookie costs a connection's timeout; after so many ledgers the others wait for a retry.
_MOST_SILENT = 3
_GONE = Decision(Action.FINISH, Outcome.ALREADY_GONE, "gone between check and delete")


class TopicLists:
    """Checks data ledgers that are about to go; ``entries`` is None without bookies to ask."""

    def __init__(self, catalog: LedgerCatalog, entries: LastEntryReader | None, policy: DeletionPolicy) -> None:
        self._catalog = catalog
        self._entries = entries
        self._policy = policy

    def carry_out(
        self,
        decided: Sequence[_Decided],
        readings: Mapping[int, LedgerReading],
        references: Mapping[Holder, References],
    ) -> list[_Decided]:
        """Keep ledgers that must not go; other decisions stay as they are. StoreError as for the catalog."""
        asked = [
            _Asked.of(message.mark, decision, readings, references, message.waives) for message, decision in decided
        ]
        after = self._settle(asked, [decision for _, decision in decided])
        for (message, _), decision in zip(decided, after, strict=True):
            if decision.outcome is Outcome.INSIDE_LIST and message.mark is not None:
                logger.warning("ledger %d is kept: %s", message.mark.ledger_id, decision.reason)
        return [
            (message, limit_retries(decision, message.attempts, self._policy))
            for (message, _), decision in zip(decided, after, strict=True)
        ]

    def settle(
        self, mark: PendingDeletion, decision: Decision, reading: LedgerReading, references: References
    ) -> Decision:
        """Do the same for a single decision about a mark that waives nothing."""
        readings: dict[int, LedgerReading] = {mark.ledger_id: reading}
        found: dict[Holder, References] = {mark.holder(): references}
        return self._settle([_Asked.of(mark, decision, readings, found)], [decision])[0]

    def _settle(self, asked: Sequence[_Asked | None], decisions: Sequence[Decision]) -> list[Decision]:
        proofs = _Proofs(self._entries)
        after = [
            proofs.settle(one) if one is not None and decision.action is Action.PROVE_EMPTY else decision
            for one, decision in zip(asked, decisions, strict=True)
        ]
        going = [
            (place, one)
            for place, (one, decision) in enumerate(zip(asked, after, strict=True))
            if one is not None and one.counts and decision.action is Action.DELETE
        ]
        bare = self._without_ledgers([one for _, one in going])
        for place, one in going:
            if one.holder in bare:
                after[place] = retry(
                    f"{one.holder} exists, and BookKeeper has none of the ledgers that it lists: without this one it "
                    "would have no ledger at all (docs/orphans.md, inside the list)"
                )
        return after

    def _without_ledgers(self, going: Iterable[_Asked]) -> frozenset[Holder]:
        """Return the topics whose listed ledgers are all gone from BookKeeper."""
        listed: dict[Holder, frozenset[int]] = {one.holder: one.references.ledger_ids for one in going}
        # Mostly the ledger that is being written is there, which settles it.
        missing = self._absent({holder: [max(ids)] for holder, ids in listed.items() if ids})
        return self._absent({holder: sorted(listed[holder]) for holder in missing})

    def _absent(self, wanted: Mapping[Holder, Sequence[int]]) -> frozenset[Holder]:
        ids = list(dict.fromkeys(ledger_id for some in wanted.values() for ledger_id in some))
        if not ids:
            return frozenset()
        there = {one.ledger_id for one in self._catalog.read_many(ids) if not isinstance(one, AbsentLedger)}
        return frozenset(holder for holder, some in wanted.items() if there.isdisjoint(some))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A data ledger of a topic that exists, which is about to go."""

    mark: PendingDeletion
    holder: ManagedLedgerHolder
    reading: StoredLedger
    references: LiveReferences
    waives: frozenset[Waiver]

    @classmethod
    def of(
        cls,
        mark: PendingDeletion | None,
        decision: Decision,
        readings: Mapping[int, LedgerReading],
        references: Mapping[Holder, References],
        waives: frozenset[Waiver] = frozenset(),
    ) -> _Asked | None:
        """Return the ledger to check; None where the mark needs no check."""
        if mark is None or decision.action not in (Action.DELETE, Action.PROVE_EMPTY):
            return None
        holder = mark.holder()
        reading, found = readings.get(mark.ledger_id), references.get(holder)
        if mark.ledger_type is not LedgerType.LEDGER or not isinstance(holder, ManagedLedgerHolder):
            return None
        if not isinstance(reading, StoredLedger) or not isinstance(found, LiveReferences) or not found.exists:
            return None
        return cls(mark, holder, reading, found, waives)

    @property
    def counts(self) -> bool:
        """Whether its delete could leave the topic without data; one with offloaded copies has these."""
        return (
            has_entries(self.reading.metadata) is True
            and not self.references.offloaded
            and Waiver.EMPTIED not in self.waives
        )


class _Proofs:
    """Asks the bookies whether ledgers have entries, as long as they answer."""

    def __init__(self, entries: LastEntryReader | None) -> None:
        self._entries = entries
        self._silent = 0
        self._reason = ""

    def settle(self, asked: _Asked) -> Decision:
        """Decide about a ledger that goes only if it has no entry."""
        if self._entries is None:
            return retry("it is not closed and may have entries, and there are no bookies to ask")
        if self._silent >= _MOST_SILENT:
            return retry(self._reason)
        try:
            last = self._entries.last_entry(asked.mark.ledger_id)
        except NotFoundError:
            return _GONE
        except (BookieError, FormatError) as error:
            self._silent += 1
            self._reason = f"it is not closed, and whether it has entries is not known: {error}"
            return retry(self._reason)
        if last is None:
            return Decision(Action.DELETE, Outcome.DELETED, "")
        return judge_proven(asked.mark, asked.references)
