"""The bookie cluster of each ledger, and whether a ledger names bookies of that cluster alone."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from bookwarden.clusters.bookkeeper.listing import LedgerListing
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.ledgers.names import TopicName
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.ledger_metadata import decode_ledger_metadata


class ClusterLedgers(NamedTuple):
    """The place of a cluster's ledgers."""

    store: MetadataStore
    root: str
    bookie_ids: Set[str]  #: Those of its bookies.


@dataclass(frozen=True, slots=True)
class LedgerPlaces:
    """The ledgers of each bookie cluster."""

    by_cluster: Mapping[str, frozenset[int]]  #: Ids, by the cluster's name.
    #: Ledgers whose metadata names a bookie that is not of its cluster, each with what it names.
    astray: tuple[str, ...]

    def since(self, earlier: LedgerPlaces) -> dict[str, frozenset[int]]:
        """Return the ledgers of each cluster that were not there earlier."""
        return {name: ids - earlier.by_cluster[name] for name, ids in self.by_cluster.items()}

    def of_topic(self, store: MetadataStore, topic: str) -> dict[str, int]:
        """Count the ledgers of a topic's messages by cluster; FormatError if its node cannot be read."""
        listed = ledgers_of_topic(store, topic)
        return {name: len(ids & listed) for name, ids in self.by_cluster.items()}


def ledgers_of_topic(store: MetadataStore, topic: str) -> frozenset[int]:
    """Return the ids of the ledgers of a topic's messages; FormatError if its node cannot be read."""
    read = ManagedLedgers(store).read(TopicName.parse(topic).managed_ledger)
    return frozenset(ledger.ledger_id for ledger in read.info.ledgers) if read else frozenset()


def find_places(clusters: Mapping[str, ClusterLedgers]) -> LedgerPlaces:
    """List the ledgers of clusters, by name.

    Raises StoreError where a root cannot be listed, FormatError where metadata cannot be read.
    """
    by_cluster, astray = {}, []
    for name, (store, root, bookie_ids) in clusters.items():
        listing = LedgerListing(store, root)
        pieces = [listing.read(piece) for piece in listing.pieces()]
        by_cluster[name] = frozenset(ledger_id for piece in pieces for ledger_id in piece.ids)
        for piece in pieces:
            for path, node in zip(piece.paths, piece.nodes, strict=True):
                segments = decode_ledger_metadata(node.value).segments
                strangers = {bookie for each in segments for bookie in each.ensemble} - bookie_ids
                astray += [f"{path} names {', '.join(sorted(strangers))}"] if strangers else []
    return LedgerPlaces(by_cluster, tuple(astray))
