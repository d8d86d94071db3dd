"""Returning ids: whether a store may give ledger ids that it, or the store that its metadata was moved from, gave
before.

Oxia numbers ledgers by the writes of a key, which begin anew in whatever was copied there (docs/metadata-migration.md,
"Counters"). ZooKeeper counts in a field of the parent that nothing but ZooKeeper itself writes, so it is not asked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from bookwarden.clusters.bookkeeper.ledger_numbers import largest_ledger_id, read_ledger_numbers
from bookwarden.metastore.interface import MetadataStore

logger = logging.getLogger(__name__)

# A counter that was ahead of all ledgers stays so: new ones get their ids from it.
_REFRESH_SECONDS: Final = 60.0
_NO_COUNTER: Final = "it is not known which id the next ledger gets, since there is no counter below"
_WHAT_TO_DO: Final = "run `bookwarden metadata-migration counters --execute` (docs/metadata-migration.md, Counters)"


class ReturningIds:
    """Holds the next ledger id against the largest that has metadata. Thread-safe.

    ``begins_anew`` says whether the store, as it is now, counts so that a copy begins anew. A counter that is ahead is
    looked at again after a minute, one that is behind at each call.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        begins_anew: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._root = root
        self._begins_anew = begins_anew
        self._clock = clock
        self._lock = threading.Lock()
        self._ahead_at = float("-inf")
        self._told = False

    def doubt(self) -> str | None:
        """Return why a ledger may have the id of a former one, and what to do; None where none can.

        Raises StoreError when the store does not answer.
        """
        with self._lock:
            if not self._begins_anew() or self._clock() - self._ahead_at < _REFRESH_SECONDS:
                return None
            begun = self._clock()
            found = self._compared()
            if found is None:
                self._ahead_at = begun
            elif not self._told:
                logger.warning("nothing is deleted: %s", found)
            self._told = found is not None
            return found

    def _compared(self) -> str | None:
        numbers = read_ledger_numbers(self._store, self._root)
        if numbers is None:
            return f"{_NO_COUNTER} {self._root}: {_WHAT_TO_DO}"
        # Ids of another half are not this counter's to give.
        largest = largest_ledger_id(self._store, self._root, numbers.first_id, numbers.end_id)
        # Read behind it, lest a ledger that is made meanwhile seem to be ahead of the counter.
        now = read_ledger_numbers(self._store, self._root)
        if now is None:
            return f"{_NO_COUNTER} {self._root}: {_WHAT_TO_DO}"
        following = now.id_of(now.next_number)
        if largest is None or largest < following:
            return None
        return (
            f"the next ledger gets the id {following}, but there is a ledger {largest}: ids come again, and a mark may "
            f"be of a former ledger with the same id; {_WHAT_TO_DO}"
        )
