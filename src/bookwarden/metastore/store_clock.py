"""The time of a metadata store, by which the ages of its nodes go: the clock of this machine may be wrong."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from bookwarden.errors import LostRaceError, OutcomeUnknownError, StoreError, StoreUnavailableError
from bookwarden.metastore.interface import MetadataStore

logger = logging.getLogger(__name__)

CLOCK_PATH: Final = "/bookwarden/clock"
# How long a reading is carried on by this machine's steady clock.
_REFRESH_SECONDS: Final = 300.0
# The error assumed of this machine's clock where the store cannot be asked.
UNKNOWN_SKEW_SECONDS: Final = 600.0


class StoreClock:
    """Seconds since the epoch, never later than the store's own clock says.

    A node of ours is written, and the time that the store noted for it is carried on. A store that refuses the write
    leaves this machine's clock, less its assumed error: then everything looks younger, and waits longer.
    Raises StoreUnavailableError when the store does not answer.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        steady: Callable[[], float] = time.monotonic,
        local: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._steady = steady
        self._local = local
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._time = 0.0
        self._is_logged = False

    def __call__(self) -> float:
        with self._lock:
            if self._steady() - self._read_at > _REFRESH_SECONDS:
                self._time = self._ask()
                self._read_at = self._steady()
            return self._time + self._steady() - self._read_at

    def _ask(self) -> float:
        try:
            return self._written() / 1000
        except StoreUnavailableError:
            raise
        except StoreError as error:
            if not self._is_logged:
                logger.warning(
                    "the store does not tell its time (%s): ages go by the clock of this machine, less %.0f s",
                    error,
                    UNKNOWN_SKEW_SECONDS,
                )
            self._is_logged = True
            return self._local() - UNKNOWN_SKEW_SECONDS

    def _written(self) -> int:
        """Write our node, and read the time of that (milliseconds); a write by another just now serves as well."""
        node = self._store.get(CLOCK_PATH)
        try:
            if node is None:
                self._store.create(CLOCK_PATH, b"", make_parents=True)
            else:
                self._store.put(CLOCK_PATH, b"", node.version)
        except LostRaceError as error:
            logger.debug("%s", error)
        except OutcomeUnknownError as error:
            raise StoreUnavailableError(f"the time of the metadata store cannot be read: {error}") from error
        self._store.sync()
        node = self._store.get(CLOCK_PATH)
        if node is None:
            raise StoreError(f"{CLOCK_PATH} was removed while its time was read")
        return node.modified_ms


class StoreClocks:
    """The clocks of the stores that registered bookie clusters are in, and of Pulsar's own, which has the registry.

    ``roots`` returns the stores of the clusters by name.
    """

    def __init__(self, pulsar: MetadataStore, roots: Callable[[], Mapping[str, tuple[MetadataStore, str]]]) -> None:
        self._pulsar = pulsar
        self._roots = roots
        self._clocks: dict[MetadataStore, StoreClock] = {}

    def now(self, name: str | None) -> float:
        """Return the seconds since the epoch by the store of this cluster, or by Pulsar's own; as StoreClock.

        StoreUnavailableError for a cluster that left the registry after it was read: read again.
        """
        roots = {} if name is None else self._roots()
        if name is not None and name not in roots:
            raise StoreUnavailableError(f"bookie cluster {name!r} is not registered any more")
        store = self._pulsar if name is None else roots[name][0]
        if store not in self._clocks:
            self._clocks[store] = StoreClock(store)
        return self._clocks[store]()
