"""Verification of marks: read what they are about, decide, and ask the guards. Changes nothing."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.phase_two.decide import (
    Decision,
    DeletionPolicy,
    MarkContext,
    decide,
    in_its_place,
    limit_retries,
)
from bookwarden.deletion.phase_two.guards import DeletionCandidate, Guard, reviewed
from bookwarden.deletion.phase_two.superseded import judge_superseded
from bookwarden.deletion.ports import BookieClusters, LedgerCatalog, NoBookieClusters
from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.live_references import References
from bookwarden.ledgers.metadata import LedgerReading, StoredLedger
from bookwarden.ledgers.pending_deletion import PendingDeletion, Waiver
from bookwarden.ledgers.received import ReceivedMark

_NO_NAMES: Final = frozenset[str]()


class VerifyResult(NamedTuple):
    """The marks with the decisions about them, in order, and when they were made."""

    candidates: list[DeletionCandidate]
    now_ms: int  #: In ms since the epoch.


class Verifier:
    """Verification of marks, for the sweep and for `ledger explain`; one object per process.

    ``clock_of`` tells the time of the store of a bookie cluster, by its name, or of the registry, for None.
    """

    def __init__(
        self,
        catalog: LedgerCatalog,
        references: MetadataReferences,
        policy: DeletionPolicy,
        guards: Sequence[Guard],
        *,
        clusters: BookieClusters | None = None,
        clock: Callable[[], float] = time.time,
        clock_of: Callable[[str | None], float] | None = None,
    ) -> None:
        self._catalog = catalog
        self._references = references
        self._guards = guards
        self._clock = clock
        self._clock_of = clock_of or (lambda _: clock())
        self.policy = policy
        self.clusters = clusters or NoBookieClusters()

    def now_ms(self) -> int:
        """Return the time, in ms since the epoch."""
        return int(self._clock() * 1000)

    def read(self, ledger_ids: Sequence[int]) -> dict[int, LedgerReading]:
        """Read each ledger once; StoreError as of the catalog."""
        distinct = list(dict.fromkeys(ledger_ids))
        return dict(zip(distinct, self._catalog.read_many(distinct), strict=True))

    def verify(
        self, marks: Sequence[tuple[Holder, ReceivedMark]], readings: Mapping[int, LedgerReading]
    ) -> VerifyResult:
        """Read the references of the holders, decide about their marks, and ask the guards.

        ``readings`` of the ledgers were read just now. Raises StoreError when a store does not answer.
        """
        ledgers: defaultdict[Holder, list[int]] = defaultdict(list)
        for holder, message in marks:
            ledgers[holder].append(mark_of(message).ledger_id)
        references = self._references.read(list(ledgers), ledgers)
        now_ms = self.now_ms()
        candidates = []
        for holder, message in marks:
            mark = mark_of(message)
            reading, found, waives = readings[mark.ledger_id], references[holder], message.waives
            decision = self._decide(mark, message, waives, reading, found, now_ms)
            candidates.append(DeletionCandidate(message, mark, holder, reading, found, waives, decision))
        return VerifyResult(reviewed(candidates, self._guards, self.policy), now_ms)

    def _decide(
        self,
        mark: PendingDeletion,
        message: ReceivedMark,
        waives: frozenset[Waiver],
        reading: LedgerReading,
        references: References,
        now_ms: int,
    ) -> Decision:
        names = self.clusters.names() if mark.bookie_cluster else _NO_NAMES
        context = MarkContext(
            *(message.attempts, message.age(now_ms), now_ms, message.verified_at, waives, names),
            store_now_ms=self._store_now_ms(waives, reading),
        )
        if Waiver.SUPERSEDED in waives:
            active = self.clusters.active()
            judged = judge_superseded(mark, reading, references, active, context, self.policy)
            return limit_retries(judged, message.attempts, self.policy)
        return decide(mark, in_its_place(mark, reading), references, context, self.policy)

    def _store_now_ms(self, waives: frozenset[Waiver], reading: LedgerReading) -> int | None:
        """Return the earliest time of the stores whose times count; None where no bookie cluster is registered."""
        if Waiver.SUPERSEDED in waives:
            return int(self._clock_of(None) * 1000)
        places = reading.places if isinstance(reading, StoredLedger) else ()
        names = {place.bookie_cluster for place in places} - {""}
        return min((int(self._clock_of(name) * 1000) for name in names), default=None)


def mark_of(message: ReceivedMark) -> PendingDeletion:
    """Return the mark of a message; MalformedMarkError if there is none."""
    if message.mark is None:
        raise MalformedMarkError(message.problem or "no pending deletion")
    return message.mark
