"""Prometheus metrics of a move of clients from blue to green, observed at each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.scope import namespace_of
from bookwarden.config import Settings
from bookwarden.wiring.cluster_migration import ClusterMigration


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
