"""The listed ledgers of a scan where several bookie clusters have some: each ledger once, and whose it is.

A ledger is listed where its original is, or, where only copies are left, in the cluster that brokers read it from. A
copy that is not finished is no ledger. In a shared cluster there are only ledgers with our owner mark; elsewhere those
with a mark that the registry does not name, or without one that brokers do not read, are kept as those of another
Pulsar cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from bookwarden.bookie_clusters.bookie_clusters import ClusterSet, RegisteredCluster
from bookwarden.bookie_clusters.registry import can_have_others, is_ours, unknown_owner
from bookwarden.clusters.bookkeeper.listing import ListingPiece, PieceOfLedgers
from bookwarden.errors import FormatError, StoreError
from bookwarden.ledgers.custom_metadata import COPY_KEY, OWNER_KEY
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, StoredLedger
from bookwarden.pipelines.columns.ledgers import ListedTable, ledger_table
from bookwarden.pipelines.columns.snapshots import read_ledgers
from bookwarden.wire.ledger_metadata import decode_ledger_metadata
from bookwarden.wiring.scan import ScanSources

_LOOKED_UP_AT_ONCE: Final = 1_000
# As an entry of the custom metadata is encoded, up to its value.
_OWNER_ENTRY: Final = bytes([0x0A, len(OWNER_KEY)]) + OWNER_KEY.encode() + bytes([0x12, 8])
_OF_OURS: Final = b"bookwarden."


def read_listed(sources: ScanSources, piece: ListingPiece) -> ListedTable:
    """Read a piece of the listing; StoreError where its cluster is not registered any more."""
    listing = sources.listing.of(piece.cluster)
    if not piece.cluster:
        return read_ledgers(sources.cluster.bookkeeper.store, listing, piece)
    found = listing.read(piece)
    judged = _ListedPiece(sources, piece.cluster, found)
    table = ledger_table(judged.kept)
    strange = pa.array(judged.strange, pa.string())
    is_strange = strange.is_valid()
    for name, value in (("kind", None), ("holder", None), ("custom", strange)):
        values = pa.nulls(table.num_rows, pa.string()) if value is None else value
        column = pc.if_else(is_strange, values, table.column(name))
        table = table.set_column(table.column_names.index(name), table.field(name), column)
    return ListedTable(table, found.names, found.digest, found.unparsable)


def created_lately(sources: ScanSources, cluster: str, ledger_ids: Sequence[int]) -> dict[int, int]:
    """Read when the ledgers were created that are listed in this cluster, in ms since the epoch, by id."""
    return {
        ledger.ledger_id: ledger.created_ms
        for reading in _looked_up(sources, ledger_ids)
        if (ledger := _representative(reading)) is not None and ledger.bookie_cluster == cluster
    }


class _ListedPiece:
    """The ledgers of a piece that are listed there; ``strange`` says of each why it is not ours, None if it may be."""

    def __init__(self, sources: ScanSources, cluster: str, found: PieceOfLedgers) -> None:
        self._placed = _placed(sources)
        place = self._placed.named(cluster)
        if place is None:
            raise StoreError(f"the bookie cluster {cluster!r} is not registered any more: begin a new scan")
        self._place = place
        copies: list[int] = []
        keep: list[bool] = []
        strange: list[str | None] = []
        for ledger_id, node in zip(found.ids, found.nodes, strict=True):
            there, reason = self._judge(ledger_id, node.value, copies)
            keep.append(there)
            strange.append(reason)
        elsewhere = {
            reading.ledger_id
            for reading in _looked_up(sources, copies)
            if not _is_listed_in(place, _representative(reading), reading)
        }
        keep = [there and ledger_id not in elsewhere for there, ledger_id in zip(keep, found.ids, strict=True)]
        self.kept = found._replace(
            ids=list(compress(found.ids, keep)),
            paths=list(compress(found.paths, keep)),
            nodes=list(compress(found.nodes, keep)),
        )
        self.strange = list(compress(strange, keep))

    def _judge(self, ledger_id: int, value: bytes, copies: list[int]) -> tuple[bool, str | None]:
        """Return whether it is listed, as far as it alone shows, and why it is not ours; note copies."""
        registry, cluster = self._placed.registry, self._place.cluster
        shared = cluster.shared
        # A registry of the first release does not say which ledgers without a mark are ours in a further cluster.
        unsaid = (
            cluster.unmarked_below is None
            and not (cluster.bootstrap or registry.counts_ids_in(cluster))
            and len(registry.clusters) > 1
        )
        if not unsaid and not can_have_others(cluster) and _OF_OURS not in value:
            return True, None
        if not shared and _OWNER_ENTRY + registry.owner.encode() in value and COPY_KEY.encode() not in value:
            return True, None
        try:
            custom = decode_ledger_metadata(value).custom
        except FormatError:
            # Its row says that it cannot be understood; in a shared cluster its owner is unknown.
            return not shared, None
        if COPY_KEY in custom:
            copies.append(ledger_id)
        ours, unknown = is_ours(registry, cluster, ledger_id, custom), unknown_owner(registry, custom)
        # What brokers read is not all that may be deleted.
        if shared or (ours and unknown is None and not (unsaid and OWNER_KEY not in custom)):
            return ours, None
        mark = "no owner mark" if unknown is None else f"the owner mark {unknown}"
        return True, f"it has {mark} in bookie cluster {cluster.name}, and ours is {registry.owner}"


def _placed(sources: ScanSources) -> ClusterSet:
    placed = sources.cluster.bookkeeper.clusters.registered()
    if placed is None:
        raise StoreError("no bookie cluster is registered any more: begin a new scan")
    return placed


def _looked_up(sources: ScanSources, ledger_ids: Sequence[int]) -> list[LedgerReading]:
    catalog = sources.cluster.bookkeeper.catalog
    starts = range(0, len(ledger_ids), _LOOKED_UP_AT_ONCE)
    return [each for at in starts for each in catalog.read_many(ledger_ids[at : at + _LOOKED_UP_AT_ONCE])]


def _representative(reading: LedgerReading) -> StoredLedger | None:
    """Return the place in which a ledger is listed: that of its original, else as brokers read it."""
    if not isinstance(reading, StoredLedger):
        return None
    originals = (place for place in reading.places if COPY_KEY not in place.metadata.custom)
    return next(originals, reading)


def _is_listed_in(place: RegisteredCluster, representative: StoredLedger | None, reading: LedgerReading) -> bool:
    # What cannot be understood stays, and is never a candidate.
    return not isinstance(reading, AbsentLedger) and (
        representative is None or representative.bookie_cluster == place.name
    )
