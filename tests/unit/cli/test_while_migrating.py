"""What the command line says and takes of a migration of the metadata."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

import bookwarden.cli.inflight as command
import bookwarden.wiring.deletion_topics as wiring
from bookwarden.cli.main import cli
from bookwarden.config import Settings, load_settings
from bookwarden.deletion.inflight import InFlight
from bookwarden.errors import StoreUnavailableError
from bookwarden.metadata_migration.watching import StorePhase, read_phases
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wiring.metadata_migration import movable_stores_of


class Told(Exception):
    """Carries the settings that a command got."""


@pytest.mark.parametrize(
    ("where", "arguments"),
    [
        ("bookwarden.cli.mark.Cluster", ["mark", "trim", "t", "--store"]),
        ("bookwarden.cli.mark.Cluster", ["mark", "topic", "t"]),
        ("bookwarden.cli.mark.Cluster", ["mark", "subscription", "t", "s"]),
        ("bookwarden.cli.mark.Cluster", ["mark", "schema", "t"]),
        ("bookwarden.cli.undo.Cluster", ["undo", "--ledger", "7"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize(("option", "seconds"), [([], 60.0), (["--while-migrating", "fail"], 0.0)])
def test_writes_wait_unless_they_are_told_to_fail(
    monkeypatch: pytest.MonkeyPatch, where: str, arguments: list[str], option: list[str], seconds: float
) -> None:
    seen: list[float] = []

    def opened(settings: Settings, **_: Any) -> None:
        seen.append(settings.metadata_store.migration_write_wait_seconds)
        raise Told

    monkeypatch.setattr(where, opened)
    result = CliRunner().invoke(cli, [*arguments, *option])
    assert isinstance(result.exception, Told)
    assert seen == [seconds]


def test_what_is_in_flight_is_told_with_the_migration_that_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    phases = (
        StorePhase("zk:a:1", "COPYING", "oxia://o:1/n"),
        StorePhase("zk:b:1", "NOT_STARTED"),
        StorePhase("zk:c:1", "COMPLETED", "oxia://o:1/m"),
        StorePhase("zk:d:1", "unknown", problem="no connection"),
    )
    monkeypatch.setattr(command, "require_topics", lambda *_: None)
    monkeypatch.setattr(wiring, "count_in_flight", lambda *_: InFlight(()))
    monkeypatch.setattr(command, "read_phases", lambda _: phases)
    inflight = ["--set", "metadata_store.urls=['memory:in-flight']", "inflight"]
    text = " ".join(CliRunner().invoke(cli, inflight).stdout.split())
    assert "The metadata of zk:a:1 is being moved to oxia://o:1/n (COPYING): the sweep waits for the end." in text
    assert "The metadata of zk:c:1 was moved to oxia://o:1/m, where the sweep goes on." in text
    assert "Whether the metadata of zk:d:1 is being moved is not known: no connection" in text
    assert "zk:b:1" not in text
    data = json.loads(CliRunner().invoke(cli, ["-o", "json", *inflight]).stdout)
    assert data["migrations"][0] == {"store": "zk:a:1", "phase": "COPYING", "target": "oxia://o:1/n", "problem": ""}
    assert [at["phase"] for at in data["migrations"]] == ["COPYING", "NOT_STARTED", "COMPLETED", "unknown"]


def test_each_zookeeper_of_the_settings_is_asked_for_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    stores = {"zk:a:1": MemoryStore(), "zk:b:1": MemoryStore(), "zk:c:1": MemoryStore()}
    stores["zk:b:1"].create(
        "/pulsar/migration-coordinator/migration", b'{"phase":"FAILED","targetUrl":"oxia://o"}', make_parents=True
    )

    def away() -> None:
        raise StoreUnavailableError("no connection")

    stores["zk:c:1"].sync = away  # type: ignore[method-assign]
    monkeypatch.setattr("bookwarden.wiring.metadata_migration.open_single_store", lambda _, url: stores[url])
    urls = {"metadata_store.urls": "['zk:a:1', 'oxia://o:1/n', 'zk:b:1']", "metadata_store.bookkeeper_url": "zk:c:1"}
    assert read_phases(movable_stores_of(load_settings(overrides=urls).metadata_store)) == (
        StorePhase("zk:a:1", "NOT_STARTED"),
        StorePhase("zk:b:1", "FAILED", "oxia://o"),
        StorePhase("zk:c:1", "unknown", problem="no connection"),
    )
