"""Samples of what commands that end found; tenants are bounded, so that series stay few."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Final

from bookwarden.metrics.names import OTHER_TENANTS, Sample
from bookwarden.orphans.classes import LedgerClass

# Each command has its own already, and none is to load those of the others.
if TYPE_CHECKING:
    from bookwarden.bookie_clusters.moving.build import Build
    from bookwarden.cluster_migration.finishing import MigrationVerification
    from bookwarden.ledgers.disk_growth import Forecast
    from bookwarden.ledgers.disk_use import BookieUse, Use
    from bookwarden.metadata_migration.comparison import Report
    from bookwarden.orphans.applying import ApplyResult
    from bookwarden.orphans.plan import PlanManifest
    from bookwarden.orphans.summary import ClassCount, Summary

TENANTS: Final = 50


def of_scan(plan: PlanManifest, summary: Summary) -> Iterator[Sample]:
    """Yield what a scan found, and the times of it and its plan."""
    yield Sample("bookwarden_scan_begun_timestamp_seconds", plan.begun_ms / 1000)
    yield Sample("bookwarden_scan_plan_timestamp_seconds", plan.created_ms / 1000)
    tallies = _by_tenant(summary.by_namespace)
    for name, place in (("bookwarden_scan_ledgers", 0), ("bookwarden_scan_bytes", 1)):
        yield from (Sample(name, tally[place], key) for key, tally in sorted(tallies.items()))
    # A cause may be that of orphans, and of ledgers that were left behind.
    causes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for count in summary.by_cause:
        causes[count.key][0] += count.ledgers
        causes[count.key][1] += count.logical_bytes
    for name, place in (("bookwarden_scan_leaked_ledgers", 0), ("bookwarden_scan_leaked_bytes", 1)):
        yield from (Sample(name, tally[place], (cause,)) for cause, tally in sorted(causes.items()))
    yield Sample("bookwarden_scan_leaked_copies", plan.copy_candidates)
    yield Sample("bookwarden_scan_leaked_copy_bytes", sum(store.candidate_bytes for store in plan.copies))
    yield Sample("bookwarden_scan_missing_ledgers", summary.missing_total)
    yield Sample("bookwarden_scan_gap_ledgers", summary.total(LedgerClass.INSIDE_LIST)[0])
    yield Sample("bookwarden_scan_unreadable_nodes", summary.doubts_total)


def _by_tenant(counts: Iterable[ClassCount]) -> dict[tuple[str, str], list[int]]:
    """Add up ledgers and bytes by class and tenant; those with the most orphans, then bytes, are named."""
    weights: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    rows = []
    for count in counts:
        tenant, slash, _ = count.key.partition("/")
        tenant = tenant if slash else OTHER_TENANTS
        weights[tenant][0] += count.logical_bytes if count.ledger_class == LedgerClass.ORPHAN.value else 0
        weights[tenant][1] += count.logical_bytes
        rows.append((count.ledger_class, tenant, count.ledgers, count.logical_bytes))
    named = set(sorted(weights, key=lambda name: ([-part for part in weights[name]], name))[:TENANTS])
    tallies: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for ledger_class, tenant, ledgers, size in rows:
        tally = tallies[ledger_class, tenant if tenant in named else OTHER_TENANTS]
        tally[0] += ledgers
        tally[1] += size
    return tallies


def of_apply(plan: PlanManifest, ledgers: ApplyResult, copies: ApplyResult | None) -> Iterator[Sample]:
    """Yield what came of the candidates of a plan."""
    yield Sample("bookwarden_apply_plan_timestamp_seconds", plan.created_ms / 1000)
    for kind, result in (("ledger", ledgers), ("copy", copies)):
        if result is not None:
            numbers = {
                "marked": result.marked,
                "marked before": result.earlier,
                "failed": len(result.failed),
                "dropped": result.dropped_total,
                "held back": result.held_back_total,
                "left": result.left,
            }
            for outcome, number in numbers.items():
                yield Sample("bookwarden_apply_candidates", number, (kind, outcome))


def of_build(build: Build, ended_ms: int | None) -> Iterator[Sample]:
    """Yield how far a build is, or came; ``ended_ms`` is when the newest that was through ended."""
    yield Sample("bookwarden_bookie_clusters_build_ledgers", build.ledgers)
    yield Sample("bookwarden_bookie_clusters_build_bytes", build.size)
    yield Sample("bookwarden_bookie_clusters_build_ledgers_done", build.looked_at)
    yield Sample("bookwarden_bookie_clusters_build_bytes_done", build.size_looked_at)
    for (outcome, kind), number in build.counts.ledgers.items():
        yield Sample("bookwarden_bookie_clusters_build_outcomes", number, (outcome.value, kind))
    yield Sample("bookwarden_bookie_clusters_build_ended_timestamp_seconds", (ended_ms or 0) / 1000)


def of_build_report(build: Build, *, is_verification: bool) -> Iterator[Sample]:
    """Yield what a build that is through did, or what reading one back found."""
    if not is_verification:
        yield from of_build(build, build.ended_ms)
        return
    for (outcome, kind), number in build.counts.ledgers.items():
        yield Sample("bookwarden_bookie_clusters_verified_ledgers", number, (outcome.value, kind))


def of_comparison(report: Report) -> Iterator[Sample]:
    """Yield how the nodes of a moved store differ from the source's."""
    for kind, number in report.counts.items():
        yield Sample("bookwarden_metadata_verify_nodes", number, (kind.value,))
    yield Sample("bookwarden_metadata_verify_compared_nodes", report.compared)


def of_clients(found: MigrationVerification) -> Iterator[Sample]:
    """Yield how many topics of a move of clients are done."""
    results = Counter("not done" if one.faults else "late" if one.late else "done" for one in found.topics)
    for result in ("done", "not done", "late"):
        yield Sample("bookwarden_cluster_migration_verify_topics", results[result], (result,))


def of_undo(counts: Iterable[tuple[Enum, int]]) -> Iterator[Sample]:
    """Yield how many ledgers of an undo have each outcome."""
    yield from (Sample("bookwarden_undo_ledgers", number, (outcome.value,)) for outcome, number in counts)


def of_disk(
    measured_ms: int, tenants: Iterable[Use], bookies: Iterable[BookieUse], forecast: Forecast | None
) -> Iterator[Sample]:
    """Yield what an account of all ledgers found; ``tenants`` are all there are, or the largest."""
    yield Sample("bookwarden_disk_measured_timestamp_seconds", measured_ms / 1000)
    tallies: dict[str, Counter[str]] = defaultdict(Counter)
    for number, use in enumerate(sorted(tenants, key=lambda one: (-one.disk_bytes, one.name))):
        name = use.name if use.name and number < TENANTS else OTHER_TENANTS
        tallies[name].update(bytes=use.disk_bytes, unnamed_bytes=use.unnamed_bytes, ledgers=use.ledgers)
    for what in ("bytes", "unnamed_bytes", "ledgers"):
        yield from (Sample(f"bookwarden_disk_{what}", tally[what], (name,)) for name, tally in tallies.items())
    known = [(one.name, one.total, one.free) for one in bookies if one.total is not None and one.free is not None]
    yield from (Sample("bookwarden_disk_bookie_size_bytes", total, (name,)) for name, total, _ in known)
    yield from (Sample("bookwarden_disk_bookie_free_bytes", free, (name,)) for name, _, free in known)
    if forecast is not None and forecast.full is not None:
        full = datetime.combine(date.fromisoformat(forecast.full), datetime.min.time(), timezone.utc)
        yield Sample("bookwarden_disk_full_timestamp_seconds", full.timestamp())
