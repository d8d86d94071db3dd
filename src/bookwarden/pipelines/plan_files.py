"""The folder of plans: candidates as Parquet files, the summary, and the manifest that is written last.

    plans/<plan id>/candidates-00000.parquet    by growing ledger id through all of these files
    plans/<plan id>/copies.parquet              the offloaded copies, if there are any
    plans/<plan id>/summary.json                and other files that the manifest names
    plans/<plan id>/manifest.json               the mark of success: without it there is no plan
    plans/<plan id>/applied.json                how far the plan was applied
    plans/<plan id>/applied-copies.json         how far its copies were

Every file is checked against its digest in the manifest, on the very bytes that are used.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bookwarden.errors import FileError, FormatError, NotFoundError, RefusedError
from bookwarden.orphans.copy_plan import COPIES, CopyCandidate
from bookwarden.orphans.guards import check_counts
from bookwarden.orphans.plan import Candidate, FileDigest, PlanManifest, ScannedCluster, check_id
from bookwarden.orphans.progress import ApplyProgress
from bookwarden.orphans.summary import Summary
from bookwarden.pipelines.columns.messages import Numbers
from bookwarden.pipelines.columns.tables import Columns, rows_in
from bookwarden.pipelines.folders import Folder

logger = logging.getLogger(__name__)
CANDIDATES: Final = Columns(Candidate)
_FIRST_SEEN: Final = "first_seen_ms"
# What only a scan says of its candidates: the earlier plan has the rest.
ORPHANS: Final = CANDIDATES.only(*(name for name in Candidate._fields if name != _FIRST_SEEN))
# A node that differs in any of these is another one, or was written since.
_THE_SAME: Final = ["path", "created_ms", "version"]
COPY_CANDIDATES = Columns(CopyCandidate)
# A file is held in memory as a whole: some tens of megabytes.
CANDIDATES_PER_FILE: Final = 100_000
SUMMARY: Final = "summary.json"
_MANIFEST: Final = "manifest.json"
_PROGRESS: Final = "applied.json"
_COPY_PROGRESS: Final = "applied-copies.json"
_SCAN_AGAIN: Final = "nothing of it can be applied, make another plan with `bookwarden orphans scan`"


def merged(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of all pieces by growing ledger id; pieces have the columns of ORPHANS, and have rows.

    Pieces come by growing smallest id, in any order within: rows below the next piece's smallest id can be passed on.
    Pieces seldom overlap, so that as a rule one is held at a time.
    """
    left = ORPHANS.arrow.empty_table()
    for piece in pieces:
        first_id = pc.min(piece.column("ledger_id")).as_py()
        below = int(np.searchsorted(left.column("ledger_id").to_numpy(), first_id))
        yield left.slice(0, below)
        left = pa.concat_tables([left.slice(below), piece]).sort_by("ledger_id")
    yield left


def carry_over(candidates: Iterable[pa.Table], before: Iterable[pa.Table], created_ms: int) -> Iterator[pa.Table]:
    """Yield the candidates, each with the time since when it has been an orphan in every plan of the cluster.

    ``candidates`` have the columns of ORPHANS; the result, and ``before``, those of CANDIDATES. ``before`` are those of
    the newest earlier plan, which has carried over its own; empty where there is none, or where it cannot be read.
    ``created_ms`` is the time of this plan: candidates begin then if the earlier plan does not have them, has another
    node or one written since, or a later time. Both are by growing ledger id, else FormatError; one table of each is
    held at a time.
    """
    earlier = in_order(before)
    old = next(earlier, None)
    for table in in_order(candidates):
        last_id = table.column("ledger_id")[-1].as_py()
        first_seen = np.full(table.num_rows, created_ms, np.int64)
        while old is not None:
            places, times = _seen_before(table, old, created_ms)
            first_seen[places] = times
            if old.column("ledger_id")[-1].as_py() > last_id:
                # Its rest goes with the candidates of the next table.
                break
            old = next(earlier, None)
        yield table.append_column(_FIRST_SEEN, pa.array(first_seen)).cast(CANDIDATES.arrow)


def _seen_before(table: pa.Table, old: pa.Table, created_ms: int) -> tuple[Numbers, Numbers]:
    """Return the places in `table` of nodes that `old` has unchanged, and since when each has been an orphan."""
    ids, old_ids = table.column("ledger_id").to_numpy(), old.column("ledger_id").to_numpy()
    old_places = np.minimum(np.searchsorted(old_ids, ids), len(old_ids) - 1)
    places = np.flatnonzero(old_ids[old_places] == ids)
    now, was = table.select(_THE_SAME).take(places), old.select([*_THE_SAME, _FIRST_SEEN]).take(old_places[places])
    same = pc.less_equal(was.column(_FIRST_SEEN), created_ms)
    for name in _THE_SAME:
        same = pc.and_(same, pc.equal(now.column(name), was.column(name)))
    return places[same.to_numpy()], was.column(_FIRST_SEEN).filter(same).to_numpy()


