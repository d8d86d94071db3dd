"""What `bookie-clusters precheck|switch|rollback|status` refuse, and the exit codes of each, without a broker."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from bookwarden.bookie_clusters.brokers import BROKERS_PATH
from bookwarden.bookie_clusters.registry import REGISTRY_PATH, Registry, serialize_registry
from bookwarden.cli.main import cli
from bookwarden.errors import NotFoundError, RefusedError
from bookwarden.exit_codes import SOME_FAILED, WOULD_FAIL
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from servers.switching.ground import registry_of

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"


class Site:
    """A store with a registry, in which nobody follows, for one command, which closes it."""

    def __init__(self, registry: Registry | None) -> None:
        name = uuid4().hex
        self.url = f"memory:{name}"
        self.store: MemoryStore = shared_memory_store(name)
        if registry is not None:
            self.store.create(REGISTRY_PATH, serialize_registry(registry), make_parents=True)
        for cluster in () if registry is None else registry.clusters.values():
            root = cluster.ledgers_root
            self.store.create(f"{root}/INSTANCEID", cluster.instance.encode(), make_parents=True)
            self.store.create(f"{root}/available/readonly/{cluster.name}9", b"", make_parents=True)
            self.store.create(f"{root}/cookies/{cluster.name}9", b"", make_parents=True)

    def broker(self, name: str) -> None:
        self.store.create(f"{BROKERS_PATH}/{name}", b"{}", make_parents=True)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(
            cli, ["--set", f"metadata_store.urls={json.dumps([self.url])}", "bookie-clusters", *arguments]
        )


@pytest.fixture
def site() -> Site:
    return Site(registry_of())


def test_a_precheck_tells_programs_each_line(site: Site) -> None:
    site.broker("br1:8080")
    result = site.run("precheck", "--name", "b", "-o", "json")
    assert result.exit_code == WOULD_FAIL, result.stderr
    found = json.loads(result.stdout)
    assert (found["ready"], found["sourceClusterName"], found["targetClusterName"]) == (False, "a", "b")
    lines = {(one["name"], one["severity"]): one for one in found["checks"]}
    assert "br1:8080 does not follow the registry" in lines["brokers", "would fail"]["evidence"]
    assert lines["brokers", "would fail"]["whatToDo"]
    assert lines["bookies", "warning"]["evidence"]
    assert "b answers, and is the instance instance-b" in lines["metadata", "ok"]["evidence"]


def test_a_switch_that_is_not_ready_changes_nothing(site: Site) -> None:
    result = site.run("switch", "--target", "b", "--yes")
    assert result.exit_code == WOULD_FAIL, result.stderr
    assert "check blocks it" in result.stdout or "checks block it" in result.stdout


def test_a_dry_run_says_what_would_be_done(site: Site) -> None:
    result = site.run("switch", "--target", "b", "--dry-run", "--skip-precheck")
    assert result.exit_code == 0, result.stderr
    assert "the registry gets epoch 3" in result.stderr
    assert "Keep a running" in result.stderr


def test_nobody_is_switched_without_an_answer(site: Site) -> None:
    result = site.run("switch", "--target", "b", "--skip-precheck")
    assert result.exit_code == RefusedError.exit_code
    assert "Switch new ledgers from a to b?" in result.stderr


@pytest.mark.parametrize(
    ("registry", "arguments", "code"),
    [
        (None, ("precheck", "--name", "b"), RefusedError.exit_code),
        (None, ("switch", "--target", "b"), RefusedError.exit_code),
        (registry_of(), ("precheck", "--name", "c"), RefusedError.exit_code),
        (registry_of(), ("switch", "--target", "c"), RefusedError.exit_code),
        (registry_of().with_deprecated("b", True), ("switch", "--target", "b"), RefusedError.exit_code),
        (registry_of(), ("rollback",), NotFoundError.exit_code),
        (registry_of(), ("switch", "--resume"), NotFoundError.exit_code),
        (registry_of(), ("switch",), 2),
        (registry_of(), ("switch", "--resume", "--target", "b"), 2),
        (registry_of().switched("b", "one", 1), ("rollback", "--yes"), WOULD_FAIL),
        (registry_of(), ("switch", "--target", "a", "--dry-run"), 0),
        (registry_of().switched("b", "one", 1), ("status",), 0),
        (None, ("status",), 0),
    ],
)
def test_what_cannot_be_has_its_exit_code(registry: Registry | None, arguments: tuple[str, ...], code: int) -> None:
    result = Site(registry).run(*arguments)
    assert result.exit_code == code, result.output


def test_the_status_names_brokers_that_do_not_follow() -> None:
    site = Site(registry_of().switched("b", "one", 1))
    site.broker("br1:8080")
    result = site.run("status")
    text = " ".join(result.stdout.split())
    assert result.exit_code == 25, result.stderr
    assert "LIVE_DUAL_READ" in text
    assert "br1:8080 runs without the jar" in text


@pytest.mark.parametrize(("names", "is_behind"), [("b", True), ("a", False), ("ab", False)])
def test_the_status_says_what_comes_before_brokers_get_the_jar_again(names: str, is_behind: bool) -> None:
    registry = registry_of(active=names[-1], names=names)
    # As 0.1.0 wrote it.
    site = Site(
        replace(registry, clusters={name: replace(registry.cluster(name), unmarked_below=None) for name in names})
    )
    site.broker("br1:8080")
    text = " ".join(site.run("status").stdout.split())
    assert ("stop all brokers, and register another cluster" in text) == is_behind


def test_the_status_for_programs() -> None:
    site = Site(registry_of().switched("b", "one", 1))
    site.broker("br1:8080")
    found = json.loads(site.run("status", "-o", "json").stdout)
    assert (found["phase"], found["active"], found["order"]) == ("LIVE_DUAL_READ", "b", None)
    assert found["switchTarget"]["origin"] == "one"
    (broker,) = found["brokers"]
    assert (broker["name"], broker["epoch"], broker["trouble"]) == ("br1:8080", None, None)


def test_the_status_tells_whose_ledgers_are_elsewhere_if_asked() -> None:
    def told(*options: str) -> Result:
        # Each command closes its store.
        site = Site(registry_of())
        site.store.create("/b/00/0000/L0007", b"no metadata", make_parents=True)
        return site.run("status", *options)

    elsewhere = json.loads(told("--ledgers", "--holders", "-o", "json").stdout)["elsewhere"]
    assert elsewhere == [{"cluster": "b", "kind": "unreadable", "holder": None, "ledgers": 1}]
    assert "elsewhere in" in told("--ledgers", "--holders").stdout
    assert "elsewhere" not in json.loads(told("--ledgers", "-o", "json").stdout)
    assert told("--holders").exit_code == 2


def test_the_exit_codes_are_documented() -> None:
    lines = DOCUMENT.read_text("utf-8").splitlines()
    assert any(line.startswith(f"| {SOME_FAILED} | `switch`") for line in lines)
