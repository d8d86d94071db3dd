"""The space that the ledgers of a piece of the listing take, by holder and bookie, in the Python workers of Spark."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.core.broadcast import Broadcast

from bookwarden.errors import BookieError, FormatError, NotFoundError
from bookwarden.ledgers.disk_use import FOREIGN, NAMED, TRASHED, UNNAMED, disk_bytes, shares
from bookwarden.ledgers.metadata import LedgerState, StoredLedger
from bookwarden.orphans.owners import owner_of, without_partition
from bookwarden.orphans.summary import NO_NAMESPACE, OTHER_KIND
from bookwarden.pipelines.columns.messages import Numbers
from bookwarden.pipelines.columns.tables import Columns
from bookwarden.pipelines.scan.files import ScanFolder
from bookwarden.pipelines.scan.ids import Ids, NamedIds, is_among
from bookwarden.pipelines.scan.reading import LEDGERS_STAGE, ScanInput
from bookwarden.wire.ledger_metadata import decode_segments

logger = logging.getLogger(__name__)
USE_STAGE = "use"
BOOKIES_TABLE = "bookies"
_READ = ["ledger_id", "created_ms", "state", "length", "kind", "holder", "entries", "disk_bytes", "segments"]
_OF_HOLDER = ["status", "kind", "holder"]
_OF_TOPIC = ["status", "kind", "namespace", "topic"]
_SUMS = ["ledgers", "open_ledgers", "unasked", "logical_bytes", "disk_bytes"]
_NEVER_MS = np.iinfo(np.int64).max


class HolderUse(NamedTuple):
    """Ledgers of one holder, and of one status: NAMED, TRASHED, UNNAMED or FOREIGN."""

    status: str  #: One of these.
    kind: str  #: The name of a LedgerComponent, or OTHER_KIND.
    holder: str | None  #: As in a ListedLedger.
    ledgers: int  #: Number of them; this and all below as in a Use.
    open_ledgers: int  #: Of these, how many are not closed.
    unasked: int  #: Of these, how many count without bytes.
    logical_bytes: int  #: Of each entry once.
    disk_bytes: int  #: Of all copies.
    oldest_ms: int | None  #: When the oldest was created, in ms since the epoch; None without ledgers.


class TopicUse(NamedTuple):
    """Ledgers of one topic and kind, and of one status."""

    status: str  #: This, the next one and all below the topic as in a HolderUse.
    kind: str  #: The name of a LedgerComponent, or OTHER_KIND.
    namespace: str  #: NO_NAMESPACE where the owner is unknown.
    topic: str  #: The name of its managed ledger; "" where the owner is unknown.
    ledgers: int  #: Number of them.
    open_ledgers: int  #: Of these, how many are not closed.
    unasked: int  #: Of these, how many count without bytes.
    logical_bytes: int  #: Of each entry once.
    disk_bytes: int  #: Of all copies.
    oldest_ms: int | None  #: When the oldest was created, in ms since the epoch.


class BookieShare(NamedTuple):
    """The share of a bookie in the ledgers of one status."""

    bookie: str
    status: str
    ledgers: int
    disk_bytes: int


HOLDERS = Columns(HolderUse)
TOPICS = Columns(TopicUse)
BOOKIES = Columns(BookieShare)


class Place(NamedTuple):
    """The place of a ledger among tenants, namespaces and topics."""

    tenant: str
    namespace: str  #: NO_NAMESPACE where the owner is unknown.
    topic: str  #: The name of its managed ledger.


def place_of(kind: str | None, holder: str | None) -> Place:
    """Return where the ledgers of a holder belong, given by kind and text as in a ListedLedger."""
    owner = None if kind is None or holder is None else owner_of(kind, holder)
    return Place("", NO_NAMESPACE, "") if owner is None else Place(owner.tenant, owner.namespace, owner.topic)


class Wanted(NamedTuple):
    """The ledgers that are counted: all, or those of a tenant, a namespace, or a topic with its partitions."""

    tenant: str = ""
    namespace: str = ""
    topic: str = ""  #: The name of its managed ledger.

    def has(self, place: Place) -> bool:
        """Return whether the ledgers of this place are counted."""
        return (
            self.tenant in ("", place.tenant)
            and self.namespace in ("", place.namespace)
            and self.topic in ("", place.topic, without_partition(place.topic))
        )


ALL = Wanted()


@dataclass(frozen=True)
class MeasurePiece:
    """Adds up a piece of the listing, given by number; bookies are asked for ``most_asked`` open ledgers at most.

    ``trashed`` are the ids of the ledgers that the trash keeps, sorted.
    """

    source: ScanInput
    wanted: Wanted
    most_asked: int
    trashed: Broadcast[Ids]

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        ledgers = folder.read(LEDGERS_STAGE, piece, _READ)
        ids = ledgers.column("ledger_id").to_numpy()
        named, _, _ = NamedIds(folder).flags(ids)
        in_use = np.where(named, NAMED, np.where(is_among(ids, self.trashed.value), TRASHED, UNNAMED))
        status = pc.if_else(ledgers.column("kind").is_valid(), pa.array(in_use, pa.string()), FOREIGN)
        table = self._with_open_ones(self._counted(ledgers.append_column("status", status)))
        folder.write(
            USE_STAGE,
            number,
            _by_holder(table),
            names=table.num_rows,
            digest="",
            others={BOOKIES_TABLE: BOOKIES.table(_shared(table))},
        )

    def _counted(self, ledgers: pa.Table) -> pa.Table:
        """Leave out what is not counted; those of no known kind are of OTHER_KIND."""
        if self.wanted != ALL:
            named = zip(ledgers.column("kind").to_pylist(), ledgers.column("holder").to_pylist(), strict=True)
            ledgers = ledgers.filter(pa.array([self.wanted.has(place_of(*one)) for one in named], pa.bool_()))
        kinds = pc.fill_null(ledgers.column("kind"), OTHER_KIND)
        return ledgers.set_column(ledgers.column_names.index("kind"), "kind", kinds)

    def _with_open_ones(self, table: pa.Table) -> pa.Table:
        """Add what bookies tell of open ledgers, and the columns that are added up."""
        count = table.num_rows
        is_open = pc.fill_null(pc.not_equal(table.column("state"), LedgerState.CLOSED.name), False).to_numpy()
        columns = {name: table.column(name).to_numpy().copy() for name in ("entries", "length", "disk_bytes")}
        unasked = is_open.copy()
        at = np.flatnonzero(is_open)[: self.most_asked]
        answers = self._ask_bookies(table.column("ledger_id").to_numpy()[at].tolist())
        for place, answer in zip(at.tolist(), answers, strict=True):
            if answer is not None:
                unasked[place] = False
                for name, value in zip(columns, answer, strict=True):
                    columns[name][place] = value
        return pa.table(
            {
                **{name: table.column(name) for name in [*_OF_HOLDER, "segments"]},
                "entries": columns["entries"],
                "ledgers": np.ones(count, np.int64),
                "open_ledgers": is_open.astype(np.int64),
                "unasked": unasked.astype(np.int64),
                "logical_bytes": columns["length"],
                "disk_bytes": columns["disk_bytes"],
                "oldest_ms": table.column("created_ms"),
            }
        )

    def _ask_bookies(self, ledger_ids: Sequence[int]) -> list[tuple[int, int, int] | None]:
        """Ask bookies for entries, length and disk bytes of open ledgers; None for one of which they tell nothing."""
        if not ledger_ids or self.source.snapshot is not None:
            return [None] * len(ledger_ids)
        bookkeeper = self.source.shared().cluster.bookkeeper
        found = list[tuple[int, int, int] | None]()
        for reading in bookkeeper.catalog.read_many(ledger_ids):
            if not isinstance(reading, StoredLedger):
                found.append(None)
                continue
            try:
                last = bookkeeper.last_entries.last_written(reading)
            except (BookieError, FormatError, NotFoundError) as error:
                logger.info("ledger %d is open and counts without bytes: %s", reading.ledger_id, error)
                found.append(None)
                continue
            entries, length = (0, 0) if last is None else (last.entry_id + 1, last.length)
            found.append((entries, length, disk_bytes(reading.metadata.write_quorum, length, entries)))
        return found


def _by_holder(ledgers: pa.Table) -> pa.Table:
    """Add up ledgers of the same holder and status; the result has the columns of HOLDERS."""
    grouped = ledgers.group_by(_OF_HOLDER).aggregate([*((name, "sum") for name in _SUMS), ("oldest_ms", "min")])
    names = {**{f"{name}_sum": name for name in _SUMS}, "oldest_ms_min": "oldest_ms"}
    return (
        grouped.rename_columns([names.get(name, name) for name in grouped.column_names])
        .select(HOLDERS.arrow.names)
        .cast(HOLDERS.arrow)
    )


class _TopicNumbers(dict[tuple[str, str | None], int]):
    """The number of each holder's topic, by kind and holder; a holder is parsed when it is asked for first."""

    def __init__(self) -> None:
        self.topics = dict[tuple[str, str, str], int]()  #: By kind, namespace and topic.

    def __missing__(self, holder: tuple[str, str | None]) -> int:
        place = place_of(*holder)
        number = self[holder] = self.topics.setdefault((holder[0], place.namespace, place.topic), len(self.topics))
        return number


