"""Records of the ledgers that an undo put back: a node for each in BookKeeper's store, where every sweep sees it.

The node's path is made from the id like a ledger's; its value is JSON: undo (its name), at (ms) and ctime (ms, of
the ledger's metadata, or null). Pulsar's migration to another store copies the nodes like all others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.errors import LostRaceError, OutcomeUnknownError
from bookwarden.ledgers.metadata import DeleteResult, LedgerReading, StoredLedger
from bookwarden.metastore.interface import MetadataStore

UNDONE_ROOT = "/bookwarden/undone"
_WRITES_IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class UndoneLedger:
    """A ledger that an undo put back at ``at_ms``; it was created at ``ctime_ms``, None if not known."""

    ledger_id: int
    undo: str
    at_ms: int
    ctime_ms: int | None

    def is_of(self, reading: LedgerReading) -> bool:
        """Return whether this is the ledger that was read; after a migration another may have got its id."""
        if not isinstance(reading, StoredLedger):
            return False
        times = [place.metadata.ctime_ms for place in reading.places]
        return self.ctime_ms is None or None in times or self.ctime_ms in times


class UndoneLedgers:
    """The records in the store that has BookKeeper's metadata. Every call may raise StoreError."""

    def __init__(self, store: MetadataStore, root: str = UNDONE_ROOT) -> None:
        self._store = store
        self._root = root

    def read_many(self, ledger_ids: Sequence[int]) -> dict[int, UndoneLedger]:
        """Return the records of these ledgers, where there is one.

        A record is written before its ledger is put back, so after reading the ledger it is found without a sync.
        """
        # Without any undo there is one request, for any number of ledgers.
        if not ledger_ids or self._store.get(self._root) is None:
            return {}
        nodes = self._store.get_many([ledger_path(self._root, ledger_id) for ledger_id in ledger_ids])
        found = zip(ledger_ids, nodes, strict=True)
        return {ledger_id: _decode(ledger_id, node.value) for ledger_id, node in found if node is not None}

    def note_many(self, ledgers: Sequence[UndoneLedger]) -> None:
        """Write the record of each ledger, replacing an earlier one."""
        with ThreadPoolExecutor(_WRITES_IN_FLIGHT, thread_name_prefix="undone") as pool:
            # Exhausted, so that the first error is raised.
            list(pool.map(self._note, ledgers))

    def withdraw_many(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        """Remove the records of these ledgers; return the ledgers that had one."""
        paths = [ledger_path(self._root, ledger_id) for ledger_id in ledger_ids]
        nodes = zip(ledger_ids, paths, self._store.get_many(paths), strict=True)
        found = [(ledger_id, path, node) for ledger_id, path, node in nodes if node is not None]
        if not found:
            return frozenset()
        results = self._store.delete_many([(path, node.version) for _, path, node in found])
        for (ledger_id, _, _), result in zip(found, results, strict=True):
            if result not in (DeleteResult.DELETED, DeleteResult.ABSENT):
                raise OutcomeUnknownError(
                    f"the record that ledger {ledger_id} was undone may still be there: run the command again"
                )
        return frozenset(ledger_id for ledger_id, _, _ in found)

    def _note(self, ledger: UndoneLedger) -> None:
        path, value = ledger_path(self._root, ledger.ledger_id), _encode(ledger)
        try:
            self._store.create(path, value, make_parents=True)
        except LostRaceError:
            node = self._store.get(path)
            if node is not None:
                self._store.put(path, value, node.version)


def _encode(ledger: UndoneLedger) -> bytes:
    return json.dumps({"undo": ledger.undo, "at": ledger.at_ms, "ctime": ledger.ctime_ms}).encode()


def _decode(ledger_id: int, value: bytes) -> UndoneLedger:
    """Parse a record; even an unreadable one keeps its ledger."""
    try:
        fields = json.loads(value)
        ctime = fields["ctime"]
        return UndoneLedger(ledger_id, str(fields["undo"]), int(fields["at"]), None if ctime is None else int(ctime))
    except (ValueError, TypeError, KeyError):
        return UndoneLedger(ledger_id, "an undo whose record cannot be read", 0, None)
