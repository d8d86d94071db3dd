"""What a former bookie cluster has goes once brokers read it, whole, from the active one; the rest stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner

from bookwarden.bookie_clusters.moving.promotion import ATTRIBUTION_KEY
from bookwarden.bookie_clusters.promoted import NOT_PROMOTED
from bookwarden.cli.main import cli
from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.probe import Bookie
from bookwarden.clusters.bookkeeper.bookies.requests import Bookies
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata import ownership
from bookwarden.clusters.pulsar.rest.topic_positions import subscription_path, topic_path
from bookwarden.exit_codes import SOME_FAILED
from bookwarden.ledgers.custom_metadata import OWNER_KEY, expected_custom_metadata
from bookwarden.ledgers.kinds import BucketHolder
from bookwarden.ledgers.metadata import Segment
from bookwarden.ledgers.names import TopicName
from bookwarden.metastore.interface import MetadataStore
from bookwarden.pipelines.streams.outcome_table import read_outcomes
from bookwarden.wire.envelope import unwrap
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, decode_ledger_password, encode_ledger_metadata
from bookwarden.wire.pb import managed_ledger_pb2
from bookwarden_dev.demo.ledger_places import ledgers_of_topic
from bookwarden_dev.demo.stage import GarbageOnDemand
from bookwarden_dev.devcluster.servers.settings import read_settings
from servers.metadata_tree import nodes_below
from servers.pool import ServerPool
from servers.switching.copied import copy_ledger, copy_namespace
from servers.switching.shared_site import ONE_BROKER, shared_site
from servers.switching.site import SwitchingSite
from servers.topic_contents import read_back, send
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("spark")]

COUNT = 350
VERIFY = ("bookie-clusters", "build", "--all", "--verify")
REFUSED = 5
#: Of an undo that could not restore everything.
NOT_ALL = 1
PATIENCE = 120


@pytest.fixture
def new_site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, ONE_BROKER, anew=True) as running:
        yield running


@pytest.fixture
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, ONE_BROKER) as running:
        yield running


def lose_a_replica(site: SwitchingSite, ledger_id: int) -> None:
    """Let the metadata of b's copy name a bookie that never got it in the place of one that did."""
    cluster = site.servers.clusters["b"]
    path = ledger_path(cluster.ledgers_root, ledger_id)
    store = site.store_of("b")
    node = store.get(path)
    assert node is not None
    metadata = decode_ledger_metadata(node.value)
    (first, _), (other,) = metadata.segments[0].ensemble, cluster.ids - set(metadata.segments[0].ensemble)
    changed = metadata._replace(segments=(Segment(0, (first, other)),))
    password = decode_ledger_password(node.value)
    store.put(path, encode_ledger_metadata(changed, password=password), node.version)


