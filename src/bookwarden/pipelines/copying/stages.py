"""The stages of a build: the source's ledgers listed and sorted, then copied, each in pieces by the tasks of Spark.

The folder is that of a scan (scan/files.py), with

    ledgers/       for each piece of the listing the ledgers that are to be copied
    complete/      those of it that the target has whole already
    copies/        for each piece of the copying what came of its ledgers

A listing that is some hours old does no harm: the copier looks at each ledger, and at who refers to it, again.
A killed build goes on with its unfinished pieces; what a killed task had copied of one is found complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import pyarrow as pa

from bookwarden.bookie_clusters.moving.build import STAYING, CopyCounts, UncopiedLedger
from bookwarden.bookie_clusters.moving.copiers import copier_between
from bookwarden.bookie_clusters.moving.scope import EVERYTHING, LedgerToCopy, Route, Scope, candidate_of, with_target
from bookwarden.clusters.bookkeeper.bookies.proof import WholeLedgers
from bookwarden.clusters.bookkeeper.copying.copier import NO_LIMITS, LedgerCopier
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.clusters.bookkeeper.listing import LedgerListing, ListingPiece
from bookwarden.config import Settings
from bookwarden.errors import FormatError, RefusedError
from bookwarden.ledgers.custom_metadata import identify_holder, why_not_superseded
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerReading, UnreadableLedger, place_in
from bookwarden.ledgers.outcomes import CopyOutcome, CopyResult
from bookwarden.pipelines.scan.files import ScanFolder, Seal
from bookwarden.pipelines.scan.reading import as_json, from_json
from bookwarden.pipelines.scan.stage import Stages
from bookwarden.pipelines.workers import PerProcess
from bookwarden.wire.ledger_metadata import decode_ledger_metadata
from bookwarden.wiring.cluster import Cluster

#: Rows about ledgers; the outcome is null for one that is to be copied.
_ROW_SCHEMA: Final = pa.schema(
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


def table_of_candidates(candidates: Iterable[LedgerToCopy]) -> pa.Table:
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


class SourceLedger(NamedTuple):
    """A ledger to be copied, as it was listed: its holder is known although it may be gone by now."""

    kind: str
    holder: str | None
    size: int


def listed_in(rows: pa.Table) -> dict[int, SourceLedger]:
    """Read the ledgers of a part of a listing, by id."""
    columns = (rows.column(name).to_pylist() for name in ("ledger_id", "kind", "holder", "bytes"))
    return {ledger_id: SourceLedger(*values) for ledger_id, *values in zip(*columns, strict=True)}


def table_of_results(results: Iterable[CopyResult], listed: Mapping[int, SourceLedger]) -> pa.Table:
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


def staying_in(rows: pa.Table, outcome: CopyOutcome) -> Iterator[UncopiedLedger]:
    """Yield the rows with this outcome."""
    for row in rows.to_pylist():
        if row["outcome"] == outcome.value:
            yield UncopiedLedger(row["ledger_id"], outcome, row["kind"], row["holder"], row["reason"])


def _table(rows: Iterable[tuple[object, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(_ROW_SCHEMA)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _ROW_SCHEMA, strict=True)], schema=_ROW_SCHEMA
    )


LISTING_STAGE: Final = "ledgers"
COMPLETE_TABLE: Final = "complete"
COPYING_STAGE: Final = "copies"
#: Figures in the seal of a piece: its ledgers that are, or were, to be copied, and their bytes.
LEDGERS, BYTES = "to copy", "bytes to copy"
# Before the names of figures about what a copying begins with: as copied what would be, and what is open as open.
_PLANNED: Final = "planned: "
_SETTLED: Final = (CopyOutcome.COMPLETE, CopyOutcome.LEFT_OUT)

_READ_AT_ONCE: Final = 1_000
# A piece of copying ends with its slowest ledger, so it has many; when it is killed it is looked at again as a whole.
_MOST_LEDGERS: Final = 2_000
_MOST_BYTES: Final = 4 << 30
_PIECES_PER_TASK: Final = 8

_clusters: PerProcess[Cluster] = PerProcess()
_copiers: PerProcess[LedgerCopier] = PerProcess()


def copier_of(
    cluster: Cluster, route: Route, scope: Scope = EVERYTHING, limits: CopyLimits = NO_LIMITS
) -> LedgerCopier:
    """Make the copier over a cluster's metadata; raises as `copier_between`."""
    return copier_between(
        *(cluster.bookkeeper.clusters, route, scope, limits, cluster.bookkeeper.bookies, cluster.references.live),
        *(cluster.references.named_holders.holder_of, cluster.store),
    )


