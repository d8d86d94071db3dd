"""A node to be deleted, and what it means to find it, or not, when it is read again."""

from __future__ import annotations

from dataclasses import dataclass

from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.interface import Versioned


@dataclass(frozen=True, slots=True)
class Target:
    """A node to delete, by absolute path; ``in_doubt`` once a delete was sent whose answer never came."""

    path: str
    version: int
    created_ms: int | None = None
    in_doubt: bool = False

    def result_of(self, found: Versioned | None) -> DeleteResult | None:
        """Say what became of it, as it was found now; None if it is still to be deleted."""
        if found is None:
            return DeleteResult.DELETED if self.in_doubt else DeleteResult.ABSENT
        if found.version != self.version or found.children:
            return DeleteResult.LOST_RACE
        # ZooKeeper's versions restart when a node is created again, and those that Pulsar's copy to Oxia set may come
        # once more: another creation time is another node.
        if self.created_ms is not None and found.created_ms != self.created_ms:
            return DeleteResult.LOST_RACE
        return None
