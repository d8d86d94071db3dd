"""The ledgers of what is restored: in BookKeeper, or in a store of offloaded copies where BookKeeper has none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from bookwarden.bookie_clusters.bookie_clusters import BookieClusters, MultiClusterCatalog
from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.bookkeeper.bookies.requests import Bookies
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.copying.recovery import LedgerRecovery
from bookwarden.clusters.offload.names import data_name, map_file_name
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.errors import LostRaceError, NotFoundError, OutcomeUnknownError
from bookwarden.ledgers.left_behind import copy_left, why_not_whole
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, StoredLedger
from bookwarden.ledgers.node_doubts import is_offloaded
from bookwarden.ledgers.offloaded_copies import FILE_SYSTEM, OffloadedCopy
from bookwarden.metastore.interface import MetadataStore
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.trash.plan import NodesNow, former_entries, former_ledgers
from bookwarden.wire.managed_ledger import decode_ledger_entry, ledger_entries, remove_ledgers

logger = logging.getLogger(__name__)
_TRIES: Final = 50
_NOT_AS: Final = "under another name it does not come back"


class LedgerCloser:
    """Closes ledgers that no broker writes any more, each in the bookie cluster that has it.

    ``store`` and ``root`` are those of the settings, for where no bookie cluster is registered.
    """

    def __init__(
        self,
        catalog: MultiClusterCatalog,
        clusters: BookieClusters,
        store: MetadataStore,
        root: str,
        bookies: Callable[[], Bookies],
    ) -> None:
        self._catalog = catalog
        self._clusters = clusters
        self._place = store, root
        self._bookies = bookies

    def close(self, ledger_id: int) -> StoredLedger:
        """Close a ledger; errors as of `LedgerRecovery.recover`."""
        (found,) = self._catalog.read_many([ledger_id])
        name = found.bookie_cluster if isinstance(found, StoredLedger) else ""
        store, root = self._clusters.roots_by_name()[name] if name else self._place
        return LedgerRecovery(store, root, self._bookies()).recover(ledger_id)


class FormerLedgers:
    """Reads the ledgers of what is restored, and keeps a sweep from deleting them.

    ``unload`` has brokers close a topic, by its managed ledger.
    """

    def __init__(
        self,
        store: MetadataStore,
        catalog: MultiClusterCatalog | BookKeeperCatalog,
        last_entries: DecodedEntries,
        copies: Callable[[], OffloadStores],
        unload: Callable[[str], None],
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._last_entries = last_entries
        self._copies = copies
        self._unload = unload

    def read(self, trashed: TrashedGeneration) -> NodesNow:
        """Read all ledgers of the former nodes, and see that the end of each open one can be found; no nodes yet."""
        ids = sorted(former_ledgers(trashed))
        readings = dict(zip(ids, self._catalog.read_many(ids), strict=True))
        for ledger_id in sorted(former_entries(trashed)):
            reading = readings[ledger_id]
            if isinstance(reading, StoredLedger) and reading.metadata.last_entry_id is None:
                try:
                    self._last_entries.last_entry(ledger_id)
                except NotFoundError:
                    # A sweep deleted it a moment ago.
                    (readings[ledger_id],) = self._catalog.read_many([ledger_id])
        return NodesNow(readings, self._read_copies(trashed, readings))

    def touch(self, trashed: TrashedGeneration, named: Collection[int]) -> tuple[int, ...]:
        """Write all ledgers' nodes once more; return those of the named ones that are gone, and off the list."""
        left = sorted(former_ledgers(trashed))
        gone: list[int] = []
        for _ in range(_TRIES):
            readings = self._catalog.read_many(left)
            there = [reading for reading in readings if isinstance(reading, StoredLedger)]
            gone += [reading.ledger_id for reading in readings if isinstance(reading, AbsentLedger)]
            written = self._catalog.touch_many(there)
            left = [one.ledger_id for one, done in zip(there, written, strict=True) if not done]
            if not left:
                # One that is not on the list any more was named all the same: a broker that loads the topic takes its
                # last ledger off by itself, if that is gone.
                off = self._take_off(trashed.managed_ledger, gone)
                node = self._store.get(managed_ledger_path(trashed.managed_ledger))
                copies = set() if node is None else ledger_entries(node.value).keys() - _in_bookkeeper(node.value)
                return tuple(sorted({*off, *set(gone).intersection(named)} - copies))
        raise LostRaceError(f"ledger {left[0]} is written all the time: run it again")

    def _take_off(self, managed_ledger: str, ledger_ids: Collection[int]) -> tuple[int, ...]:
        """Take ledgers that are gone off the topic's list; return those that were on it."""
        path, taken = managed_ledger_path(managed_ledger), set[int]()
        for _ in range(_TRIES):
            node = self._store.get(path)
            listed = set() if node is None else _in_bookkeeper(node.value) & set(ledger_ids)
            if node is None or not listed:
                return tuple(sorted(taken))
            self._unload(managed_ledger)
            node = self._store.get(path)
            if node is None:
                continue
            listed = _in_bookkeeper(node.value) & set(ledger_ids)
            try:
                self._store.put(path, remove_ledgers(node.value, listed), node.version)
            except (LostRaceError, OutcomeUnknownError) as error:
                logger.info("%s", error)
            taken |= listed
        raise LostRaceError(f"{path} is written all the time: run it again")

    def _read_copies(self, trashed: TrashedGeneration, readings: Mapping[int, LedgerReading]) -> dict[int, str | None]:
        """Return of each ledger that only has an offloaded copy why that is not whole; None: it is."""
        entries = [decode_ledger_entry(entry) for entry in former_entries(trashed).values()]
        listed = {
            copy_left(entry, entry.offload, trashed.managed_ledger): entry
            for entry in entries
            if isinstance(readings[entry.ledger_id], AbsentLedger) and is_offloaded(entry) and entry.offload is not None
        }
        if trashed.origin is not None:
            # Their objects name the former topic: each mark of it would delete them.
            why: dict[OffloadedCopy, str | None] = dict.fromkeys(listed, _NOT_AS)
        else:
            found = self._copies().examine_many(list(listed)) if listed else []
            why = {
                copy: why_not_whole(copy, reading, entry.size, entry.entries - 1)
                for (copy, entry), reading in zip(listed.items(), found, strict=True)
            }
        return {
            copy.ledger_id: None if problem is None else f"{_objects(copy)}, {copy.location}: {problem}"
            for copy, problem in why.items()
        }


def _in_bookkeeper(value: bytes) -> set[int]:
    """Return the ledgers of a list that do not have an offloaded copy alone."""
    infos = (decode_ledger_entry(entry) for entry in ledger_entries(value).values())
    return {info.ledger_id for info in infos if info.offload is None or not info.offload.bookkeeper_deleted}


def _objects(copy: OffloadedCopy) -> str:
    if copy.location.driver == FILE_SYSTEM:
        return map_file_name(copy)
    return f"{data_name(copy)} and its index"
