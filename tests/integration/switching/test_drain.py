"""A former bookie cluster is emptied and unregistered under load; its bookies are stopped, and nothing is missed.

The one that stays is then left to brokers without the jar, and both are registered again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing
from pathlib import Path

import pytest

from bookwarden.bookie_clusters.brokers import read_brokers
from bookwarden.bookie_clusters.order import Phase
from bookwarden.bookie_clusters.registry import NOT_OURS
from bookwarden.clusters.bookkeeper.copying.copier import opened_copy
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.exit_codes import MORE_LATER, SOME_FAILED
from bookwarden.ledgers.custom_metadata import OWNER_KEY, expected_custom_metadata
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.pipelines.streams.outcome_table import read_outcomes
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, decode_ledger_password, encode_ledger_metadata
from bookwarden_dev.demo.ledger_places import ledgers_of_topic
from servers.pool import ServerPool
from servers.switching.drained import drain, empty_and_unregister, run, soon_after_a_switch
from servers.switching.others_ledgers import OthersLedgers
from servers.switching.shared_site import ONE_BROKER, shared_site
from servers.switching.site import SwitchingSite
from servers.switching.watched_load import watched_load
from servers.topic_contents import managed_ledger_of, read_back
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

# More than a ledger holds.
COUNT = 130
FORMER_OWNER = "00c0ffee"
NO_GRACE = ("--set", "deletion.unlisted_grace_seconds=0")
PATIENCE = 120


@pytest.fixture
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    # The cluster that stays has a ZooKeeper of its own.
    with shared_site(pool, tmp_path_factory, ONE_BROKER, anew=True) as running:
        yield running


def give_custom_metadata(site: SwitchingSite, topics: Sequence[str], custom: Mapping[str, bytes] | None) -> set[int]:
    """Change the custom metadata of a closed ledger of topics, or have it none; return their ids.

    Each topic has at most one; none is closed where no topic has rolled its ledger yet.
    """
    root, ids = site.servers.clusters["a"].ledgers_root, set[int]()
    for topic in topics:
        for ledger_id in sorted(ledgers_of_topic(site.store, topic) & site.places().by_cluster["a"]):
            path = ledger_path(root, ledger_id)
            node = site.store.get(path)
            assert node is not None
            metadata = decode_ledger_metadata(node.value)
            if metadata.state is LedgerState.CLOSED and metadata.length:
                changed = metadata._replace(custom={} if custom is None else {**metadata.custom, **custom})
                raw = encode_ledger_metadata(changed, password=decode_ledger_password(node.value))
                site.store.put(path, raw, node.version)
                ids.add(ledger_id)
                break
    return ids


@pytest.mark.usefixtures("spark")
def test_a_cluster_is_emptied_under_load_and_leaves(site: SwitchingSite, tmp_path: Path) -> None:
    site.register("b")
    site.wait_until_followed()
    with watched_load(site) as load:
        load.goes_on()
        assert site.command("switch", "--target", "b", "--yes")["phase"] == "DONE"
        load.goes_on()
        # Of ancient brokers, which did not say whose a ledger is, and of an earlier registry.
        ancient = eventually(lambda: give_custom_metadata(site, load.topics[:2], None), 60, 0.5)
        mark = {OWNER_KEY: FORMER_OWNER.encode()}
        former = eventually(lambda: give_custom_metadata(site, load.topics[2:], mark), 60, 0.5)
        gone = begin_copies(site)
        run(site, tmp_path, "init")
        before = drain(site, tmp_path, "a", "--dry-run")
        assert before["ledgers"] > before["open"] >= len(load.topics)
        # The unfinished copy that nothing goes on with.
        assert before["mayGo"] == 1
        # Within the rollback window nothing is marked; everything else is done.
        first = drain(site, tmp_path, "a", "--yes", "--per-second", "20", exit_codes=(MORE_LATER,))
        assert (first["open"], first["marked"], first["failed"]) == (0, 0, 0)
        assert first["mayGo"] >= before["ledgers"] // 2
        require_former_owner_named(site, tmp_path, former, gone)
        empty_and_unregister(site, tmp_path, "a", NO_GRACE)
        assert site.places().by_cluster["b"] >= ancient | former
        for bookie in site.servers.clusters["a"].processes:
            bookie.kill()
        load.goes_on()
        # Brokers that find everything anew.
        site.kill_brokers(load.topics)
        load.goes_on()
        found = load.end()
    # One cluster is left, so that nothing is to be switched.
    assert found.harm == {"phase": Phase.NOT_REGISTERED}
    assert found.ledgers.get("a", 0) == 0
    leave_and_come_back(site, tmp_path)


def begin_copies(site: SwitchingSite) -> int:
    """Leave unfinished copies in a, as of a build back: of a ledger that a topic has in b, and of one that is gone.

    Returns the id of that.
    """
    topics = site.new_topics(2)
    send(site.connection, topics, 0)
    there, gone = (ledgers_of_topic(site.store, topic) for topic in topics)
    metadata = {each: found for each, found in site.ledgers_of("b").items() if found.state is LedgerState.CLOSED}
    site.admin.delete(topic_path(topics[1]), params={"force": True})
    eventually(lambda: not gone & site.places().by_cluster["b"], PATIENCE)
    bookies = tuple(sorted(site.servers.clusters["a"].ids))
    for ledger_id in (min(there & metadata.keys()), min(gone & metadata.keys())):
        copy = opened_copy(metadata[ledger_id], bookies, site.registry().owner)
        path = ledger_path(site.servers.clusters["a"].ledgers_root, ledger_id)
        site.store.create(path, encode_ledger_metadata(copy), make_parents=True)
    return ledger_id


def require_former_owner_named(site: SwitchingSite, home: Path, former: Set[int], gone: int) -> None:
    """Drain and sweep: what has the mark of an earlier registry is copied and stays, until that is said to be ours."""
    drain(site, home, "a", "--yes", "--force", "--per-second", "20", exit_codes=(MORE_LATER,))
    run(site, home, *NO_GRACE, "sweep", "--once")
    places = site.places().by_cluster
    assert former <= places["a"] & places["b"]
    rows = {row["ledger_id"]: row for row in read_outcomes(str(home / "outcomes"))}
    assert {rows[each]["outcome"] for each in former} == {"retry"}
    assert all(f"`bookie-clusters upgrade --owner {FORMER_OWNER}` says so" in rows[each]["reason"] for each in former)
    assert rows[gone]["outcome"] == "deleted"
    with soon_after_a_switch():
        told = site.refusal("unregister", "a", "--yes")
    assert "ledgers are there that this Pulsar cluster made, or may have made" in told
    assert site.command("upgrade", "--owner", FORMER_OWNER, "--yes")["addedOwners"] == [FORMER_OWNER]
    site.wait_until_followed()


def leave_and_come_back(site: SwitchingSite, home: Path) -> None:
    """Have brokers without the jar write to b, which alone is registered; then register and use both again.

    Another Pulsar cluster's ledger that comes to b then is not ours, and no build leaves it out silently.
    """
    topics, (broker,) = site.new_topics(2), site.brokers
    send(site.connection, topics, 0)
    end(site)
    assert site.registry().cluster("b").unmarked_below is None
    site.command("raise-ids", "--name", "b", "--yes")
    stock = site.servers.stock_broker()
    stock.settings["bookkeeperMetadataServiceUri"] = site.servers.clusters["b"].metadata_service_uri
    stock.process.start()
    try:
        before = site.places()
        send(stock.connection(), topics, 1)
        metadata = site.ledgers_of("b")
        unmarked = {each for each in site.places().since(before)["b"] if OWNER_KEY not in metadata[each].custom}
        assert len(unmarked) >= len(topics)
        # The range that this would end is one that it writes in.
        refused = site.refusal("register", "--name", "a", "--metadata-service-uri", uri_of(site, "a"), "--yes")
        assert "makes ledgers without an owner mark in b" in refused
    finally:
        stock.process.stop()
    eventually(lambda: not read_brokers(site.store), PATIENCE)
    for bookie in site.servers.clusters["a"].processes:
        bookie.start()
    site.register("a")
    below = site.registry().cluster("b").unmarked_below
    assert below is not None
    assert below > max(unmarked)
    broker.process.start()
    site.wait_until_followed()
    site.wait_until_served(topics)
    send(site.connection, topics, 2)
    assert site.command("switch", "--target", "a", "--yes")["phase"] == "DONE"
    send(site.connection, topics, 3)
    tags = expected_custom_metadata(ManagedLedgerHolder(managed_ledger_of(topics[0])))
    others = OthersLedgers(site, "b", {**{name: text.encode() for name, text in tags.items()}, OWNER_KEY: b"0badc0de"})
    others.make([1_000_000])
    built = run(site, home, "bookie-clusters", "build", "--all", "--topic", topics[0], exit_codes=(SOME_FAILED,))
    failed = [each for each in built["staying"] if each["outcome"] == "failed"]
    assert [(each["ledgerId"], each["kind"]) for each in failed] == [(1_000_000, NOT_OURS)]
    assert others.are_all_there()
    site.kill_brokers(topics)
    with closing(site.connection.client()) as client:
        for topic in topics:
            assert read_back(client, topic) == [b"%d" % number for number in range(4 * COUNT)]
            assert unmarked & ledgers_of_topic(site.store, topic)
            listed = managed_ledger_ids(site, topic)
            assert listed == sorted(listed)


def managed_ledger_ids(site: SwitchingSite, topic: str) -> list[int]:
    """List a topic's ledgers in its own order."""
    read = ManagedLedgers(site.store).read(managed_ledger_of(topic))
    assert read is not None
    return [ledger.ledger_id for ledger in read.info.ledgers]


def uri_of(site: SwitchingSite, name: str) -> str:
    return site.servers.clusters[name].metadata_service_uri


def end(site: SwitchingSite) -> None:
    """Stop the broker, and wait until the metadata says so."""
    (broker,) = site.brokers
    broker.process.stop()
    eventually(lambda: not read_brokers(site.store), PATIENCE)


def send(connection: PulsarConnection, topics: Sequence[str], part: int) -> None:
    """Send the numbers of this part of the messages to each topic."""
    with closing(connection.client()) as client:
        for topic in topics:
            producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
            for number in range(part * COUNT, (part + 1) * COUNT):
                producer.send_async(b"%d" % number, lambda *_: None)
            producer.flush()
            producer.close()
