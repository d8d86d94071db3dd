"""The records of the trash in the metadata store, read and taken out."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bookwarden.clusters.bookkeeper.catalog import ReadsLedgers
from bookwarden.clusters.pulsar.broker_marks import Outbox
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.clusters.pulsar.trash import TrashLeaseNode, TrashNodes
from bookwarden.errors import FormatError
from bookwarden.ledgers.metadata import LedgerReading
from bookwarden.ledgers.trash import TrashLease, TrashRecord
from bookwarden.metastore.interface import MetadataStore
from bookwarden.trash.generations import FoundRecord, TrashedGeneration, generations
from bookwarden.trash.summary import Summary, summarize
from bookwarden.wire.trash import TRASH_RECORDS, decode_records

_LEDGERS_AT_ONCE: Final = 5_000
_LOOK_EVERY_S: Final = 1.0
#: Whatever was dropped before that, the sweep has looked for, or it does not.
_LOOKED_FOR_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class TrashContent:
    """The whole trash, as it was read."""

    generations: tuple[TrashedGeneration, ...]
    unreadable: Mapping[str, str]  #: Nodes that cannot be read, and why.


class TrashRecords:
    """The records of one metadata store. Every call may raise StoreError."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._outbox = Outbox(store, TRASH_RECORDS)
        #: The nodes that they are in.
        self.nodes = TrashNodes(store, tuple)
        self._lease = TrashLeaseNode(store)

    def read(self) -> TrashContent:
        """Return all that is there, never older than this call."""
        found: list[FoundRecord] = []
        unreadable: dict[str, str] = {}
        for folder in self._outbox.folders():
            for nodes in self._outbox.read(folder):
                for path, node in nodes:
                    try:
                        found += [FoundRecord(record, path) for record in decode_records(node.value)]
                    except FormatError as error:
                        unreadable[path] = str(error)
        return TrashContent(tuple(generations(found, self._live(found))), unreadable)

    def lease(self) -> TrashLease | None:
        """Return the lease by which brokers keep anything; None where there is none, or it cannot be read."""
        return self._lease.read()

    def summarize(
        self, generations: Sequence[TrashedGeneration], catalog: ReadsLedgers, under_way: Mapping[str, str]
    ) -> list[Summary]:
        """Describe each, with what BookKeeper still has of it; ``under_way`` has restores by managed ledger."""
        lease = self.lease()
        ids = sorted(frozenset().union(*(trashed.ledger_ids for trashed in generations)))
        found: dict[int, LedgerReading] = {}
        for at in range(0, len(ids), _LEDGERS_AT_ONCE):
            some = ids[at : at + _LEDGERS_AT_ONCE]
            found |= zip(some, catalog.read_many(some), strict=True)
        return [
            summarize(trashed, [found[one] for one in sorted(trashed.ledger_ids)], lease, under_way)
            for trashed in generations
        ]

    def with_policies(self, chosen: Sequence[TrashedGeneration], wait_s: float) -> list[TrashedGeneration]:
        """Return these again, once the sweep has looked for policies of topics that were deleted a moment ago.

        It waits for so long at most, and not where there is no sweep.
        """
        until = time.monotonic() + wait_s
        found = list(chosen)
        while any(_is_looked_for_soon(one) for one in found) and time.monotonic() < until:
            lease = self.lease()
            if lease is None or not lease.is_valid(int(time.time() * 1000)):
                break
            time.sleep(_LOOK_EVERY_S)
            now = {one.generation: one for one in self.read().generations}
            found = [now.get(one.generation, one) for one in found]
        return found

    def _live(self, found: Iterable[FoundRecord]) -> dict[str, int]:
        names = sorted({one.record.managed_ledger for one in found})
        nodes = self._store.get_many([managed_ledger_path(name) for name in names])
        return {name: node.created_ms for name, node in zip(names, nodes, strict=True) if node is not None}


def _is_looked_for_soon(trashed: TrashedGeneration) -> bool:
    topic = trashed.topic if trashed.found else None
    return topic is not None and topic.policies is None and topic.time_ms > 1000 * (time.time() - _LOOKED_FOR_S)


def by_node(found: Iterable[FoundRecord]) -> dict[str, list[TrashRecord]]:
    """Return records by the path of the node that each is in."""
    nodes: dict[str, list[TrashRecord]] = defaultdict(list)
    for one in found:
        nodes[one.path].append(one.record)
    return nodes