def _opened(settings: Settings, max_reads_per_second: float | None) -> Cluster:
    """Return this worker process's cluster with this limit; it stays open where a copier is refused."""
    key = (max_reads_per_second, settings.model_dump_json())
    return _clusters.get(key, lambda: Cluster(settings, max_reads_per_second=max_reads_per_second))


@dataclass(frozen=True)
class CopyJob:
    """Ledgers to be copied, and how fast; picklable."""

    settings: Settings  #: Of stores, bookies and limits.
    route: Route
    scope: Scope
    limits: CopyLimits  #: For one of the tasks that run at once.
    max_reads_per_second: float | None  #: Of the listing, likewise, for each store.

    def cluster(self) -> Cluster:
        """Return this worker process's cluster, with the limit of the listing."""
        return _opened(self.settings, self.max_reads_per_second)

    def copier(self) -> LedgerCopier:
        """Return the copier of this worker process, over stores without that limit."""
        key = (self.route, self.scope, self.limits, self.settings.model_dump_json())
        return _copiers.get(key, lambda: copier_of(_opened(self.settings, None), self.route, self.scope, self.limits))

    def asked_of(self, candidate: LedgerToCopy) -> LedgerToCopy:
        """Return a ledger of the source with the outcome that it has before anything is done about it."""
        return candidate

    def settle(self, ledger_ids: Iterable[int]) -> Iterator[CopyResult]:
        """Copy these ledgers; yield one result for each, in any order."""
        return self.copier().copy(ledger_ids)


@dataclass(frozen=True)
class VerifyJob(CopyJob):
    """Ledgers of which the target has a whole copy by its metadata, to be proven by its bookies; picklable."""

    def asked_of(self, candidate: LedgerToCopy) -> LedgerToCopy:
        """Return one with a whole copy without an outcome, and leave out all others."""
        outcome = None if candidate.outcome is CopyOutcome.COMPLETE else CopyOutcome.LEFT_OUT
        return candidate._replace(outcome=outcome)

    def settle(self, ledger_ids: Iterable[int]) -> Iterator[CopyResult]:
        """Read the copies of these from all bookies that should have them; yield COMPLETE, GONE or FAILED for each."""
        cluster, proof = self.cluster(), self.proof()
        cluster.bookkeeper.clusters.invalidate()
        for reading in cluster.bookkeeper.catalog.read_many(list(ledger_ids)):
            yield _proven(reading, self.route, proof)

    def proof(self) -> WholeLedgers:
        """Return the proof of cleanup."""
        cluster = self.cluster()
        return WholeLedgers(lambda: cluster.bookkeeper.bookies)


def _proven(reading: LedgerReading, route: Route, proof: WholeLedgers) -> CopyResult:
    if isinstance(reading, UnreadableLedger):
        return CopyResult(reading.ledger_id, CopyOutcome.FAILED, None, reason=reading.reason)
    former, kept = place_in(reading, route.source), place_in(reading, route.target)
    if former is None:
        return CopyResult(reading.ledger_id, CopyOutcome.GONE, None, reason="the source does not have it any more")
    holder = identify_holder(former.metadata.custom)
    problem = why_not_superseded(former, kept, route.target)
    if problem is None and kept is not None:
        problem = proof.problem_of(kept)
    if problem is not None:
        return CopyResult(reading.ledger_id, CopyOutcome.FAILED, holder, reason=f"not proven: {problem}")
    entries = (former.metadata.last_entry_id or 0) + 1
    return CopyResult(reading.ledger_id, CopyOutcome.COMPLETE, holder, entries, former.metadata.length)


