"""What `metadata-migration rehearse` says and refuses, and the exit codes it ends with."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from bookwarden.cli.main import cli
from bookwarden.errors import ConfigError, RefusedError
from bookwarden.exit_codes import NOT_DONE
from bookwarden.metastore.following.flag import MIGRATION_PATH
from bookwarden.metastore.interface import CreateResult
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from servers.metadata_tree import LARGEST, LEDGERS, fill, paths_of, persistent


class Site:
    """A store in use and the name of a scratch namespace."""

    def __init__(self) -> None:
        name = uuid4().hex
        self.source_url, self.target_url = f"memory:{name}-a", f"memory:{name}-b"
        self.source = shared_memory_store(f"{name}-a")
        fill(self.source)

    @property
    def target(self) -> MemoryStore:
        return shared_memory_store(self.target_url.removeprefix("memory:"))

    def rehearse(self, *arguments: str, target: str | None = None, **settings: Any) -> Result:
        overrides = {"metadata_store.urls": [self.source_url], **settings}
        options = [part for name, value in overrides.items() for part in ("--set", f"{name}={json.dumps(value)}")]
        command = ["metadata-migration", "rehearse", "--target", target or self.target_url, *arguments]
        return CliRunner().invoke(cli, [*options, *command])


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    # A command closes its stores, and a memory store that was closed is another one.
    monkeypatch.setattr(MemoryStore, "close", lambda self: None)
    return Site()


def test_people_are_told_what_was_found_and_what_to_do(site: Site) -> None:
    result = site.rehearse()
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    copied = len(persistent(site.source))
    assert f"nodes copied {copied} in" in text
    assert "A migration would end well." in text
    assert f"The copy is still in {site.target_url}: remove it with --only-clean" in text
    assert f"copying {site.source_url} to {site.target_url}" in result.stderr
    again = site.rehearse()
    assert again.exit_code == RefusedError.exit_code
    assert "remove it with --clean" in again.stderr
    cleaned = site.rehearse("--only-clean")
    assert cleaned.exit_code == 0
    assert f"{copied} nodes removed from {site.target_url}" in cleaned.stdout
    assert list(paths_of(site.target)) == []


def test_programs_are_told_in_json(site: Site) -> None:
    result = site.rehearse("--clean", "-o", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (0, "")
    copied = len(persistent(site.source))
    assert found.pop("seconds") >= 0
    assert found.pop("comparing_seconds") >= 0
    assert found.pop("nodes_per_second") > 0
    assert set(found.pop("estimate")) == {
        "copying_seconds",
        "blocked_least_seconds",
        "blocked_most_seconds",
        "proposed_seconds",
    }
    assert found.pop("value_bytes") > 0
    assert found.pop("path_bytes") > 0
    assert found == {
        "source": site.source_url,
        "target": site.target_url,
        "good": True,
        "nodes": copied,
        "ephemeral": 1,
        "largest": {"path": LARGEST, "size": len(LARGEST.encode())},
        "not_copied": 0,
        "first_not_copied": [],
        "compared": copied,
        "equal": copied,
        "changed_meanwhile": 0,
        "damaged": 0,
        "first_damaged": [],
        "versions_kept": True,
        "removed": copied,
    }
    assert list(paths_of(site.target)) == []


def test_a_migration_that_would_fail_ends_with_its_own_code(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    create_one = MemoryStore._create_one
    reasons = {LEDGERS[3]: CreateResult.TOO_LARGE}
    monkeypatch.setattr(
        MemoryStore,
        "create_many",
        lambda self, nodes: [reasons.get(node.path) or create_one(self, node) for node in nodes],
    )
    result = site.rehearse("--clean")
    assert result.exit_code == NOT_DONE
    text = " ".join(result.stdout.split())
    assert f"too large {len(LEDGERS[3])} {LEDGERS[3]}" in text
    assert "A migration would fail at the first node that the target does not take" in text


def test_stores_in_use_are_refused(site: Site) -> None:
    for target in (site.source_url, "oxia://o:1"):
        result = site.rehearse(
            "--clean", target=target, **{"metadata_store.bookkeeper_url": "metadata-store:oxia://o:1"}
        )
        assert result.exit_code == RefusedError.exit_code, result.stderr
        assert "is a store in use" in result.stderr


def test_only_an_oxia_is_a_target(site: Site) -> None:
    result = site.rehearse(target="zk:127.0.0.1:2181/scratch")
    assert result.exit_code == ConfigError.exit_code
    assert "oxia:// alone" in result.stderr


@pytest.mark.parametrize(
    ("phase", "hint"),
    [("COMPLETED", "nothing to rehearse"), ("COPYING", "nothing to rehearse"), ("FAILED", "names (FAILED)")],
)
def test_a_migration_in_earnest_forbids_a_rehearsal(site: Site, phase: str, hint: str) -> None:
    target = site.target_url if phase == "FAILED" else "oxia://elsewhere:1/n"
    site.source.create(MIGRATION_PATH, json.dumps({"phase": phase, "targetUrl": target}).encode(), make_parents=True)
    result = site.rehearse("--clean")
    assert result.exit_code == RefusedError.exit_code
    assert hint in result.stderr
    assert list(paths_of(site.target)) == []


def test_the_target_has_to_be_named(site: Site) -> None:
    result = CliRunner().invoke(cli, ["metadata-migration", "rehearse"])
    assert result.exit_code == 2
    assert "--target" in result.stderr


def test_the_source_is_only_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the source was written to")

    for name in ("create", "create_many", "put", "delete_many", "ephemeral_sequential", "watch"):
        monkeypatch.setattr(site.source, name, refuse)
    assert site.rehearse("--clean", "--max-reads-per-second", "100000").exit_code == 0
