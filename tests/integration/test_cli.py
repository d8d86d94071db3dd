"""The command line on the real servers: what it does, what it asks, and how it fails."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner, Result

from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.errors import NotFoundError
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.metastore.urls import open_store
from bookwarden.wiring.pulsar import connection_of
from bookwarden_dev.devcluster import DevCluster
from servers.client_counts import clients_counted
from servers.deletion_site import DeletionSite
from servers.each_store import on_each_store
from servers.population import Population

pytestmark = pytest.mark.servers


class Line:
    """Command lines over one test's deletion topics."""

    def __init__(self, site: DeletionSite) -> None:
        self.site = site
        deletion = site.settings.deletion
        values = {
            "pulsar.service_url": site.service_url,
            "pulsar.admin_url": site.admin_url,
            "metadata_store.urls": f"['{site.store_url}']",
            "deletion.topic": deletion.topic,
            "deletion.retry_topic": deletion.retry_topic,
            "deletion.dlq_topic": deletion.dlq_topic,
            "deletion.unlisted_grace_seconds": "0",
        }
        self.options = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]

    def __call__(self, *arguments: str, **environment: str) -> Result:
        """Run a command, which opens one client of each kind at most, and leaves none."""
        with clients_counted() as counts:
            result = CliRunner(env=environment).invoke(cli, [*self.options, *arguments])
        assert (+counts.open, +(counts.most - Counter(admin=1, pulsar=1))) == (Counter(), Counter())
        return result

    def json(self, *arguments: str) -> Any:
        result = self("-o", "json", *arguments)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    def fails(self, exit_code: int, text: str, *arguments: str, **environment: str) -> None:
        result = self(*arguments, **environment)
        assert result.exit_code == exit_code, result.output
        assert text in result.stderr
        assert result.stderr.startswith("bookwarden: ")
        assert result.stderr.count("\n") == 1

    def topic(self, name: str = "orders") -> str:
        """Make a topic with a ledger of data and one of a cursor."""
        topic = f"persistent://{self.site.namespace}/{name}"
        client = connection_of(self.site.settings.pulsar).client()
        try:
            consumer = client.subscribe(topic, "billing", initial_position=pulsar.InitialPosition.Earliest)
            client.create_producer(topic).send(b"order")
            consumer.acknowledge(consumer.receive(10_000))
        finally:
            client.close()
        return topic

    def topic_exists(self, topic: str) -> bool:
        try:
            return bool(Topics(PulsarAdmin(connection_of(self.site.settings.pulsar))).partitions(topic))
        except NotFoundError:
            return False


@pytest.fixture
def bare(shared_cluster: DevCluster, namespace: str, tmp_path: Path) -> Line:
    """No deletion topics yet."""
    cluster = shared_cluster
    return Line(DeletionSite.of(cluster, namespace, tmp_path))


@pytest.fixture
def line(bare: Line) -> Line:
    bare.site.create_topics()
    return bare


def send_to_dlq(line: Line, payload: bytes, **properties: str) -> None:
    producers = ConfirmedProducers(connection_of(line.site.settings.pulsar).client, batching_enabled=False)
    topic = line.site.settings.deletion.dlq_topic
    producers.send(topic, payload, schema=None, key="k", properties=properties)
    producers.flush()
    producers.close()


@on_each_store
def test_init_is_repeatable_and_makes_what_the_others_need(bare: Line) -> None:
    would = {found["state"] for found in bare.json("init", "--dry-run")["provisions"] if found["kind"] == "topic"}
    assert would == {"would create"}
    bare.json("init")
    assert {found["state"] for found in bare.json("init")["provisions"]} == {"exists"}
    assert bare.json("inflight")["total"] == 0


def test_a_topic_is_deleted_only_when_asked_and_its_ledgers_are_in_flight_after(line: Line) -> None:
    topic = line.topic()
    (planned,) = line.json("mark", "topic", topic, "--dry-run", "--force")
    assert [found["state"] for found in planned["ledgers"]] == ["would mark"] * 2
    line.fails(5, "--yes", "mark", "topic", topic, "--force")
    assert line.topic_exists(topic)
    assert line.json("inflight")["total"] == 0
    (done,) = line.json("mark", "topic", topic, "--force", "--yes")
    assert done["done"] is True
    assert not line.topic_exists(topic)
    assert line.json("inflight")["total"] == 2


def test_a_subscription_a_schema_and_a_trim(line: Line) -> None:
    topic = line.topic()
    assert line("mark", "trim", topic, "--yes").exit_code == 0
    (done,) = line.json("mark", "subscription", topic, "billing", "--force", "--yes")
    assert [found["holder"].rpartition("/")[2] for found in done["ledgers"]] == ["billing"]
    line.fails(4, "no schema", "mark", "schema", topic, "--yes")
    line.fails(4, "no subscription", "mark", "subscription", topic, "billing", "--yes")
    line.fails(5, "trim through the broker", "mark", "trim", topic, "--store", "--yes")


