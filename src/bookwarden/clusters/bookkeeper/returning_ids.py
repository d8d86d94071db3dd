"""Returning ids: ledger ids that a store may give although it, or the store that it was moved from, gave them before.

Oxia numbers ledgers by the writes of a key, and counts a copied key's from the start (docs/metadata-migration.md,
"Counters"). ZooKeeper counts in a field of the parent that only ZooKeeper itself writes, so it is not asked.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bookwarden.clusters.bookkeeper.ledger_ids import largest_ledger_id, read_ledger_numbers
from bookwarden.ledgers.shared_doubts import DoubtCause, SharedDoubt
from bookwarden.metastore.interface import MetadataStore

logger = logging.getLogger(__name__)

# A counter ahead of all ledgers stays ahead: new ones get their ids from it.
_REFRESH_SECONDS: Final = 60.0
_NO_COUNTER: Final = "it is not known which id the next ledger gets, since there is no counter below"
_WHAT_TO_DO: Final = "run `bookwarden metadata-migration counters --execute` (docs/metadata-migration.md, Counters)"


_Root = tuple[MetadataStore, str]


class SharedCounter(NamedTuple):
    """The one counter of all registered bookie clusters.

    ``place`` returns its store and root, None where no cluster is registered; ``clusters`` those of all clusters.
    ``starts_over`` is as for ReturningIds, of the counter's store.
    """

    place: Callable[[], _Root | None]
    clusters: Callable[[], Sequence[_Root]]
    starts_over: Callable[[], bool]


class ReturningIds:
    """Compares the next ledger id with the largest that has metadata. Thread-safe.

    ``starts_over`` says whether the present store's counters start over in a copy. A counter that is ahead is read
    again after a minute, one that is behind at each call.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        starts_over: Callable[[], bool],
        *,
        shared_counter: SharedCounter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._root = root
        self._starts_over = starts_over
        self._shared_counter = shared_counter
        self._clock = clock
        self._lock = threading.Lock()
        self._ahead_at = float("-inf")
        self._is_logged = False

    def doubt(self) -> SharedDoubt | None:
        """Return why a ledger may have a former one's id, and what to do; None where it cannot.

        Raises StoreError when the store does not answer.
        """
        with self._lock:
            shared = self._shared_counter
            counter = None if shared is None else shared.place()
            starts_over, clusters = self._starts_over, [(self._store, self._root)]
            if shared is not None and counter is not None:
                starts_over, clusters = shared.starts_over, [*shared.clusters()]
            if not starts_over() or self._clock() - self._ahead_at < _REFRESH_SECONDS:
                return None
            begun = self._clock()
            place = counter or clusters[0]
            found = _compared(place, clusters)
            if found is None:
                self._ahead_at = begun
            elif not self._is_logged:
                logger.warning("nothing is deleted: %s", found)
            self._is_logged = found is not None
            return None if found is None else SharedDoubt(DoubtCause.RETURNING_IDS, place[1], found)


def _compared(counter: _Root, clusters: Sequence[_Root]) -> str | None:
    numbers = read_ledger_numbers(*counter)
    if numbers is None:
        return f"{_NO_COUNTER} {counter[1]}: {_WHAT_TO_DO}"
    # This counter gives no ids of another half.
    largest = max(
        (
            found
            for store, root in clusters
            if (found := largest_ledger_id(store, root, numbers.first_id, numbers.end_id)) is not None
        ),
        default=None,
    )
    # Read after the largest id, so that a ledger created meanwhile does not seem to be ahead of the counter.
    now = read_ledger_numbers(*counter)
    if now is None:
        return f"{_NO_COUNTER} {counter[1]}: {_WHAT_TO_DO}"
    following = now.id_of(now.next_number)
    if largest is None or largest < following:
        return None
    return (
        f"the next ledger gets the id {following}, but there is a ledger {largest}: ids come again, and a mark may "
        f"be of a former ledger with the same id; {_WHAT_TO_DO}"
    )
