"""Prometheus metrics of switches, moves between bookie clusters, and moves from blue to green, read at each request.

A build or a drain is a process of its own that ends, and may run on any machine; what it does is in its record, so that
one place shows all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bookwarden.bookie_clusters.documents import Overview
from bookwarden.bookie_clusters.moving.build import Build, FoundBuild
from bookwarden.bookie_clusters.moving.scope import Scope
from bookwarden.bookie_clusters.offline.record import MovePhase
from bookwarden.bookie_clusters.operation import SwitchState
from bookwarden.bookie_clusters.order import Phase
from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.scope import namespace_of
from bookwarden.config import Settings
from bookwarden.metadata_migration.watching import StorePhase
from bookwarden.metrics.findings import of_build
from bookwarden.metrics.instruments import families_of, gauge_family
from bookwarden.wiring.cluster_migration import ClusterMigration

_NO_BUILD: Final = Build("", "", Scope(), "", 0)


def migration_metrics(settings: Settings) -> bytes:
    """Return the metrics as Prometheus reads them; none where the settings name no green."""
    if settings.cluster_migration.green.pulsar is None:
        return b""
    with ClusterMigration(settings) as migration:
        names = sorted({*migration.observer.flagged_namespaces(), *migration.record.begun()})
        snapshot = migration.observer.snapshot(names, migration.record.expected(names))
    registry = CollectorRegistry()
    registry.register(_LookCollector(snapshot))
    return generate_latest(registry)


class _LookCollector(Collector):
    """The metrics of one look."""

    def __init__(self, snapshot: MigrationSnapshot) -> None:
        self._look = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield each metric."""
        counts = Counter((namespace_of(seen.topic), seen.state.value) for seen in self._look.topics)
        unread = Counter[str]()
        for seen in self._look.topics:
            unread[namespace_of(seen.topic)] += seen.unread
        flagged = sorted(self._look.flagged.items())
        yield gauge_family("bookwarden_cluster_migration_topics", sorted(counts.items()))
        yield gauge_family(
            "bookwarden_cluster_migration_unread_entries", (((name,), unread[name]) for name, _ in flagged)
        )
        yield gauge_family("bookwarden_cluster_migration_flagged", (((name,), is_on) for name, is_on in flagged))
        yield gauge_family("bookwarden_cluster_migration_troubles", [((), len(self._look.errors))])


def metrics_text(overview: Overview, phases: Sequence[StorePhase] = ()) -> bytes:
    """Return the metrics as Prometheus reads them; ``phases`` are of the metadata stores that Pulsar may move."""
    registry = CollectorRegistry()
    registry.register(OverviewCollector(overview, phases))
    return generate_latest(registry)


class OverviewCollector(Collector):
    """The metrics of one reading; what is not known has no value."""

    def __init__(self, overview: Overview, phases: Sequence[StorePhase] = ()) -> None:
        self._overview = overview
        self._phases = phases

    def collect(self) -> Iterator[Metric]:
        """Yield each metric."""
        yield from _of_switch(self._overview.state)
        yield from _of_build(self._overview.build)
        promotion, move = self._overview.promotion, self._overview.move
        through_ms = 0 if promotion is None else promotion.through_ms
        yield _gauge("bookwarden_bookie_clusters_promoted_timestamp_seconds", through_ms / 1000)
        now = None if move is None else move.phase
        phases = [((phase.value,), float(phase is now)) for phase in MovePhase]
        yield gauge_family("bookwarden_bookie_clusters_move_phase", phases)
        yield gauge_family(
            "bookwarden_metadata_migration_phase", (((one.store, one.phase), 1.0) for one in self._phases)
        )


def _of_switch(state: SwitchState) -> Iterator[Metric]:
    phases = [((phase.value,), float(phase is state.phase)) for phase in Phase]
    yield gauge_family("bookwarden_bookie_clusters_switch_phase", phases)
    found = state.order
    is_stopped = found is not None and found.is_free and found.order.is_under_way
    yield _gauge("bookwarden_bookie_clusters_switch_stopped", is_stopped)
    epoch = 0 if state.registry is None else state.registry.epoch
    yield _gauge("bookwarden_bookie_clusters_registry_epoch", epoch)
    behind = sum(not broker.follows(epoch) for broker in state.brokers) if state.registry is not None else 0
    yield _gauge("bookwarden_bookie_clusters_brokers_behind", behind)


def _of_build(found: FoundBuild | None) -> Iterator[Metric]:
    build = _NO_BUILD if found is None else found.newest
    is_running = found is not None and not found.is_free and not build.is_through
    yield _gauge("bookwarden_bookie_clusters_build_running", is_running)
    yield _gauge("bookwarden_bookie_clusters_build_stopped", found is not None and found.is_stopped)
    left_s = [((), build.left_s)] if is_running and build.left_s is not None else []
    yield gauge_family("bookwarden_bookie_clusters_build_left_seconds", left_s)
    last = None if found is None else found.last_through
    yield from families_of(of_build(build, None if last is None else last.ended_ms))


def _gauge(name: str, value: float) -> Metric:
    return gauge_family(name, [((), value)])
