"""Wiring of the search for what holds the ledgers of topics."""

from __future__ import annotations

from bookwarden.clusters.pulsar.rest.registered_brokers import LoadedTopics
from bookwarden.clusters.pulsar.rest.trimming import TrimQuestions
from bookwarden.topic_pins import LiveSources, PinSearch
from bookwarden.wiring.cluster import Cluster


def pin_search_of(cluster: Cluster, *, of_snapshot: bool = False, now_ms: int | None = None) -> PinSearch:
    """Make the search; ``of_snapshot`` says that the cluster's stores are one, of the time ``now_ms``."""
    store, bookkeeper = cluster.store, cluster.bookkeeper
    live = None
    if not of_snapshot:
        brokers, loaded = TrimQuestions(cluster.admin), LoadedTopics(store, cluster.connection)
        live = LiveSources(brokers, loaded, bookkeeper.last_entries)
    return PinSearch(store, bookkeeper.catalog, live, now_ms)