def in_order(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables that have rows; FormatError where they are not by growing ledger id, each ledger once."""
    last_id = -1
    for table in tables:
        if not table.num_rows:
            continue
        ids = table.column("ledger_id").to_numpy()
        before = np.concatenate([[last_id], ids[:-1]])
        wrong = np.flatnonzero(ids <= before)
        if len(wrong):
            raise FormatError(
                f"candidates are out of order: ledger {ids[wrong[0]]} comes after ledger {before[wrong[0]]}"
            )
        last_id = int(ids[-1])
        yield table


class PlanFiles:
    """The plans at `location`, a path or a URI, as Apply uses them. OSError becomes FileError."""

    def __init__(self, location: str, *, candidates_per_file: int = CANDIDATES_PER_FILE) -> None:
        self.folder = Folder(location)
        self._per_file = candidates_per_file

    def write(
        self,
        plan: PlanManifest,
        candidates: Iterable[pa.Table],
        files: Mapping[str, bytes] | None = None,
        copies: Sequence[CopyCandidate] = (),
    ) -> PlanManifest:
        """Write a plan, and return its manifest with the files and counts of candidates.

        ``candidates`` have the columns of CANDIDATES, and are by growing ledger id, else FormatError. Raises
        RefusedError for a scan that no plan may be made of, and for an id that is taken. After an error there is no
        plan, whatever was written.
        """
        check_id(plan.plan_id)
        with self._translated():
            taken = self.folder.exists(plan.plan_id)
        if taken:
            raise RefusedError(f"{self.folder.location} has a folder {plan.plan_id}: a plan is written once")
        written, length = self._write_candidates(plan.plan_id, in_order(candidates))
        others = [self._write_file(plan.plan_id, name, data, 0) for name, data in (files or {}).items()]
        if copies:
            others.append(self._write_file(plan.plan_id, COPIES, _parquet(COPY_CANDIDATES.table(copies)), len(copies)))
        counts = replace(plan.counts, candidates=sum(file.rows for file in written), candidate_bytes=length)
        plan = replace(plan, candidates=tuple(written), files=tuple(others), counts=counts)
        refusals = check_counts(counts)
        if refusals:
            raise RefusedError(f"no plan is made of scan {plan.scan_id}: {'; '.join(map(str, refusals))}")
        self._write_durably(f"{plan.plan_id}/{_MANIFEST}", plan.encode())
        return plan

    def plan_ids(self) -> list[str]:
        """List the plans, oldest first; a folder without a manifest is no plan."""
        with self._translated():
            return [name for name in self.folder.folders() if self.folder.exists(f"{name}/{_MANIFEST}")]

    def newest(self, cluster: ScannedCluster) -> PlanManifest | None:
        """Return the newest plan of the cluster, for its candidates to be carried over.

        None where there is none, and where the newest of all plans cannot be read: then no ledger is known to have
        been an orphan without a break.
        """
        for plan_id in reversed(self.plan_ids()):
            try:
                plan = self.manifest(plan_id)
                if plan.cluster == cluster:
                    self.verify(plan)
                    return plan
            except FormatError as error:
                logger.warning("no candidate is known from before, since %s", error)
                return None
        return None

    def manifest(self, plan_id: str) -> PlanManifest:
        """Read a plan's manifest; NotFoundError where there is no such plan, FormatError where it was altered."""
        check_id(plan_id)
        data = self._load(f"{plan_id}/{_MANIFEST}")
        if data is None:
            raise NotFoundError(
                f"there is no finished plan {plan_id} in {self.folder.location}: `bookwarden orphans list` names "
                "those that there are"
            )
        plan = PlanManifest.decode(data)
        if plan.plan_id != plan_id:
            raise FormatError(f"the folder of plan {plan_id} has plan {plan.plan_id} in it: {_SCAN_AGAIN}")
        return plan

    def summary(self, plan: PlanManifest) -> Summary:
        """Read the plan's summary."""
        found = next((file for file in plan.files if file.name == SUMMARY), None)
        if found is None:
            raise NotFoundError(f"plan {plan.plan_id} has no summary")
        return Summary.decode(self._read(plan, found))

    def verify(self, manifest: PlanManifest) -> None:
        """Read every file of the plan; FormatError for one that is missing or differs from the manifest."""
        for file in (*manifest.candidates, *manifest.files):
            self._read(manifest, file)

    def candidates(self, manifest: PlanManifest, size: int) -> Iterator[list[Candidate]]:
        """Yield the candidates by growing ledger id, at most ``size`` at a time, from files checked again."""
        rest = self.all_candidates(manifest)
        while batch := list(itertools.islice(rest, size)):
            yield batch

    def all_candidates(self, manifest: PlanManifest) -> Iterator[Candidate]:
        """Yield the candidates by growing ledger id."""
        for table in self.candidate_tables(manifest):
            yield from itertools.starmap(Candidate, rows_in(table))

    def candidate_tables(self, manifest: PlanManifest) -> Iterator[pa.Table]:
        """Yield the candidates by growing ledger id, a table for each file, with the columns of CANDIDATES."""
        return in_order(self._table(manifest, file, CANDIDATES) for file in manifest.candidates)

    def copies(self, manifest: PlanManifest, size: int) -> Iterator[list[CopyCandidate]]:
        """Yield the offloaded copies in the plan's order, at most ``size`` at a time."""
        rest = self.all_copies(manifest)
        while batch := list(itertools.islice(rest, size)):
            yield batch

    def all_copies(self, manifest: PlanManifest) -> Iterator[CopyCandidate]:
        """Yield the offloaded copies in the plan's order, from a file checked again."""
        for file in manifest.files:
            if file.name == COPIES:
                for number, row in enumerate(rows_in(self._table(manifest, file, COPY_CANDIDATES))):
                    candidate = CopyCandidate(*row)
                    if candidate.number != number:
                        raise FormatError(f"plan {manifest.plan_id}: {COPIES} is out of order: {_SCAN_AGAIN}")
                    yield candidate._replace(uuid=UUID(str(candidate.uuid)))

    def copy_progress(self, manifest: PlanManifest) -> ApplyProgress:
        """Return how far the plan's copies were applied."""
        return self._progress(manifest, _COPY_PROGRESS)

    def record_copies(self, manifest: PlanManifest, progress: ApplyProgress) -> None:
        """Keep how far the plan's copies are applied: durable when this returns, unchanged otherwise."""
        self._write_durably(f"{manifest.plan_id}/{_COPY_PROGRESS}", progress.encode())

    def progress(self, manifest: PlanManifest) -> ApplyProgress:
        """Return how far the plan was applied."""
        return self._progress(manifest, _PROGRESS)

    def _progress(self, manifest: PlanManifest, name: str) -> ApplyProgress:
        data = self._load(f"{manifest.plan_id}/{name}")
        return ApplyProgress(manifest.plan_id) if data is None else ApplyProgress.decode(data, manifest.plan_id)

    def record(self, manifest: PlanManifest, progress: ApplyProgress) -> None:
        """Keep how far the plan is applied: durable when this returns, unchanged otherwise."""
        self._write_durably(f"{manifest.plan_id}/{_PROGRESS}", progress.encode())

    def _write_candidates(self, plan_id: str, candidates: Iterator[pa.Table]) -> tuple[list[FileDigest], int]:
        written: list[FileDigest] = []
        length = 0
        for table in _cut((table.cast(CANDIDATES.arrow) for table in candidates), self._per_file):
            # Sizes in damaged metadata may add up to more than 64 bits hold.
            length += sum(table.column("length").to_pylist())
            name = f"candidates-{len(written):05d}.parquet"
            written.append(self._write_file(plan_id, name, _parquet(table), table.num_rows))
        return written, length

    def _write_file(self, plan_id: str, name: str, data: bytes, rows: int) -> FileDigest:
        self._write_durably(f"{plan_id}/{name}", data)
        return FileDigest(name, hashlib.sha256(data).hexdigest(), rows)

    def _table(self, plan: PlanManifest, file: FileDigest, columns: Columns) -> pa.Table:
        data = self._read(plan, file)
        try:
            table = pq.ParquetFile(pa.BufferReader(data)).read()
        except pa.ArrowInvalid as error:
            raise FormatError(f"plan {plan.plan_id}: {file.name} is no Parquet file: {_SCAN_AGAIN}") from error
        if not table.schema.equals(columns.arrow) or table.num_rows != file.rows:
            raise FormatError(
                f"plan {plan.plan_id}: {file.name} has other columns, or other rows, than a plan's candidates: "
                + _SCAN_AGAIN
            )
        return table

    def _read(self, plan: PlanManifest, file: FileDigest) -> bytes:
        data = self._load(f"{plan.plan_id}/{file.name}")
        if data is None:
            raise FormatError(f"plan {plan.plan_id} has no {file.name} any more: {_SCAN_AGAIN}")
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise FormatError(f"plan {plan.plan_id}: {file.name} was changed or damaged: {_SCAN_AGAIN}")
        return data

    def _load(self, name: str) -> bytes | None:
        with self._translated():
            try:
                return self.folder.read(name)
            except FileNotFoundError:
                return None

    def _write_durably(self, name: str, data: bytes) -> None:
        """Write a file so that a loss of power leaves the old or the new one, after the return the new one."""
        with self._translated():
            self.folder.write(name, lambda sink: sink.write(data), durable=True)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileError(f"{self.folder.location} cannot be read and written: {error}") from error


def _cut(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield the rows of all tables in tables of ``rows``, the last of which may have fewer."""
    parts: list[pa.Table] = []
    wanted = rows
    for table in tables:
        while table.num_rows >= wanted:
            yield pa.concat_tables([*parts, table.slice(0, wanted)])
            table, parts, wanted = table.slice(wanted), [], rows
        parts.append(table)
        wanted -= table.num_rows
    if wanted < rows:
        yield pa.concat_tables(parts)


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table.combine_chunks(), sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data
