"""Index of the namers of all ledgers of a cluster: 12 bytes for each time a ledger is named, each namer once."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection
from typing import Generic, TypeVar

_T = TypeVar("_T")

# So many are sorted at a time, since Python's sort needs some 140 bytes for each; every such part costs a lookup.
_PART = 1 << 19


class LedgerNamers(Generic[_T]):
    """Namers of ledgers, by ledger id.

    Adding and the first lookup after it change the index: before threads share it, call `sort`.
    """

    def __init__(self, part: int = _PART) -> None:
        self._part = part
        self._ids = array("q")
        self._namers_of = array("i")
        self._namers: list[_T] = []
        self._sorted = 0

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, namer: _T, ledger_ids: Collection[int]) -> None:
        """Note that the namer names these ledgers."""
        if not ledger_ids:
            return
        self._ids.extend(ledger_ids)
        self._namers_of.extend([len(self._namers)] * len(ledger_ids))
        self._namers.append(namer)

    def of(self, ledger_id: int) -> list[_T]:
        """Return the namers of the ledger."""
        self.sort()
        found = []
        for begin in range(0, self._sorted, self._part):
            end = min(begin + self._part, self._sorted)
            index = bisect_left(self._ids, ledger_id, begin, end)
            while index < end and self._ids[index] == ledger_id:
                found.append(self._namers[self._namers_of[index]])
                index += 1
        return found

    def sort(self) -> None:
        """Sort what was added since the last time, part by part in place."""
        count = len(self._ids)
        if self._sorted == count:
            return
        # The last part may have been sorted before it was full.
        for begin in range(self._sorted - self._sorted % self._part, count, self._part):
            ids, namers = self._ids[begin : begin + self._part], self._namers_of[begin : begin + self._part]
            order = sorted(range(len(ids)), key=ids.__getitem__)
            self._ids[begin : begin + self._part] = array("q", map(ids.__getitem__, order))
            self._namers_of[begin : begin + self._part] = array("i", map(namers.__getitem__, order))
        self._sorted = count
