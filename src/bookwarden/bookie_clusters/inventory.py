"""The ledgers of all bookie clusters, counted; those that are still written outside the active one, and their topics.

A ledger that is open when brokers are switched stays where it is until it rolls. Unloading its topic closes it at
once, and the next one is made in the active cluster.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from bookwarden.bookie_clusters.registry import (
    NOT_OURS,
    OTHER,
    UNFINISHED,
    UNREADABLE,
    BookieCluster,
    Registry,
    is_ours,
    is_trial,
)
from bookwarden.clusters.bookkeeper.listing import read_every_ledger
from bookwarden.errors import BookwardenError, FormatError, NotFoundError
from bookwarden.ledgers.custom_metadata import identify_holder, is_unfinished
from bookwarden.ledgers.kinds import Holder, LedgerComponent
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState
from bookwarden.ledgers.names import TopicName
from bookwarden.metastore.interface import MetadataStore

# A topic that is unloaded closes these; of the others each is closed as soon as it is written.
_OF_LOADED_TOPICS = (LedgerComponent.MANAGED_LEDGER, LedgerComponent.MANAGED_CURSOR)


class LedgerCount(NamedTuple):
    """The ledgers of one kind in one cluster; those in recovery count as open. Only closed ones have a size."""

    cluster: str
    kind: str
    open: int
    closed: int
    size: int  #: In bytes, of one copy of each entry.


class OwnerUsage(NamedTuple):
    """The ledgers of one holder in a cluster that is not active; the holder is None where it is unknown."""

    cluster: str
    kind: str
    holder: str | None
    ledgers: int


class OpenLedger(NamedTuple):
    """A ledger that is open in a cluster that is not active; the holder is None where it is unknown."""

    cluster: str
    ledger_id: int
    holder: Holder | None

    @property
    def topic(self) -> str | None:
        """The topic that closes it when it is unloaded; None where there is none."""
        if self.holder is None or self.holder.component not in _OF_LOADED_TOPICS:
            return None
        try:
            return str(TopicName.of_managed_ledger(self.holder.topic))
        except FormatError:
            return None


@dataclass(frozen=True, slots=True)
class LedgerInventory:
    """All ledgers of this Pulsar cluster, counted, and those that are open outside the active bookie cluster."""

    counts: tuple[LedgerCount, ...]
    left: tuple[OpenLedger, ...]
    held: tuple[OwnerUsage, ...] = ()  #: All ledgers outside the active cluster by holder, if that was asked for.

    @property
    def topics(self) -> list[str]:
        """The topics to unload, so that nothing is written outside the active cluster any more."""
        return sorted({one.topic for one in self.left if one.topic is not None})


def take_inventory(
    registry: Registry,
    *,
    store_of: Callable[[BookieCluster], MetadataStore],
    read: Callable[[MetadataStore, str], Iterable[tuple[int, LedgerMetadata | None]]] = read_every_ledger,
    by_holder: bool = False,
    only: str | None = None,
) -> LedgerInventory:
    """Count the ledgers of all clusters, or of this one ``only``; StoreError where a cluster cannot be listed whole.

    ``read`` yields the ledgers at a ledgers root, with None for metadata that cannot be understood. ``by_holder``
    keeps each holder of ledgers outside the active cluster in memory.
    """
    open_, closed, sizes = (Counter[tuple[str, str]]() for _ in range(3))
    held = Counter[tuple[str, str, str | None]]()
    left: list[OpenLedger] = []
    for cluster in registry.in_reading_order() if only is None else [registry.cluster(only)]:
        for ledger_id, metadata in read(store_of(cluster), cluster.ledgers_root):
            elsewhere = by_holder and cluster.name != registry.active
            if metadata is None:
                open_[cluster.name, UNREADABLE] += 1
                if elsewhere:
                    held[cluster.name, UNREADABLE, None] += 1
                continue
            if is_trial(registry, metadata.custom):
                # It keeps no cluster from being unregistered.
                continue
            if not is_ours(registry, cluster, ledger_id, metadata.custom):
                if not cluster.shared:
                    is_closed = metadata.state is LedgerState.CLOSED
                    (closed if is_closed else open_)[cluster.name, NOT_OURS] += 1
                    sizes[cluster.name, NOT_OURS] += metadata.length if is_closed else 0
                continue
            holder = identify_holder(metadata.custom)
            unfinished = is_unfinished(metadata)
            kind = UNFINISHED if unfinished else OTHER if holder is None else holder.ledgers_label
            key = cluster.name, kind
            if elsewhere:
                held[key[0], key[1], None if holder is None else str(holder)] += 1
            # No broker writes an unfinished copy, so that no topic closes it.
            if unfinished or metadata.state is LedgerState.CLOSED:
                closed[key] += 1
                sizes[key] += metadata.length
                continue
            open_[key] += 1
            if cluster.name != registry.active:
                left.append(OpenLedger(cluster.name, ledger_id, holder))
    counts = (LedgerCount(*key, open_[key], closed[key], sizes[key]) for key in sorted({*open_, *closed}))
    by_name = sorted(held, key=lambda key: (key[0], key[1], key[2] or ""))
    return LedgerInventory(tuple(counts), tuple(left), tuple(OwnerUsage(*key, held[key]) for key in by_name))


class UnloadResult(NamedTuple):
    """A topic; ``error`` says why it was not unloaded, "" if it was. ``is_absent``: there is nothing to unload."""

    topic: str
    error: str
    is_absent: bool = False

    @property
    def failed(self) -> bool:
        """Whether the topic may still be loaded."""
        return bool(self.error) and not self.is_absent


def roll(
    topics: Iterable[str],
    unload: Callable[[str], None],
    per_second: float,
    tell: Callable[[UnloadResult], object],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> list[UnloadResult]:
    """Unload the topics, at most ``per_second`` in a second; ``tell`` is called with each. A failure ends nothing."""
    done: list[UnloadResult] = []
    for topic in topics:
        if done:
            sleep(1 / per_second)
        try:
            unload(topic)
            done.append(UnloadResult(topic, ""))
        except NotFoundError:
            done.append(
                UnloadResult(topic, "no broker has it loaded; what it left open is closed when it is loaded", True)
            )
        except BookwardenError as error:
            done.append(UnloadResult(topic, str(error)))
        tell(done[-1])
    return done
