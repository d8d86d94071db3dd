"""What `metadata-migration status` and `watch` say without a broker, and the exit codes of all its commands."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from bookwarden.cli.main import cli
from bookwarden.errors import ConfigError, FormatError, NotFoundError
from bookwarden.exit_codes import COUNTERS_BEHIND, MIGRATION_FAILED, MORE_LATER, WOULD_FAIL
from bookwarden.metastore.following.flag import MIGRATION_PATH, PARTICIPANTS_PATH
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden_dev.devcluster.ports import free_ports

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"


class Site:
    """A source whose flag the test sets; nobody answers where the broker should be."""

    def __init__(self) -> None:
        name = uuid4().hex
        self.url = f"memory:{name}"
        self.store: MemoryStore = shared_memory_store(name)
        self.admin_url = f"http://127.0.0.1:{free_ports(1)[0]}"

    def flag(self, phase: str) -> None:
        value = json.dumps({"phase": phase, "targetUrl": "oxia://o:6648/n"}).encode()
        self.store.create(MIGRATION_PATH, value, make_parents=True)

    def run(self, command: str, *arguments: str) -> Result:
        settings = [f"metadata_store.urls={json.dumps([self.url])}", f"pulsar.admin_url={self.admin_url}"]
        chosen = [word for setting in settings for word in ("--set", setting)]
        return CliRunner().invoke(cli, [*chosen, "metadata-migration", command, *arguments])


@pytest.fixture
def site() -> Site:
    """A site for one command: a store in memory ends with the first that closes it."""
    return Site()


def test_without_a_flag_nothing_was_begun(site: Site) -> None:
    result = site.run("status")
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    assert "no flag: nothing was begun" in text
    assert "No participant is registered." in text
    assert f"{site.admin_url} is not reachable" in text
    assert "The broker did not tell; the flag and the participants are from the source itself." in text


def test_without_a_flag_there_is_nothing_to_watch(site: Site) -> None:
    assert site.run("watch").exit_code == NotFoundError.exit_code


@pytest.mark.parametrize(
    ("phase", "code"),
    [
        ("NOT_STARTED", 0),
        ("PREPARATION", MORE_LATER),
        ("COPYING", MORE_LATER),
        ("COMPLETED", 0),
        ("FAILED", MIGRATION_FAILED),
        ("OF_A_LATER_PULSAR", MORE_LATER),
    ],
)
def test_each_phase_has_its_exit_code(site: Site, phase: str, code: int) -> None:
    site.flag(phase)
    site.store.create(PARTICIPANTS_PATH, b"", make_parents=True)
    site.store.ephemeral_sequential(f"{PARTICIPANTS_PATH}/id-", b"")
    site.store.ephemeral_sequential(f"{PARTICIPANTS_PATH}/id-", b"bookwarden host 7 abc")
    result = site.run("status", "-o", "json")
    assert result.exit_code == code, result.stderr
    found = json.loads(result.stdout)
    assert (found["phase"], found["target"]) == (phase, "oxia://o:6648/n")
    assert found["participants"] == {"id-0000000000": "", "id-0000000001": "bookwarden host 7 abc"}
    assert found["broker"] is None
    assert found["phase_seconds"] >= 0


def test_participants_are_listed_with_whose_they_are(site: Site) -> None:
    site.flag("PREPARATION")
    site.store.create(PARTICIPANTS_PATH, b"", make_parents=True)
    site.store.ephemeral_sequential(f"{PARTICIPANTS_PATH}/id-", b"")
    site.store.ephemeral_sequential(f"{PARTICIPANTS_PATH}/id-", b"bookwarden host 7 abc")
    text = " ".join(site.run("status").stdout.split())
    assert "id-0000000000 a broker's or a bookie's id-0000000001 bookwarden host 7 abc" in text
    assert "writes blocked" in text


@pytest.mark.parametrize(("phase", "code"), [("COMPLETED", 0), ("FAILED", MIGRATION_FAILED)])
def test_a_migration_that_is_over_is_watched_no_longer(site: Site, phase: str, code: int) -> None:
    site.flag(phase)
    result = site.run("watch", "-o", "json")
    assert result.exit_code == code
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["ending"] == phase.lower()


@pytest.mark.parametrize("command", ["status", "watch"])
def test_a_flag_that_cannot_be_read_is_an_error(site: Site, command: str) -> None:
    site.store.create(MIGRATION_PATH, b"not JSON", make_parents=True)
    assert site.run(command).exit_code == FormatError.exit_code


def test_only_a_zookeeper_can_be_moved(site: Site) -> None:
    result = site.run("preflight", "--target", "oxia://o:6648/n")
    assert result.exit_code == ConfigError.exit_code
    assert "is no ZooKeeper" in result.stderr


def test_the_exit_codes_are_documented() -> None:
    told = DOCUMENT.read_text(encoding="utf-8").partition(
        "## Exit codes of the other commands of `metadata-migration`"
    )[2]
    table = told.partition("\n## ")[0]
    assert all(f"| {code} | " in table for code in (WOULD_FAIL, MIGRATION_FAILED, MORE_LATER, COUNTERS_BEHIND))


def test_counters_of_a_store_that_is_no_zookeeper_are_not_looked_after(site: Site) -> None:
    result = site.run("counters", "--execute")
    assert result.exit_code == ConfigError.exit_code
    assert "--source" in result.stderr
    assert site.run("counters", "--count-up").exit_code == 2
