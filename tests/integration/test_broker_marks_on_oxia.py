"""Brokers that mark, with the metadata in Oxia, in both modes: Pulsar 4.2.4."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.metastore.urls import open_store
from bookwarden.wire.broker_marks import MARKING_BROKERS, decode_marking_broker
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.marking_brokers import MarkingGround, outbox, two_phase
from servers.pool import ON_OXIA, Clusters
from servers.topic_contents import listed
from servers.waiting import eventually

# The first start on a machine builds Oxia.
pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_what_is_dropped_is_in_the_outbox_and_then_gone_or_swept(
    clusters: Clusters, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> None:
    cluster = clusters.shared(two_phase(ON_OXIA))
    play(cluster, make_namespace(cluster), tmp_path / "two-phase", "two-phase")
    settings = cluster.options.broker_settings
    before = dict(settings)
    try:
        settings.update(bookwardenMarks="mark", bookwardenMarksCheckAfterSeconds="3")  # type: ignore[attr-defined]
        restart(cluster)
        play(cluster, make_namespace(cluster), tmp_path / "mark", "mark")
    finally:
        settings.clear()  # type: ignore[attr-defined]  # a dict
        settings.update(before)  # type: ignore[attr-defined]
        restart(cluster)


def play(cluster: DevCluster, namespace: str, folder: Path, mode: str) -> None:
    """Drop ledgers of a topic by trims and by its delete."""
    folder.mkdir()
    site = DeletionSite.of(cluster, namespace, folder)
    with (
        closing(MarkingGround(cluster.connection(), site)) as at,
        closing(at.connection.client(operation_timeout_seconds=60)) as client,
        closing(open_store(cluster.store_url)) as store,
    ):
        topic = at.topic("on-oxia")
        client.subscribe(topic, "sub").close()
        dropped = at.trim(client, topic)
        # What is left to the sweep is sent at once.
        assert mode == "two-phase" or dropped <= set(outbox(store))
        at.admin.delete(f"{topic_path(topic)}?force=true")
        eventually(lambda: not listed(at.swept, topic), 30)
        if mode == "two-phase":
            assert at.gone() == []
            at.sweep_all(set(at.ever))
        eventually(lambda: set(at.gone()) == set(at.ever), 60)
        eventually(lambda: not set(outbox(store)) & set(at.ever), 60)
        (name,) = store.list_children(MARKING_BROKERS)
        node = store.get(f"{MARKING_BROKERS}/{name}")
        assert node is not None
        said = decode_marking_broker(node.value)
        assert (said.mode, said.unmarked_writes) == (mode, 0)


def restart(cluster: DevCluster) -> None:
    """Kill the broker and start it: what it left in the outbox is its next start's."""
    with closing(open_store(cluster.store_url)) as store:
        before = set(store.list_children(MARKING_BROKERS))
        cluster.broker.kill()
        cluster.broker.start()
        eventually(lambda: not before & set(store.list_children(MARKING_BROKERS)), 120)
