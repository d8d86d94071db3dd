"""Tables of a build: the ledgers of the source, and what came of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import pyarrow as pa

from bookwarden.ledgers.outcomes import CopyOutcome, CopyResult
from bookwarden.switching.moving.candidates import Candidate
from bookwarden.switching.moving.report import Staying

#: Rows about ledgers; the outcome is null for one that is to be copied.
LEDGERS: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("outcome", pa.string()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("holder", pa.string()),
        pa.field("entries", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)


def table_of_candidates(candidates: Iterable[Candidate]) -> pa.Table:
    """Lay out ledgers of the source as rows."""
    rows = (
        (
            one.ledger_id,
            None if one.outcome is None else one.outcome.value,
            one.kind,
            None if one.holder is None else str(one.holder),
            one.entries,
            one.size,
            "",
        )
        for one in candidates
    )
    return _table(rows)


class Listed(NamedTuple):
    """A ledger to be copied, as the listing told of it: who held it is known although it is gone by now."""

    kind: str
    holder: str | None
    size: int


def listed_in(rows: pa.Table) -> dict[int, Listed]:
    """Read the ledgers of a part of a listing, by id."""
    columns = (rows.column(name).to_pylist() for name in ("ledger_id", "kind", "holder", "bytes"))
    return {ledger_id: Listed(*told) for ledger_id, *told in zip(*columns, strict=True)}


def table_of_results(results: Iterable[CopyResult], listed: Mapping[int, Listed]) -> pa.Table:
    """Lay out what came of listed ledgers as rows."""
    rows = (
        (
            one.ledger_id,
            one.outcome.value,
            listed[one.ledger_id].kind,
            listed[one.ledger_id].holder,
            one.entries,
            one.size,
            one.reason,
        )
        for one in results
    )
    return _table(rows)


def staying_in(rows: pa.Table, outcome: CopyOutcome) -> Iterator[Staying]:
    """Yield the rows with this outcome."""
    for row in rows.to_pylist():
        if row["outcome"] == outcome.value:
            yield Staying(row["ledger_id"], outcome, row["kind"], row["holder"], row["reason"])


def _table(rows: Iterable[tuple[object, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(LEDGERS)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, LEDGERS, strict=True)], schema=LEDGERS
    )