def test_an_operation_that_the_broker_refuses_is_shown_and_fails(line: Line) -> None:
    topic = line.topic()
    client = connection_of(line.site.settings.pulsar).client()
    try:
        client.create_producer(topic)
        result = line("mark", "topic", topic, "--yes")
    finally:
        client.close()
    assert result.exit_code == 1
    assert "marked" in result.stdout
    assert result.stderr.startswith("bookwarden: delete topic is not done")
    assert line.topic_exists(topic)


@pytest.fixture
def leaked(line: Line, shared_cluster: DevCluster) -> int:
    """A ledger that its topic does not name."""
    ledger_id = 2_500_000_000 + int.from_bytes(os.urandom(3), "big")
    store = open_store(shared_cluster.store_url)
    Population(store).ledger(ledger_id, ManagedLedgerHolder(f"{line.site.namespace}/persistent/gone"))
    store.close()
    return ledger_id


@on_each_store
def test_a_leaked_ledger_is_explained_marked_and_previewed_and_nothing_is_taken(line: Line, leaked: int) -> None:
    explained = line.json("ledger", "explain", str(leaked))
    assert (explained["outcome"], explained["referenced"], explained["holder_exists"]) == ("deleted", False, False)
    line.fails(5, "--yes", "mark", "ledger", str(leaked))
    assert line.json("mark", "ledger", str(leaked), "--dry-run")["ledgers"][0]["state"] == "would mark"
    assert line.json("inflight")["total"] == 0
    assert line.json("mark", "ledger", str(leaked), "--yes")["ledgers"][0]["state"] == "marked"
    for _ in range(2):
        (outcome,) = line.json("sweep", "--dry-run")["outcomes"]
        assert (outcome["ledger_id"], outcome["outcome"]) == (leaked, "would delete")
    assert line.json("inflight")["total"] == 1
    assert line.json("ledger", "explain", str(leaked))["present"] is True


def test_ledgers_that_are_not_pulsars_or_do_not_exist_are_not_marked(
    line: Line, leaked: int, pulsar_cluster: DevCluster
) -> None:
    store = open_store(pulsar_cluster.store_url)
    Population(store).tagged_ledger(leaked + 1, {"application": b"other"})
    store.close()
    line.fails(5, "application=other", "mark", "ledger", str(leaked), str(leaked + 1), "--yes")
    assert line.json("inflight")["total"] == 0
    line.fails(4, f"no ledger {leaked + 2}; the others", "mark", "ledger", str(leaked), str(leaked + 2), "--yes")
    line.fails(4, "nothing was marked", "mark", "ledger", str(leaked + 2), "--yes")
    (outcome,) = line.json("sweep", "--dry-run")["outcomes"]
    assert outcome["ledger_id"] == leaked
    assert "kept" in line.json("ledger", "explain", str(leaked + 1))["verdict"]
    assert line.json("ledger", "explain", str(leaked + 2))["present"] is False


@on_each_store
def test_a_live_ledger_is_kept_and_its_reader_told_who_names_it(line: Line) -> None:
    topic = line.topic()
    (planned,) = line.json("mark", "topic", topic, "--dry-run")
    explained = line.json("ledger", "explain", str(planned["ledgers"][0]["ledger_id"]))
    assert (explained["outcome"], explained["referenced"]) == ("still referenced", True)
    assert explained["holder"] == planned["ledgers"][0]["holder"]


def test_dead_letters_are_listed_shown_replayed_and_dropped(line: Line) -> None:
    send_to_dlq(line, b"first", **{"bookwarden.reason": "because", "bookwarden.outcome": "malformed"})
    send_to_dlq(line, b"second")
    first, second = line.json("dlq", "list")["dead_letters"]
    assert (first["reason"], first["outcome"], first["ledger_id"]) == ("because", "malformed", None)
    assert line.json("dlq", "show", first["id"])["payload"] == "first"
    line.fails(5, "--yes", "dlq", "replay", "--all")
    assert len(line.json("dlq", "drop", "--all", "--dry-run")["dead_letters"]) == 2
    assert len(line.json("dlq", "list")["dead_letters"]) == 2
    assert [found["id"] for found in line.json("dlq", "replay", first["id"], "--yes")["dead_letters"]] == [first["id"]]
    assert line.json("inflight")["total"] == 1
    assert [found["id"] for found in line.json("dlq", "drop", "--all", "--yes")["dead_letters"]] == [second["id"]]
    assert line.json("dlq", "list")["dead_letters"] == []
    line.fails(4, "no dead letter", "dlq", "show", first["id"])


