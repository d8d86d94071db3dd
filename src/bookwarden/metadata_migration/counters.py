"""Counters of a migrated store, which must continue where the source's ended.

Pulsar numbers ledgers, and the brokers that name producers, by sequential nodes. ZooKeeper counts those in a field of
their parent that no copy carries over, so in the target they start over (docs/metadata-migration.md, "Counters").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bookwarden.clusters.bookkeeper.ledger_ids import (
    NUMBERS_OF_HALF,
    LedgerNumbers,
    largest_of_ledger_ids,
    read_ledger_numbers,
)
from bookwarden.errors import NotFoundError, RefusedError
from bookwarden.metastore.following.flag import MIGRATION_PATH, read_flag
from bookwarden.metastore.interface import MetadataStore, MigrationTarget

# Source: BrokerService of 4.0 and 4.2, DistributedIdGenerator.
_PRODUCER_NAMES: Final = "/counters/producer-name"
# The first number of brokers where Oxia has no such key yet: they make it, and then write it.
_FIRST: Final = 1


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter of the target, and its counterpart in the source."""

    name: str  #: The kind of numbers, for people.
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


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a moved store, and of the store that replaced it."""

    source: MetadataStore  #: The moved store.
    source_url: str  #: Names it in errors.
    target: MigrationTarget  #: The store that replaced it.
    target_url: str  #: What the source's flag named when the target was opened.
    ledgers_elsewhere: str | None  #: The store in which ledgers are counted as before, if that is neither.
    ledgers_root: str  #: Below it ledger ids are counted.
    ledger_places: Sequence[tuple[MetadataStore, str]]  #: Stores and ledgers roots that have the ledgers.

    def examine(self) -> list[Counter]:
        """Compare the counters of both stores and the existing ledgers; reads only."""
        counters = self._of_ledgers()
        source, target = (_next_number(store, _PRODUCER_NAMES) for store in (self.source, self.target))
        if source is not None or target is not None:
            counters.append(producer_names(_PRODUCER_NAMES, source, _FIRST if target is None else target))
        return counters

    def _of_ledgers(self) -> list[Counter]:
        if self.ledgers_elsewhere is not None:
            return []
        source, target = (read_ledger_numbers(store, self.ledgers_root) for store in (self.source, self.target))
        if target is None and source is not None:
            target = source._replace(next_number=_FIRST)
        if target is None:
            return []
        largest = largest_of_ledger_ids(self.ledger_places, target.first_id, target.end_id)
        return [ledger_ids(source, target, largest)]

    def advance(
        self,
        counters: Sequence[Counter],
        *,
        count_up: bool = False,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Advance the target's counters past all numbers that were given.

        ``progress`` is called with a counter's number on the way. Servers older than 0.15 let no client set a counter:
        without ``count_up`` it then stays behind. Raises NotFoundError if the target lacks one.
        """
        if completed_target(self.source, self.source_url) != self.target_url:
            raise RefusedError(f"the flag of {self.source_url} names another target than before: start again")
        for counter in counters:
            if not counter.behind:
                continue
            try:
                reached = self.target.set_next_number(counter.path, counter.safe_number)
            except NotFoundError as error:
                raise NotFoundError(
                    f"{self.target_url} has no {counter.path}, from which the source counted: see with "
                    "`bookwarden metadata-migration verify` what else the copy lacks"
                ) from error
            if reached < counter.safe_number and count_up:
                self.target.count_up(counter.path, counter.safe_number, progress=progress)


def completed_target(source: MetadataStore, source_url: str) -> str:
    """Return the URL of the store to which this one was moved; RefusedError for a migration that is not COMPLETED."""
    flag = read_flag(source)
    if flag is None or not flag.target_url:
        raise RefusedError(f"{source_url} was not moved: it has no {MIGRATION_PATH}")
    if not flag.is_completed:
        raise RefusedError(
            f"the migration of {source_url} to {flag.target_url} is {flag.phase}: only after COMPLETED "
            "the target counts"
        )
    return flag.target_url


def _next_number(store: MetadataStore, path: str) -> int | None:
    try:
        return store.next_number(path)
    except NotFoundError:
        return None
