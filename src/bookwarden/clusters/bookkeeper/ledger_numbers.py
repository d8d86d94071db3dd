"""The id of the next ledger, and the largest existing one.

Format: bookkeeper.PulsarLedgerIdGenerator of pulsar-metadata 4.2, and BookKeeper's own. An id is the number of a
sequential node below ``<root>/idgen``, until these are used up; from then on there is ``<root>/idgen-long``, of whose
children ``HOB-<n>`` the largest numbers the lower half of ids that have n for their upper one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from bookwarden.errors import NotFoundError
from bookwarden.ledgers.numbering import LedgerNumbers
from bookwarden.metastore.interface import MetadataStore

_UPPER: Final = re.compile(r"HOB-(\d{10})", re.ASCII)
_FLAT: Final = re.compile(r"L(\d{10,19})", re.ASCII)
# Digits of an id on each level of directories, in the short and in the long tree.
_TREES: Final = ((2, 4, 4), (3, 4, 4, 4, 4))


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
