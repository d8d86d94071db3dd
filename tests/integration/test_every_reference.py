"""Every kind of ledger and of reference, as a real Pulsar makes them: what is kept, and what is swept."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest

from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.references import unnamed_use
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.deletion.phase_one.named_ledgers import marks_of_ids
from bookwarden.errors import NotFoundError, PulsarError
from bookwarden.java import find_java
from bookwarden.ledgers.kinds import BucketHolder, CompactedHolder, LedgerComponent, ManagedLedgerHolder, PlaceKind
from bookwarden.ledgers.live_references import LiveReferences
from bookwarden.ledgers.metadata import LedgerState, StoredLedger
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.references import ReferenceIndex
from bookwarden.wire.cursor import decode_position_info
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import PhaseOne
from bookwarden_dev.devcluster import DevCluster
from bookwarden_dev.devcluster.releases.distribution import ensure_distribution
from servers.broker_claims import assert_every_claimed_ledger_is_found
from servers.deletion_site import DeletionSite
from servers.population import Population
from servers.sweeping_site import SweepingSite
from servers.topic_contents import compact, compacted_in_use, listed, managed_ledger_of, retain, send, send_keyed
from servers.waiting import eventually

pytestmark = pytest.mark.servers

# Far above what the bookie's own ledgers get.
UNUSED = 1_900_000_000


@pytest.fixture
def deletion_site(pulsar_cluster: DevCluster, namespace: str, tmp_path: Path) -> DeletionSite:
    made = DeletionSite.of(pulsar_cluster, namespace, tmp_path)
    made.overrides = {"deletion.shadow_refresh_seconds": "0.001"}
    made.create_topics()
    return made


@pytest.fixture
def site(deletion_site: DeletionSite) -> Iterator[SweepingSite]:
    with SweepingSite(deletion_site.settings) as made:
        yield made


# Shadow topics.


@pytest.fixture
def shadow(site: SweepingSite, admin: PulsarAdmin, client: pulsar.Client, namespace: str) -> tuple[str, str]:
    """A topic of several ledgers, and a shadow of it that has been loaded and has all of them."""
    source, copy = f"persistent://{namespace}/source", f"persistent://{namespace}/copy"
    retain(admin, namespace)
    admin.put(topic_path(source))
    client.subscribe(source, "s", initial_position=pulsar.InitialPosition.Earliest).close()
    send(client, source, 25)
    admin.put(topic_path(copy), {"PULSAR.SHADOW_SOURCE": source})
    admin.put(f"{topic_path(source)}/shadowTopics", [copy])
    reader = client.create_reader(copy, pulsar.MessageId.earliest)
    assert reader.read_next(timeout_millis=60_000).data() == b"0"
    reader.close()
    assert len(listed(site, source)) > 2
    eventually(lambda: set(listed(site, copy)) >= set(listed(site, source)), 60)
    return source, copy


def test_a_mark_made_from_a_shadow_topic_is_a_mismatch_while_the_source_lists_the_ledger(
    site: SweepingSite, shadow: tuple[str, str]
) -> None:
    source, copy = shadow
    first = listed(site, source)[0]
    row = site.outcome(first, ManagedLedgerHolder(managed_ledger_of(copy)))
    assert row.outcome is Outcome.MISMATCH
    assert managed_ledger_of(source) in row.reason
    assert site.outcome(first, ManagedLedgerHolder(managed_ledger_of(source))).outcome is Outcome.STILL_REFERENCED
    assert site.exists(first)
    found = {named.place.kind: named.place.holder for named in site.explain(first).everywhere or ()}
    assert found == {
        PlaceKind.MANAGED_LEDGER: managed_ledger_of(source),
        PlaceKind.SHADOW_TOPIC: managed_ledger_of(copy),
    }


def test_a_ledger_that_only_the_shadow_lists_is_kept_until_the_shadow_drops_it(
    deletion_site: DeletionSite, site: SweepingSite, admin: PulsarAdmin, shadow: tuple[str, str]
) -> None:
    source, copy = shadow
    first = listed(site, source)[0]
    holder = ManagedLedgerHolder(managed_ledger_of(source))
    # The shadow first: loaded, it follows its source.
    admin.delete(f"{topic_path(source)}/shadowTopics")
    admin.put(f"{topic_path(copy)}/unload")
    admin.put(f"{topic_path(source)}/unload")
    managed_ledgers = ManagedLedgers(site.opened.store)
    read = managed_ledgers.read(holder.name)
    assert read is not None
    managed_ledgers.remove_ledgers(read, [first])
    assert first in listed(site, copy)
    row = site.outcome(first, holder)
    assert row.outcome is Outcome.STILL_REFERENCED
    assert f"{managed_ledger_of(copy)}, which lists ledgers of" in row.reason
    assert site.exists(first)
    deletion_site.overrides = {"deletion.shadow_refresh_seconds": "0"}
    with SweepingSite(deletion_site.settings) as blind:
        assert blind.outcome(first, holder).outcome is Outcome.DELETED
    assert not site.exists(first)


# Compaction.


def recorded_in_node(site: SweepingSite, topic: str) -> int | None:
    cursor = ManagedLedgers(site.opened.store).cursors(managed_ledger_of(topic))["__compaction"]
    return cursor.info.compacted_ledger_id


def test_the_compacted_ledger_in_use_is_kept_and_the_one_before_is_swept(
    site: SweepingSite, admin: PulsarAdmin, client: pulsar.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/compacted"
    holder = CompactedHolder(managed_ledger_of(topic))
    send_keyed(client, topic, 12)
    first = compact(admin, topic)
    leaked = site.stored(first)
    assert leaked.metadata.custom["component"] == b"compacted-ledger"
    assert [mark.holder() for mark in marks_of_ids(site.opened.bookkeeper.catalog, [first])] == [holder]
    row = site.outcome(first, holder)
    assert (row.outcome, row.component) == (Outcome.STILL_REFERENCED, "COMPACTED_LEDGER")
    # An unload writes the first one into the node, where it stays when the cursor gets a ledger of its own.
    admin.put(f"{topic_path(topic)}/unload")
    eventually(lambda: recorded_in_node(site, topic) == first)
    send_keyed(client, topic, 12)
    second = compact(admin, topic)
    eventually(lambda: not site.exists(first))
    # The truth is in the last entry of the cursor's ledger; the node has that of the cursor's last switch.
    cursor = ManagedLedgers(site.opened.store).cursors(holder.managed_ledger)["__compaction"].info
    assert cursor.cursors_ledger_id is not None
    assert cursor.compacted_ledger_id == first
    entry = LastEntries(site.opened.bookkeeper.catalog, lambda: site.opened.bookkeeper.bookies).last_entry(
        cursor.cursors_ledger_id
    )
    assert entry is not None
    assert decode_position_info(entry).compacted_ledger_id == second
    assert {named.place.kind for named in site.explain(second).everywhere or ()} >= {PlaceKind.COMPACTED_NOW}
    site.put_back(leaked)
    # To a scan the node calls it deleted, so that it was left behind; the one in use is named by the entry.
    pieces = ReferencePieces(site.opened.stores, site.opened.bookkeeper.last_entries)
    said = [row for piece in pieces.pieces() for row in pieces.read(piece).rows]
    assert [row.gone for row in said if row.ledger_id == first] == [True]
    assert [row.gone for row in said if row.ledger_id == second] == [False]
    without_brokers = MetadataReferences([site.opened.store]).read([holder])[holder]
    assert isinstance(without_brokers, LiveReferences)
    assert without_brokers.unnamed_use is not None
    assert not without_brokers.unnamed_use.rules_out(first, 0, unchanged=True)
    rows = site.sweep(*marks_of_ids(site.opened.bookkeeper.catalog, [first, second]))
    assert [row.outcome for row in rows] == [Outcome.DELETED, Outcome.STILL_REFERENCED]
    assert (site.exists(first), site.exists(second)) == (False, True)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    assert {reader.read_next(timeout_millis=60_000).partition_key() for _ in range(5)} == set("01234")
    reader.close()
    # A truncation loses the property, and the topic has no compacted ledger in use from its next load on.
    admin.delete(f"{topic_path(topic)}/truncate")
    admin.put(f"{topic_path(topic)}/unload")
    assert compacted_in_use(admin, topic) == -1
    assert site.outcome(second, holder).outcome is Outcome.DELETED
    assert not site.exists(second)


def test_the_ledger_of_a_compaction_under_way_is_kept_though_nothing_names_it(
    pulsar_cluster: DevCluster,
    deletion_site: DeletionSite,
    site: SweepingSite,
    admin: PulsarAdmin,
    client: pulsar.Client,
    namespace: str,
) -> None:
    topic = f"persistent://{namespace}/running"
    holder = CompactedHolder(managed_ledger_of(topic))
    send_keyed(client, topic, 30)
    earlier = compact(admin, topic)
    leaked = site.stored(earlier)
    # Enough to write that the compaction is still at it when it is looked at.
    send_keyed(client, topic, 3000, keys=3000, size=10_000)
    newest = max(listed(site, topic))

    def written_now() -> StoredLedger | None:
        found = site.new_ledgers(range(newest + 1, newest + 30))
        compacted = [ledger for ledger in found if ledger.metadata.custom.get("component") == b"compacted-ledger"]
        return compacted[0] if compacted else None

    # While the bookie is paused no retry could be sent, so the sweep only says what it would do.
    deletion_site.overrides = {**deletion_site.overrides, "sweep.dry_run": "true"}
    with SweepingSite(deletion_site.settings) as dry:
        admin.put(f"{topic_path(topic)}/compaction")
        running = eventually(written_now, 120)
        with pulsar_cluster.bookie.paused():
            assert dry.stored(running.ledger_id).metadata.state is LedgerState.OPEN, "the compaction was too fast"
            rows = dry.sweep(*marks_of_ids(dry.opened.bookkeeper.catalog, [running.ledger_id, earlier]))
            assert admin.get_json(f"{topic_path(topic)}/compaction")["status"] == "RUNNING"
    assert [row.outcome for row in rows] == [Outcome.WAITING, Outcome.STILL_REFERENCED]
    assert "under way" in rows[0].reason
    eventually(lambda: compacted_in_use(admin, topic) == running.ledger_id, 120)
    eventually(lambda: not site.exists(earlier))
    assert site.outcome(running.ledger_id, holder).outcome is Outcome.STILL_REFERENCED
    site.put_back(leaked)
    eventually(lambda: admin.get_json(f"{topic_path(topic)}/compaction")["status"] == "SUCCESS", 60)
    assert site.outcome(earlier, holder).outcome is Outcome.DELETED
    assert site.exists(running.ledger_id)


def test_deleting_a_topic_marks_its_compacted_ledger_and_the_sweep_deletes_what_is_left(
    deletion_site: DeletionSite, site: SweepingSite, admin: PulsarAdmin, client: pulsar.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/doomed"
    send_keyed(client, topic, 12)
    compacted = compact(admin, topic)
    leaked = site.stored(compacted)
    with Cluster(deletion_site.settings) as cluster:
        phase_one = PhaseOne(cluster)
        result = phase_one.removal.plan_topic(topic).carry_out()
    assert result.done, result.problem
    (mark,) = [mark for mark in result.plan.marks if mark.component is LedgerComponent.COMPACTED_LEDGER]
    assert mark.ledger_id == compacted
    site.put_back(leaked)
    (row,) = site.sweep(mark)
    assert row.outcome is Outcome.DELETED
    assert not site.exists(compacted)


# Buckets of delayed messages.


def test_a_bucket_is_kept_while_it_is_named_or_may_be_in_use_from_memory(
    deletion_site: DeletionSite, site: SweepingSite, admin: PulsarAdmin, client: pulsar.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/delayed"
    holder = BucketHolder(managed_ledger_of(topic), "my+sub")
    retain(admin, namespace)
    consumer = client.subscribe(topic, "my sub", pulsar.ConsumerType.Shared)
    send(client, topic, 25, deliver_after=timedelta(hours=1))

    def named() -> list[int]:
        cursors = ManagedLedgers(site.opened.store).cursors(holder.managed_ledger)
        return sorted(cursors["my+sub"].info.delayed_bucket_ids)

    bucket = eventually(named, 60)[0]
    real = site.stored(bucket)
    assert [mark.holder() for mark in marks_of_ids(site.opened.bookkeeper.catalog, [bucket])] == [holder]
    row = site.outcome(bucket, holder)
    assert (row.outcome, row.component) == (Outcome.STILL_REFERENCED, "DELAYED_INDEX_BUCKET")
    assert {named.place.kind for named in site.explain(bucket).everywhere or ()} == {PlaceKind.BUCKET}
    # Another one of this subscription, whose property was never put: as far as anybody sees, the broker may use it.
    lost = UNUSED + bucket
    Population(site.opened.store).tagged_ledger(lost, dict(real.metadata.custom), ctime_ms=None)
    row = site.outcome(lost, holder)
    assert row.outcome is Outcome.WAITING
    assert "from memory" in row.reason
    consumer.close()
    with Cluster(deletion_site.settings) as cluster:
        phase_one = PhaseOne(cluster)
        result = phase_one.removal.plan_subscription(topic, "my sub").carry_out()
    assert result.done, result.problem
    assert bucket in {
        mark.ledger_id for mark in result.plan.marks if mark.component is LedgerComponent.DELAYED_INDEX_BUCKET
    }
    site.put_back(real)
    rows = site.sweep(*marks_of_ids(site.opened.bookkeeper.catalog, [bucket, lost]))
    assert [row.outcome for row in rows] == [Outcome.DELETED, Outcome.DELETED]


def test_a_restart_of_the_broker_frees_a_bucket_that_nothing_names(
    pulsar_cluster: DevCluster,
    site: SweepingSite,
    admin: PulsarAdmin,
    client: pulsar.Client,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # All clocks are this machine's.
    monkeypatch.setattr(unnamed_use, "CLOCK_SKEW_MS", 0)
    topic = f"persistent://{namespace}/moved"
    holder = BucketHolder(managed_ledger_of(topic), "s")
    client.subscribe(topic, "s", pulsar.ConsumerType.Shared).close()
    tags = {
        "application": b"pulsar",
        "component": b"delayed-index-bucket",
        "pulsar/delayedIndexTopic": topic.encode(),
        "pulsar/delayedIndexCursor": b"s",
        "pulsar/delayedIndexBucketKey": b"#pulsar.internal.delayed.bucket_1_2",
    }
    lost = UNUSED + 10_000_000 + listed(site, topic)[0]
    Population(site.opened.store).tagged_ledger(lost, tags, ctime_ms=None)
    assert site.outcome(lost, holder).outcome is Outcome.WAITING
    # Ownership is made anew, and that alone proves no unload: a split of bundles does so with loaded topics.
    admin.put(f"/namespaces/{namespace}/unload")
    Topics(admin).internal_stats(topic)
    assert site.outcome(lost, holder).outcome is Outcome.WAITING
    pulsar_cluster.broker.restart()
    # Whoever loads it now knows only what the cursor's node names.
    eventually(lambda: answers(admin, topic), 60)
    assert site.outcome(lost, holder).outcome is Outcome.DELETED


def answers(admin: PulsarAdmin, topic: str) -> bool:
    try:
        Topics(admin).internal_stats(topic)
    except (PulsarError, NotFoundError):
        return False
    return True


# Nodes of every form.


def test_every_ledger_that_brokers_name_is_found_in_the_metadata(
    pulsar_cluster: DevCluster, site: SweepingSite, admin: PulsarAdmin, client: pulsar.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/a b~1"
    assert_every_claimed_ledger_is_found(site, admin, client, topic)


def test_names_of_the_first_version_and_empty_nodes_are_read_from_the_real_store(
    pulsar_cluster: DevCluster, site: SweepingSite, namespace: str
) -> None:
    tenant, name = namespace.split("/")
    old = ManagedLedgerHolder(f"{tenant}/dev/{name}/persistent/old")
    gone, kept = UNUSED + 20_000_001, UNUSED + 20_000_002
    population = Population(site.opened.store)
    population.names(old, [kept])
    site.opened.store.create(f"/managed-ledgers/{namespace}/persistent/empty", b"", make_parents=True)
    for ledger_id in (kept, gone):
        population.ledger(ledger_id, old)
    # What a name computed from the node would be: another topic's, which names nothing.
    assert TopicName.of_managed_ledger(old.name).schema_id == f"{namespace}/old"
    assert [row.outcome for row in site.sweep(*marks_of_ids(site.opened.bookkeeper.catalog, [kept, gone]))] == [
        Outcome.STILL_REFERENCED,
        Outcome.DELETED,
    ]
    assert {named.place.holder for named in site.explain(kept).everywhere or ()} == {old.name}


def test_metadata_that_is_deleted_and_made_anew_between_read_and_delete_is_kept(
    pulsar_cluster: DevCluster, site: SweepingSite, namespace: str
) -> None:
    holder = ManagedLedgerHolder(f"{namespace}/persistent/gone")
    ledger_id = UNUSED + 30_000_001
    path = Population(site.opened.store).ledger(ledger_id, holder)
    store, catalog = site.opened.store, site.opened.bookkeeper.catalog
    before = site.stored(ledger_id)
    assert store.delete_many([(path, before.version)])[0].value == "deleted"
    store.create(path, before.raw)
    store.put(path, before.raw, 0)
    (result,) = catalog.delete_many([before])
    assert result.value == "lost the race"
    assert site.exists(ledger_id)


def test_ledgers_of_logs_are_referenced_whatever_they_say_of_themselves(
    pulsar_cluster: DevCluster, site: SweepingSite, tmp_path: Path
) -> None:
    source = Path(__file__).parents[1] / "java/DistributedLogs.java"
    libraries = f"{ensure_distribution() / 'lib'}/*"
    address = pulsar_cluster.store_url.removeprefix("zk:")
    command = [
        find_java().executable,
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        libraries,
        str(source),
        address,
        "/pulsar/functions",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    index = ReferenceIndex()
    site.opened.references.pieces.read_into(index)
    assert index.doubts_about(None) == () or all(not doubt.path.startswith("/pulsar/") for doubt in index.doubts)
    named = {
        reference.place.kind: reference
        for ledger_id in range(10_000)
        for reference in index.who_names(ledger_id)
        if reference.place.kind in (PlaceKind.LOG_SEGMENT, PlaceKind.LOG_ALLOCATION)
    }
    assert PlaceKind.LOG_SEGMENT in named
    ledger_id = named[PlaceKind.LOG_SEGMENT].ledger_id
    found = site.explain(ledger_id)
    assert (found.holder, found.outcome) == (None, None)
    assert {place.place.kind for place in found.everywhere or ()} == {PlaceKind.LOG_SEGMENT}
    row = site.outcome(ledger_id, ManagedLedgerHolder("public/default/persistent/none"))
    assert row.outcome is Outcome.MISMATCH
    assert site.exists(ledger_id)
