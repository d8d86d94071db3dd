"""A build in pieces, as Spark's tasks do it, without Spark: killed and resumed, and what it tells of itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from bookwarden.bookie_clusters.moving.build import CopyCounts
from bookwarden.bookie_clusters.moving.scope import Route, Scope, scope_of
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.listing import LedgerListing
from bookwarden.config import load_settings
from bookwarden.errors import FormatError, RefusedError
from bookwarden.ledgers.custom_metadata import COPY_KEY, identify_holder
from bookwarden.ledgers.kinds import CursorHolder, SchemaHolder
from bookwarden.ledgers.metadata import LedgerState, StoredLedger
from bookwarden.ledgers.outcomes import CopyOutcome, CopyResult
from bookwarden.metastore.memory import shared_memory_store
from bookwarden.pipelines.copying import stages as copying_stages
from bookwarden.pipelines.copying.stages import (
    COPYING_STAGE,
    LISTING_STAGE,
    CopyJob,
    CopyProgress,
    CopyStages,
    VerifyJob,
    counts_of,
    first_staying,
    planned_counts_of,
)
from bookwarden.pipelines.scan.files import ScanFolder
from bookwarden.pipelines.scan.stage import Stages
from bookwarden.wiring.cluster import Cluster
from unit.pipelines.one_after_another import OneAfterAnother
from unit.switching.two_bookie_clusters import ROOTS, TwoBookieClusters

EVERY_KIND = scope_of(every_kind=True, tenants=(), namespaces=(), topics=())
CURSORS = [CursorHolder("t/ns/persistent/orders", f"sub-{number}") for number in range(60)]
SCHEMA = SchemaHolder("t/ns/orders")
OPEN = 900


class MetadataCopier:
    """Copies the metadata alone, as the copier leaves it; ``forgets`` this ledger, and ``fails`` with that."""

    def __init__(self, clusters: TwoBookieClusters, *, forgets: int = -1, fails: int = -1) -> None:
        self._clusters = clusters
        self._forgets = forgets
        self._fails = fails
        self.asked: list[int] = []

    def copy(self, ledger_ids: Iterable[int]) -> Iterator[CopyResult]:
        for ledger_id in reversed(list(ledger_ids)):
            self.asked.append(ledger_id)
            if ledger_id != self._forgets:
                yield self._copy(ledger_id)

    def _copy(self, ledger_id: int) -> CopyResult:
        (found,) = self._clusters.alone("a").read_many([ledger_id])
        assert isinstance(found, StoredLedger)
        metadata, holder = found.metadata, identify_holder(found.metadata.custom)
        if metadata.state is not LedgerState.CLOSED:
            return CopyResult(ledger_id, CopyOutcome.OPEN, holder, reason="it is written by its topic")
        if ledger_id == self._fails:
            return CopyResult(ledger_id, CopyOutcome.FAILED, holder, reason="entry 3 is damaged")
        assert holder is not None
        outcome = CopyOutcome.COMPLETE
        if "b" not in self._clusters.places_of(ledger_id):
            outcome = CopyOutcome.COPIED
            mark = f"{metadata.last_entry_id}:{metadata.length}".encode()
            self._clusters.ledger("b", ledger_id, holder=holder, **{COPY_KEY: mark})
        return CopyResult(ledger_id, outcome, holder, 10, metadata.length)


@dataclass(frozen=True)
class Copied(CopyJob):
    """With the copier of the test."""

    by: MetadataCopier

    def copier(self) -> MetadataCopier:
        return self.by


class Bookies:
    """Have all entries, but of this ledger."""

    def __init__(self, lacks: int) -> None:
        self._lacks = lacks
        self.asked: list[tuple[int, str]] = []

    def problem_of(self, ledger: StoredLedger) -> str | None:
        self.asked.append((ledger.ledger_id, ledger.bookie_cluster))
        return "bookie 1 does not answer" if ledger.ledger_id == self._lacks else None


@dataclass(frozen=True)
class Proven(VerifyJob):
    """With the bookies of the test."""

    by: Bookies

    def proof(self) -> Bookies:
        return self.by


@pytest.fixture
def name() -> str:
    return uuid4().hex


@pytest.fixture
def clusters(name: str) -> TwoBookieClusters:
    """Seventy ledgers of the default scope on a, thirty data ledgers, and one that is open."""
    found = TwoBookieClusters(shared_memory_store(name))
    found.register()
    for number, cursor in enumerate(CURSORS):
        found.ledger("a", 100 + number, holder=cursor)
    for number in range(10):
        found.ledger("a", 300 + number, holder=SCHEMA)
    for number in range(30):
        found.ledger("a", 500 + number)
    found.ledger("a", OPEN, holder=CURSORS[0], state=LedgerState.OPEN, last=None, length=0)
    return found


class Builder:
    """Builds from a to b, in processes that may be killed."""

    def __init__(self, name: str, clusters: TwoBookieClusters) -> None:
        self.settings = load_settings(overrides={"metadata_store.urls": f'["memory:{name}"]'})
        self.clusters = clusters

    def copied(self, scope: Scope, copier: MetadataCopier | None = None) -> Copied:
        by = copier or MetadataCopier(self.clusters)
        return Copied(self.settings, Route("a", "b"), scope, CopyLimits(), None, by)

    def copying(
        self, folder: ScanFolder, scope: Scope, copier: MetadataCopier | None = None, kill_at: int | None = None
    ) -> CopyStages:
        return CopyStages(cast(Stages, OneAfterAnother(folder, kill_at)), self.copied(scope, copier), tasks=2)

    def run(
        self, folder: ScanFolder, scope: Scope, copier: MetadataCopier | None = None, kill_at: int | None = None
    ) -> CopyCounts:
        copying = self.copying(folder, scope, copier, kill_at)
        listed = copying.read_source(LedgerListing(self.clusters.store, "/ledgers"))
        return counts_of([*listed, *copying.copy(listed)])


@pytest.fixture
def builder(name: str, clusters: TwoBookieClusters) -> Builder:
    return Builder(name, clusters)


def table(counts: CopyCounts) -> dict[tuple[str, str], int]:
    return {(outcome.value, kind): number for (outcome, kind), number in counts.ledgers.items()}


def ids_in(folder: Path, name: str) -> list[int]:
    return sorted(pq.read_table(folder / name, columns=["ledger_id"]).column(0).to_pylist())


def test_what_is_asked_for_is_copied_and_a_second_build_finds_it_whole(builder: Builder, tmp_path: Path) -> None:
    first = builder.run(ScanFolder(str(tmp_path / "1")), Scope())
    assert table(first) == {
        ("copied", "cursor"): 60,
        ("copied", "schema"): 10,
        ("open", "cursor"): 1,
        ("left out", "data"): 30,
    }
    assert ids_in(tmp_path / "1", COPYING_STAGE) == [*range(100, 160), *range(300, 310), OPEN]
    again = MetadataCopier(builder.clusters)
    second = builder.run(ScanFolder(str(tmp_path / "2")), EVERY_KIND, again)
    assert table(second) == {
        ("complete", "cursor"): 60,
        ("complete", "schema"): 10,
        ("copied", "data"): 30,
        ("open", "cursor"): 1,
    }
    # What is whole is known by the metadata: the copier has nothing to do with it.
    assert sorted(again.asked) == [*range(500, 530), OPEN]
    assert ids_in(tmp_path / "2", "complete") == [*range(100, 160), *range(300, 310)]
    assert second.sizes[CopyOutcome.COMPLETE, "cursor"] == 60 * 1000


@pytest.mark.parametrize("kill_at", [0, 1, 5, 16])
def test_a_killed_build_goes_on_with_what_it_had_not_finished(builder: Builder, tmp_path: Path, kill_at: int) -> None:
    folder = ScanFolder(str(tmp_path))
    with suppress(KeyboardInterrupt):
        builder.run(folder, EVERY_KIND, kill_at=kill_at)
    done = len(folder.finished(COPYING_STAGE)) if kill_at else 0
    copier = MetadataCopier(builder.clusters)
    counts = builder.run(folder, EVERY_KIND, copier)
    assert (counts.of(CopyOutcome.COPIED), counts.of(CopyOutcome.OPEN)) == (100, 1)
    assert len(folder.pieces(COPYING_STAGE) or []) > 12
    assert (len(copier.asked) == 101) is (done == 0)
    assert ids_in(tmp_path, COPYING_STAGE) == [*range(100, 160), *range(300, 310), *range(500, 530), OPEN]


def test_a_piece_has_so_many_bytes_at_most_and_one_ledger_at_least(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying_stages, "_MOST_BYTES", 2500)
    builder.clusters.ledger("a", 800, length=1_000_000)
    folder = ScanFolder(str(tmp_path))
    assert builder.run(folder, EVERY_KIND).of(CopyOutcome.COPIED) == 101
    sizes = [sum(folder.read(COPYING_STAGE, number, ["bytes"]).column(0).to_pylist()) for number in range(52)]
    assert sorted(sizes)[-2:] == [2000, 1_000_000]


def test_how_far_it_is_shows_in_the_folder(builder: Builder, tmp_path: Path) -> None:
    folder = ScanFolder(str(tmp_path))
    watch = CopyProgress(folder)
    watch.look()
    assert watch.ledgers == 0
    with suppress(KeyboardInterrupt):
        builder.run(folder, EVERY_KIND, kill_at=4)
    watch.look()
    ledgers, size = watch.ledgers, watch.size
    assert 0 < ledgers < 101
    assert size == 1000 * ledgers == 1000 * watch.counts.of(CopyOutcome.COPIED)
    builder.run(folder, EVERY_KIND)
    watch.look()
    assert (watch.ledgers, watch.size, watch.counts.of(CopyOutcome.OPEN)) == (101, 100_000, 1)


def test_what_stays_is_named_the_worst_first(builder: Builder, tmp_path: Path) -> None:
    folder = ScanFolder(str(tmp_path))
    copying = builder.copying(folder, EVERY_KIND, MetadataCopier(builder.clusters, fails=303))
    listed = copying.read_source(LedgerListing(builder.clusters.store, "/ledgers"))
    copied = copying.copy(listed)
    stays = first_staying(folder, COPYING_STAGE, copied, keep=5)
    assert [(one.ledger_id, one.outcome, one.holder, one.reason) for one in stays] == [
        (303, CopyOutcome.FAILED, str(SCHEMA), "entry 3 is damaged"),
        (OPEN, CopyOutcome.OPEN, str(CURSORS[0]), "it is written by its topic"),
    ]
    assert first_staying(folder, COPYING_STAGE, copied, keep=0) == []


def test_a_dry_run_counts_without_copying(builder: Builder, tmp_path: Path) -> None:
    builder.run(ScanFolder(str(tmp_path / "1")), Scope())
    folder, copier = ScanFolder(str(tmp_path / "2")), MetadataCopier(builder.clusters)
    listed = builder.copying(folder, EVERY_KIND, copier).read_source(LedgerListing(builder.clusters.store, "/ledgers"))
    assert table(planned_counts_of(listed)) == {
        ("complete", "cursor"): 60,
        ("complete", "schema"): 10,
        ("copied", "data"): 30,
        ("open", "cursor"): 1,
    }
    assert copier.asked == []
    assert [one.ledger_id for one in first_staying(folder, LISTING_STAGE, listed, keep=5)] == [OPEN]


def test_a_verification_reads_what_is_whole_and_copies_nothing(builder: Builder, tmp_path: Path) -> None:
    builder.run(ScanFolder(str(tmp_path / "1")), Scope())
    before, bookies = builder.clusters.places_of(500), Bookies(lacks=303)
    folder = ScanFolder(str(tmp_path / "2"))
    proven = Proven(builder.settings, Route("a", "b"), EVERY_KIND, CopyLimits(), None, bookies)
    copying = CopyStages(cast(Stages, OneAfterAnother(folder)), proven, tasks=2)
    listed = copying.read_source(LedgerListing(builder.clusters.store, "/ledgers"))
    # One copy, and one original, go between.
    builder.clusters.store.delete_many([(ledger_path(ROOTS["b"], 101), 0)])
    builder.clusters.store.delete_many([(ledger_path(ROOTS["a"], 100), 0)])
    done = copying.copy(listed)
    assert table(counts_of([*listed, *done])) == {
        ("complete", "cursor"): 58,
        ("complete", "schema"): 9,
        ("failed", "cursor"): 1,
        ("failed", "schema"): 1,
        ("gone", "cursor"): 1,
        ("left out", "cursor"): 1,
        ("left out", "data"): 30,
    }
    assert [(one.ledger_id, one.reason) for one in first_staying(folder, COPYING_STAGE, done, keep=5)] == [
        (101, "not proven: bookie cluster b, which is active, does not have it"),
        (303, "not proven: bookie 1 does not answer"),
    ]
    assert sorted(bookies.asked) == [(ledger_id, "b") for ledger_id in (*range(102, 160), *range(300, 310))]
    assert builder.clusters.places_of(500) == before


def test_a_ledger_that_the_copier_forgets_is_no_success(builder: Builder, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="the copier returned others"):
        builder.run(ScanFolder(str(tmp_path)), Scope(), MetadataCopier(builder.clusters, forgets=301))


def test_an_unreadable_ledger_is_left_to_the_copier(builder: Builder, tmp_path: Path) -> None:
    path = builder.clusters.ledger("a", 700)
    node = builder.clusters.store.get(path)
    assert node is not None
    builder.clusters.store.put(path, b"no metadata", node.version)
    folder = ScanFolder(str(tmp_path))
    copying = builder.copying(folder, Scope())
    listed = copying.read_source(LedgerListing(builder.clusters.store, "/ledgers"))
    assert 700 in ids_in(tmp_path, LISTING_STAGE)
    assert sum(seal.rows for seal in listed) == 72


def test_a_process_whose_copier_is_refused_opens_its_stores_once(
    name: str, clusters: TwoBookieClusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Cluster] = []

    def opening(*arguments: Any, **options: Any) -> Cluster:
        opened.append(Cluster(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(copying_stages, "Cluster", opening)
    settings = load_settings(overrides={"metadata_store.urls": f'["memory:{name}"]'})
    job = CopyJob(settings, Route("x", "b"), EVERY_KIND, CopyLimits(), None)
    for _ in range(2):
        with pytest.raises(RefusedError, match="no bookie cluster 'x' is registered"):
            job.copier()
    assert job.cluster() is opened[0]
    assert len(opened) == 1
