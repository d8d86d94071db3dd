"""The columns of a scan's tables, in Arrow and for Spark: of the rows in `ledgers.listing`, and of doubts."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, get_args, get_type_hints
from uuid import UUID

import pyarrow as pa

from bookwarden.errors import FormatError
from bookwarden.ledgers.kinds import KINDS, Holder
from bookwarden.ledgers.listing import ListedCopy, ListedLedger, ListedObject, ListedReference
from bookwarden.ledgers.references import Doubt, HoldersBelow
from bookwarden.orphans.summary import Cell

_ARROW_TYPES = {int: pa.int64(), str: pa.string(), bytes: pa.binary(), bool: pa.bool_(), UUID: pa.string()}
_SPARK_TYPES = {int: "BIGINT", str: "STRING", bytes: "BINARY", bool: "BOOLEAN", UUID: "STRING"}


class ChangedLedger(NamedTuple):
    """A ledger that only one of the two listings of a scan has; ``gone``: only the first one."""

    ledger_id: int
    gone: bool


class OddName(NamedTuple):
    """The path of a node among the ledgers whose name fits no layout."""

    path: str


class HolderName(NamedTuple):
    """The text of a holder that exists, or the name of its managed ledger.

    ``first_listed`` is the smallest id that the topic of this name lists, as `list_status_of` takes it; None
    if the holder is no topic.
    """

    name: str
    first_listed: int | None = None


class AbsentLedgerRow(NamedTuple):
    """A ledger that a place names and that was not listed."""

    ledger_id: int


class MissingReference(NamedTuple):
    """A ledger that BookKeeper does not have, and a place that names it, for people."""

    ledger_id: int
    place: str
    outdated: bool  #: The place is a shadow topic's, whose source has let go of the ledger.


class UnnamedOwner(NamedTuple):
    """An owner of ledgers that no place names, by kind and text; ``lately``: one was made after the cutoff.

    ``last_written`` is the largest id of its closed ledgers that have bytes, None where there are none.
    """

    kind: str
    holder: str
    lately: bool
    last_written: int | None


class NamedBy(NamedTuple):
    """The kinds of places that name a ledger."""

    only_logs: bool | None  #: All of them are logs of DistributedLog; None where no place names it.
    only_gone: bool  #: All of them say that its broker deleted it.


class Description(NamedTuple):
    """The class of a ledger, under the headings of a Cell, for people."""

    ledger_class: str  #: Value of a LedgerClass.
    cause: str  #: Value of a Cause; empty for a class that is not planned.
    detail: str  #: Further reasons; may be empty.
    namespace: str  #: NO_NAMESPACE where its owner is unknown.
    topic: str | None  #: That it was made for; None where unknown.
    age: str  #: One of AGE_BUCKETS.


class StoredDoubt(NamedTuple):
    """A doubt as a row; ``about`` is a JSON list of the holders and kinds that it concerns."""

    path: str
    root: str
    reason: str
    about: str


class Columns:
    """The columns of a table whose rows are tuples of `row_types`, one after another; a UUID is kept as text."""

    def __init__(self, *row_types: type[Any]) -> None:
        hints = [hint for row_type in row_types for hint in get_type_hints(row_type).items()]
        self._set([(name, *_plain(hint)) for name, hint in hints])

    def only(self, *names: str) -> Columns:
        """Return some of the columns, in their order."""
        part = Columns()
        part._set([field for field in self._fields if field[0] in names])
        return part

    def _set(self, fields: list[tuple[str, type, bool]]) -> None:
        self._fields = fields
        self._uuids = [index for index, (_, kind, _) in enumerate(fields) if kind is UUID]
        self.arrow = pa.schema([pa.field(name, _ARROW_TYPES[kind], optional) for name, kind, optional in fields])
        self.spark = ", ".join(
            f"{name} {_SPARK_TYPES[kind]}{'' if optional else ' NOT NULL'}" for name, kind, optional in fields
        )

    def table(self, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        """Turn rows into a table."""
        if not rows:
            return self.arrow.empty_table()
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        for index in self._uuids:
            columns[index] = [None if value is None else str(value) for value in columns[index]]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.arrow, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.arrow)


def _plain(hint: Any) -> tuple[type, bool]:
    """Split an annotation into its type and whether None is allowed."""
    if isinstance(hint, types.UnionType):
        (kind,) = [part for part in get_args(hint) if part is not type(None)]
        return kind, True
    return hint, False


LEDGERS = Columns(ListedLedger)
REFERENCES = Columns(ListedReference)
COPIES = Columns(ListedCopy)
OBJECTS = Columns(ListedObject)
CHANGES = Columns(ChangedLedger)
ODD_NAMES = Columns(OddName)
DOUBTS = Columns(StoredDoubt)
HOLDERS = Columns(HolderName)
ABSENT = Columns(AbsentLedgerRow)
MISSING = Columns(MissingReference)
OTHERS = Columns(ListedLedger, NamedBy)
OWNERS = Columns(UnnamedOwner)
CLASSIFIED = Columns(ListedLedger, Description)
CELLS = Columns(Cell)

_HOLDERS: dict[str, type[Holder]] = {kind.__name__: kind for kind in KINDS}


def rows_in(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield a table's rows, of which some thousands are in memory at a time."""
    for batch in table.to_batches(max_chunksize=10_000):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def stored_doubt(doubt: Doubt) -> StoredDoubt:
    """Turn a doubt into a row."""
    return StoredDoubt(doubt.path, doubt.root, doubt.reason, json.dumps([_concern(some) for some in doubt.about]))


def doubt_of(row: StoredDoubt) -> Doubt:
    """Turn a row into a doubt; FormatError if it is damaged."""
    try:
        about = tuple(_concerned(some) for some in json.loads(row.about))
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"the doubt about {row.path} in the scan's folder is damaged: make a new scan") from error
    return Doubt(row.path, row.root, row.reason, about)


def _concern(about: Holder | type[Holder] | HoldersBelow) -> dict[str, Any]:
    if isinstance(about, HoldersBelow):
        return {"below": about.prefix, "kinds": [kind.__name__ for kind in about.kinds]}
    if isinstance(about, type):
        return {"all": about.__name__}
    return {"holder": type(about).__name__, **asdict(about)}


def _concerned(concern: dict[str, Any]) -> Holder | type[Holder] | HoldersBelow:
    if "below" in concern:
        return HoldersBelow(concern["below"], tuple(_HOLDERS[kind] for kind in concern["kinds"]))
    if "all" in concern:
        return _HOLDERS[concern["all"]]
    kind = _HOLDERS[concern["holder"]]
    return kind(**{name: value for name, value in concern.items() if name != "holder"})
