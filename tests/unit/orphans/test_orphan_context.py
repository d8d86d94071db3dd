"""Applying a plan with what the settings name: a folder of plans, a store of ledgers, and the cluster's identity."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import bookwarden.wiring.deletion_topics
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.roots.proof import RootsProof
from bookwarden.config import Settings, load_settings
from bookwarden.errors import FormatError, RefusedError
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment, StoredLedger
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.memory import MemoryStore
from bookwarden.orphans.guards import GuardLimits
from bookwarden.orphans.plan import Candidate, PlanCounts, PlanManifest, ScannedCluster
from bookwarden.pipelines.plan_files import CANDIDATES, PlanFiles
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.roots import plan_cluster_of, roots_proof_of
from bookwarden.wiring.scan import OrphanApply, guard_limits_of
from bookwarden.wiring.stores import open_metadata_store

HOLDER = ManagedLedgerHolder("t/n/persistent/a")


@pytest.fixture(autouse=True)
def _no_other_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the look at other roots, which ends with closing the one store that this process has of its name."""
    monkeypatch.setattr(RootsProof, "require", lambda _: [])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    urls = {"metadata_store.urls": f"['memory:b{tmp_path}', 'memory:a{tmp_path}']"}
    once = {"orphans.min_age_days": "0", "orphans.longest_compaction_hours": "0", "orphans.seen_apart_hours": "0"}
    return load_settings(overrides={**urls, **once, "orphans.folder": str(tmp_path), "orphans.ledgers_per_batch": "2"})


@pytest.fixture
def store(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> MetadataStore:
    # This process has one of its name, which a cluster closes.
    monkeypatch.setattr(MemoryStore, "close", lambda _: None)
    found = open_metadata_store(settings.metadata_store, settings.metadata_store.urls[0])
    found.create("/ledgers/INSTANCEID", b"0f1e-2d3c", make_parents=True)
    return found


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[PendingDeletion]:
    """The marks that a broker got."""
    marks: list[PendingDeletion] = []

    def send_all(_: Any, given: Sequence[PendingDeletion]) -> list[None]:
        marks.extend(given)
        return [None] * len(given)

    monkeypatch.setattr(bookwarden.wiring.deletion_topics.PendingDeletionSender, "send_all", send_all)
    return marks


def identity_of(settings: Settings) -> ScannedCluster:
    with Cluster(settings) as opened:
        return plan_cluster_of(settings.metadata_store, opened, roots_proof_of(opened)).identity()


def create_ledger(store: MetadataStore, ledger_id: int) -> Candidate:
    custom = {name: value.encode() for name, value in expected_custom_metadata(HOLDER).items()}
    segments = (Segment(0, ("b:1",)),)
    metadata = LedgerMetadata(3, LedgerState.CLOSED, 1, 1, 1, segments, 10, 0, "CRC32C", 6, custom)
    catalog = BookKeeperCatalog(store)
    store.create(catalog.paths_of(ledger_id)[0], encode_ledger_metadata(metadata), make_parents=True)
    (read,) = catalog.read_many([ledger_id])
    assert isinstance(read, StoredLedger)
    return Candidate(
        ledger_id, "MANAGED_LEDGER", str(HOLDER), "?", read.path, read.version, read.created_ms, 6, 10, "CLOSED", 0
    )


def make_plan(settings: Settings, cluster: ScannedCluster, candidates: Sequence[Candidate]) -> PlanFiles:
    plans = PlanFiles(f"{settings.orphans.folder}/plans")
    now_ms = int(time.time() * 1000) + 1
    counts = PlanCounts(ledgers=100, logical_bytes=0, references=1, candidates=0, candidate_bytes=0)
    plans.write(
        PlanManifest("p", "s", "0", now_ms, now_ms, now_ms, cluster, counts, ()), [CANDIDATES.table(candidates)]
    )
    return plans


def test_a_plan_is_applied_to_the_cluster_that_the_settings_name(
    settings: Settings, store: MetadataStore, sent: list[PendingDeletion]
) -> None:
    candidates = [create_ledger(store, ledger_id) for ledger_id in range(1, 6)]
    plans = make_plan(settings, identity_of(settings), candidates)
    for url in settings.metadata_store.urls:
        open_metadata_store(settings.metadata_store, url).create("/managed-ledgers", b"")
    store.put(candidates[2].path, b"written since", candidates[2].version)
    batches: list[int] = []
    with Cluster(settings) as opened:
        operation = OrphanApply(opened, plans, on_batch=lambda result: batches.append(result.earlier))
        planned = operation.ledgers.run("p")
        assert (planned.marked, planned.dropped_total, sent) == (4, 1, [])
        done = operation.ledgers.run("p", execute=True)
        assert (done.marked, done.dropped_total, done.done) == (4, 1, True)
        assert operation.ledgers.run("p", execute=True).earlier == 5
    assert batches == [0, 0, 0, 0, 0, 0, 2, 4, 5]
    assert [(mark.ledger_id, mark.holder(), mark.reason) for mark in sent] == [
        (ledger_id, HOLDER, "orphan scan p") for ledger_id in (1, 2, 4, 5)
    ]


def test_a_plan_of_a_cluster_that_was_made_anew_is_refused(
    settings: Settings, store: MetadataStore, sent: list[PendingDeletion]
) -> None:
    plans = make_plan(settings, identity_of(settings), [create_ledger(store, 1)])
    store.put("/ledgers/INSTANCEID", b"another", 0)
    with Cluster(settings) as opened, pytest.raises(RefusedError, match="'another'"):
        OrphanApply(opened, plans).ledgers.run("p", execute=True)
    assert sent == []


def test_the_identity_is_what_the_settings_and_the_store_say(settings: Settings, store: MetadataStore) -> None:
    first, second = settings.metadata_store.urls
    found = identity_of(settings)
    assert found == ScannedCluster("0f1e-2d3c", first, "/ledgers", (second, first))
    store.put("/ledgers/INSTANCEID", b"\xff", 0)
    with pytest.raises(FormatError, match="INSTANCEID is no text"):
        identity_of(settings)
    store.delete_many([("/ledgers/INSTANCEID", 1)])
    assert identity_of(settings).instance_id == ""


def test_the_limits_are_in_milliseconds() -> None:
    given = {
        "orphans.min_age_days": "0.5",
        "orphans.longest_compaction_hours": "2",
        "orphans.max_share": "0.3",
        "orphans.max_plan_age_hours": "1.5",
        "orphans.seen_apart_hours": "3",
        "orphans.max_clock_skew_seconds": "4",
    }
    assert guard_limits_of(load_settings(overrides=given).orphans) == GuardLimits(
        min_age_ms=43_200_000,
        longest_compaction_ms=7_200_000,
        max_share=0.3,
        max_plan_age_ms=5_400_000,
        seen_apart_ms=10_800_000,
        max_clock_skew_ms=4_000,
    )
