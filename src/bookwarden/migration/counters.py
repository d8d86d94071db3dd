"""Counters of a migrated store: whether they go on from where the former one was.

Pulsar numbers ledgers, and the brokers that name producers, by sequential nodes. ZooKeeper counts those in a field of
their parent that no copy carries over, so in the target they begin anew (docs/metadata-migration.md, "Counters").
"""

from __future__ import annotations

from dataclasses import dataclass

from bookwarden.ledgers.numbering import NUMBERS_OF_HALF, LedgerNumbers


@dataclass(frozen=True, slots=True)
class Counter:
    """What a node of the target counts: ``next_number`` comes next, and below ``safe_number`` all may be given already.

    ``base`` is what a number is added to, ``source_next`` the number that comes next in the source, None where that
    does not count the same.
    """

    name: str
    path: str
    next_number: int
    safe_number: int
    source_next: int | None
    base: int = 0

    @property
    def behind(self) -> int:
        """How many numbers would be given once more."""
        return self.safe_number - self.next_number


def ledger_ids(source: LedgerNumbers | None, target: LedgerNumbers, largest_id: int | None) -> Counter:
    """Compare the counters of ledger ids; ``largest_id`` is the largest in the target that its counter can give."""
    source_next = source.next_number if source is not None and source.path == target.path else None
    given = [target.next_number, source_next or 0]
    if largest_id is not None:
        given.append(largest_id - target.first_id + 1)
    # At its end the upper half of ids counts on by itself.
    safe = min(max(given), max(NUMBERS_OF_HALF, target.next_number))
    return Counter("ledger ids", target.path, target.next_number, safe, source_next, target.first_id)


def producer_names(path: str, source_next: int | None, target_next: int) -> Counter:
    """Compare the counters of brokers, whose numbers are in the names that they give producers."""
    return Counter("producer names", path, target_next, max(target_next, source_next or 0), source_next)
