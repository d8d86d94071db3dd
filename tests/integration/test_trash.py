"""The trash on real servers: what a broker of mode two-phase drops stays, as it was, until its time is over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pulsar
import pytest

from bookwarden.clusters.pulsar.metadata.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.clusters.pulsar.trash import TrashedLedgers
from bookwarden.errors import NotFoundError, PulsarError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.trash import KeepRule, TrashRecord, joined
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wire.schema_locator import decode_schema_locator
from bookwarden.wire.trash import TRASH_RECORDS, decode_records
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.marking_brokers import MarkingGround, consume, nodes_in_outbox, received, two_phase
from servers.pool import ENTRIES_PER_LEDGER, Clusters
from servers.pulsar_topics import unload
from servers.topic_contents import managed_ledger_of, send
from servers.trashed_topics import keep_dropped
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(clusters: Clusters) -> DevCluster:
    """A cluster of other files too, whose broker comes back after it was killed."""
    return clusters.shared(two_phase())


def _records(store: MetadataStore, namespace: str) -> list[TrashRecord]:
    found = []
    for folder in store.children_of(TRASH_RECORDS):
        for block in store.children_of(f"{TRASH_RECORDS}/{folder}"):
            for name in store.children_of(f"{TRASH_RECORDS}/{folder}/{block}"):
                node = store.get(f"{TRASH_RECORDS}/{folder}/{block}/{name}")
                found += decode_records(node.value) if node else []
    whole, broken = joined(found)
    assert broken == []
    return [record for record in whole if record.managed_ledger.startswith(f"{namespace}/")]


def _values(store: MetadataStore, topic: str) -> dict[str, tuple[bytes, int, int]]:
    """Return the nodes of a topic and its subscriptions by what is below the topic: value, version, when made."""
    path = f"{MANAGED_LEDGERS_ROOT}/{managed_ledger_of(topic)}"
    found = {}
    for name in ("", *store.children_of(path)):
        node = store.get(f"{path}/{name}" if name else path)
        assert node is not None
        found[name] = (node.value, node.version, node.created_ms)
    return found


def _ledgers(cursor: str, value: bytes) -> set[int]:
    """Return the ledgers that a node of a topic or a subscription names, without empty ones."""
    if cursor:
        return set(decode_cursor(value).ledger_ids)
    return {each.ledger_id for each in decode_managed_ledger(value).ledgers if each.entries}


def _kept(records: list[TrashRecord], topic: str) -> dict[str, tuple[bytes, int, int]]:
    """Return the same of what the trash has of a topic that was deleted."""
    return {
        record.cursor or "": (record.node.value, record.node.version, record.node.created_ms)
        for record in records
        if record.managed_ledger == managed_ledger_of(topic) and record.node is not None and not record.schema_id
    }


def test_what_is_dropped_is_kept_as_it_was_until_its_time_is_over(
    cluster: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> None:
    site = DeletionSite.of(cluster, make_namespace(cluster), tmp_path)
    kept, other = make_namespace(cluster), make_namespace(cluster)
    with (
        closing(MarkingGround(cluster.connection(), site)) as at,
        closing(at.connection.client()) as client,
        closing(open_store(site.store_url)) as store,
        Cluster(site.settings) as opened,
    ):
        loaded, idle = f"persistent://{kept}/loaded", f"persistent://{kept}/idle"
        elsewhere = f"persistent://{other}/elsewhere"
        for topic in (loaded, idle, elsewhere):
            for name in ("full", "sub", "new"):
                client.subscribe(topic, name).close()
            producer = client.create_producer(topic, schema=pulsar.schema.StringSchema(), batching_enabled=False)
            for number in range(3 * ENTRIES_PER_LEDGER + 4):
                producer.send(str(number))
            producer.close()
            consume(client, topic, ENTRIES_PER_LEDGER + 3)
        unload(at.admin, idle)
        keeper = keep_dropped(opened, kept)
        before = {topic: _values(store, topic) for topic in (loaded, idle)}
        schemas = {}
        for topic in (loaded, idle):
            node = store.get(f"{SCHEMAS_ROOT}/{TopicName.parse(topic).schema_id}")
            assert node is not None
            schemas[TopicName.parse(topic).schema_id] = node.value
        # Not ledgers of cursors that were replaced before: they are marked.
        ever = {one for value in schemas.values() for one in decode_schema_locator(value).ledger_ids}
        ever |= {one for values in before.values() for name in values for one in _ledgers(name, values[name][0])}
        for topic in (loaded, idle):
            at.admin.delete(f"{topic_path(topic)}?force=true")
        eventually(lambda: nodes_in_outbox(store) == 0, 30)
        records = _records(store, kept)

        # Nothing is deleted, and nothing marked: everything is there as it was.
        assert [one for one in ever if not at.swept.exists(one)] == []
        assert ever <= TrashedLedgers([store]).read()
        assert _kept(records, idle) == before[idle]
        assert {name: value for name, value in _kept(records, loaded).items() if name} == {
            name: value for name, value in before[loaded].items() if name
        }
        (former, _, made_ms) = before[loaded][""]
        entries = {
            one: entry
            for record in records
            if record.managed_ledger == managed_ledger_of(loaded) and record.entries
            for one, entry in zip(record.data, record.entries, strict=True)
        }
        listed = pb.ManagedLedgerInfo.FromString(former).ledgerInfo
        assert {one: entries[one] for one in entries} == {each.ledgerId: each.SerializeToString() for each in listed}
        assert _kept(records, loaded)[""][2] == made_ms
        assert {each.schema_id: each.node.value for each in records if each.schema_id and each.node} == schemas

        # Another namespace: marked at once.
        ids = {each.ledger_id for each in decode_managed_ledger(_values(store, elsewhere)[""][0]).ledgers}
        at.admin.delete(f"{topic_path(elsewhere)}?force=true")
        marks = received(at.connection, site, ids)
        assert not {mark.ledger_id for mark in marks} & ever

        # A broker that is killed within a delete: whatever left a node by then is kept.
        killed = f"persistent://{kept}/killed"
        send(client, killed, 2 * ENTRIES_PER_LEDGER)
        for number in range(20):
            client.subscribe(killed, f"sub-{number}").close()
        ever |= _ledgers("", _values(store, killed)[""][0])
        path = f"{MANAGED_LEDGERS_ROOT}/{managed_ledger_of(killed)}"

        def delete() -> None:
            with suppress(PulsarError, NotFoundError):
                at.admin.delete(f"{topic_path(killed)}?force=true")

        deleting = threading.Thread(target=delete)
        deleting.start()
        eventually(lambda: len(store.children_of(path)) < 20, 30, 0.001)
        cluster.broker.kill()
        deleting.join(60)
        cluster.broker.start()
        assert [one for one in ever if not at.swept.exists(one)] == []
        eventually(lambda: nodes_in_outbox(store) == 0, 60)
        named = _values(store, killed) if store.get(path) else {}
        at_end = _kept(_records(store, kept), killed)
        assert {"", *(f"sub-{number}" for number in range(20))} <= {*named, *at_end}
        if named:
            eventually(lambda: _is_deleted(at, killed), 60)
            eventually(lambda: nodes_in_outbox(store) == 0, 60)
        assert [one for one in ever if not at.swept.exists(one)] == []
        assert ever <= TrashedLedgers([store]).read()

        # Its time is over: marked, swept, and out of the trash.
        keeper.rules = (KeepRule(kept, 1),)
        eventually(lambda: keeper.run() and not TrashedLedgers([store]).read() & ever, 60, 1)
        at.sweep_all(ever)
        # What is left are trims of topics that live, as those of topic policies, which wait for ten minutes.
        left = _records(store, kept)
        assert [record for record in left if record.node or not record.entries] == []
        live = {store.get(f"{MANAGED_LEDGERS_ROOT}/{record.managed_ledger}") is not None for record in left}
        assert live <= {True}


def _is_deleted(at: MarkingGround, topic: str) -> bool:
    try:
        at.admin.delete(f"{topic_path(topic)}?force=true")
    except NotFoundError:
        return True
    except PulsarError:
        # The topic is being loaded.
        return False
    return True
