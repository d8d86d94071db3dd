"""A node to be deleted, and what it means to find it, or not, when it is read again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bookwarden.ledgers.metadata import Condition, DeleteResult
from bookwarden.metastore.interface import Versioned


class Target(NamedTuple):
    """A node to delete, by absolute path; ``in_doubt`` once a delete was sent whose answer never came.

    ``conditions`` are other nodes, by absolute path, that have to be as they were read.

    A tuple, since a sweep makes one of each ledger.
    """

    path: str
    version: int
    created_ms: int | None = None
    conditions: tuple[Condition, ...] = ()
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


def runs(targets: Sequence[Target]) -> Iterator[dict[str, Target]]:
    """Put a pair that occurs twice into one run, and another version of the same path into a later one."""
    while targets:
        run: dict[str, Target] = {}
        for target in targets:
            run.setdefault(target.path, target)
        yield run
        if len(run) == len(targets):
            return
        targets = [target for target in targets if target.version != run[target.path].version]