def test_dead_letters_are_grouped_replayed_by_reason_and_exported(line: Line, tmp_path: Path) -> None:
    for number in range(3):
        send_to_dlq(line, b"\xff%d" % number, **{"bookwarden.reason": f"ledger {number} has no driver 'gone'"})
    send_to_dlq(line, b"other", **{"bookwarden.reason": "something else", "theirs": "kept"})
    groups = line.json("dlq", "list", "--group-by", "reason")["groups"]
    assert [(group["reason"], group["count"]) for group in groups] == [
        ("ledger # has no driver <text>", 3),
        ("something else", 1),
    ]
    file = tmp_path / "letters.jsonl"
    assert line.json("dlq", "export", str(file))["dead_letters"] == 4
    exported = [json.loads(text) for text in file.read_text().splitlines()]
    assert sorted(base64.b64decode(found["payload"]) for found in exported) == [b"other", b"\xff0", b"\xff1", b"\xff2"]
    assert {found["key"] for found in exported} == {"k"}
    line.fails(5, "Replace", "dlq", "export", str(file))
    shown = line("dlq", "export", "-", "--reason", "something", "--limit", "1")
    assert json.loads(shown.stdout)["properties"]["theirs"] == "kept"
    line.fails(5, "--yes", "dlq", "replay", "--reason", "no driver")
    sent = line.json("dlq", "replay", "--reason", "ledger # has no driver", "--limit", "2", "--yes")["dead_letters"]
    assert len(sent) == 2
    assert line.json("inflight")["total"] == 2
    assert len(line.json("dlq", "drop", "--reason", "no driver", "--yes")["dead_letters"]) == 1
    assert [found["reason"] for found in line.json("dlq", "list")["dead_letters"]] == ["something else"]


@pytest.mark.parametrize(
    "arguments",
    [("inflight",), ("sweep", "--once"), ("sweep", "--dry-run"), ("dlq", "list"), ("mark", "topic", "t", "--yes")],
)
def test_without_topics_each_command_says_what_to_run(bare: Line, arguments: tuple[str, ...]) -> None:
    bare.fails(4, "bookwarden init", *arguments)
    assert not bare.topic_exists(bare.site.settings.deletion.topic)


def test_a_mark_is_not_sent_to_a_topic_that_would_not_keep_it(bare: Line) -> None:
    Topics(PulsarAdmin(connection_of(bare.site.settings.pulsar))).create(bare.site.settings.deletion.topic, 1)
    bare.fails(4, "bookwarden init", "mark", "topic", bare.topic(), "--yes")


@pytest.mark.parametrize("command", [("inflight",), ("init",), ("sweep", "--once"), ("dlq", "list")])
def test_a_wrong_admin_url(line: Line, command: tuple[str, ...]) -> None:
    line.fails(8, "pulsar.admin_url", "--set", "pulsar.admin_url=http://127.0.0.1:1", *command)


def test_a_wrong_service_url(line: Line, leaked: int) -> None:
    wrong = ("--set", "pulsar.service_url=pulsar://127.0.0.1:1")
    line.fails(8, "pulsar.service_url", *wrong, "sweep", "--once")
    line.fails(8, "pulsar.service_url", *wrong, "mark", "ledger", str(leaked), "--yes")


def test_a_wrong_metadata_store(line: Line) -> None:
    wrong = ("--set", "metadata_store.urls=['zk:127.0.0.1:1']", "--set", "metadata_store.operation_timeout_seconds=2")
    line.fails(7, "127.0.0.1:1", *wrong, "ledger", "explain", "1")
    line.fails(7, "ledgers_root", "--set", "metadata_store.ledgers_root=/nope", "sweep", "--once")


def test_no_java(line: Line, tmp_path: Path) -> None:
    line.fails(11, "Java", "sweep", "--once", JAVA_HOME=str(tmp_path))


def test_a_process_of_its_own_writes_no_colours_into_a_pipe_and_no_trace(line: Line) -> None:
    program = [sys.executable, "-c", "from bookwarden.cli.main import main; main()", *line.options]
    shown = subprocess.run([*program, "inflight"], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[0].split() == ["partition", "entries", "messages"]
    assert f"{line.site.settings.deletion.retry_topic}-partition-3" in shown.stdout
    assert "\x1b" not in shown.stdout
    wrong = ["--set", "pulsar.service_url=pulsar://127.0.0.1:1", "sweep", "--once"]
    failed = subprocess.run([*program, *wrong], capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (8, "", 1)
