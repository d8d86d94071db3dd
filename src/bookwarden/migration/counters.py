"""Counters of a migrated store, which must continue where the source's ended.

Pulsar numbers ledgers, and the brokers that name producers, by sequential nodes. ZooKeeper counts those in a field of
their parent that no copy carries over, so in the target they start over (docs/metadata-migration.md, "Counters").
"""

from __future__ import annotations

from dataclasses import dataclass

from bookwarden.ledgers.numbering import NUMBERS_OF_HALF, LedgerNumbers


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter of the target, and its counterpart in the source."""

    name: str  #: For people.
    path: str  #: The node below which sequential nodes are numbered.
    next_number: int  #: The target gives this number next.
    safe_number: int  #: Numbers below may all have been given already.
    source_next: int | None  #: The source gives this number next; None if it does not count the same.
    base: int = 0  #: Added to a number, it makes the id; 0 where the number is the id.

    @property
    def behind(self) -> int:
        """How many numbers would be given twice."""
        return self.safe_number - self.next_number


def ledger_ids(source: LedgerNumbers | None, target: LedgerNumbers, largest_id: int | None) -> Counter:
    """Compare the counters of ledger ids; ``largest_id`` is the largest in the target that its counter can give."""
    source_next = source.next_number if source is not None and source.path == target.path else None
    given = [target.next_number, source_next or 0]
    if largest_id is not None:
        given.append(largest_id - target.first_id + 1)
    # After the last of these numbers the upper half of ids is counted up by itself.
    safe = min(max(given), max(NUMBERS_OF_HALF, target.next_number))
    return Counter("ledger ids", target.path, target.next_number, safe, source_next, target.first_id)


def producer_names(path: str, source_next: int | None, target_next: int) -> Counter:
    """Compare the counters of brokers, whose numbers are in the names that they give producers."""
    return Counter("producer names", path, target_next, max(target_next, source_next or 0), source_next)
