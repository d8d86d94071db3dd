"""Readers of the pieces of each stage of an orphan scan, in the Python workers of Spark."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from bookwarden.clusters.bookkeeper.listing import ListingPiece, PieceOfNames, digest_of
from bookwarden.clusters.offload.listing import ListingDigest, ObjectPiece, store_name
from bookwarden.clusters.pulsar.references.pieces import PieceOfReferences, ReferencePiece
from bookwarden.clusters.pulsar.references.pieces import digest_of as digest_of_paths
from bookwarden.config import Settings
from bookwarden.errors import FormatError, StoreError, TruncatedListingError
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.list_gaps import NAMES_NOTHING
from bookwarden.pipelines.columns.tables import (
    CHANGES,
    COPIES,
    DOUBTS,
    HOLDERS,
    OBJECTS,
    ODD_NAMES,
    REFERENCES,
    ChangedLedger,
    Columns,
    OddName,
    stored_doubt,
)
from bookwarden.pipelines.columns.topics import TopicRows
from bookwarden.pipelines.scan.files import ScanFolder, Seal
from bookwarden.pipelines.scan.places import created_lately, read_listed
from bookwarden.pipelines.workers import PerProcess
from bookwarden.wiring.scan import ScanSources

logger = logging.getLogger(__name__)
LEDGERS_STAGE = "ledgers"
REFERENCES_STAGE = "references"
LATE_STAGE = "late_references"
CHANGES_STAGE = "changes"
ODD_NAMES_TABLE = "odd_names"
DOUBT_TABLES = ("doubts", "late_doubts")
COPY_TABLES = ("copies", "late_copies")
HOLDER_TABLES = ("holders", "late_holders")
NEWEST = "newest_ahead_ms"
NAMED = "named"
BARE_TOPICS = "bare_topics"
OF_LOGS = "of_logs"
SAID_GONE = "said_gone"
LOG_PLACES = (PlaceKind.LOG_SEGMENT.value, PlaceKind.LOG_ALLOCATION.value)
TOPIC_PLACES = (PlaceKind.MANAGED_LEDGER.value, PlaceKind.SHADOW_TOPIC.value)


PieceT = TypeVar("PieceT")

_sources: PerProcess[ScanSources] = PerProcess()
OBJECTS_STAGE = "objects"
UNREAD_TABLE = "unread_objects"


@dataclass(frozen=True)
class ScanInput:
    """The sources of a scan, and its speed; picklable."""

    settings: Settings  #: Of stores and limits.
    snapshot: str | None  #: URL of a snapshot; None for the live stores.
    tasks: int  #: That run at once: the limit of reads per second is divided among them.

    def open(self) -> ScanSources:
        """Open the stores, for this process alone; the caller closes them."""
        limit = self.settings.orphans.max_reads_per_second
        return ScanSources(
            self.settings, self.snapshot, max_reads_per_second=None if limit is None else limit / self.tasks
        )

    def shared(self) -> ScanSources:
        """Return the open stores of this worker process."""
        return _sources.get((self.snapshot, self.tasks, self.settings.model_dump_json()), self.open)


@dataclass(frozen=True)
class ReadLedgers:
    """Reads the ledgers of a piece of the listing."""

    source: ScanInput

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        sources = self.source.shared()
        found = read_listed(sources, from_json(ListingPiece, piece))
        newest = pc.max(found.table.column("created_ms")).as_py() or 0
        folder.write(
            LEDGERS_STAGE,
            number,
            found.table,
            names=found.names,
            digest=found.digest,
            others={ODD_NAMES_TABLE: ODD_NAMES.table([OddName(path) for path in found.unparsable])},
            # The newest ledgers show how far the clock of the store is ahead.
            notes={NEWEST: newest - int(time.time() * 1000)},
        )


@dataclass(frozen=True)
class ReadReferences:
    """Reads the references of a piece: a namespace, as a rule."""

    source: ScanInput

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        asked = from_json(ReferencePiece, piece)
        topics = TopicRows(asked.root)
        found = self.source.shared().cluster.references.pieces.read(asked, topics)
        _write_references(folder, REFERENCES_STAGE, number, found, 0, topics.tables)


@dataclass(frozen=True)
class ReadLateReferences:
    """Lists a piece of references again, by names only, and reads the new nodes.

    A piece is ``{"piece": ..., "first": number}``; ``first`` is None for a piece that is new since the first pass. A
    node from before ``begun_ms``, in milliseconds since the epoch, must have been in the first pass.
    """

    source: ScanInput
    begun_ms: int

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        references, listed = self.source.shared().cluster.references.pieces, from_json(ReferencePiece, piece["piece"])
        before = frozenset[str]() if piece["first"] is None else _paths_of(folder, piece["first"])
        found = references.read_new(listed, before, references.relist(listed), self.begun_ms)
        _write_references(folder, LATE_STAGE, number, found, 1)


def _write_references(
    folder: ScanFolder, stage: str, number: int, found: PieceOfReferences, turn: int, more: Iterable[pa.Table] = ()
) -> None:
    """Write the rows of a piece; ``more`` are further rows."""
    rows = pa.concat_tables([REFERENCES.table(found.rows), *more])
    folder.write(
        stage,
        number,
        rows,
        names=found.names,
        digest=found.digest,
        others={
            COPY_TABLES[turn]: COPIES.table(found.copies),
            DOUBT_TABLES[turn]: DOUBTS.table([stored_doubt(doubt) for doubt in found.doubts]),
            HOLDER_TABLES[turn]: holders_in(rows),
        },
        notes={
            NAMED: rows.num_rows - rows.column("ledger_id").null_count,
            BARE_TOPICS: _number_of(pc.and_(_of_places(rows, TOPIC_PLACES), rows.column("ledger_id").is_null())),
            OF_LOGS: _number_of(_of_places(rows, LOG_PLACES)),
            SAID_GONE: _number_of(rows.column("gone")),
        },
    )


def _of_places(references: pa.Table, places: Sequence[str]) -> pa.ChunkedArray:
    return pc.is_in(references.column("place"), value_set=pa.array(places))


def _number_of(flags: pa.ChunkedArray) -> int:
    return pc.sum(flags).as_py() or 0


def holders_in(references: pa.Table) -> pa.Table:
    """Return the holders that exist, and their managed ledgers, with the smallest id that each topic lists."""
    topics = references.filter(_of_places(references, TOPIC_PLACES))
    listed = pa.table(
        [topics.column("holder"), pc.fill_null(topics.column("ledger_id"), NAMES_NOTHING)], ["name", "id"]
    )
    firsts = listed.group_by("name").aggregate([("id", "min")]).select(["name", "id_min"])
    names = pc.unique(
        pa.chunked_array(
            [*references.column("holder").chunks, *references.column("managed_ledger").chunks], pa.string()
        )
    ).drop_null()
    others = names.filter(pc.invert(pc.is_in(names, value_set=firsts.column("name"))))
    return pa.concat_tables(
        [
            firsts.rename_columns(HOLDERS.arrow.names).cast(HOLDERS.arrow),
            pa.table([others, pa.nulls(len(others), pa.int64())], schema=HOLDERS.arrow),
        ]
    )


def _paths_of(folder: ScanFolder, number: int) -> frozenset[str]:
    """List the nodes of a piece as the first pass read it; FormatError if its file was changed."""
    paths = set(folder.read(REFERENCES_STAGE, number, ["path"]).column(0).to_pylist())
    seal = folder.seal(REFERENCES_STAGE, number)
    doubts = seal.others.get(DOUBT_TABLES[0], 0) if seal is not None else 0
    if seal is None or (not doubts and seal.digest != digest_of_paths(paths)):
        raise FormatError(f"piece {number} in {folder.folder.location}/{REFERENCES_STAGE} was changed: make a new scan")
    if doubts:
        paths.update(folder.read(DOUBT_TABLES[0], number, ["path"]).column(0).to_pylist())
    return frozenset(paths)


@dataclass(frozen=True)
class CompareListings:
    """Lists a piece again, by names only, and compares it with the first listing.

    A piece is ``{"piece": ..., "first": number}``; ``first`` is None for directories that are new since the first
    listing. That must have had every ledger created before ``begun_ms``, in milliseconds since the epoch, and every
    one older than another ledger that it had.
    """

    source: ScanInput
    begun_ms: int

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        listed = from_json(ListingPiece, piece["piece"])
        before = _NO_LEDGERS if piece["first"] is None else _ledgers_of(folder, piece["first"])
        names = self.source.shared().listing.relist(listed)
        changes = [] if names.digest == before.digest else self._changes(listed, before, names)
        folder.write(CHANGES_STAGE, number, CHANGES.table(changes), names=len(names.ids), digest=names.digest)

    def _changes(self, listed: ListingPiece, before: _FirstListing, names: PieceOfNames) -> list[ChangedLedger]:
        known = frozenset(before.ids)
        new = {one: path for one, path in zip(names.ids, names.paths, strict=True) if one not in known}
        if new:
            limit_ms = max(self.begun_ms, before.newest_ms)
            created = self._created(listed, new)
            if listed.cluster:
                # A copy has a name too, and is listed where its original is.
                new = {one: path for one, path in new.items() if one in created}
            old = [one for one, created_ms in created.items() if created_ms < limit_ms]
            if old:
                raise TruncatedListingError(
                    f"the first listing of {listed} lacks {len(old):,} ledgers that were there before it, such as "
                    f"{old[0]}: the store gave a part of its nodes for all of them; make no plan of it, and look at "
                    "its servers' logs"
                )
        changes = [ChangedLedger(ledger_id, True) for ledger_id in sorted(known.difference(names.ids))]
        return changes + [ChangedLedger(ledger_id, False) for ledger_id in new]

    def _created(self, listed: ListingPiece, new: Mapping[int, str]) -> dict[int, int]:
        """Read when the new ledgers were created that are still there, in ms since the epoch, by id."""
        sources = self.source.shared()
        if listed.cluster:
            return created_lately(sources, listed.cluster, list(new))
        read = sources.listing.of("").read_paths(list(new.values()))
        return {row.ledger_id: row.created_ms for row in read}


class _FirstListing(NamedTuple):
    """A piece of the first listing: its ids, their digest, and the creation time of the newest."""

    ids: list[int]
    digest: str
    newest_ms: int


_NO_LEDGERS = _FirstListing([], digest_of([]), 0)


def _ledgers_of(folder: ScanFolder, number: int) -> _FirstListing:
    """Read the ids of a piece of the first listing; FormatError if its file was changed."""
    rows = folder.read(LEDGERS_STAGE, number, ["ledger_id", "created_ms"])
    ids = rows.column("ledger_id").to_pylist()
    seal, digest = folder.seal(LEDGERS_STAGE, number), digest_of(ids)
    # A ledger that vanished between its name and its metadata has no row.
    if seal is None or seal.rows != len(ids) or (seal.names == seal.rows and seal.digest != digest):
        raise FormatError(f"piece {number} in {folder.folder.location}/{LEDGERS_STAGE} was changed: make a new scan")
    return _FirstListing(ids, digest, pc.max(rows.column("created_ms")).as_py() or 0)


def as_json(piece: Any) -> dict[str, Any]:
    """Turn a piece, a dataclass of texts, numbers and tuples of them, into JSON values."""
    return asdict(piece)


def from_json(kind: type[PieceT], fields: dict[str, Any]) -> PieceT:
    """Turn JSON values back into a piece."""
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})


def digest_of_seals(seals: Iterable[Seal]) -> str:
    """Compute one digest over the digests of all pieces of a stage, in their order."""
    digest = hashlib.sha256()
    for seal in seals:
        digest.update(f"{seal.number} {seal.names} {seal.rows} {seal.digest}\n".encode())
    return digest.hexdigest()


class UnreadObjects(NamedTuple):
    """A store, as ListedObject names it, of which a piece could not be listed."""

    store: str
    reason: str


UNREAD = Columns(UnreadObjects)


@dataclass(frozen=True)
class ReadObjects:
    """Lists a piece of a store of offloaded copies; a store that does not answer is noted, and ends no scan."""

    source: ScanInput

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        listed = from_json(ObjectPiece, piece)
        tables, digest, unread = [OBJECTS.table([])], ListingDigest(), list[UnreadObjects]()
        try:
            for page in self.source.shared().objects.pages(listed):
                tables.append(OBJECTS.table(page))
                digest.add(page)
        except StoreError as error:
            # Half a listing would be safe, but its shares would be wrong.
            tables, digest = tables[:1], ListingDigest()
            unread = [UnreadObjects(store_name(listed.location), str(error))]
            logger.warning("%s is not scanned: %s", *unread[0])
        folder.write(
            OBJECTS_STAGE,
            number,
            pa.concat_tables(tables),
            names=digest.names,
            digest=str(digest),
            others={UNREAD_TABLE: UNREAD.table(unread)},
        )
