"""A broker that lost its session with the metadata store, and with it what says that it owns topics, serves on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.ownership import BundleOwnership
from bookwarden.config import load_settings
from bookwarden.errors import RefusedError
from bookwarden.ledgers.names import TopicName
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import PhaseOne
from servers.older_broker import OlderBroker
from servers.pool import ENTRIES_PER_LEDGER
from servers.topic_contents import read_back
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def test_a_topic_that_nobody_owns_any_more_may_be_served_still(
    older_broker: OlderBroker, make_namespace: Callable[..., str]
) -> None:
    cluster, proxy, namespace = older_broker, older_broker.proxy, make_namespace(older_broker)
    topic = TopicName.parse(f"persistent://{namespace}/orders")
    settings = load_settings(
        overrides={
            "pulsar.service_url": cluster.service_url,
            "pulsar.admin_url": cluster.admin_url,
            "metadata_store.urls": f"['{cluster.store_url}']",
            "metadata_store.bookkeeper_url": cluster.beside.store_url,
            "deletion.topic": f"persistent://{namespace}/deletion",
            "deletion.retry_topic": f"persistent://{namespace}/deletion-RETRY",
            "deletion.dlq_topic": f"persistent://{namespace}/deletion-DLQ",
        }
    )
    with closing(cluster.connection().client()) as client, Cluster(settings) as opened:
        phase_one, store = PhaseOne(opened), opened.store
        client.subscribe(str(topic), "s")
        producer = client.create_producer(str(topic))
        for number in range(3 * ENTRIES_PER_LEDGER + 1):
            producer.send(str(number).encode())
        listed = ManagedLedgers(store).read(topic.managed_ledger)
        assert listed is not None
        ownership = BundleOwnership(store)
        assert ownership.owner(str(topic)) is not None
        proxy.cut_off()
        eventually(lambda: ownership.owner(str(topic)) is None, timeout=120)
        # It serves on: the ledger that it has open is on the bookie.
        producer.send(b"nobody owns it")
        with pytest.raises(RefusedError, match=r"last ledger \d+ is not closed"):
            phase_one.store_trim.plan(str(topic)).carry_out()
        now = ManagedLedgers(store).read(topic.managed_ledger)
        assert now == listed
        proxy.let_through()
        eventually(lambda: ownership.owner(str(topic)) is not None, timeout=120)
        producer.send(b"owned again")
        read = read_back(client, str(topic))
        assert len(read) == 3 * ENTRIES_PER_LEDGER + 3
        assert read[-2:] == [b"nobody owns it", b"owned again"]
