"""How many sessions to metadata stores and clients of Pulsar a command of `bookie-clusters` opens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest
from click.testing import CliRunner, Result

import bookwarden.wiring.stores
from bookwarden.bookie_clusters import unregistering
from bookwarden.bookie_clusters.moving.build import Build, BuildReport
from bookwarden.bookie_clusters.registry import Directive
from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from bookwarden.pipelines.copying import driver
from unit.switching.two_bookie_clusters import TwoBookieClusters


class Opened:
    """A Pulsar cluster that was switched from a to b, and what a command opens."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.name = uuid4().hex
        self.stores, self.admins, self.clients = Counter[str](), 0, 0
        patched.setattr(MemoryStore, "close", lambda _: None)
        opening: Callable[..., Any] = bookwarden.wiring.stores.open_store
        making: Callable[..., None] = PulsarAdmin.__init__

        def open_store(url: str, **options: Any) -> Any:
            self.stores[url] += 1
            return opening(url, **options)

        def make(admin: PulsarAdmin, *arguments: Any) -> None:
            self.admins += 1
            making(admin, *arguments)

        def connect(*_: Any, **__: Any) -> None:
            self.clients += 1
            raise AssertionError("no message is sent here")

        patched.setattr(bookwarden.wiring.stores, "open_store", open_store)
        patched.setattr(PulsarAdmin, "__init__", make)
        patched.setattr(pulsar, "Client", connect)
        self.clusters = TwoBookieClusters(shared_memory_store(self.name))
        self.clusters.registry = replace(self.clusters.registry, directive=Directive("a", "b", "test", 3, 0))
        self.clusters.register()
        for path in ("/managed-ledgers", "/schemas"):
            self.clusters.store.create(path, b"")

    def run(self, *arguments: str) -> Result:
        sets = ["--set", f"metadata_store.urls=['memory:{self.name}']"]
        return CliRunner().invoke(cli, [*sets, "bookie-clusters", *arguments])


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


def once(opened: Opened) -> bool:
    return opened.stores == {f"memory:{opened.name}": 1} and (opened.admins, opened.clients) == (1, 0)


def test_a_switch_has_one_session_and_one_admin_client(opened: Opened) -> None:
    assert opened.run("switch", "--target", "b", "--yes").exit_code == 0
    assert once(opened)


@pytest.mark.parametrize("command", ["cleanup", "list-cleanup-targets", "promote --dry-run", "move --status"])
def test_so_has_all_that_moves_ledgers(opened: Opened, command: str) -> None:
    result = opened.run(*command.split())
    assert result.exit_code in (0, 4), result.output
    assert once(opened)


def test_the_driver_of_a_drain_has_one_session_and_one_admin_client_with_its_build(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built: list[Build] = []

    def copy(run: Any, *_: Any) -> BuildReport:
        built.append(run._build)
        opened.clusters.ledger("b", 5, **{"bookwarden.copy": b"9:1000"})
        return BuildReport(replace(run._build, ended_ms=1), (), 0.0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver._Run, "copy", copy)
    opened.clusters.ledger("a", 5)
    result = opened.run("drain", "--from", "a", "--yes")
    assert result.exit_code == 25, result.output
    assert [(build.source, build.target) for build in built] == [("a", "b")]
    assert once(opened)


def test_so_has_one_that_finds_nothing_left_and_unregisters_the_cluster(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long it waits, a test of unregistering shows.
    monkeypatch.setattr(unregistering, "_CREATE_SECONDS", 0.1)
    result = opened.run("drain", "--from", "a", "--yes")
    # Brokers were switched a moment ago.
    assert result.exit_code in (0, 5), result.output
    assert once(opened)


def test_a_list_has_one_session_and_no_client(opened: Opened) -> None:
    assert opened.run("list").exit_code == 0
    assert (opened.stores, opened.admins) == ({f"memory:{opened.name}": 1}, 0)
