"""What should become of each ledger of the demo, and whether it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bookwarden.demo.census import CountedLedger, Whereabouts
from bookwarden.ledgers.outcomes import Outcome

RETRY, DELETED, GONE = Outcome.RETRY.value, Outcome.DELETED.value, Outcome.ALREADY_GONE.value


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to a ledger in the demo: a word for people, its possible last outcomes, and if it stays.

    ``retried`` asks for at least one retry before the last outcome.
    """

    story: str
    last_outcomes: frozenset[str]
    stays: bool
    retried: bool = False


KEPT = Fate("untouched", frozenset(), stays=True)
TRIMMED = Fate("trimmed in the store", frozenset({DELETED}), stays=False)
TOPIC_DELETED = Fate("topic deleted by the broker", frozenset({GONE, DELETED}), stays=False)
FORGED = Fate("forged pending deletion", frozenset({Outcome.MISMATCH.value}), stays=True)
DELAYED = Fate("marked, update comes late", frozenset({DELETED}), stays=False, retried=True)
DAMAGED = Fate("metadata damaged", frozenset({Outcome.GAVE_UP.value}), stays=True, retried=True)


@dataclass(frozen=True, slots=True)
class Ending:
    """One line of the demo's table: a ledger before, its outcomes in order, and after."""

    ledger: CountedLedger
    fate: Fate
    outcomes: tuple[str, ...]
    in_metadata: bool
    on_bookie: bool

    @property
    def as_it_should(self) -> bool:
        """Whether outcomes, ZooKeeper and the bookie all say what the fate asks for."""
        return self._outcomes_fit() and self.in_metadata == self.fate.stays and self._bookie_fits()

    def _outcomes_fit(self) -> bool:
        if not self.fate.last_outcomes:
            return not self.outcomes
        if not self.outcomes or self.outcomes[-1] not in self.fate.last_outcomes:
            return False
        *earlier, _ = self.outcomes
        return set(earlier) <= {RETRY} and (not self.fate.retried or bool(earlier))

    def _bookie_fits(self) -> bool:
        return self.on_bookie == (self.fate.stays and self.ledger.on_bookie)


def endings(
    census: Sequence[CountedLedger],
    fates: Mapping[int, Fate],
    outcomes: Mapping[int, Sequence[str]],
    after: Whereabouts,
) -> list[Ending]:
    """Put together what was, what happened and what is."""
    return [
        Ending(
            ledger,
            fates.get(ledger.ledger_id, KEPT),
            tuple(outcomes.get(ledger.ledger_id, ())),
            ledger.ledger_id in after.in_metadata,
            ledger.ledger_id in after.on_bookie,
        )
        for ledger in census
    ]
