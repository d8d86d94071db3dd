"""What the page of `bookwarden serve` reads from real brokers: what waits is looked at, and stays."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.config import load_settings
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.metastore.lock import StoreLock
from bookwarden.metastore.urls import open_store
from bookwarden.server.page.moves import render_moves
from bookwarden.server.page.reading import PageReader
from bookwarden.server.page.topic import render_topic
from bookwarden.server.page.trash import render_trash
from bookwarden.server.page.values import LedgerPlace, Overview, ReasonCount, Wanted
from bookwarden.wiring.pulsar import connection_of
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.waiting import eventually

pytestmark = pytest.mark.servers


def test_what_waits_is_counted_and_stays(shared_cluster: DevCluster, namespace: str, tmp_path: Path) -> None:
    site = DeletionSite.of(shared_cluster, namespace, tmp_path)
    lock = f"/bookwarden/{namespace}/sweeps"
    settings = site.settings.model_copy(
        update={"sweep": site.settings.sweep.model_copy(update={"lock": lock, "outcomes": str(tmp_path / "outcomes")})}
    )
    with closing(PageReader(settings)) as reader:

        def silent() -> Overview | None:
            found = reader.read()
            return found if found.queues.silent_since_ms else None

        # Without topics there is nothing to be read, and what to do about it is said.
        assert "bookwarden init" in eventually(silent).queues.error
    site.create_topics()
    site.mark(mark_of_holder(1, ManagedLedgerHolder(f"{namespace}/persistent/orders"), "a test"))
    producers = ConfirmedProducers(connection_of(settings.pulsar).client, batching_enabled=False)
    for number in (1, 2):
        reason = {"bookwarden.reason": f"ledger {number} is odd"}
        producers.send(settings.deletion.dlq_topic, b"x", schema=None, key="k", properties=reason)
    producers.flush()
    producers.close()
    store = open_store(site.store_url)
    held = StoreLock(store, lock)
    held.acquire(0)

    def look() -> Overview | None:
        with closing(PageReader(settings)) as reader:
            found = reader.read()
        return found if found.queues.value and found.store.value else None

    for _ in range(2):
        found = eventually(look)
        queues, state = found.queues.value, found.store.value
        assert queues is not None
        assert state is not None
        assert (queues.entries, queues.dead_letters, queues.letters_read) == (1, 2, 2)
        assert queues.reasons == (ReasonCount("ledger # is odd", 2),)
        assert queues.oldest_ms is not None
        assert queues.due_ms == queues.oldest_ms
        assert {job.name: bool(job.holder) for job in state.jobs}["sweep"]
    held.release()
    store.close()


def test_a_topic_the_trash_and_moves_are_read_from_a_real_cluster(
    shared_cluster: DevCluster, namespace: str, tmp_path: Path
) -> None:
    topic = f"persistent://{namespace}/orders"
    overrides = {
        "metadata_store.urls": f"['{shared_cluster.store_url}']",
        "pulsar.admin_url": shared_cluster.admin_url,
        "pulsar.service_url": shared_cluster.service_url,
        "orphans.folder": str(tmp_path / "orphans"),
    }
    client = shared_cluster.connection().client()
    consumer = client.subscribe(topic, "billing")
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(str(number).encode())
    consumer.acknowledge(consumer.receive(30_000))
    with closing(PageReader(load_settings(overrides=overrides))) as reader:

        def look() -> Overview | None:
            found = reader.read(Wanted(trash=True, topic=f"{namespace}/orders"))
            has_all = found.topic and found.topic.value and found.trash and found.trash.value and found.moves.value
            return found if has_all else None

        found = eventually(look, timeout=60)
    client.close()
    assert found.topic is not None
    assert found.topic.value is not None
    (part,) = found.topic.value.parts
    assert (found.topic.value.name, part.pins.topic, part.pins.loaded) == (topic, topic, True)
    assert [(one.place, one.begun_ms > 0) for one in part.ledgers] == [(LedgerPlace.BOOKIES, True)]
    assert [(one.name, one.behind) for one in part.cursors] == [("billing", 2)]
    assert "billing stands at" in render_topic(found, topic)
    assert "In the trash" in render_trash(found)
    moves = found.moves.value
    assert moves is not None
    assert [(one.error, one.snapshot and one.snapshot.phase) for one in moves.stores] == [("", None)]
    assert moves.switch is not None
    assert len(moves.switch.state.brokers) == 1
    assert "No migration of it was begun." in render_moves(found)
