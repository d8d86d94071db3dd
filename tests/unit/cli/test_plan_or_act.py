"""Which commands plan until `--execute`, which act and have `--dry-run`; and the flags of 0.1.0, still accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import click
import pytest
from click.testing import CliRunner, Result

from bookwarden.bookie_clusters.offline.record import MOVE_PATH
from bookwarden.bookie_clusters.offline.saved_nodes import save_nodes
from bookwarden.bookie_clusters.registry import REGISTRY_PATH, parse_registry, serialize_registry
from bookwarden.cli.main import cli
from bookwarden.cli.shell.late import LateCommand, does_something
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.errors import RefusedError
from bookwarden.ledgers.custom_metadata import OWNER_KEY, expected_custom_metadata
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from servers.switching.ground import OWNER, registry_of
from unit.blue_green.scripted_blue import cursor, node
from unit.cli.test_offline_move import RECORD

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"
TOPIC = "/managed-ledgers/t/n/persistent/topic"
# Of one machine, for trying things out, and a server.
ELSEWHERE = {"dev", "demo", "serve"}
#: Plan until --execute; one way back of each acts, and has --dry-run.
WITH_WAY_BACK = {"cluster-migration prepare", "cluster-migration reopen", "bookie-clusters move"}


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield each command below a group with its words."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if not path and name in ELSEWHERE:
            continue
        found = command.load() if isinstance(command, LateCommand) else command
        words = (*path, name)
        if isinstance(found, click.Group):
            yield from commands(found, words)
        if does_something(found):
            yield " ".join(words), found


def shown_flags(command: click.Command) -> set[str]:
    """Return the options that the help of a command shows."""
    context = click.Context(command)
    records = (one.get_help_record(context) for one in command.params)
    return {flag for record in records if record is not None for flag in re.findall(r"--[\w-]+", record[0])}


def listed(first_words: str) -> set[str]:
    """Return the commands of a row of the table in docs/cli.md."""
    (row,) = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {first_words}")]
    return set(re.findall(r"`([^`]+)`", row.split("|")[2]))


def test_the_document_lists_what_every_command_does_by_default() -> None:
    flags = {words: shown_flags(command) for words, command in commands()}
    plans, acts, reads = listed("plans"), listed("acts"), listed("only reads")
    assert plans | acts | reads == set(flags)
    assert len(plans) + len(acts) + len(reads) == len(flags)
    assert plans == {words for words, found in flags.items() if "--execute" in found} - {"bookie-clusters move"}
    assert acts == {words for words, found in flags.items() if "--dry-run" in found} - plans


def test_no_help_shows_a_third_word() -> None:
    for words, command in commands():
        found = shown_flags(command)
        assert not found & {"--no-dry-run", "--roll"}, words
        if words not in WITH_WAY_BACK:
            assert not {"--execute", "--dry-run"} <= found, words


class Site:
    """A store with a registry, for one command, which closes it."""

    def __init__(self) -> None:
        name = uuid4().hex
        self.url = f"memory:{name}"
        self.store: MemoryStore = shared_memory_store(name)
        for root in ("/managed-ledgers", "/schemas", "/ledgers"):
            self.store.create(root, b"")
        self.written: list[bytes] = []
        self.root = "/ledgers"

    def register(self, active: str = "a") -> None:
        registry = registry_of(active)
        self.root = "/a"
        self.store.create(REGISTRY_PATH, serialize_registry(registry), make_parents=True)
        for cluster in registry.clusters.values():
            self.store.create(f"{cluster.ledgers_root}/INSTANCEID", cluster.instance.encode(), make_parents=True)

    def watch(self, path: str) -> None:
        """Note what a command writes to a node, since the store is gone behind it."""
        self.store.watch(
            path, lambda at: self.written.extend(node.value for node in self.store.get_many([at]) if node is not None)
        )

    def run(self, *arguments: str) -> Result:
        urls = f"metadata_store.urls={json.dumps([self.url])}"
        root = ("--set", f"metadata_store.ledgers_root={self.root}")
        return CliRunner().invoke(cli, ["--set", urls, *root, "bookie-clusters", *arguments])


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.parametrize(
    ("flags", "acts"),
    [
        ((), False),
        (("--execute",), True),
        (("--no-dry-run",), True),
        (("--dry-run",), False),
        (("--no-dry-run", "--dry-run"), False),
        (("--execute", "--dry-run"), False),
    ],
)
def test_a_registry_is_imported_with_execute_and_its_alias(flags: tuple[str, ...], acts: bool, tmp_path: Path) -> None:
    site = Site()
    site.store.create("/ledgers/INSTANCEID", b"instance-a")
    alone = replace(registry_of(), directive=None).without_cluster("b")
    file = tmp_path / "registry.json"
    saved = json.loads(serialize_registry(alone))
    saved["clusters"]["a"] |= {"instance": "instance-a", "ledgersRoot": "/ledgers", "storeUrl": None}
    saved["idRoot"] = "/ledgers"
    file.write_bytes(serialize_registry(parse_registry(json.dumps(saved).encode())))
    site.watch(REGISTRY_PATH)
    result = site.run("registry", "import", str(file), *flags, "--yes", "-o", "json")
    assert result.exit_code == 0, result.output
    assert (json.loads(result.stdout)["imported"], bool(site.written)) == (acts, acts)


@pytest.mark.parametrize(
    ("flags", "dry_run"),
    [((), True), (("--dry-run",), True), (("--execute",), False), (("--no-dry-run",), False)],
)
def test_a_cleanup_marks_with_execute_and_its_alias(site: Site, flags: tuple[str, ...], dry_run: bool) -> None:
    site.register()
    result = site.run("cleanup", *flags, "--force", "--yes", "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["dryRun"] is dry_run


@pytest.mark.parametrize(("flag", "written"), [(None, None), ("--execute", 1), ("--no-dry-run", 1)])
def test_saved_nodes_go_back_with_execute_and_its_alias(
    site: Site, flag: str | None, written: int | None, tmp_path: Path
) -> None:
    site.store.create(TOPIC, b"list", make_parents=True)
    file = save_nodes(site.store, site.url, tmp_path, "stopped")
    site.store.put(TOPIC, b"shorter", 0)
    flags = () if flag is None else (flag, "--yes")
    result = site.run("move", "--offline", "--restore-nodes", str(file), *flags, "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["written"]) == (0, written), result.output


def test_execute_is_not_taken_by_a_move_that_acts(site: Site) -> None:
    result = site.run("move", "--offline", "--target-uri", "zk://h/b", "--folder", "f", "--execute")
    assert (result.exit_code, "--execute is for --restore-nodes" in result.stderr) == (2, True)


def test_a_dry_run_abandons_no_move(site: Site) -> None:
    site.store.create(MOVE_PATH, json.dumps(RECORD | {"phase": "WAITING_FOR_STOP"}).encode(), make_parents=True)
    site.watch(MOVE_PATH)
    result = site.run("move", "--offline", "--abandon", "--dry-run", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["phase"], site.written) == (0, "WAITING_FOR_STOP", []), (
        result.output
    )


@pytest.mark.parametrize("words", [("unload",), ("status", "--ledgers", "--roll")])
def test_unload_and_its_alias_take_topics_off_other_clusters(site: Site, words: tuple[str, ...]) -> None:
    site.register()
    result = site.run(*words, "--per-second", "9", "--yes", "-o", "json")
    assert result.exit_code == 0, result.output
    assert (json.loads(result.stdout)["unloaded"], json.loads(result.stdout)["stillWriting"]) == ([], [])


def test_unload_looks_only_with_dry_run_and_needs_a_registry(site: Site) -> None:
    refused = site.run("unload", "--dry-run")
    assert (refused.exit_code, "no bookie cluster is registered" in refused.stderr) == (RefusedError.exit_code, True)
    site = Site()
    site.register()
    looked = json.loads(site.run("unload", "--dry-run", "-o", "json").stdout)
    assert (looked["dryRun"], "unloaded" in looked) == (True, False)


@pytest.mark.parametrize(("words", "code"), [(("unload",), 1), (("status", "--ledgers", "--roll"), 0)])
def test_a_topic_that_is_not_unloaded_is_reported(site: Site, words: tuple[str, ...], code: int) -> None:
    site.register("b")
    holder = ManagedLedgerHolder("t/n/persistent/topic")
    custom = {name: text.encode() for name, text in expected_custom_metadata(holder).items()}
    bookies = (Segment(0, ("127.0.0.1:3181",)),)
    metadata = LedgerMetadata(
        *(3, LedgerState.OPEN, 1, 1, 1, bookies), digest_type="CRC32C", custom={**custom, OWNER_KEY: OWNER.encode()}
    )
    site.store.create(ledger_path("/a", 7), encode_ledger_metadata(metadata), make_parents=True)
    # No broker is there.
    result = site.run(*words, "--yes", "-o", "json")
    assert result.exit_code == code, result.output
    (one,) = json.loads(result.stdout)["unloaded"]
    assert (one["topic"], bool(one["trouble"])) == ("persistent://t/n/topic", True)
    assert ("1 topic not unloaded, such as persistent://t/n/topic" in result.stderr) is (code == 1)


def test_a_dry_run_deprecates_nothing(site: Site) -> None:
    site.register()
    site.watch(REGISTRY_PATH)
    looked = site.run("deprecate", "b", "--dry-run", "-o", "json")
    assert looked.exit_code == 0, looked.output
    statuses = {one["name"]: one["status"] for one in json.loads(looked.stdout)["clusters"]}
    assert (statuses["b"], site.written) == ("DEPRECATED", [])
    site = Site()
    site.register()
    assert site.run("deprecate", "a", "--dry-run").exit_code == RefusedError.exit_code


def test_status_never_acts() -> None:
    for words, command in commands():
        if words.split()[-1] in ("status", "list", "list-cleanup-targets", "verify"):
            assert not shown_flags(command) & {"--yes", "--execute", "--per-second"}, words


@pytest.fixture
def migrated(tmp_path: Path) -> tuple[MemoryStore, list[str]]:
    """The store of a blue cluster with a flagged namespace, and the global options for it."""
    name = uuid4().hex
    store = shared_memory_store(name)
    store.create("/admin/local-policies/shop/live", b'{"migrated": true}', make_parents=True)
    settings = tmp_path / "bookwarden.yaml"
    green = {"pulsar": {}, "metadata_store": {"urls": [f"memory:{name}-green"]}}
    sides = {"blue": {"cluster": "blue"}, "green": green, "journal": str(tmp_path / "journal")}
    settings.write_text(json.dumps({"metadata_store": {"urls": [f"memory:{name}"]}, "cluster_migration": sides}))
    return store, ["--config", str(settings), "-o", "json", "cluster-migration"]


def test_a_dry_run_of_an_abort_takes_no_flag_off(migrated: tuple[MemoryStore, list[str]]) -> None:
    _, options = migrated
    # No broker is there: what asks one fails.
    result = CliRunner().invoke(cli, [*options, "abort", "shop/live", "shop/other", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"would_take_off": ["shop/live"], "cluster": False}


@pytest.mark.parametrize(("flags", "tries"), [((), True), (("--dry-run",), False)])
def test_a_dry_run_of_a_watch_makes_nothing_on_green(
    migrated: tuple[MemoryStore, list[str]], flags: tuple[str, ...], tries: bool
) -> None:
    store, options = migrated
    topic = node(terminated=False, migrated=False)
    store.create("/managed-ledgers/shop/live/persistent/orders", topic, make_parents=True)
    store.create("/managed-ledgers/shop/live/persistent/orders/app", cursor(1, 1), make_parents=True)
    result = CliRunner().invoke(cli, [*options, "watch", "shop/live", "--timeout", "0", *flags])
    # Green has no broker, which is an error where something is to be made there.
    assert ("green was not given what blue has got since" in result.stdout) is tries, result.output


def test_a_dry_run_of_a_watch_releases_and_resets_nothing() -> None:
    for more in (("--release",), ("--late-subscriptions", "reset")):
        result = CliRunner().invoke(cli, ["cluster-migration", "watch", "--dry-run", *more])
        assert (result.exit_code, "--dry-run only watches" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "way_back"), [(("prepare",), "--take-back"), (("reopen", "persistent://t/n/a"), "--undo")]
)
def test_dry_run_goes_with_the_way_back_alone(words: tuple[str, ...], way_back: str) -> None:
    result = CliRunner().invoke(cli, ["cluster-migration", *words, "--dry-run"])
    assert (result.exit_code, f"--dry-run is for {way_back}" in result.stderr) == (2, True)
