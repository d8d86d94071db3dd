"""The catalog of ledgers where bookie clusters may be registered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookwarden.ledgers.metadata import Conditions, DeleteResult, LedgerReading, StoredLedger
from bookwarden.switching.bookie_clusters import BookieClusters, refuse_several


class ClusterCatalog(Protocol):
    """The ledgers of one bookie cluster."""

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        """Read the metadata of each ledger, in the order asked; never older than this call."""

    def delete_many(
        self, ledgers: Sequence[StoredLedger], conditions: Sequence[Conditions] | None = None
    ) -> list[DeleteResult]:
        """Delete the metadata of each ledger if it still has the version that was read, in the order asked."""

    def paths_of(self, ledger_id: int) -> tuple[str, ...]:
        """List the nodes at which the ledger's metadata may be; empty for an impossible id."""

    def restore_many(self, ledgers: Sequence[tuple[int, str, bytes]]) -> None:
        """Create the node of each (id, path, raw metadata) that has none."""


class PlacedCatalog:
    """The ledgers of the bookie cluster that the settings name; refuses where several are registered."""

    def __init__(self, alone: ClusterCatalog, clusters: BookieClusters) -> None:
        self._alone = alone
        self._clusters = clusters

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        """Read the metadata of each ledger, in the order asked; never older than this call."""
        refuse_several(self._clusters.registry())
        return self._alone.read_many(ledger_ids)

    def delete_many(
        self, ledgers: Sequence[StoredLedger], conditions: Sequence[Conditions] | None = None
    ) -> list[DeleteResult]:
        """Delete the metadata of each ledger if it still has the version that was read, in the order asked."""
        return self._alone.delete_many(ledgers, conditions)

    def paths_of(self, ledger_id: int) -> tuple[str, ...]:
        """List the nodes at which the ledger's metadata may be; empty for an impossible id."""
        return self._alone.paths_of(ledger_id)

    def restore_many(self, ledgers: Sequence[tuple[int, str, bytes]]) -> None:
        """Create the node of each (id, path, raw metadata) that has none."""
        self._alone.restore_many(ledgers)