class _Totals:
    """Sums of the ledgers of one status, by the number of their topic."""

    def __init__(self) -> None:
        self.sums: Numbers = np.zeros((0, len(_SUMS)), np.int64)
        self.oldest_ms: Numbers = np.zeros(0, np.int64)

    def add(self, numbers: Numbers, rows: pa.Table, topics: int) -> None:
        """Add rows of HOLDERS, with the numbers of their topics; ``topics`` is how many there are by now."""
        if more := topics - len(self.sums):
            self.sums = np.concatenate([self.sums, np.zeros((more, len(_SUMS)), np.int64)])
            self.oldest_ms = np.concatenate([self.oldest_ms, np.full(more, _NEVER_MS)])
        np.add.at(self.sums, numbers, np.column_stack([rows.column(name).to_numpy() for name in _SUMS]))
        np.minimum.at(self.oldest_ms, numbers, pc.fill_null(rows.column("oldest_ms"), _NEVER_MS).to_numpy())


def by_topic(tables: Iterable[pa.Table]) -> pa.Table:
    """Add up what pieces have of holders by their topics; the result has the columns of TOPICS.

    Ledgers of a topic are spread over all pieces, so holders are parsed here, each once, and what a piece has is added
    to the totals as it comes: the rows of a large listing would not fit into memory.
    """
    numbers, totals = _TopicNumbers(), defaultdict[str, _Totals](_Totals)
    for table in tables:
        holders = zip(*(table.column(name).to_pylist() for name in ("kind", "holder")), strict=True)
        of_rows = np.array([numbers[holder] for holder in holders], np.int64)
        for status in pc.unique(table.column("status")).to_pylist():
            is_of = pc.equal(table.column("status"), status)
            totals[status].add(of_rows[is_of.to_numpy()], table.filter(is_of), len(numbers.topics))
    if not totals:
        return TOPICS.arrow.empty_table()
    names = zip(_OF_TOPIC[1:], zip(*numbers.topics, strict=True), strict=True)
    topics = {name: pa.array(values, pa.string()) for name, values in names}
    del numbers
    found = list[pa.Table]()
    for status, total in totals.items():
        at = np.flatnonzero(total.sums[:, 0])
        oldest_ms = total.oldest_ms[at]
        columns = {
            "status": pa.repeat(status, len(at)),
            **{name: values.take(pa.array(at)) for name, values in topics.items()},
            **dict(zip(_SUMS, total.sums[at].T, strict=True)),
            "oldest_ms": pa.array(oldest_ms, mask=oldest_ms == _NEVER_MS),
        }
        found.append(pa.table(columns).cast(TOPICS.arrow))
    return pa.concat_tables(found)


