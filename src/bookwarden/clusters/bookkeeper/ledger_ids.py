"""The generator of ledger ids below one root, read and raised, as brokers and BookKeeper's own clients use it.

Format: bookkeeper.PulsarLedgerIdGenerator of pulsar-metadata 4.2, and BookKeeper's own. An id is the number of a
sequential node below ``<root>/idgen``, until these are used up; from then on there is ``<root>/idgen-long``, of whose
children ``HOB-<n>`` the largest numbers the lower half of ids that have n for their upper one. The node that took an
id is removed at once; a new ``HOB-<n>`` lets all later ids have n for their upper half.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple

from bookwarden.errors import LostRaceError, NotFoundError, StoreError
from bookwarden.metastore.interface import MetadataStore, MigrationTarget

# The numbers of each half of an id: Java's positive ints but the largest.
NUMBERS_OF_HALF: Final = 2**31 - 1
_UPPER: Final = re.compile(r"HOB-(\d{10})", re.ASCII)
_FLAT: Final = re.compile(r"L(\d{10,19})", re.ASCII)
# Digits of an id on each level of directories, in the short and in the long tree.
_TREES: Final = ((2, 4, 4), (3, 4, 4, 4, 4))
# Some minutes of taking ids one by one.
MOST_COUNTED: Final = 500_000
_AT_ONCE: Final = 16
_BATCH: Final = 1_000
_UPPER_BITS: Final = 32


class LedgerNumbers(NamedTuple):
    """The counter of a metadata store: its node, the upper 32 bits of its ids, and the next number."""

    path: str
    upper: int
    next_number: int

    @property
    def first_id(self) -> int:
        """The smallest id of this counter."""
        return self.id_of(0)

    @property
    def end_id(self) -> int:
        """The id after its largest."""
        return self.id_of(NUMBERS_OF_HALF)

    def id_of(self, number: int) -> int:
        """Return the ledger with this number."""
        return (self.upper << 32) + number


def read_ledger_numbers(store: MetadataStore, root: str) -> LedgerNumbers | None:
    """Read the counter that gives new ledgers their ids; None if it has not given any yet."""
    try:
        uppers = [
            int(match[1]) for name in store.list_children(f"{root}/idgen-long") if (match := _UPPER.fullmatch(name))
        ]
    except NotFoundError:
        path, upper = f"{root}/idgen", 0
    else:
        if not uppers:
            return None
        upper = max(uppers)
        path = f"{root}/idgen-long/HOB-{upper:010d}"
    try:
        return LedgerNumbers(path, upper, store.next_number(path))
    except NotFoundError:
        return None


def next_ledger_id(store: MetadataStore, root: str) -> int | None:
    """Read the id that the next ledger gets; None if none was given yet."""
    numbers = read_ledger_numbers(store, root)
    return None if numbers is None else numbers.id_of(numbers.next_number)


def largest_ledger_id(store: MetadataStore, root: str, first: int, end: int) -> int | None:
    """Find the largest id with metadata, in any layout, from ``first`` to before ``end``; None if there is none."""
    names = store.children_of(root)
    flat = (int(match[1]) for name in names if (match := _FLAT.fullmatch(name)))
    found = [ledger_id for ledger_id in flat if first <= ledger_id < end]
    for widths in _TREES:
        largest = _Tree(store, widths, first, end).largest(root, "", names)
        found += [] if largest is None else [largest]
    return max(found, default=None)


def largest_of_ledger_ids(places: Iterable[tuple[MetadataStore, str]], first: int, end: int) -> int | None:
    """Find the same over the ledgers roots of several stores."""
    found = (largest_ledger_id(store, root, first, end) for store, root in places)
    return max((one for one in found if one is not None), default=None)


class _Tree:
    """Directories of ledgers; only those that may have the largest id wanted are listed."""

    def __init__(self, store: MetadataStore, widths: Sequence[int], first: int, end: int) -> None:
        self._store = store
        self._widths = widths
        self._first = first
        self._end = end

    def largest(self, path: str, digits: str, names: Sequence[str], level: int = 0) -> int | None:
        """Search below the directory of ids with these first digits."""
        is_last = level == len(self._widths) - 1
        pattern = re.compile(rf"{'L' if is_last else ''}(\d{{{self._widths[level]}}})", re.ASCII)
        left = sum(self._widths[level + 1 :])
        for part, name in sorted(
            ((match[1], name) for name in names if (match := pattern.fullmatch(name))), reverse=True
        ):
            smallest, largest = (int(digits + part + digit * left) for digit in "09")
            if smallest >= self._end or largest < self._first:
                continue
            if is_last:
                return smallest
            found = self.largest(f"{path}/{name}", digits + part, self._store.children_of(f"{path}/{name}"), level + 1)
            if found is not None:
                return found
        return None


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
