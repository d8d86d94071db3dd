"""Ledgers that another client makes in a bookie cluster, without our mark and with ids that are ours elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.errors import LostRaceError
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from servers.switching.site import SwitchingSite

_LENGTH = 100


class OthersLedgers:
    """Those of one cluster: only their metadata, so that any client that opens one for ours gets an error."""

    def __init__(self, site: SwitchingSite, name: str, custom: Mapping[str, bytes] | None = None) -> None:
        self._store = site.store_of(name)
        self._root = site.servers.clusters[name].ledgers_root
        bookie = min(site.servers.clusters[name].ids)
        self._value = encode_ledger_metadata(
            LedgerMetadata(
                *(3, LedgerState.CLOSED, 1, 1, 1, (Segment(0, (bookie,)),)),
                *(_LENGTH, 0, "CRC32C", 1),
                custom=custom or {},
            )
        )
        self.ids = frozenset[int]()  #: Of those that were made.

    def make(self, ids: Iterable[int]) -> None:
        """Make ledgers of these ids, but for those that are taken."""
        for ledger_id in ids:
            try:
                self._store.create(ledger_path(self._root, ledger_id), self._value, make_parents=True)
            except LostRaceError:
                continue
            self.ids |= {ledger_id}

    def make_by_counter(self, count: int) -> None:
        """Make so many with ids of the cluster's own counter, as a client does that has its URI."""
        counter, wanted = LedgerIds(self._store, self._root), len(self.ids) + count
        while len(self.ids) < wanted:
            self.make([counter.take()])

    def are_all_there(self) -> bool:
        """Return whether nobody removed or changed one."""
        self._store.sync()
        found = self._store.get_many([ledger_path(self._root, ledger_id) for ledger_id in sorted(self.ids)])
        return all(node is not None and node.value == self._value for node in found)

    @contextmanager
    def made(self, ids: Iterable[int]) -> Iterator[None]:
        """Have ledgers of these ids for the block."""
        before = self.ids
        self.make(ids)
        yield
        for ledger_id in self.ids - before:
            node = self._store.get(path := ledger_path(self._root, ledger_id))
            assert node is not None
            self._store.delete_many([(path, node.version)])
        self.ids = before
