"""What the metrics of both phases count, and that all series are there from the start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from bookwarden.clusters.pulsar.broker_marks import Outbox
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.errors import PulsarError
from bookwarden.follow.drops import DropCause
from bookwarden.follow.following import FollowTally
from bookwarden.ledgers.kinds import LedgerComponent, PlaceKind
from bookwarden.ledgers.outcomes import DropOutcome, Outcome
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.ledgers.trash import KeepRule, TrashRecord
from bookwarden.metastore.following.phases import ParticipantState
from bookwarden.metastore.following.progress import MigrationStatus
from bookwarden.metastore.memory import MemoryStore
from bookwarden.pipelines.follow.metrics import FollowMetrics
from bookwarden.pipelines.metrics import MarkMetrics, SweepMetrics
from bookwarden.pipelines.sweep import driver
from bookwarden.trash.keeper import TrashKeeper
from bookwarden.trash.lease import LeaseConditions
from bookwarden.wire.broker_marks import DELETION_TOPIC_NODE, OUTBOX_ROOT, encode_deletion_topic
from bookwarden.wire.trash import TRASH_RECORDS, encode_records

DOCS = Path(__file__).parents[3] / "docs"


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"bookwarden_{name}", labels)


def test_every_series_of_the_sweep_is_zero_before_the_first_batch() -> None:
    registry = SweepMetrics().registry
    for kind in ("LEDGER", "OFFLOAD_LEDGER"):
        for name in ("received", "acked", "max_retry"):
            assert value(registry, f"pending_deletions_{name}_total", ledger_type=kind) == 0
        assert value(registry, "ledgers_deleted_total", ledger_type=kind) == 0
        assert value(registry, "ledger_deletions_failed_total", ledger_type=kind) == 0
        assert value(registry, "pending_deletions_sent_total", ledger_type=kind, destination="retry") == 0
        assert value(registry, "outcomes_total", ledger_type=kind, outcome="still referenced") == 0
    for outcome in ("malformed", "poisonous"):
        assert value(registry, "outcomes_total", ledger_type="unknown", outcome=outcome) == 0
    assert value(registry, "batch_seconds_count") == 0
    for name in ("nodes", "bytes", "oldest_seconds"):
        assert value(registry, f"inflight_outbox_{name}") == 0


def test_every_outcome_is_in_the_documents() -> None:
    told = (DOCS / "metrics.md").read_text()
    followed = (
        told.partition("| `bookwarden_follow_outcomes_total`")[2].partition("\n| `")[0].partition("by outcome")[2]
    )
    assert sorted(re.findall("`([a-z ]+)`", followed)) == sorted(outcome.value for outcome in DropOutcome)
    outcomes = told.partition("| `bookwarden_outcomes_total`")[2].partition("\n| `")[0]
    assert re.findall("`([a-z ]+)`", outcomes.partition("messages by")[2]) == [outcome.value for outcome in Outcome]
    swept = (DOCS / "sweep.md").read_text()
    assert [outcome.value for outcome in Outcome if f"\n### {outcome.value}\n" not in swept] == ["would delete"]


def test_a_batch_counts_each_outcome_where_it_belongs() -> None:
    metrics = SweepMetrics()
    batch = [
        ("deleted", "LEDGER", 5, 700),
        ("deleted", "OFFLOAD_LEDGER", 2, 0),
        ("retry", "LEDGER", 3, 0),
        ("delayed", "LEDGER", 6, 0),
        ("gave up", "OFFLOAD_LEDGER", 1, 0),
        ("malformed", "", 4, 0),
        ("poisonous", "LEDGER", 1, 0),
    ]
    metrics.count_batch(batch, 0.2)
    registry = metrics.registry
    assert value(registry, "pending_deletions_received_total", ledger_type="LEDGER") == 15
    assert value(registry, "pending_deletions_received_total", ledger_type="unknown") == 4
    assert value(registry, "pending_deletions_acked_total", ledger_type="OFFLOAD_LEDGER") == 3
    assert value(registry, "ledgers_deleted_total", ledger_type="LEDGER") == 5
    assert value(registry, "ledgers_deleted_total", ledger_type="OFFLOAD_LEDGER") == 2
    assert value(registry, "ledger_bytes_deleted_total") == 700
    assert value(registry, "ledger_deletions_failed_total", ledger_type="LEDGER") == 4
    assert value(registry, "pending_deletions_sent_total", ledger_type="LEDGER", destination="dlq") == 1
    assert value(registry, "ledger_deletions_failed_total", ledger_type="OFFLOAD_LEDGER") == 1
    assert value(registry, "pending_deletions_max_retry_total", ledger_type="OFFLOAD_LEDGER") == 1
    assert value(registry, "pending_deletions_sent_total", ledger_type="LEDGER", destination="retry") == 9
    assert value(registry, "pending_deletions_sent_total", ledger_type="OFFLOAD_LEDGER", destination="dlq") == 1
    assert value(registry, "pending_deletions_sent_total", ledger_type="unknown", destination="dlq") == 4
    assert value(registry, "batch_seconds_count") == 1


def test_a_dry_run_counts_what_it_judged_and_nothing_as_done() -> None:
    metrics = SweepMetrics()
    metrics.count_batch([("would delete", "LEDGER", 5, 700), ("retry", "LEDGER", 1, 0)], 0.2, dry_run=True)
    registry = metrics.registry
    assert value(registry, "pending_deletions_received_total", ledger_type="LEDGER") == 6
    assert value(registry, "outcomes_total", ledger_type="LEDGER", outcome="would delete") == 5
    assert value(registry, "pending_deletions_acked_total", ledger_type="LEDGER") == 0
    assert value(registry, "pending_deletions_sent_total", ledger_type="LEDGER", destination="retry") == 0
    assert value(registry, "ledger_deletions_failed_total", ledger_type="LEDGER") == 0


def test_restarts_add_up_and_failures_in_a_row_end_with_the_first_success() -> None:
    metrics = SweepMetrics()
    registry = metrics.registry
    assert (value(registry, "query_restarts_total"), value(registry, "query_consecutive_failures")) == (0, 0)
    for in_a_row in (1, 2, 0, 1):
        metrics.count_failures(in_a_row)
    assert (value(registry, "query_restarts_total"), value(registry, "query_consecutive_failures")) == (3, 1)
    metrics.count_failures(0)
    assert value(registry, "query_consecutive_failures") == 0


class HalfDeafBroker:
    """Confirms every other mark."""

    def send_all(self, marks: list[PendingDeletion]) -> list[str | None]:
        return [None if number % 2 == 0 else "no answer" for number in range(len(marks))]


def test_phase_one_counts_what_was_confirmed_and_what_was_not() -> None:
    registry = CollectorRegistry()
    marker = Marker(HalfDeafBroker(), on_report=MarkMetrics(registry).count)
    assert value(registry, "pending_deletions_sent_total", ledger_type="OFFLOAD_LEDGER", destination="deletion") == 0
    marks = [
        PendingDeletion("t/n/persistent/orders", LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id)
        for ledger_id in range(5)
    ]
    marker.mark(marks)
    assert value(registry, "pending_deletions_sent_total", ledger_type="LEDGER", destination="deletion") == 3
    assert value(registry, "marks_failed_total", ledger_type="LEDGER") == 2


def test_the_state_of_each_store_in_a_migration_is_as_it_is_when_somebody_asks() -> None:
    metrics = SweepMetrics()
    statuses = {"zk:z:2181": MigrationStatus(ParticipantState.SERVING_SOURCE, "NOT_STARTED", None, False, 0.0, 0)}
    metrics.show_migrations(lambda: statuses)
    at = {"store": "zk:z:2181"}
    assert value(metrics.registry, "metadata_migration_state", state="serving source", **at) == 1
    assert value(metrics.registry, "metadata_migration_state", state="waiting", **at) == 0
    assert value(metrics.registry, "metadata_migration_blocked_seconds_total", **at) == 0
    statuses["zk:z:2181"] = MigrationStatus(ParticipantState.WAITING, "COPYING", "oxia://o:1/n", True, 12.5, 1)
    assert value(metrics.registry, "metadata_migration_state", state="serving source", **at) == 0
    assert value(metrics.registry, "metadata_migration_state", state="waiting", **at) == 1
    assert value(metrics.registry, "metadata_migration_blocked_seconds_total", **at) == 12.5


def test_what_was_dropped_is_counted_by_kind_and_cause() -> None:
    metrics, tally = FollowMetrics(), FollowTally(nodes=3, problems=1, lag_s=2.5, doubles=3)
    trimmed = (PlaceKind.MANAGED_LEDGER, DropCause.TRIMMED)
    labels = {"kind": "managed ledger", "cause": "trimmed"}
    assert value(metrics.registry, "follow_still_there_total", **labels) == 0
    tally.dropped[trimmed], tally.still_there[trimmed], tally.outcomes[DropOutcome.MARKED] = 5, 2, 2
    metrics.count(tally, 10, 4, 0.1)
    assert value(metrics.registry, "follow_dropped_total", **labels) == 5
    assert value(metrics.registry, "follow_still_there_total", **labels) == 2
    assert value(metrics.registry, "follow_outcomes_total", outcome="marked") == 2
    found = [value(metrics.registry, f"follow_{name}") for name in ("nodes", "pending", "lag_seconds")]
    assert found == [10, 4, 2.5]
    assert value(metrics.registry, "follow_unreadable_nodes_total") == 1
    assert value(metrics.registry, "follow_doubles_total") == 3
    metrics.count(FollowTally(), 10, 3, 0.1)
    assert value(metrics.registry, "follow_lag_seconds") == 2.5


def test_the_trash_is_shown_and_an_error_ends_no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    now, metrics = 1_700_000_000.0, SweepMetrics()
    monkeypatch.setattr(driver.time, "time", lambda: now)
    store = MemoryStore(lambda: now)
    dropped = TrashRecord("t/n/persistent/a", int(now - 70) * 1000, 1, "sub", cursors=(1,))
    store.create(f"{TRASH_RECORDS}/b1:8080-00000001/0/0", encode_records([dropped]), make_parents=True)
    topic = encode_deletion_topic("t/n/deletion", 0, "{}", "s", retry_topic="r", dlq_topic="d")
    store.create(DELETION_TOPIC_NODE, topic, make_parents=True)
    keeper = TrashKeeper(
        store,
        Marker(RefusingSender()),
        "persistent://t/n/deletion",
        (KeepRule("t/n", 3600),),
        10,
        "me",
        clock=lambda: now,
    )
    driver._keep_trash(keeper, metrics)
    names = ("records", "bytes", "oldest_seconds", "lease_seconds", "missing_disk_bytes", "overdue_seconds")
    assert [value(metrics.registry, f"trash_{name}") for name in names] == [1, 0, 70, 900, 0, 0]
    now += 600
    keeper.conditions = lambda: LeaseConditions("full", 7, 11.0)
    driver._keep_trash(keeper, metrics)
    # A lease runs out also while nothing can be read.
    assert [value(metrics.registry, f"trash_{name}") for name in names] == [1, 0, 670, 300, 7, 11]
    now += 200
    store.close()
    driver._keep_trash(keeper, metrics)
    assert [value(metrics.registry, f"trash_{name}") for name in names] == [1, 0, 670, 100, 7, 11]
    now += 200
    assert value(metrics.registry, "trash_lease_seconds") == 0


class RefusingSender:
    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        raise PulsarError("no broker")


def test_the_outbox_of_brokers_that_mark_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    now, metrics = 1_700_000_000.0, SweepMetrics()
    monkeypatch.setattr(driver.time, "time", lambda: now)
    store = MemoryStore(lambda: now)
    store.create(f"{OUTBOX_ROOT}/b1:8080-00000001/0/0", bytes(100), make_parents=True)
    now += 40
    store.create(f"{OUTBOX_ROOT}/b1:8080-00000001/0/1", bytes(20))
    outbox = Outbox(store)
    driver._show_outbox(outbox, metrics)
    names = ("nodes", "bytes", "oldest_seconds")
    assert [value(metrics.registry, f"inflight_outbox_{name}") for name in names] == [2, 120, 40]
    store.close()
    # What cannot be seen is logged, and stays as it was.
    driver._show_outbox(outbox, metrics)
    assert value(metrics.registry, "inflight_outbox_nodes") == 2
