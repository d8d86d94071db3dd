"""Counts of a build: its ledgers by outcome and kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bookwarden.errors import FormatError
from bookwarden.ledgers.outcomes import CopyOutcome

#: The outcomes after which a ledger is whole on the target.
DONE: Final = (CopyOutcome.COPIED, CopyOutcome.COMPLETE)
#: Those that a later build may change by itself.
LATER: Final = (CopyOutcome.OPEN, CopyOutcome.DEFERRED)
#: Those after which a ledger stays where it is, and a person should know it; the worst comes first.
STAYING: Final = (CopyOutcome.FAILED, CopyOutcome.OPEN, CopyOutcome.DEFERRED)
_BYTES: Final = "bytes"


@dataclass(slots=True)
class CopyCounts:
    """Ledgers, and their bytes, by outcome and kind; the kinds are words for people."""

    ledgers: Counter[tuple[CopyOutcome, str]] = field(default_factory=Counter)
    sizes: Counter[tuple[CopyOutcome, str]] = field(default_factory=Counter)

    def add(self, outcome: CopyOutcome, kind: str, size: int) -> None:
        """Count one ledger of so many bytes."""
        self.ledgers[outcome, kind] += 1
        self.sizes[outcome, kind] += size

    def plus(self, other: CopyCounts) -> CopyCounts:
        """Return the sum of both."""
        return CopyCounts(self.ledgers + other.ledgers, self.sizes + other.sizes)

    def of(self, *outcomes: CopyOutcome) -> int:
        """Return how many ledgers have one of these outcomes."""
        return sum(number for (outcome, _), number in self.ledgers.items() if outcome in outcomes)

    def size_of(self, *outcomes: CopyOutcome) -> int:
        """Likewise their bytes."""
        return sum(size for (outcome, _), size in self.sizes.items() if outcome in outcomes)

    def in_order(self) -> list[tuple[CopyOutcome, str]]:
        """Return what there are some of, in the order of the outcomes."""
        order = list(CopyOutcome)
        return sorted(self.ledgers, key=lambda key: (order.index(key[0]), key[1]))

    def notes(self, before: str = "") -> dict[str, int]:
        """Return them as figures by name, each with this text before it, as the seal of a file has them."""
        found: dict[str, int] = {}
        for (outcome, kind), number in self.ledgers.items():
            found[f"{before}{outcome.value}/{kind}"] = number
            found[f"{before}{outcome.value}/{kind}/{_BYTES}"] = self.sizes[outcome, kind]
        return found

    def add_notes(self, notes: Mapping[str, int], before: str = "") -> None:
        """Add what `notes` returned; figures of other names are passed over."""
        for name, number in notes.items():
            outcome, _, kind = name.removeprefix(before).partition("/")
            if name.startswith(before) and kind and outcome in _OUTCOMES:
                kind, _, unit = kind.partition("/")
                (self.sizes if unit == _BYTES else self.ledgers)[_OUTCOMES[outcome], kind] += number

    def as_json(self) -> list[dict[str, Any]]:
        """Return them as values of JSON."""
        return [
            {"outcome": key[0].value, "kind": key[1], "ledgers": self.ledgers[key], "bytes": self.sizes[key]}
            for key in self.in_order()
        ]

    @classmethod
    def of_json(cls, rows: Sequence[Mapping[str, Any]]) -> CopyCounts:
        """Read what `as_json` returned; FormatError if it is something else."""
        counts = cls()
        try:
            for row in rows:
                key = CopyOutcome(row["outcome"]), str(row["kind"])
                counts.ledgers[key] += int(row["ledgers"])
                counts.sizes[key] += int(row["bytes"])
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"these are no counts of a build: {error}") from error
        return counts


_OUTCOMES: Final = {outcome.value: outcome for outcome in CopyOutcome}