@dataclass(frozen=True)
class ListLedgers:
    """Sorts the ledgers of a piece of the source's listing."""

    copied: CopyJob

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        cluster = self.copied.cluster()
        found = _listing_of(cluster, self.copied.route.source).read(from_json(ListingPiece, piece))
        rest, complete, counts, planned = [], [], CopyCounts(), CopyCounts()
        nodes = zip(found.ids, found.nodes, strict=True)
        for candidate in map(
            self.copied.asked_of, self._sorted(cluster, ((ledger_id, node.value) for ledger_id, node in nodes))
        ):
            if candidate.outcome in _SETTLED:
                counts.add(candidate.outcome, candidate.kind, candidate.size)
            if candidate.outcome is CopyOutcome.COMPLETE:
                complete.append(candidate)
            elif candidate.outcome is not CopyOutcome.LEFT_OUT:
                rest.append(candidate)
                planned.add(candidate.outcome or CopyOutcome.COPIED, candidate.kind, candidate.size)
        folder.write(
            LISTING_STAGE,
            number,
            table_of_candidates(rest),
            names=found.names,
            digest=found.digest,
            others={COMPLETE_TABLE: table_of_candidates(complete)},
            notes={
                **counts.notes(),
                **planned.notes(_PLANNED),
                **_figures(len(rest), sum(one.size for one in rest)),
            },
        )

    def _sorted(self, cluster: Cluster, nodes: Iterable[tuple[int, bytes]]) -> Iterator[LedgerToCopy]:
        cluster.bookkeeper.clusters.invalidate()
        placed = cluster.bookkeeper.clusters.registered()
        if placed is None:
            raise RefusedError("nothing is copied: no bookie cluster is registered any more")
        registry, route = placed.registry, self.copied.route
        rest = iter(nodes)
        while part := list(islice(rest, _READ_AT_ONCE)):
            found = [
                candidate_of(
                    *(ledger_id, _decoded(value), registry, route.source),
                    wanted=self.copied.scope.wanted,
                    holder_of=cluster.references.named_holders.holder_of,
                )
                for ledger_id, value in part
            ]
            closed = [one.ledger_id for one in found if one is not None and one.outcome is None]
            read = dict(zip(closed, cluster.bookkeeper.catalog.read_many(closed), strict=True)) if closed else {}
            for one in found:
                if one is not None:
                    reading = read.get(one.ledger_id)
                    yield one if reading is None else with_target(one, reading, route)


@dataclass(frozen=True)
class CopyLedgers:
    """Copies the ledgers of a piece: rows of a piece of the listing."""

    copied: CopyJob

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        listed = listed_in(folder.read(LISTING_STAGE, piece["piece"]).slice(piece["begin"], piece["rows"]))
        results = list(self.copied.settle(listed))
        if sorted(result.ledger_id for result in results) != sorted(listed):
            raise FormatError(
                f"{len(listed)} ledgers were to be copied, such as {min(listed)}, and the copier returned others"
            )
        counts = CopyCounts()
        for result in results:
            counts.add(result.outcome, listed[result.ledger_id].kind, result.size)
        folder.write(
            COPYING_STAGE,
            number,
            table_of_results(results, listed),
            names=len(listed),
            digest="",
            notes={**counts.notes(), **_figures(len(listed), sum(one.size for one in listed.values()))},
        )


