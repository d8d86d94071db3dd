"""Nodes and ledgers of a test's own, written as brokers and bookies write them: a drop leaves its ledger behind."""

from __future__ import annotations

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.ledgers.kinds import Holder, ManagedLedgerHolder
from bookwarden.metastore.interface import MetadataStore
from servers.population import Population


class PlantedNodes:
    """Planted nodes of a namespace; each ledger is there, whoever names it."""

    def __init__(self, store: MetadataStore, namespace: str) -> None:
        self.store = store
        self.namespace = namespace
        self.population = Population(store)
        # Far above those that brokers get.
        self._next = 6_000_000_000 + (hash(namespace) % 500_000) * 1000

    def topic(self, name: str) -> ManagedLedgerHolder:
        return ManagedLedgerHolder(f"{self.namespace}/persistent/{name}")

    def ids(self, count: int, holder: Holder) -> list[int]:
        """Make ledgers of the holder's."""
        ids = list(range(self._next, self._next + count))
        self._next += count
        for ledger_id in ids:
            self.population.ledger(ledger_id, holder)
        return ids

    def named(self, count: int, holder: Holder) -> list[int]:
        """Make ledgers that the holder names."""
        ids = self.ids(count, holder)
        self.population.names(holder, ids)
        return ids

    def remove(self, path: str) -> None:
        node = self.store.get(path)
        assert node is not None
        self.store.delete_many([(path, node.version)])

    def write(self, path: str, value: bytes) -> bytes:
        """Replace a node's value; return the former one."""
        node = self.store.get(path)
        assert node is not None
        self.store.put(path, value, node.version)
        return node.value

    def has(self, ledger_id: int) -> bool:
        return self.store.get(ledger_path("/ledgers", ledger_id)) is not None
