"""Ledgers of a former bookie cluster are copied while brokers run; then its bookies can be stopped, and all is read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pyarrow.parquet as pq
import pytest

from bookwarden.bookie_clusters.moving.build import find_build
from bookwarden.bookie_clusters.registry import NOT_OURS
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.exit_codes import MORE_LATER, SOME_FAILED
from bookwarden.ledgers.custom_metadata import OWNER_KEY
from bookwarden_dev.demo.ledger_places import ledgers_of_topic
from servers.pool import ServerPool
from servers.pulsar_topics import unload
from servers.switching.others_ledgers import OthersLedgers
from servers.switching.shared_site import ONE_BROKER, shared_site
from servers.switching.site import SwitchingSite
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

TOPICS = 3
COUNT = 250
# Those that are not acknowledged; a cursor keeps such holes in a ledger, with the setting below.
LEFT = range(0, COUNT, 5)
SETTINGS = {"managedLedgerMaxUnackedRangesToPersistInMetadataStore": "1"}
BUILD = ("bookie-clusters", "build")
PATIENCE = 240


class Order(pulsar.schema.Record):  # type: ignore[misc] # The client has no types.
    number = pulsar.schema.Integer()


SCHEMA = pulsar.schema.AvroSchema(Order)


@pytest.fixture
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, ONE_BROKER, SETTINGS, anew=True) as running:
        yield running


def build_and_kill(site: SwitchingSite, home: Path, *words: str) -> None:
    """Build in a process of its own that is killed once some of its ledgers are through."""
    log, line = home / "killed.log", site.words(home, *BUILD, *words)
    command = [sys.executable, "-m", "bookwarden.cli", *line]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=home, start_new_session=True)

    def some_are_through() -> bool:
        assert process.poll() is None, log.read_text()
        found = find_build(site.store)
        return found is not None and not found.newest.is_through and found.newest.looked_at > 0

    try:
        eventually(some_are_through, PATIENCE)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kinds(report: dict[str, Any], *outcomes: str) -> Counter[str]:
    """Count a report's ledgers with these outcomes by kind."""
    counts = Counter[str]()
    for row in report["outcomes"]:
        if row["outcome"] in outcomes:
            counts[row["kind"]] += row["ledgers"]
    return counts


def send(client: pulsar.Client, topic: str, numbers: range) -> None:
    producer = client.create_producer(topic, schema=SCHEMA, batching_enabled=False, block_if_queue_full=True)
    for number in numbers:
        producer.send_async(Order(number=number), lambda *_: None)
    producer.flush()
    producer.close()


def consume(client: pulsar.Client, topic: str) -> None:
    """Receive all, and acknowledge what is not to be left."""
    consumer = client.subscribe(topic, "s", schema=SCHEMA, consumer_type=pulsar.ConsumerType.Shared)
    for _ in range(COUNT):
        message = consumer.receive(60_000)
        if message.value().number not in LEFT:
            consumer.acknowledge(message)
    consumer.close()


def read_numbers(client: pulsar.Client, topic: str) -> list[int]:
    with closing(client.create_reader(topic, pulsar.MessageId.earliest, schema=SCHEMA)) as reader:
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(60_000).value().number)
    return found


def received(client: pulsar.Client, topic: str, count: int) -> list[int]:
    """Receive so many, and no more, of what the subscription has left."""
    consumer = client.subscribe(topic, "s", schema=SCHEMA, consumer_type=pulsar.ConsumerType.Shared)
    found = [consumer.receive(60_000).value().number for _ in range(count)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(200)
    consumer.close()
    return sorted(found)


@pytest.mark.usefixtures("spark")
def test_what_was_built_is_read_without_the_former_bookies(site: SwitchingSite, tmp_path: Path) -> None:
    site.register("b")
    site.wait_until_followed()
    topics = site.new_topics(TOPICS)
    with closing(site.connection.client()) as client:
        for topic in topics:
            client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest).close()
            send(client, topic, range(COUNT))
            consume(client, topic)
        assert site.command("switch", "--target", "b", "--yes")["phase"] == "DONE"
        own = {ledger for topic in topics for ledger in ledgers_of_topic(site.store, topic)}
        assert len(own & site.places().by_cluster["a"]) >= 3 * TOPICS

        # Cursors are still written on a, and are told.
        first = site.run(tmp_path, *BUILD, exit_codes=(MORE_LATER,))
        assert (first["source"], first["target"]) == ("a", "b")
        assert kinds(first, "copied")["schema"] >= TOPICS
        assert kinds(first, "copied").keys() <= {"schema", "cursor"}
        assert kinds(first, "failed") == Counter()
        assert {one["outcome"] for one in first["staying"]} == {"open"}
        site.command("unload", "--per-second", "20", "--yes")
        # Other clients have ledgers on b of the ids of what is only on a, and b is asked first.
        marked, others = OthersLedgers(site, "b", {OWNER_KEY: b"00c0ffee"}), OthersLedgers(site, "b")
        with marked.made(sorted(own)[:TOPICS]), others.made(own):
            count = len(marked.ids) + len(others.ids)
            assert (len(marked.ids), count >= 3 * TOPICS) == (TOPICS, True)
            site.kill_brokers(topics)
            for topic in topics:
                assert read_numbers(client, topic) == list(range(COUNT))
            counted = site.command("status", "--ledgers")["ledgers"]
            assert [each["closed"] for each in counted if each["kind"] == NOT_OURS] == [count]
            taken = site.run(tmp_path, *BUILD, "--all", exit_codes=(SOME_FAILED,))
            assert kinds(taken, "failed")["data"] == count
            assert marked.are_all_there()
            assert others.are_all_there()

        for topic in topics:
            # The next ledger of each is made on b.
            send(client, topic, range(COUNT, COUNT + 1))

        folder = tmp_path / "all"
        build_and_kill(site, tmp_path, "--all", "--folder", str(folder), "--max-ledgers-per-second", "2")
        status = site.command("status")["build"]
        assert (status["underWay"]["isHeld"], status["underWay"]["folder"]) == (False, str(folder))
        assert status["last"]["outcomes"] == taken["outcomes"]
        resumed = site.run(tmp_path, *BUILD, "--resume")
        assert resumed["folder"] == str(folder)
        assert kinds(resumed, "open", "deferred", "failed") == Counter()
        assert kinds(resumed, "copied", "complete")["data"] >= 3 * TOPICS
        rows = pq.read_table(folder / "copies").to_pylist() + pq.read_table(folder / "complete").to_pylist()
        assert {row["ledger_id"] for row in rows} >= own
        assert site.command("status")["build"]["underWay"] is None

        places = site.places().by_cluster
        assert own <= places["b"]
        for topic in topics:
            unload(site.admin, topic)
        for bookie in site.servers.clusters["a"].processes:
            bookie.kill()
        site.wait_until_served(topics)
        for topic in topics:
            assert read_numbers(client, topic) == list(range(COUNT + 1))
            assert received(client, topic, len(LEFT) + 1) == [*LEFT, COUNT]
            assert (
                site.admin.get_json(f"/schemas{topic_path(topic).removeprefix('/persistent')}/schema")["version"] == 0
            )
    assert site.places().astray == ()