class CopyStages:
    """The stages of one build in a folder, also a resumed one."""

    def __init__(self, stages: Stages, copied: CopyJob, tasks: int) -> None:
        self._stages = stages
        self._folder = stages.folder
        self._copied = copied
        self._tasks = tasks

    def read_source(self, listing: LedgerListing) -> list[Seal]:
        """List and sort the source's ledgers."""
        return self._stages.run(
            LISTING_STAGE,
            lambda: [as_json(piece) for piece in listing.pieces()],
            ListLedgers(self._copied),
            [COMPLETE_TABLE],
        )

    def copy(self, listed: Sequence[Seal]) -> list[Seal]:
        """Copy what was listed."""
        return self._stages.run(COPYING_STAGE, partial(self._pieces, listed), CopyLedgers(self._copied))

    def _pieces(self, listed: Sequence[Seal]) -> list[dict[str, int]]:
        """Divide the ledgers into pieces with a maximum of ledgers and of bytes; there are some for each task."""
        ledgers, size = (sum(seal.notes[name] for seal in listed) for name in (LEDGERS, BYTES))
        share = _PIECES_PER_TASK * self._tasks
        most, most_bytes = (
            max(1, min(limit, of // share)) for limit, of in ((_MOST_LEDGERS, ledgers), (_MOST_BYTES, size))
        )
        pieces = []
        for seal in listed:
            begin, held = 0, 0
            sizes = self._folder.read(LISTING_STAGE, seal.number, ["bytes"]).column(0).to_pylist() if seal.rows else []
            for at, one in enumerate(sizes):
                if at > begin and (at - begin >= most or held + one > most_bytes):
                    pieces.append({"piece": seal.number, "begin": begin, "rows": at - begin})
                    begin, held = at, 0
                held += one
            if sizes:
                pieces.append({"piece": seal.number, "begin": begin, "rows": len(sizes) - begin})
        return pieces


class CopyProgress:
    """Reports how far the copying is, by the pieces that are finished in its folder, wherever the tasks run."""

    def __init__(self, folder: ScanFolder) -> None:
        self._folder = folder
        self._seen: set[int] = set()
        self.ledgers = 0
        self.size = 0
        self.counts = CopyCounts()

    def look(self) -> None:
        """Add the pieces that were finished since the last look; OSError where the folder cannot be read."""
        for number in sorted(self._folder.finished(COPYING_STAGE) - self._seen):
            seal = self._folder.seal(COPYING_STAGE, number)
            if seal is not None:
                self._seen.add(number)
                self.ledgers += seal.notes[LEDGERS]
                self.size += seal.notes[BYTES]
                self.counts.add_notes(seal.notes)


def counts_of(seals: Iterable[Seal]) -> CopyCounts:
    """Add up the outcomes of the pieces of a stage."""
    counts = CopyCounts()
    for seal in seals:
        counts.add_notes(seal.notes)
    return counts


def planned_counts_of(listed: Iterable[Seal]) -> CopyCounts:
    """Add up what a copying of this listing would do: as copied what would be, and what is open as open."""
    counts = CopyCounts()
    for seal in listed:
        counts.add_notes(seal.notes)
        counts.add_notes(seal.notes, _PLANNED)
    return counts


def first_staying(folder: ScanFolder, stage: str, seals: Sequence[Seal], keep: int) -> list[UncopiedLedger]:
    """Return the first ledgers that stay where they are, ``keep`` of each outcome, the worst outcome first."""
    before = _PLANNED if stage == LISTING_STAGE else ""
    found: list[UncopiedLedger] = []
    for outcome in STAYING:
        some: list[UncopiedLedger] = []
        for seal in seals:
            if len(some) >= keep:
                break
            if any(name.startswith(f"{before}{outcome.value}/") for name in seal.notes):
                some += staying_in(folder.read(stage, seal.number), outcome)
        found += some[:keep]
    return found


def _figures(ledgers: int, size: int) -> dict[str, int]:
    return {LEDGERS: ledgers, BYTES: size}


def _listing_of(cluster: Cluster, name: str) -> LedgerListing:
    place = cluster.bookkeeper.clusters.roots_by_name().get(name)
    if place is None:
        raise RefusedError(f"nothing is copied: no bookie cluster {name!r} is registered any more")
    return LedgerListing(*place)


def _decoded(value: bytes) -> LedgerMetadata | None:
    try:
        return decode_ledger_metadata(value)
    except FormatError:
        # The copier reports what is wrong with it.
        return None
