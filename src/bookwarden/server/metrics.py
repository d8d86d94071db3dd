"""Prometheus metrics of switches, moves between bookie clusters, and moves from blue to green, read at each request.

A build or a drain is a process of its own that ends, and may run on any machine; what it does is in its record, so that
one place shows all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
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
        topics = GaugeMetricFamily(
            "bookwarden_cluster_migration_topics", "Topics and partitions by state.", labels=["namespace", "state"]
        )
        counts = Counter((namespace_of(seen.topic), seen.state.value) for seen in self._look.topics)
        for (namespace, state), count in sorted(counts.items()):
            topics.add_metric([namespace, state], count)
        yield topics
        unread = GaugeMetricFamily(
            "bookwarden_cluster_migration_unread_entries", "Entries left to read on blue.", labels=["namespace"]
        )
        flagged = GaugeMetricFamily(
            "bookwarden_cluster_migration_flagged", "1 while blue sends clients to green.", labels=["namespace"]
        )
        for namespace, is_on in sorted(self._look.flagged.items()):
            own = [seen for seen in self._look.topics if namespace_of(seen.topic) == namespace]
            unread.add_metric([namespace], sum(seen.unread for seen in own))
            flagged.add_metric([namespace], is_on)
        yield unread
        yield flagged
        errors = GaugeMetricFamily("bookwarden_cluster_migration_troubles", "Things that could not be found out.")
        errors.add_metric([], len(self._look.errors))
        yield errors


def metrics_text(overview: Overview) -> bytes:
    """Return the metrics as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(OverviewCollector(overview))
    return generate_latest(registry)


class OverviewCollector(Collector):
    """The metrics of one reading; what is not known has no value."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview

    def collect(self) -> Iterator[Metric]:
        """Yield each metric."""
        yield from _of_switch(self._overview.state)
        yield from _of_build(self._overview.build)
        promotion, move = self._overview.promotion, self._overview.move
        through_ms = 0 if promotion is None else promotion.through_ms
        yield _gauge("promoted_timestamp_seconds", "Copies that were closed before are promoted.", through_ms / 1000)
        now = None if move is None else move.phase
        phases = [(phase.value, float(phase is now)) for phase in MovePhase]
        yield _family("move_phase", "1 for the phase of the newest move --offline.", ["phase"], phases)


def _of_switch(state: SwitchState) -> Iterator[Metric]:
    phases = [(phase.value, float(phase is state.phase)) for phase in Phase]
    yield _family("switch_phase", "1 for the phase of the newest switch.", ["phase"], phases)
    epoch = 0 if state.registry is None else state.registry.epoch
    yield _gauge("registry_epoch", "Epoch of the registry of bookie clusters; 0 without one.", epoch)
    behind = sum(not broker.follows(epoch) for broker in state.brokers) if state.registry is not None else 0
    yield _gauge("brokers_behind", "Live brokers that do not act by the registry as it is.", behind)


def _of_build(found: FoundBuild | None) -> Iterator[Metric]:
    build = _NO_BUILD if found is None else found.newest
    is_running = found is not None and not found.is_free and not build.is_through
    yield _gauge("build_running", "1 while a build runs.", is_running)
    yield _gauge(
        "build_stopped", "1 if the newest build was stopped on its way.", found is not None and found.is_stopped
    )
    yield _gauge("build_ledgers", "Ledgers that the newest build has to look at.", build.ledgers)
    yield _gauge("build_bytes", "Likewise their bytes.", build.size)
    yield _gauge("build_ledgers_done", "Those that are through, whatever came of them.", build.looked_at)
    yield _gauge("build_bytes_done", "Likewise their bytes.", build.size_looked_at)
    left_s = [(build.left_s,)] if is_running and build.left_s is not None else []
    yield _family("build_left_seconds", "How long the build under way goes on, at its pace.", [], left_s)
    counts = [(outcome.value, kind, number) for (outcome, kind), number in build.counts.ledgers.items()]
    yield _family("build_outcomes", "Ledgers of the newest build.", ["outcome", "kind"], counts)
    last = None if found is None else found.last_through
    ended_ms = 0 if last is None or last.ended_ms is None else last.ended_ms
    yield _gauge("build_ended_timestamp_seconds", "End of the newest build that was through.", ended_ms / 1000)


def _gauge(name: str, text: str, value: float) -> Metric:
    return _family(name, text, [], [(value,)])


def _family(name: str, text: str, labels: list[str], rows: Iterable[tuple[str | float, ...]]) -> Metric:
    family = GaugeMetricFamily(f"bookwarden_bookie_clusters_{name}", text, labels=labels)
    for *values, value in rows:
        family.add_metric([str(one) for one in values], float(value))
    return family
