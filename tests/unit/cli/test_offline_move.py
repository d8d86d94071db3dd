"""`bookie-clusters move` without a bookie: its options, what it shows, and saved nodes put back."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from bookwarden.bookie_clusters.brokers import BROKERS_PATH
from bookwarden.bookie_clusters.offline.record import MOVE_PATH
from bookwarden.bookie_clusters.offline.saved_nodes import save_nodes
from bookwarden.cli.main import cli
from bookwarden.errors import ConfigError, NotFoundError, RefusedError
from bookwarden.metastore.memory import MemoryStore, shared_memory_store

USAGE = 2
TOPIC = "/managed-ledgers/t/n/persistent/topic"
RECORD = {
    "format": 1,
    "owner": "5f2c9a41",
    "source": {"storeUrl": "zk:zk1:2181", "ledgersRoot": "/ledgers", "instance": "instance-a"},
    "target": {
        "storeUrl": "zk:zk2:2181",
        "ledgersRoot": "/bookies-b",
        "instance": "instance-b",
        "metadataServiceUri": "zk+hierarchical://zk2:2181/bookies-b",
    },
    "folder": "/backup",
    "phase": "DONE",
    "saved": "/backup/nodes.jsonl.gz",
    "former": [],
}


class Site:
    """A store for one command, which closes it."""

    def __init__(self) -> None:
        name = uuid4().hex
        self.url = f"memory:{name}"
        self.store: MemoryStore = shared_memory_store(name)
        self.store.create(TOPIC, b"list", make_parents=True)

    def run(self, *arguments: str) -> Result:
        urls = f"metadata_store.urls={json.dumps([self.url])}"
        return CliRunner().invoke(cli, ["--set", urls, "bookie-clusters", *arguments])

    def move(self, *arguments: str) -> Result:
        return self.run("move", *arguments)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), USAGE, "name --target-uri, or one of"),
        (("--target-uri", "zk://h/b", "--folder", "f"), USAGE, "add --offline"),
        (("--offline", "--target-uri", "zk://h/b"), USAGE, "go together"),
        (("--status", "--abandon"), USAGE, "name --target-uri, or one of"),
        (("--offline", "--target-uri", "h:2181", "--folder", "f"), ConfigError.exit_code, "is no metadataServiceUri"),
        (("--status",), NotFoundError.exit_code, "nothing was moved yet"),
        (("--offline", "--abandon"), RefusedError.exit_code, "Abandon the move?"),
        (("--offline", "--abandon", "--yes"), RefusedError.exit_code, "no move is under way"),
    ],
)
def test_what_is_asked_for_wrongly_is_told(site: Site, arguments: tuple[str, ...], code: int, says: str) -> None:
    result = site.move(*arguments)
    assert (result.exit_code, says in result.stderr) == (code, True), result.output


def test_the_status_of_bookie_clusters_tells_of_a_move(site: Site) -> None:
    assert json.loads(site.run("status", "-o", "json").stdout)["move"] is None
    site = Site()
    site.store.create(MOVE_PATH, json.dumps({**RECORD, "phase": "WAITING_FOR_STOP"}).encode(), make_parents=True)
    told = " ".join(site.run("status").stdout.split())
    assert "WAITING_FOR_STOP, to zk+hierarchical://zk2:2181/bookies-b: `bookie-clusters move --status`" in told
    site = Site()
    site.store.create(MOVE_PATH, json.dumps(RECORD).encode(), make_parents=True)
    found = json.loads(site.run("status", "-o", "json").stdout)["move"]
    assert (found["phase"], found["target"]["instance"]) == ("DONE", "instance-b")


def test_the_status_of_one_that_is_done_has_the_lines(site: Site) -> None:
    site.store.create(MOVE_PATH, json.dumps(RECORD).encode(), make_parents=True)
    shown = site.move("--status").stdout
    assert "bookkeeperMetadataServiceUri=zk+hierarchical://zk2:2181/bookies-b" in shown
    assert "  bookkeeper_url: zk+hierarchical://zk2:2181/bookies-b" in shown
    assert "Never one on the source and one on the target" in shown


@pytest.mark.parametrize(
    ("options", "lives", "code", "value"),
    [
        ((), False, 0, b"shorter"),
        (("--execute",), False, RefusedError.exit_code, b"shorter"),
        (("--execute", "--yes"), True, RefusedError.exit_code, b"shorter"),
        (("--execute", "--yes"), False, 0, b"list"),
    ],
)
def test_saved_nodes_are_compared_and_put_back_when_asked_to(
    site: Site, tmp_path: Path, options: tuple[str, ...], lives: bool, code: int, value: bytes
) -> None:
    file = save_nodes(site.store, site.url, tmp_path, "stopped")
    site.store.put(TOPIC, b"shorter", 0)
    if lives:
        site.store.create(f"{BROKERS_PATH}/br1", b"{}", make_parents=True)
    values: list[bytes] = []
    site.store.watch(TOPIC, lambda path: values.extend(node.value for node in site.store.get_many([path]) if node))
    result = site.move("--offline", "--restore-nodes", str(file), *options, "-o", "json")
    assert (result.exit_code, values or [b"shorter"]) == (code, [value]), result.output
    if code == 0:
        told = json.loads(result.stdout)
        assert (told["changed"], told["written"], told["dryRun"]) == (1, 1 if options else None, not options)
