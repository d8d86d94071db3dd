"""What the page of `bookwarden serve` reads from real brokers: what waits is looked at, and stays."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.metastore.lock import StoreLock
from bookwarden.metastore.urls import open_store
from bookwarden.server.page.reading import PageReader
from bookwarden.server.page.values import Overview, ReasonCount
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
