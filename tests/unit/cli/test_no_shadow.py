"""`bookwarden no-shadow`: shows, asks, keeps a record, and takes it back; and `inflight` names what is in doubt."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

import bookwarden.cli.inflight as inflight
from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.broker_marks import Outbox
from bookwarden.clusters.pulsar.references.shadows import read_shadows
from bookwarden.clusters.pulsar.rest.backlog import PartitionBacklog
from bookwarden.deletion.inflight import InFlight
from bookwarden.errors import StoreAccessError
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.wire.broker_marks import OUTBOX_ROOT
from servers.population import Population

BROKEN = ManagedLedgerHolder("t/ns/persistent/broken")
PATH = f"/managed-ledgers/{BROKEN.name}"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"memory:{request.node.name}"


@pytest.fixture
def store(url: str, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    # The next command would get an empty one.
    monkeypatch.setattr(MemoryStore, "close", lambda _: None)
    made = shared_memory_store(url.partition(":")[2])
    Population(made).names(ManagedLedgerHolder("t/ns/persistent/sound"), [1])
    made.create(PATH, b"\x47\x78broken", make_parents=True)
    return made


def run(url: str, *arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["-o", "json", "--set", f"metadata_store.urls=['{url}']", *arguments], input=answer)


def is_taken(store: MemoryStore) -> bool:
    return read_shadows(store).doubts[0].taken is not None


def test_a_node_is_shown_taken_listed_and_taken_back(url: str, store: MemoryStore) -> None:
    (doubt,) = json.loads(run(url, "no-shadow", "list").stdout)["doubts"]
    assert (doubt["path"], doubt["content"]["size"], doubt["taken"]) == (PATH, 8, None)
    assert "compressed node" in doubt["reason"]
    shown = run(url, "no-shadow", "add", PATH, "--why", "none here", "--dry-run")
    assert (shown.exit_code, is_taken(store)) == (0, False)
    assert json.loads(shown.stdout)["doubts"] == [doubt]
    assert run(url, "no-shadow", "add", PATH, "--why", "none here", "--yes").exit_code == 0
    (doubt,) = json.loads(run(url, "no-shadow", "list").stdout)["doubts"]
    assert doubt["taken"]["why"] == "none here"
    assert "@" in doubt["taken"]["by"]
    assert doubt["taken"]["at_ms"] > 1_600_000_000_000
    looked = run(url, "no-shadow", "remove", PATH, "--dry-run")
    assert (looked.exit_code, is_taken(store)) == (0, True)
    assert json.loads(looked.stdout) == {"path": PATH, "removed": False}
    assert run(url, "no-shadow", "remove", PATH).exit_code == 0
    assert not is_taken(store)
    assert run(url, "no-shadow", "remove", PATH, "--dry-run").exit_code == 4
    assert run(url, "no-shadow", "remove", PATH).exit_code == 4


def test_a_record_is_void_and_listed_so_once_the_node_was_written(url: str, store: MemoryStore) -> None:
    run(url, "no-shadow", "add", PATH, "--why", "none here", "--yes")
    store.put(PATH, b"\x47\x78others", 0)
    found = json.loads(run(url, "no-shadow", "list").stdout)
    assert found["doubts"][0]["taken"] is None
    assert [record["path"] for record in found["void"]] == [PATH]


def test_nothing_is_taken_without_an_answer(url: str, store: MemoryStore) -> None:
    refused = run(url, "no-shadow", "add", PATH, "--why", "none here")
    assert (refused.exit_code, is_taken(store)) == (5, False)
    assert "--yes" in refused.stderr


@pytest.mark.parametrize(
    ("path", "exit_code"),
    [
        ("/managed-ledgers/t/ns/persistent/sound", 4),
        ("/managed-ledgers/t/ns/persistent/none", 4),
        (f"{PATH}/subscription", 4),
        ("/ledgers", 4),
    ],
)
def test_only_an_unreadable_node_of_a_topic_can_be_taken(
    url: str, store: MemoryStore, path: str, exit_code: int
) -> None:
    assert run(url, "no-shadow", "add", path, "--why", "x", "--yes").exit_code == exit_code


def test_a_node_that_the_store_refuses_to_show_cannot_be_taken(
    url: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreAccessError("not authorized")

    monkeypatch.setattr(MemoryStore, "get_many", refuse)
    refused = run(url, "no-shadow", "add", PATH, "--why", "x", "--yes")
    assert refused.exit_code == 5
    assert "grant the right to read it" in refused.stderr


def test_a_node_that_changes_during_the_question_is_not_taken(
    url: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookwarden.cli.no_shadow.confirm", lambda *_, **__: store.put(PATH, b"\x47\x78others", 0))
    refused = run(url, "no-shadow", "add", PATH, "--why", "x")
    assert (refused.exit_code, is_taken(store)) == (5, False)
    assert "has changed since it was shown" in refused.stderr


class Topics:
    """The deletion topics, with what the retry topic has in flight."""

    on_retry_topic = 0

    def in_flight(self, _: int) -> InFlight:
        deletion, number = "persistent://pulsar/system/__ledger_deletion", self.on_retry_topic
        retry = PartitionBacklog(f"{deletion}-RETRY-partition-1", number, number, exact=True)
        return InFlight((retry, PartitionBacklog(f"{deletion}-partition-1", 9, 9, exact=True)))


@pytest.mark.parametrize(("on_retry_topic", "named"), [(10_000, [PATH]), (9_999, []), (0, [])])
@pytest.mark.usefixtures("store")
def test_inflight_names_the_node_once_the_retry_topic_is_full(
    url: str, monkeypatch: pytest.MonkeyPatch, on_retry_topic: int, named: list[str]
) -> None:
    monkeypatch.setattr(Topics, "on_retry_topic", on_retry_topic)
    monkeypatch.setattr(inflight, "require_topics", lambda *_: None)
    monkeypatch.setattr(inflight.Cluster, "deletion_topics", Topics())
    found = run(url, "inflight")
    assert found.exit_code == 0, found.output
    assert [SimpleNamespace(**doubt).path for doubt in json.loads(found.stdout)["doubts"]] == named


def test_inflight_has_the_outbox_as_a_second_figure(
    url: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflight, "require_topics", lambda *_: None)
    monkeypatch.setattr(inflight.Cluster, "deletion_topics", Topics())
    empty = {"nodes": 0, "bytes": 0, "oldest_seconds": 0.0}
    assert json.loads(run(url, "inflight").stdout)["outbox"] == empty
    for number in (7, 8):
        store.create(f"{OUTBOX_ROOT}/b1:8080-00000001/0/{number}", bytes(500), make_parents=True)
    found = json.loads(run(url, "inflight").stdout)
    assert (found["total"], found["outbox"]["nodes"], found["outbox"]["bytes"]) == (9, 2, 1000)
    assert 0 <= found["outbox"]["oldest_seconds"] < 60
    text = CliRunner().invoke(cli, ["--set", f"metadata_store.urls=['{url}']", "inflight"]).stdout
    assert "2 nodes, 1,000 bytes, the oldest " in text

    def refused(_: Outbox) -> None:
        raise StoreAccessError("no right to read")

    # The backlog is shown in any case.
    monkeypatch.setattr(Outbox, "size", refused)
    found = json.loads(run(url, "inflight").stdout)
    assert (found["total"], found["outbox"]) == (9, {"problem": "no right to read"})
