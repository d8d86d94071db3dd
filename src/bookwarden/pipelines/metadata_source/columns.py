"""The columns of the source, from what nodes say and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bookwarden.clusters.pulsar.references.node_snapshots import NodeSnapshot, is_ambiguous, read_nodes, snapshot_of
from bookwarden.clusters.pulsar.references.nodes import ManagedLedgerNode, ReferenceNode
from bookwarden.follow.table import NodeNow
from bookwarden.ledgers.naming import NodeKind, pack
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.pipelines.columns.topics import PlainLists, plain_lists

#: Kind of the row that ends a comparison with the present.
LISTED: Final = "listed"

SCHEMA: Final = StructType(
    [
        StructField("root", StringType(), False),
        StructField("path", StringType(), False),
        StructField("kind", StringType(), False),
        StructField("version", LongType(), True),
        StructField("ledger_ids", ArrayType(LongType(), False), True),
        StructField("places", ArrayType(StringType(), False), True),
        StructField("copies", StringType(), True),
        StructField("problem", StringType(), True),
        StructField("time", TimestampType(), False),
        StructField("listing", LongType(), True),
    ]
)
_IDS: Final = pa.list_(pa.field("element", pa.int64(), False))
_PLACES: Final = pa.list_(pa.field("element", pa.string(), False))
_TIME: Final = pa.timestamp("us", tz="UTC")
ARROW: Final = pa.schema(
    [
        pa.field("root", pa.string(), False),
        pa.field("path", pa.string(), False),
        pa.field("kind", pa.string(), False),
        pa.field("version", pa.int64()),
        pa.field("ledger_ids", _IDS),
        pa.field("places", _PLACES),
        pa.field("copies", pa.string()),
        pa.field("problem", pa.string()),
        pa.field("time", _TIME, False),
        pa.field("listing", pa.int64()),
    ]
)


def snapshot_batch(snapshots: Sequence[NodeSnapshot], root: str, listing: int | None) -> pa.RecordBatch:
    """Make rows of what nodes say."""
    known = [one.version is not None and not one.problem for one in snapshots]
    ids = [np.frombuffer(one.ids, "<i8") if there else None for one, there in zip(snapshots, known, strict=True)]
    arrays = [
        pa.repeat(root, len(snapshots)),
        pa.array([one.path for one in snapshots], pa.string()),
        pa.array([one.kind for one in snapshots], pa.string()),
        pa.array([one.version for one in snapshots], pa.int64()),
        pa.array(ids, _IDS),
        pa.array([one.places for one in snapshots], _PLACES),
        pa.array([one.copies for one in snapshots], pa.string()),
        pa.array([one.problem or None for one in snapshots], pa.string()),
        _times([one.at_ms for one in snapshots]),
        pa.array([listing] * len(snapshots), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)


def end_batch(listing: int) -> pa.RecordBatch:
    """Make the row that ends a comparison."""
    return snapshot_batch([NodeSnapshot("", LISTED, None, listing)], "", listing)


def node_batches(
    nodes: Sequence[tuple[ReferenceNode, Versioned]], root: str, listing: int | None
) -> Iterator[pa.RecordBatch]:
    """Make rows of nodes with their values, topics that list ledgers and nothing else in whole columns."""
    topics = [one for one in nodes if isinstance(one[0], ManagedLedgerNode) and not is_ambiguous(one[0].path)]
    lists = plain_lists([value.value for _, value in topics]) if topics else None
    if lists is not None and not lists.taken.all():
        topics = list(compress(topics, lists.taken.tolist()))
        lists = plain_lists([value.value for _, value in topics]) if topics else None
    if lists is not None:
        yield _topic_batch(topics, lists, root, listing)
    if len(topics) == len(nodes):
        return
    paths = {node.path for node, _ in topics}
    yield snapshot_batch(
        [snapshot_of(node, value, root) for node, value in nodes if node.path not in paths], root, listing
    )


# Fast path of snapshot_batch, must equal it: tests/unit/pipelines/test_metadata_source.py
def _topic_batch(
    topics: Sequence[tuple[ReferenceNode, Versioned]], lists: PlainLists, root: str, listing: int | None
) -> pa.RecordBatch:
    count = len(topics)
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = np.cumsum(np.bincount(lists.owners, minlength=count))
    ids = pa.ListArray.from_arrays(pa.array(offsets), pa.array(lists.ids), type=_IDS)
    arrays = [
        pa.repeat(root, count),
        pa.array([node.path for node, _ in topics], pa.string()),
        pa.repeat(NodeKind.TOPIC.value, count),
        pa.array([value.version for _, value in topics], pa.int64()),
        ids,
        pa.nulls(count, _PLACES),
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.string()),
        _times([value.modified_ms or value.created_ms for _, value in topics]),
        pa.array([listing] * count, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)


def _times(milliseconds: Sequence[int]) -> pa.Array:
    return pa.array(np.fromiter(milliseconds, np.int64, len(milliseconds)) * 1000).cast(_TIME)


def nodes_in(table: pa.Table) -> Iterator[NodeNow]:
    """Yield what nodes name, in the order of the rows; those that end comparisons are passed over."""
    for batch in table.to_batches():
        yield from _nodes_in(batch)


def now_of(snapshot: NodeSnapshot, root: str) -> NodeNow:
    """Turn what a node says into what is followed of it."""
    there = snapshot.version is not None and not snapshot.problem
    naming = pack(snapshot.kind, snapshot.ids, snapshot.places, snapshot.copies) if there else None
    return NodeNow(root, snapshot.path, naming, snapshot.at_ms, None, snapshot.problem)


def read_now(stores: Mapping[str, MetadataStore], root: str, paths: Sequence[str]) -> list[NodeNow]:
    """Read what single nodes name now, never older than this call; StoreError where the root does not answer."""
    return [now_of(one, root) for one in read_nodes(stores[root], root, paths)]


def ended_in(table: pa.Table) -> int | None:
    """Return the number of the last comparison that ended in these rows."""
    kinds, listings = table.column("kind").to_pylist(), table.column("listing").to_pylist()
    return max((number for kind, number in zip(kinds, listings, strict=True) if kind == LISTED), default=None)


def _nodes_in(batch: pa.RecordBatch) -> Iterator[NodeNow]:
    lists = batch.column("ledger_ids")
    offsets = lists.offsets.to_pylist()
    raw = np.ascontiguousarray(lists.values.to_numpy(zero_copy_only=False), "<i8").tobytes()
    there = lists.is_valid().to_pylist()
    places = _or_nones(batch.column("places"))
    copies = _or_nones(batch.column("copies"))
    problems = _or_nones(batch.column("problem"))
    listings = _or_nones(batch.column("listing"))
    times = batch.column("time").cast(pa.int64()).to_pylist()
    names = zip(*(batch.column(name).to_pylist() for name in ("root", "path", "kind")), strict=True)
    for at, (root, path, kind) in enumerate(names):
        if kind == LISTED:
            continue
        ids = raw[8 * offsets[at] : 8 * offsets[at + 1]]
        naming = pack(kind, ids, places[at], copies[at]) if there[at] else None
        yield NodeNow(root, path, naming, times[at] // 1000, listings[at], problems[at] or "")


def _or_nones(column: pa.Array) -> Sequence[Any]:
    # Mostly all are null.
    values: list[Any] = column.to_pylist() if column.null_count < len(column) else [None] * len(column)
    return values