def test_what_was_copied_whole_goes_from_the_former_cluster(
    new_site: SwitchingSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All servers here have one clock.
    monkeypatch.setattr(ownership, "CLOCK_SKEW_MS", 0)
    site = new_site
    site.register("b")
    site.wait_until_followed()
    site.run(tmp_path, "init")
    (topic,) = site.new_topics(1)
    with closing(site.connection.client()) as client:
        send(client, topic, COUNT)
        assert site.command("switch", "--target", "b", "--yes")["phase"] == "DONE"
        site.admin.put(f"{topic_path(topic)}/unload")
        # The last one is made on b.
        send(client, topic, 1)
        sent = [*(str(number).encode() for number in range(COUNT)), b"0"]
        assert read_back(client, topic) == sent
        own = sorted(ledgers_of_topic(site.store, topic) & site.places().by_cluster["a"])
        assert len(own) >= 4
        whole, uncopied, short = own[:-2], own[-2], own[-1]
        clusters = {name: (site.store_of(name), site.servers.clusters[name].ledgers_root) for name in "ab"}
        bookies = tuple(sorted(site.servers.clusters["b"].ids)[:2])
        for ledger_id in (*whole, short):
            assert copy_ledger(ledger_id, clusters["a"], clusters["b"], bookies)
        lose_a_replica(site, short)

        told = site.run(tmp_path, *VERIFY, exit_codes=(SOME_FAILED,))
        # Nothing but what this test copied is there.
        assert [one["ledgerId"] for one in told["staying"]] == [short]
        assert [one["ledgers"] for one in told["outcomes"] if one["outcome"] == "complete"] == [len(whole)]

        targets = site.command("list-cleanup-targets")
        assert targets["targets"] == []
        (kept,) = [one for one in targets["kept"] if one["reason"] == NOT_PROMOTED]
        assert kept["ledgers"] == len(whole) + 1
        assert site.command("promote", "--yes", "--per-second", "50")["failed"] == []
        targets = site.command("list-cleanup-targets")
        assert [(one["cluster"], one["ledgers"]) for one in targets["targets"]] == [("a", len(whole) + 1)]
        # Nothing goes within the rollback window, nor by a dry run.
        assert site.command("cleanup")["dryRun"] is True
        shown = CliRunner().invoke(cli, [*site.options, "bookie-clusters", "cleanup", "--max-deletions", "2"])
        assert (shown.exit_code, "2 ledgers would be marked, with --execute." in shown.output) == (0, True)
        for text in ("bookie cluster b, which is active, does not have it", "can be rolled back for another 24.0 h"):
            assert text in shown.output
        refused = CliRunner().invoke(cli, [*site.options, "bookie-clusters", "cleanup", "--execute", "--yes"])
        assert (refused.exit_code, "can be rolled back for another 24.0 h" in refused.output) == (REFUSED, True)
        assert site.command("cleanup", "--execute", "--force", "--yes")["marked"] == len(whole) + 1
        copy_as_bucket(site, uncopied, topic)
        undone = ledger_path(clusters["a"][1], whole[0])
        before = site.store.get(undone)
        site.run(tmp_path, "sweep", "--once")
        left = site.places().by_cluster
        assert left["a"] & set(own) == {uncopied, short}
        assert left["b"] >= {*whole, short}
        rows = {row["ledger_id"]: row for row in read_outcomes(str(tmp_path / "outcomes"))}
        assert {rows[ledger_id]["outcome"] for ledger_id in whole} == {"deleted"}
        assert rows[short]["outcome"] == "retry"
        assert "where it is not proven: bookie" in rows[short]["reason"]
        site.run(tmp_path, "undo", "--ledger", str(whole[0]), "--yes")
        after = site.store.get(undone)
        assert before is not None
        assert after is not None
        assert after.value == before.value
        # No unload closes a bucket: brokers have to be started after it was copied.
        assert buckets_that_may_go(site) == 0
        # Brokers that find everything anew.
        site.kill_brokers([topic])
        assert read_back(client, topic) == sent
        assert buckets_that_may_go(site) == 1

        assert site.command("rollback", "--yes")["phase"] == "DONE"
        half_back = whole[1]
        collect_on_one_bookie(site, half_back)
        # Brokers would ask a first, and its bookies have one of two copies of each entry.
        told = site.run(tmp_path, "undo", "--ledger", str(half_back), "--yes", exit_codes=(NOT_ALL,))
        assert told["counts"] == {"not restorable": 1}
        assert half_back not in site.places().by_cluster["a"]
        site.kill_brokers([topic])
        assert read_back(client, topic) == sent
    assert site.places().astray == ()


def collect_on_one_bookie(site: SwitchingSite, ledger_id: int) -> None:
    """Have one of the two bookies of a drop everything that has no metadata any more, such as this ledger."""
    server = site.servers.clusters["a"].processes[0]
    settings = read_settings(server.spec.working_folder / "conf/bookie.conf")
    (name,) = [name for name, each in site.servers.clusters["a"].bookies.items() if each is server]
    GarbageOnDemand(int(settings["httpServerPort"])).collect()
    with Bookies(BookieAddresses(site.store, site.servers.clusters["a"].ledgers_root)) as bookies:
        bookie = Bookie(name, bookies)
        eventually(lambda: not bookie.holds([ledger_id])[ledger_id], PATIENCE)


def copy_as_bucket(site: SwitchingSite, ledger_id: int, topic: str) -> None:
    """Have a closed ledger on a say that it is a bucket, and copy it to b."""
    (store, root), target = ((site.store_of(name), site.servers.clusters[name].ledgers_root) for name in "ab")
    node = store.get(ledger_path(root, ledger_id))
    assert node is not None
    holder = BucketHolder(TopicName.parse(topic).managed_ledger, "late")
    found = decode_ledger_metadata(node.value)
    custom = {name: text.encode() for name, text in expected_custom_metadata(holder).items()}
    changed = found._replace(custom={OWNER_KEY: found.custom[OWNER_KEY], **custom})
    raw = encode_ledger_metadata(changed, password=decode_ledger_password(node.value))
    store.put(ledger_path(root, ledger_id), raw, node.version)
    assert copy_ledger(ledger_id, (store, root), target, tuple(sorted(site.servers.clusters["b"].ids)[:2]))


def buckets_that_may_go(site: SwitchingSite) -> int:
    """Promote what can be, and count the buckets on a that cleanup would mark."""
    assert site.command("promote", "--yes", "--per-second", "50")["failed"] == []
    targets = site.command("list-cleanup-targets")["targets"]
    return sum(one["ledgers"] for one in targets if one["kind"] == BucketHolder.ledgers_label)


def values_below(store: MetadataStore, root: str) -> dict[str, bytes]:
    """Read each node with a value below a path, decompressed."""
    return {path: unwrap(node.value)[0] for path, node in nodes_below(store, root).items() if node.value}


def named_in(site: SwitchingSite) -> tuple[dict[str, Any], dict[str, Any], dict[str, bytes]]:
    """Decode all that topics, cursors and schemas have in the metadata.

    An unload closes the ledger that a topic writes to, and the topic's next load begins another: an empty one counts
    for nothing. It also notes when each cursor was last active. Topics of the brokers' own are left out, since these
    compact them at any time.
    """
    topics, cursors = dict[str, Any](), dict[str, Any]()
    for path, value in values_below(site.store, "/managed-ledgers").items():
        _, _, tenant, namespace, _, local_name, *cursor = path.split("/")
        if f"{tenant}/{namespace}" == "pulsar/system" or local_name.startswith("__"):
            continue
        if cursor:
            cursors[path] = managed_ledger_pb2.ManagedCursorInfo.FromString(value)
            cursors[path].ClearField("lastActive")
        else:
            topic = managed_ledger_pb2.ManagedLedgerInfo.FromString(value)
            topics[path] = [one for one in topic.ledgerInfo if one.entries], list(topic.properties)
    return topics, cursors, values_below(site.store, "/schemas")


def test_a_reader_goes_on_after_promotion_and_cleanup_without_the_former_bookies(
    site: SwitchingSite, tmp_path: Path
) -> None:
    """The way back, from b to a: nothing but the place of a ledger changes, and all bookies of b may stop."""
    site.ensure("b")
    site.run(tmp_path, "init")
    (topic,) = site.new_topics(1)
    name = TopicName.parse(topic)
    for fields in ("", ', {"name": "y", "type": ["null", "int"], "default": null}'):
        schema = f'{{"type": "record", "name": "R", "fields": [{{"name": "x", "type": "int"}}{fields}]}}'
        body = {"type": "JSON", "schema": schema, "properties": {}}
        site.admin.post(f"/schemas/{name.tenant}/{name.namespace}/{name.local_name}/schema", body)
    with closing(site.connection.client()) as client:
        consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
        site.admin.put(f"{subscription_path(topic, 'sub')}/properties", {"team": "x"})
        send(client, topic, COUNT)
        acknowledged = set[bytes]()
        for number in range(60):
            message = consumer.receive(60_000)
            if number % 2 or number < 10:
                consumer.acknowledge(message)
                acknowledged.add(message.data())
        middle = message.message_id()
        consumer.close()
        reader = client.create_reader(topic, middle, receiver_queue_size=10)
        read = [reader.read_next(60_000).data() for _ in range(10)]

        assert site.command("rollback", "--yes")["phase"] == "DONE"
        assert site.command("unload", "--per-second", "50", "--yes")["stillWriting"]
        # Opens the ledger on b.
        read += [reader.read_next(60_000).data() for _ in range(5)]
        copied = copy_namespace(site, f"{name.tenant}/{name.namespace}", "b", "a")
        own = ledgers_of_topic(site.store, topic) & site.places().by_cluster["b"]
        assert copied >= own
        # With those of both versions of the schema; a cursor's may be gone already.
        least = len(own) + 2
        assert site.command("cleanup", "--src-cluster", "b")["targets"] == []

        planned = site.command("promote", "--dry-run")
        assert sum(one["ledgers"] for one in planned["toPromote"]) >= least
        before = named_in(site)
        assert any(cursor.individualDeletedMessages for cursor in before[1].values())
        done = site.command("promote", "--per-second", "50", "--yes")
        assert (done["failed"], done["unloaded"]) == ([], planned["topicsToUnload"])
        read += [reader.read_next(60_000).data() for _ in range(5)]
        after = named_in(site)
        assert {path: after[0].get(path) for path in before[0]} == before[0]
        assert after[1:] == before[1:]
        assert site.command("status")["promotion"] == done["promotion"]
        assert sum(one["ledgers"] for one in site.command("promote", "--dry-run")["toPromote"]) == 0

        # The reader may have had all of that in its queue, and only topics that are loaded are stamped.
        site.admin.get_json(f"{topic_path(topic)}/stats")
        assert site.command("promote", "--stamp", "--per-second", "50", "--yes")["stamped"]["failed"] == []
        sub = f"/managed-ledgers/{name.managed_ledger}/sub"
        stamped = {path: cursor for path, cursor in named_in(site)[1].items() if path == sub}
        properties = {one.name: one.value for cursor in stamped.values() for one in cursor.cursorProperties}
        assert properties == {"team": "x", ATTRIBUTION_KEY: "a"}
        for cursor in stamped.values():
            (stamp,) = [one for one in cursor.cursorProperties if one.name == ATTRIBUTION_KEY]
            cursor.cursorProperties.remove(stamp)
        assert stamped == {path: before[1][path] for path in stamped}
        assert site.command("promote", "--stamp", "--yes")["stamped"]["written"] == 0

        assert site.command("cleanup", "--execute", "--force", "--yes")["marked"] >= least
        site.run(tmp_path, "sweep", "--once")
        assert site.places().by_cluster["b"] & copied == set()
        for bookie in site.servers.clusters["b"].processes:
            bookie.kill()
        send(client, topic, 1)
        sent = [*(str(number).encode() for number in range(COUNT)), b"0"]
        while len(read) < len(sent) - 60:
            read.append(reader.read_next(60_000).data())
        assert read == sent[60:]
        consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
        wanted = sorted(set(sent) - acknowledged | {b"0"})
        assert sorted(consumer.receive(60_000).data() for _ in wanted) == wanted
    assert site.places().astray == ()
