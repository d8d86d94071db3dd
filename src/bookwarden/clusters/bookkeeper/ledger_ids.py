"""The generator of ledger ids below one root, read and raised, as brokers and BookKeeper's own clients use it.

Format: that of ledger_numbers. An id is taken by a sequential node, which is removed at once; a new ``HOB-<n>`` lets
all later ids have n for their upper half.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from bookwarden.clusters.bookkeeper.ledger_numbers import read_ledger_numbers
from bookwarden.errors import LostRaceError, StoreError
from bookwarden.ledgers.numbering import NUMBERS_OF_HALF, LedgerNumbers
from bookwarden.metastore.interface import MetadataStore, MigrationTarget

# Some minutes of taking ids one by one.
MOST_COUNTED: Final = 500_000
_AT_ONCE: Final = 16
_BATCH: Final = 1_000
_UPPER_BITS: Final = 32


class LedgerIds:
    """The ids that are given below a root."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._root = root

    def next_id(self) -> int:
        """Return the id that the next ledger gets; 0 if none was given yet."""
        numbers = read_ledger_numbers(self._store, self._root)
        return 0 if numbers is None else numbers.id_of(numbers.next_number)

    def needs_leap(self, ledger_id: int) -> bool:
        """Return whether `raise_to` would begin a new upper half, which BookKeeper's own client does not notice."""
        numbers = read_ledger_numbers(self._store, self._root)
        first = LedgerNumbers(f"{self._root}/idgen", 0, 0) if numbers is None else numbers
        return not self._is_counted(first, ledger_id)

    def raise_to(self, ledger_id: int, progress: Callable[[int], object] = lambda _: None) -> None:
        """Raise the next id to this one or a larger; ``progress`` is called with ids on the way.

        May be interrupted and repeated, and others may take ids meanwhile. Raises StoreError if it did not get there.
        """
        numbers = self._begun()
        if numbers.id_of(numbers.next_number) < ledger_id:
            if self._is_counted(numbers, ledger_id):
                self._count_up(numbers, ledger_id - numbers.first_id, lambda n: progress(numbers.id_of(n)))
            else:
                self._leap(ledger_id)
        if self.next_id() < ledger_id:
            raise StoreError(
                f"the next ledger id below {self._root} is {self.next_id()} and not {ledger_id}: try again"
            )

    def take(self) -> int:
        """Take the next id, as a broker does for a new ledger: no other client gets it, used or not."""
        numbers = self._begun()
        taken = self._take(numbers.path)
        node = self._store.get(taken)
        if node is not None:
            self._store.delete_many([(taken, node.version)])
        number = int(taken.rpartition("-")[2])
        if number >= NUMBERS_OF_HALF:
            raise StoreError(f"no ledger id is left below {numbers.path}: a broker that makes a ledger begins new ones")
        return numbers.id_of(number)

    def _is_counted(self, numbers: LedgerNumbers, ledger_id: int) -> bool:
        left = ledger_id - numbers.id_of(numbers.next_number)
        return ledger_id < numbers.end_id and (left <= MOST_COUNTED or isinstance(self._store, MigrationTarget))

    def _begun(self) -> LedgerNumbers:
        numbers = read_ledger_numbers(self._store, self._root)
        if numbers is None:
            with suppress(LostRaceError):
                self._store.create(f"{self._root}/idgen", b"", make_parents=True)
            numbers = read_ledger_numbers(self._store, self._root)
        if numbers is None:
            raise StoreError(f"{self._root}/idgen-long has no HOB node, so that no counter of ledger ids is known")
        return numbers

    def _count_up(self, numbers: LedgerNumbers, number: int, progress: Callable[[int], object]) -> None:
        if isinstance(self._store, MigrationTarget):
            # To count up an Oxia's key is to write it often, which an old one may not survive next to a broker's
            # writes. All clients there notice a leap: BookKeeper's own client cannot use an Oxia.
            if self._store.set_next_number(numbers.path, number) < number:
                self._leap(numbers.id_of(number))
            return
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="ledger-ids") as pool:
            while (reached := self._store.next_number(numbers.path)) < number:
                progress(reached)
                taken = list(pool.map(self._take, [numbers.path] * min(_BATCH, number - reached)))
                nodes = zip(taken, self._store.get_many(taken), strict=True)
                self._store.delete_many([(path, node.version) for path, node in nodes if node is not None])

    def _take(self, path: str) -> str:
        return self._store.ephemeral_sequential(f"{path}/ID-", b"")

    def _leap(self, ledger_id: int) -> None:
        upper = (max(ledger_id - 1, 0) >> _UPPER_BITS) + 1
        if upper >= NUMBERS_OF_HALF:
            raise StoreError(f"no ledger id is left above {ledger_id}")
        with suppress(LostRaceError):
            self._store.create(f"{self._root}/idgen-long/HOB-{upper:010d}", b"", make_parents=True)
