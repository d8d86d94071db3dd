"""The reading of a batch's nodes, in Spark's workers or in the process that plans them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from bookwarden.clusters.pulsar.references.node_snapshots import NodeSnapshot, read_nodes, snapshot_of
from bookwarden.clusters.pulsar.references.pieces import ReferencePiece, ReferencePieces
from bookwarden.config import Settings
from bookwarden.errors import FormatError, StoreAccessError
from bookwarden.ledgers.naming import NodeKind
from bookwarden.pipelines.metadata_source.columns import end_batch, node_batches, snapshot_batch
from bookwarden.pipelines.workers import PerProcess, collect_seldom, end_with_daemon
from bookwarden.wiring.cluster import Cluster

_AT_ONCE = 5_000

_clusters: PerProcess[Cluster] = PerProcess()


@dataclass
class PieceShare(InputPartition):
    """Parts of the trees to be read whole, in the comparison of this number."""

    pieces: tuple[ReferencePiece, ...]
    listing: int


@dataclass
class PathShare(InputPartition):
    """Changed nodes of one root, to be read again."""

    root: str
    paths: tuple[str, ...]


@dataclass
class ListingEnd(InputPartition):
    """The end of a comparison."""

    listing: int


def read_share(share: InputPartition, settings: Settings) -> Iterator[pa.RecordBatch]:
    """Read what a task of a worker has to; StoreError where a root does not answer."""
    collect_seldom()
    end_with_daemon()
    return rows_of(share, lambda: _clusters.get(settings.model_dump_json(), lambda: Cluster(settings)))


def rows_of(share: InputPartition, opened: Callable[[], Cluster]) -> Iterator[pa.RecordBatch]:
    """Read what a task has to; StoreError where a root does not answer."""
    if isinstance(share, ListingEnd):
        yield end_batch(share.listing)
        return
    cluster = opened()
    if isinstance(share, PathShare):
        for at in range(0, len(share.paths), _AT_ONCE):
            snapshots = read_nodes(cluster.stores[share.root], share.root, share.paths[at : at + _AT_ONCE])
            if snapshots:
                yield snapshot_batch(snapshots, share.root, None)
    elif isinstance(share, PieceShare):
        for piece in share.pieces:
            yield from _read_piece(cluster, piece, share.listing)


def _read_piece(cluster: Cluster, piece: ReferencePiece, listing: int) -> Iterator[pa.RecordBatch]:
    problem = piece.problem
    if not problem:
        try:
            for nodes, refused in ReferencePieces(cluster.stores).values(piece):
                yield from node_batches(nodes, piece.root, listing)
                if refused:
                    yield snapshot_batch(
                        [snapshot_of(node, error, piece.root) for node, error in refused], piece.root, listing
                    )
        except (StoreAccessError, FormatError) as error:
            problem = str(error)
    if problem:
        yield snapshot_batch(
            [NodeSnapshot(piece.path, NodeKind.TOPIC.value, None, 0, problem=problem)], piece.root, listing
        )
