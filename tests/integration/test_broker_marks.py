"""Brokers that mark what leaves their metadata, by the jar: PIP-186's phase one, on a real Pulsar 4.0.8."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry
from bookwarden.follow.brokers import BrokersThatMark
from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.metastore.urls import open_store
from bookwarden.wire.broker_marks import (
    MARKING_BROKERS,
    OUTBOX_ROOT,
)
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.marking_brokers import consume, marking, outbox, received, release, run
from servers.pool import ENTRIES_PER_LEDGER, Clusters
from servers.sweeping_site import SweepingSite
from servers.topic_contents import acknowledge_each, listed, managed_ledger_of, send
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]


# Exit code of `broker-marks status` once a node that is kept for an hour is ten minutes old.
_OLD: Final = 27


@pytest.fixture(scope="module")
def keeping(clusters: Clusters) -> DevCluster:
    """A cluster whose broker leaves its outbox as it is for an hour."""
    return clusters.shared(marking(bookwardenMarksCheckAfterSeconds="3600"))


@pytest.fixture
def cluster(clusters: Clusters) -> Iterator[DevCluster]:
    """A cluster that a test may break."""
    taken = clusters.taken(marking(bookwardenMarksCheckAfterSeconds="1", bookwardenMarksSendAfterSeconds="8"))
    yield taken
    taken.kill()


def test_trimmed_ledgers_are_in_the_outbox_before_they_leave_the_list(
    keeping: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> None:
    namespace = make_namespace(keeping)
    topic = f"persistent://{namespace}/trimmed"
    site = DeletionSite.of(keeping, namespace, tmp_path)
    path = f"/managed-ledgers/{managed_ledger_of(topic)}"
    gone: dict[int, int] = {}
    with closing(PulsarAdmin(keeping.connection(), timeout_s=60)) as admin:
        acknowledge_each(admin, namespace)
    with (
        closing(keeping.connection().client()) as client,
        SweepingSite(site.settings) as swept,
        closing(open_store(keeping.store_url)) as store,
    ):
        client.subscribe(topic, "sub").close()
        for _ in range(10):
            before = set(listed(swept, topic))
            send(client, topic, 2 * ENTRIES_PER_LEDGER)
            before |= set(listed(swept, topic))
            consume(client, topic, 2 * ENTRIES_PER_LEDGER)
            eventually(lambda before=before: before - set(listed(swept, topic)), 60)
            node = store.get(path)
            assert node is not None
            left = before - {ledger.ledger_id for ledger in decode_managed_ledger(node.value).ledgers}
            gone |= dict.fromkeys(left, node.modified_ms)
        found = outbox(store)
        assert len(gone) >= 10
        assert set(gone) <= set(found)
        assert all(found[ledger_id] <= left for ledger_id, left in gone.items())
        (name,) = store.list_children(MARKING_BROKERS)
        live = store.get(f"{MARKING_BROKERS}/{name}")
        assert live is not None
        assert live.ephemeral
        said = json.loads(live.value)
        assert (said["mode"], said["unmarkedWrites"]) == ("mark", 0)
        # The broker itself deleted them all, and its metrics count what was marked.
        eventually(lambda: not any(swept.exists(ledger_id) for ledger_id in gone), 30)
    with urlopen(f"{keeping.admin_url}/metrics/") as answer:
        lines = answer.read().decode().splitlines()
    (stored,) = (
        float(line.split()[-1])
        for line in lines
        if line.startswith("bookwarden_outbox_ledgers_stored_total") and 'kind="MANAGED_LEDGER"' in line
    )
    assert stored >= len(gone)


def test_a_killed_broker_leaks_nothing(
    cluster: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> None:
    namespace = make_namespace(cluster)
    topic = f"persistent://{namespace}/killed"
    site = DeletionSite.of(cluster, namespace, tmp_path)
    site.create_topics()
    with closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin:
        acknowledge_each(admin, namespace)
    with Cluster(site.settings) as opened:
        topics = opened.deletion_topics
        assert topics.publish().state == "created"
    with (
        SweepingSite(site.settings) as swept,
        closing(open_store(cluster.store_url)) as store,
        closing(cluster.connection().client()) as client,
    ):
        client.subscribe(topic, "sub").close()
        send(client, topic, 5 * ENTRIES_PER_LEDGER)
        ledgers = listed(swept, topic)
        # What has a node below it cannot be deleted: the broker drops its ledgers, and gets no further.
        held = {ledger_id: f"{swept.stored(ledger_id).path}/held" for ledger_id in ledgers[:-1]}
        for path in held.values():
            store.create(path, b"")
        consume(client, topic, 5 * ENTRIES_PER_LEDGER)
        eventually(lambda: len(listed(swept, topic)) <= 1, 30)
        cluster.broker.kill()
        dropped = set(held) - set(listed(swept, topic))
        assert len(dropped) >= 4
        assert all(swept.exists(ledger_id) for ledger_id in dropped)
        assert dropped <= set(outbox(store))
        release(store, held.values())
        cluster.broker.start()
        marks = {mark.ledger_id: mark for mark in received(cluster.connection(), site, dropped)}
        assert {marks[ledger_id].component for ledger_id in dropped} == {LedgerComponent.MANAGED_LEDGER}
        assert {marks[ledger_id].topic_name for ledger_id in dropped} == {managed_ledger_of(topic)}
        assert all(mark.reason.startswith("dropped by broker ") for mark in marks.values())
        # The sweep's library registers no second version: the schema is the same.
        site.mark(marks[min(dropped)])
        with closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin:
            assert len(SchemaRegistry(admin).versions(site.settings.deletion.topic)) == 1
        rows = swept.sweep(*(marks[ledger_id] for ledger_id in sorted(dropped)))
        assert {row.outcome for row in rows} == {Outcome.DELETED}
        assert not any(swept.exists(ledger_id) for ledger_id in dropped)
        eventually(lambda: not set(outbox(store)) & dropped, 60)


def test_marks_are_off_within_ten_seconds_and_on_again(
    keeping: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> None:
    namespace = make_namespace(keeping)
    topic = f"persistent://{namespace}/switched"
    site = DeletionSite.of(keeping, namespace, tmp_path)
    with closing(PulsarAdmin(keeping.connection(), timeout_s=60)) as admin:
        acknowledge_each(admin, namespace)
    with (
        closing(keeping.connection().client()) as client,
        SweepingSite(site.settings) as swept,
        closing(open_store(keeping.store_url)) as store,
    ):
        client.subscribe(topic, "sub").close()

        def trimmed() -> set[int]:
            before = set(listed(swept, topic))
            send(client, topic, 2 * ENTRIES_PER_LEDGER)
            before |= set(listed(swept, topic))
            consume(client, topic, 2 * ENTRIES_PER_LEDGER)
            eventually(lambda: before - set(listed(swept, topic)), 60)
            return before - set(listed(swept, topic))

        name = site.settings.pulsar.admin_url.partition("://")[2].rstrip("/")
        assert [broker["name"] for broker in run(site, "status", codes=(0, _OLD))["brokers"]] == [name]
        began = time.monotonic()
        try:
            assert run(site, "off")["late"] == []
            assert time.monotonic() - began < 10
            assert [broker["marks"] for broker in run(site, "status", codes=(22, _OLD))["brokers"]] == [False]
            assert not trimmed() & set(outbox(store))
        finally:
            began = time.monotonic()
            assert run(site, "on")["late"] == []
        assert time.monotonic() - began < 10
        assert trimmed() <= set(outbox(store))
        shown = run(site, "status", codes=(0, _OLD))
        assert (shown["unmarked_writes"], shown["outbox"]["nodes"] > 0) == (0, True)
        assert shown["stored"]["MANAGED_LEDGER"] >= 1


def test_follow_knows_that_a_broker_marks_and_what_is_marked_already(
    keeping: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> None:
    namespace = make_namespace(keeping)
    topic = f"persistent://{namespace}/followed"
    site = DeletionSite.of(keeping, namespace, tmp_path)
    site.create_topics()
    holder = ManagedLedgerHolder(managed_ledger_of(topic))
    with (
        closing(keeping.connection().client()) as client,
        SweepingSite(site.settings) as swept,
        closing(open_store(keeping.store_url)) as store,
        Cluster(site.settings) as opened,
    ):
        client.subscribe(topic, "sub").close()
        send(client, topic, 2 * ENTRIES_PER_LEDGER)
        before = set(listed(swept, topic))
        consume(client, topic, 2 * ENTRIES_PER_LEDGER)
        dropped = min(eventually(lambda: before - set(listed(swept, topic)), 60))
        in_flight, neither = (mark_of_holder(number, holder, "follow") for number in (10**9, 10**9 + 1))
        site.mark(in_flight)
        topics = opened.deletion_topics
        brokers = BrokersThatMark({keeping.store_url: store}, topics.entries, topics.requests_in_flight)
        assert set(brokers.roots()) == {keeping.store_url}
        in_outbox = mark_of_holder(dropped, holder, "follow")
        assert brokers.doubles([in_outbox, in_flight, neither]) == {in_outbox.request, in_flight.request}


def test_what_a_broker_left_is_drained_when_none_marks(
    clusters: Clusters, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> None:
    cluster = clusters.taken(marking(bookwardenMarksCheckAfterSeconds="3600"))
    try:
        namespace = make_namespace(cluster)
        topic = f"persistent://{namespace}/left"
        site = DeletionSite.of(cluster, namespace, tmp_path)
        site.create_topics()
        with closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin:
            acknowledge_each(admin, namespace)
        with SweepingSite(site.settings) as swept, closing(open_store(cluster.store_url)) as store:
            with closing(cluster.connection().client()) as client:
                client.subscribe(topic, "sub").close()
                send(client, topic, 3 * ENTRIES_PER_LEDGER)
                ledgers = listed(swept, topic)
                held = {ledger_id: f"{swept.stored(ledger_id).path}/held" for ledger_id in ledgers[:-1]}
                for path in held.values():
                    store.create(path, b"")
                consume(client, topic, 3 * ENTRIES_PER_LEDGER)
                eventually(lambda: len(listed(swept, topic)) <= 1, 30)
            assert "lives" in run(site, "drain", codes=(5,))["error"]
            cluster.broker.kill()
            release(store, held.values())
            dropped = set(held) - set(listed(swept, topic))
            assert dropped
            # Its place is taken by the same broker without the line.
            del cluster.options.broker_settings["managedLedgerStorageClassName"]  # type: ignore[attr-defined]  # a dict
            cluster.broker.start()
            eventually(lambda: not store.children_of(MARKING_BROKERS), 60)
            assert run(site, "status", codes=(22, _OLD))["outbox"]["nodes"] > 0
            plan = run(site, "drain")
            assert (plan["executed"], plan["kept"]) == (False, [])
            assert plan["marks"]["LEDGER"] >= len(dropped)
            done = run(site, "drain", "--execute")
            assert (done["marks"], done["nodes"], done["kept"]) == (plan["marks"], plan["nodes"], [])
            assert store.children_of(OUTBOX_ROOT) == []
            marks = {mark.ledger_id: mark for mark in received(cluster.connection(), site, dropped)}
            assert {marks[ledger_id].topic_name for ledger_id in dropped} == {managed_ledger_of(topic)}
            rows = swept.sweep(*(marks[ledger_id] for ledger_id in sorted(dropped)))
            assert {row.outcome for row in rows} == {Outcome.DELETED}
    finally:
        cluster.kill()
