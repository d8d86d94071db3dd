"""The ledgers that places name and that were not listed, looked up directly, and the places that still name them.

The pieces are those of the references, so that all ledgers of a node are in one piece and the node is read once more,
however many it names: after a loss of BookKeeper's metadata that is every ledger of a topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bookwarden.ledgers.listing import ListedReference
from bookwarden.ledgers.metadata import AbsentLedger
from bookwarden.pipelines.columns.tables import MISSING, REFERENCES
from bookwarden.pipelines.scan.files import ScanFolder, Seal
from bookwarden.pipelines.scan.ids import is_absent
from bookwarden.pipelines.scan.reading import LATE_STAGE, REFERENCES_STAGE, ScanInput

MISSING_STAGE = "missing"
_STAGES = (REFERENCES_STAGE, LATE_STAGE)
_LOOKED_UP_AT_ONCE = 1_000


def pieces_with_references(seals: Mapping[str, Sequence[Seal]]) -> list[Any]:
    """List the pieces, by stage and number, in which places name ledgers."""
    return [[stage, seal.number] for stage in _STAGES for seal in seals[stage] if seal.rows]


@dataclass(frozen=True)
class LookUpMissing:
    """Looks up the absent ledgers of a piece; writes the ones still missing and still named, by place."""

    source: ScanInput

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        stage, number_there = piece
        # Where a ledger may be has to be known as it is now.
        self.source.shared().cluster.bookkeeper.clusters.look_again()
        references = absent_references(folder, stage, number_there)
        found = [row for some in _whole_nodes(references) for row in self._missing(some)]
        folder.write(MISSING_STAGE, number, MISSING.table(found), names=references.num_rows, digest="")

    def _missing(self, references: Sequence[ListedReference]) -> list[tuple[int, str, bool]]:
        sources = self.source.shared()
        ids = sorted({reference.ledger_id for reference in references if reference.ledger_id is not None})
        absent: set[int] = set()
        for at in range(0, len(ids), _LOOKED_UP_AT_ONCE):
            readings = sources.cluster.bookkeeper.catalog.read_many(ids[at : at + _LOOKED_UP_AT_ONCE])
            absent.update(reading.ledger_id for reading in readings if isinstance(reading, AbsentLedger))
        # A deletion removes the ledger's name first; that may have happened since it was read.
        named = sources.still_named([reference for reference in references if reference.ledger_id in absent])
        outdated = sources.outdated(named)
        return [
            (one.ledger_id, f"{one.place} {one.holder}, {one.path} in {one.root}", one in outdated)
            for one in named
            if one.ledger_id is not None
        ]


def absent_references(folder: ScanFolder, stage: str, number: int) -> pa.Table:
    """Return a piece's references to ledgers that should have been listed and were not, grouped by node."""
    rows = folder.read(stage, number, REFERENCES.arrow.names)
    rows = rows.filter(pc.and_(rows.column("ledger_id").is_valid(), pc.invert(rows.column("gone"))))
    rows = rows.filter(pa.array(is_absent(folder, rows.column("ledger_id").to_numpy())))
    return rows.sort_by([("root", "ascending"), ("path", "ascending")])


def _whole_nodes(references: pa.Table) -> Iterator[list[ListedReference]]:
    """Yield the references some at a time, all those of a node at once."""
    some: list[ListedReference] = []
    for batch in references.to_batches(max_chunksize=_LOOKED_UP_AT_ONCE):
        for row in map(ListedReference, *(column.to_pylist() for column in batch.columns)):
            if len(some) >= _LOOKED_UP_AT_ONCE and (row.root, row.path) != (some[-1].root, some[-1].path):
                yield some
                some = []
            some.append(row)
    if some:
        yield some