def _shared(ledgers: pa.Table) -> list[BookieShare]:
    """Divide ledgers among their bookies."""
    encoded = ledgers.column("segments").combine_chunks().dictionary_encode()
    segments = [() if raw is None else decode_segments(raw) for raw in encoded.dictionary.to_pylist()]
    index = pc.fill_null(encoded.indices, -1).to_numpy()
    # The entries of a ledger whose bookies never changed need not be known.
    is_moved = np.array([len(one) > 1 for one in segments], np.bool_)
    entries: Numbers = np.where(is_moved[index], ledgers.column("entries").to_numpy(), 0) if len(segments) else index
    rows = pa.table(
        {"status": ledgers.column("status"), "at": index, "entries": entries, "size": ledgers.column("disk_bytes")}
    )
    grouped = (
        rows.filter(pc.greater_equal(rows.column("at"), 0))
        .group_by(["status", "at", "entries"])
        .aggregate([("size", "sum"), ("size", "count")])
    )
    found: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    for row in grouped.to_pylist():
        counted = set[str]()
        for bookie, part in shares(segments[row["at"]], row["entries"]):
            tally = found[bookie, row["status"]]
            tally[1] += part * row["size_sum"]
            tally[0] += 0 if bookie in counted else row["size_count"]
            counted.add(bookie)
    return [BookieShare(bookie, status, int(number), round(size)) for (bookie, status), (number, size) in found.items()]
