"""Nodes to be deleted: the result by what is found when one is read again, and the base of runs of deletes."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bookwarden.errors import StoreUnavailableError
from bookwarden.ledgers.metadata import Condition, DeleteResult
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.interface import Versioned

_LOG = logging.getLogger(__name__)


class DoomedNode(NamedTuple):
    """A node to delete, by absolute path; a tuple, since a sweep makes one for each ledger.

    ``conditions`` are other nodes, by absolute path, that have to be as they were read; ``in_doubt`` is set once a
    delete was sent whose answer never came.
    """

    path: str
    version: int
    created_ms: int | None = None
    conditions: tuple[Condition, ...] = ()
    in_doubt: bool = False

    def result_of(self, found: Versioned | None) -> DeleteResult | None:
        """Return the result by the node as it is found now; None if it is still to be deleted."""
        if found is None:
            return DeleteResult.DELETED if self.in_doubt else DeleteResult.ABSENT
        if found.version != self.version or found.children:
            return DeleteResult.LOST_RACE
        # ZooKeeper's versions restart when a node is created again, and those that Pulsar's copy to Oxia set may come
        # once more: another creation time is another node.
        if self.created_ms is not None and found.created_ms != self.created_ms:
            return DeleteResult.LOST_RACE
        return None


@dataclass
class BatchDelete(ABC):
    """One run of versioned deletes; ``results`` grows, by path, as nodes are settled.

    Each store has its own way to send them. A refused delete has its node read again, and so has one whose answer was
    lost: an absent node then counts as deleted (by us, or by someone who wanted the same), an unchanged one is sent
    once more.
    """

    results: dict[str, DeleteResult] = field(default_factory=dict, init=False)
    _sent: bool = field(default=False, init=False)

    def run(self, targets: Sequence[DoomedNode]) -> dict[str, DeleteResult]:
        """Delete the nodes, whose paths differ; raise only if none of them can have been deleted."""
        try:
            self._send_and_settle(targets)
        except StoreUnavailableError as error:
            if not self._sent:
                raise
            _LOG.warning("a batch of deletes ends with outcomes unknown: %s", error)
        self._end(targets)
        return dict.fromkeys([target.path for target in targets], DeleteResult.UNKNOWN) | self.results

    @abstractmethod
    def _send_and_settle(self, targets: Sequence[DoomedNode]) -> None:
        """Send the deletes until all are settled or the rest cannot be; ``_sent`` from the first that may be done."""

    @abstractmethod
    def _end(self, targets: Sequence[DoomedNode]) -> None:
        """Raise the error that kept the deletes from being done, unless one of them was."""

    @abstractmethod
    def _read(self, paths: Sequence[str], deadline: Deadline) -> Sequence[Versioned | None]:
        """Read the nodes, never older than this call."""

    def _still_to_delete(self, targets: Sequence[DoomedNode], deadline: Deadline) -> list[DoomedNode]:
        """Read the nodes again, settle those that are gone or changed, return the others."""
        again = []
        rows = self._read([target.path for target in targets], deadline)
        for target, row in zip(targets, rows, strict=True):
            result = target.result_of(row)
            if result is None:
                again.append(target)
            else:
                self._record([target], result)
        return again

    def _record(self, targets: Iterable[DoomedNode], result: DeleteResult) -> None:
        self.results.update(dict.fromkeys([target.path for target in targets], result))


def runs(targets: Sequence[DoomedNode]) -> Iterator[dict[str, DoomedNode]]:
    """Put a pair that occurs twice into one run, and another version of the same path into a later one."""
    while targets:
        run: dict[str, DoomedNode] = {}
        for target in targets:
            run.setdefault(target.path, target)
        yield run
        if len(run) == len(targets):
            return
        targets = [target for target in targets if target.version != run[target.path].version]
