"""Ledgers of topics that are gone, closed at their true end before they come into the middle of a list."""

from __future__ import annotations

from collections.abc import Callable

from bookwarden.bookie_clusters.bookie_clusters import BookieClusters, MultiClusterCatalog
from bookwarden.clusters.bookkeeper.bookies.requests import Bookies
from bookwarden.clusters.bookkeeper.copying.recovery import LedgerRecovery
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.metastore.interface import MetadataStore


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
