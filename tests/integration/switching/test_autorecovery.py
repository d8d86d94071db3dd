"""Bookies that replicate ledgers by themselves, in both bookie clusters, over switches.

Of the two brokers one is of 4.0.8 and one of 4.2.4. Auditors act as soon as a bookie's registration is gone.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pulsar
import pytest

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.java import find_java
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState
from bookwarden_dev.demo.ledger_places import ledgers_of_topic
from bookwarden_dev.demo.load import Load
from bookwarden_dev.devcluster.releases.distribution import ensure_jars
from bookwarden_dev.devcluster.servers.java import java_command
from servers.pool import ServerPool
from servers.pulsar_topics import unload
from servers.switching.shared_site import REPLICATING, shared_site
from servers.switching.site import SwitchingSite
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

TOPICS = 4
PER_SECOND = 40
# More than a ledger of each topic.
ENOUGH = 130
PATIENCE = 180


@pytest.fixture(scope="module")
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, REPLICATING) as running:
        yield running


@pytest.fixture
def topics(site: SwitchingSite) -> list[str]:
    """Make topics of both brokers, whose ledgers are in a."""
    site.ensure("a")
    return site.new_topics(TOPICS)


@pytest.fixture
def load(site: SwitchingSite, topics: list[str]) -> Iterator[Load]:
    """Send to and receive from the topics."""
    with Load(site.connection, topics, PER_SECOND) as load:
        load.start()
        load.wait_for(ENOUGH, PATIENCE)
        yield load


def bookies_of(ledger: LedgerMetadata) -> set[str]:
    return {bookie for segment in ledger.segments for bookie in segment.ensemble}


def on_bookie(site: SwitchingSite, cluster: str, bookie: str) -> set[int]:
    return {number for number, ledger in site.ledgers_of(cluster).items() if bookie in bookies_of(ledger)}


def assert_all_there(site: SwitchingSite, load: Load) -> None:
    """Check that a reader finds each acknowledged message, and that no ledger has bookies of two clusters."""
    assert set(load.lost_to_a_reader(site.connection).values()) == {0}
    assert site.places().astray == ()
    assert site.metric("refusals_total") == [0.0, 0.0]


def assert_read_anew(site: SwitchingSite, load: Load, topics: Sequence[str]) -> None:
    """Check the same of brokers that open the topics again."""
    for topic in topics:
        unload(site.admin, topic)
    site.wait_until_served(topics)
    assert_all_there(site, load)


def copy_half(site: SwitchingSite, ledger_ids: Collection[int], log: Path) -> None:
    """Begin to copy ledgers of b to a, and be killed half way."""
    program = Path(__file__).parents[2] / "java/PartialCopies.java"
    clusters = site.servers.clusters
    # Both ways in which bookies have their metadata.
    uris = [clusters["b"].metadata_service_uri, f"metadata-store:{clusters['a'].store_url}"]
    arguments = [str(program), *uris, *(str(ledger_id) for ledger_id in sorted(ledger_ids))]
    command = java_command(find_java(), ensure_jars(), arguments[0], arguments[1:], heap_mb=256)
    with log.open("wb") as output:
        ended = subprocess.run(command, stdout=output, stderr=output, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, log.read_text(encoding="utf-8", errors="replace")[-3000:]


def test_a_bookie_of_the_cluster_that_was_left_dies_and_its_ledgers_are_replicated_there(
    site: SwitchingSite, topics: list[str], load: Load
) -> None:
    site.switch("b")
    # The first one to start is the auditor.
    *_, (lost, dead) = site.servers.clusters["a"].bookies.items()
    held = on_bookie(site, "a", lost)
    assert held
    dead.kill()
    site.end_registration("a", lost)
    try:
        load.wait_for(ENOUGH, PATIENCE)
        # What is open is closed, by its broker or the auditor, and its entries are copied to the other two.
        eventually(lambda: not on_bookie(site, "a", lost), PATIENCE, pause=0.5)
        load.wait_for(PER_SECOND, PATIENCE)
        # What was not yet acknowledged when a ledger was closed from outside may come twice.
        assert [tally for tally in load.stop() if tally.lost or tally.send_errors or not tally.sent] == []
        assert held & site.ledgers_of("a").keys()
        assert not held & site.ledgers_of("b").keys()
        assert_read_anew(site, load, topics)
    finally:
        dead.start()


def test_copies_that_an_auditor_closes_too_early_are_never_read(
    site: SwitchingSite, topics: list[str], load: Load, tmp_path: Path
) -> None:
    site.switch("b")
    load.wait_for(2 * ENOUGH, PATIENCE)
    assert [tally for tally in load.stop() if tally.lost or tally.send_errors or not tally.sent] == []
    listed = frozenset[int]().union(*(ledgers_of_topic(site.store, topic) for topic in topics))
    closed = {number for number, ledger in site.ledgers_of("b").items() if ledger.state is LedgerState.CLOSED}
    copied = listed & closed
    assert len(copied) >= TOPICS

    def copies() -> dict[int, LedgerMetadata]:
        found = site.ledgers_of("a")
        return {number: found[number] for number in copied}

    copy_half(site, copied, tmp_path / "copies.log")
    site.switch("a")
    assert_read_anew(site, load, topics)
    begun = copies()
    # No broker recovered one either.
    assert {copy.state for copy in begun.values()} == {LedgerState.OPEN}
    # The first one to start is the auditor.
    *_, (lost, dead) = site.servers.clusters["a"].bookies.items()
    held = {number for number, copy in begun.items() if lost in bookies_of(copy)}
    assert held
    dead.kill()
    site.end_registration("a", lost)
    try:
        eventually(lambda: {copies()[number].state for number in held} == {LedgerState.CLOSED}, PATIENCE, pause=0.5)
        originals = site.ledgers_of("b")
        assert all((copies()[number].last_entry_id or 0) < (originals[number].last_entry_id or 0) for number in held)
        assert_read_anew(site, load, topics)
        site.switch("b")
        assert_read_anew(site, load, topics)
        site.switch("a")
        # Once more with brokers that find everything anew.
        site.kill_brokers(topics)
        assert_all_there(site, load)
        for topic in topics:
            site.admin.delete(topic_path(topic), params={"force": True})
        # The copies go with their ledgers.
        eventually(lambda: not copied & (site.ledgers_of("a").keys() | site.ledgers_of("b").keys()), PATIENCE)
    finally:
        dead.start()


def test_a_refusal_of_the_jar_is_counted_and_costs_no_message(site: SwitchingSite) -> None:
    site.ensure("b")
    (topic,) = site.new_topics(1)
    bookies, other = site.servers.clusters["b"], site.servers.clusters["a"].ledgers_root
    # Bookies that are in two clusters belong to none, so that no bookie takes the place of one that dies.
    planted = [f"{other}/available/{bookie}" for bookie in sorted(bookies.ids)]
    try:
        with closing(site.connection.client()) as client:
            producer = client.create_producer(topic)
            producer.send(b"before")
            (ledger,) = ledgers_of_topic(site.store, topic)
            dead = bookies.bookies[min(bookies_of(site.ledgers_of("b")[ledger]))]
            site.switch("a")
            for path in planted:
                site.store.create(path, b"")
            dead.kill()
            producer.send(b"after")
            eventually(lambda: sum(site.metric("refusals_total")) > 0, PATIENCE)
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            assert [reader.read_next(PATIENCE * 1000).data() for _ in range(2)] == [b"before", b"after"]
        assert site.places().astray == ()
    finally:
        site.store.delete_many([(path, 0) for path in planted])
        for process in bookies.processes:
            if not process.is_running():
                process.start()
        # Their counters begin anew.
        site.kill_brokers()
    assert site.metric("refusals_total") == [0.0, 0.0]
