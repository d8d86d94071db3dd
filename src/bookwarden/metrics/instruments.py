"""Prometheus's objects for the metrics of the table: none can be made of a name that is not in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from bookwarden.metrics.names import METRICS, Kind, MetricName, Sample


def counter(name: str, registry: CollectorRegistry) -> Counter:
    """Make a counter of the table."""
    one = _named(name, Kind.COUNTER)
    return Counter(one.name, one.help, one.labels, registry=registry)


def gauge(name: str, registry: CollectorRegistry) -> Gauge:
    """Make a gauge of the table."""
    one = _named(name, Kind.GAUGE)
    return Gauge(one.name, one.help, one.labels, registry=registry)


def histogram(name: str, registry: CollectorRegistry, buckets: Sequence[float]) -> Histogram:
    """Make a histogram of the table."""
    one = _named(name, Kind.HISTOGRAM)
    return Histogram(one.name, one.help, one.labels, registry=registry, buckets=buckets)


def counter_family(name: str, rows: Iterable[tuple[Sequence[str], float]]) -> CounterMetricFamily:
    """Make a counter of the table with its values, each with those of its labels."""
    one = _named(name, Kind.COUNTER)
    family = CounterMetricFamily(one.name, one.help, labels=one.labels)
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def gauge_family(
    name: str, rows: Iterable[tuple[Sequence[str], float]], more_labels: Sequence[str] = ()
) -> GaugeMetricFamily:
    """Make a gauge of the table with its values; ``more_labels`` are names of labels behind those of the table."""
    one = _named(name, Kind.GAUGE)
    family = GaugeMetricFamily(one.name, one.help, labels=(*one.labels, *more_labels))
    for labels, value in rows:
        family.add_metric(labels, value)
    return family


def families_of(samples: Iterable[Sample], more_labels: Mapping[str, str] | None = None) -> Iterator[GaugeMetricFamily]:
    """Yield a gauge of the table for each name; ``more_labels`` are added to every sample."""
    more = more_labels or {}
    by_name: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_name[sample.name].append(sample)
    for name, found in by_name.items():
        yield gauge_family(name, (((*one.labels, *more.values()), one.value) for one in found), tuple(more))


def _named(name: str, kind: Kind) -> MetricName:
    found = METRICS[name]
    if found.kind is not kind:
        raise ValueError(f"{name} is a {found.kind.value}, not a {kind.value}")
    return found
