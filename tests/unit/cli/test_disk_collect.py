"""`bookwarden disk collect` plans, and has one bookie after the other collect."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bookwarden.cli.main import cli
from bookwarden.metastore.memory import MemoryStore, shared_memory_store
from servers.http_bookie import HttpBookie, register

OFF = "its HTTP server is off: set httpServerEnabled=true and httpServerPort in its bookkeeper.conf, and restart it"


class Site:
    """Bookies b1 and b2, registered in a store that the command opens."""

    def __init__(self, name: str, opened: ExitStack) -> None:
        self.store = shared_memory_store(name)
        self.url = f"memory:{name}"
        self.bookies = [HttpBookie(), HttpBookie()]
        for number, bookie in enumerate(self.bookies, 1):
            opened.callback(bookie.close)
            bookie.register(self.store, f"b{number}", read_only=number == 2)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, ["--set", f"metadata_store.urls=['{self.url}']", "disk", "collect", *arguments])

    def data(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        result = self.run(*arguments, "-o", "json")
        assert result.exit_code == code, result.output
        return {one["name"]: one for one in json.loads(result.stdout)["bookies"]}

    def asked(self) -> list[list[dict[str, bool]]]:
        return [bookie.asked for bookie in self.bookies]


@pytest.fixture
def site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(MemoryStore, "close", lambda _: None)
    with ExitStack() as opened:
        yield Site(request.node.name, opened)


def test_without_execute_it_only_says_what_it_would_ask(site: Site) -> None:
    register(site.store, "b3")
    result = site.run("--all")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert f"b1 writable {site.bookies[0].url} minor 40 B 100 B" in lines
    assert f"b2 read-only {site.bookies[1].url} minor 40 B 100 B" in lines
    assert "b3 writable off - - -" in lines
    assert f"b3: {OFF}." in lines
    assert "Nothing was asked; --execute does it." in lines
    assert site.asked() == [[], []]


def test_it_asks_for_what_is_not_suspended_and_says_what_came_of_it(site: Site) -> None:
    first, second = site.bookies
    first.answers["/api/v1/bookie/gc/suspend_compaction"]["isMajorGcSuspended"] = "false"

    def free() -> None:
        first.answers["/api/v1/bookie/info"] = {"freeSpace": 90, "totalSpace": 100}
        first.answers["/api/v1/bookie/gc_details"][0]["majorCompactionCounter"] += 1

    first.put = free
    result = site.run("--all", "--major", "--execute")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert result.exit_code == 0, result.output
    answer = "Triggered GC on BookieServer: b1"
    assert f"b1 writable {first.url} major major 40 B 90 B 50 B {answer}" in lines
    assert f"b2 read-only {second.url} minor none 40 B 40 B 0 B {answer}" in lines
    (told,) = [line for line in lines if line.startswith("b2: ")]
    assert told.endswith("are freed now, and --major is not asked for.")
    assert site.asked() == [[{"forceMajor": True, "forceMinor": True}], [{"forceMajor": False, "forceMinor": True}]]


def test_only_the_bookies_that_are_named_are_asked(site: Site) -> None:
    assert list(site.data("b2", "b2", "--execute")) == ["b2"]
    assert site.asked() == [[], [{"forceMajor": False, "forceMinor": True}]]


def test_one_that_is_off_or_fails_is_named_and_the_others_are_asked(site: Site) -> None:
    register(site.store, "b0")
    site.bookies[0].status = 500
    found = site.data("--all", "--execute", code=27)
    assert found["b0"]["error"] == OFF
    assert "answered 500 when asked to collect" in found["b1"]["error"]
    assert (found["b2"]["error"], found["b2"]["freed"]) == ("", 0)


@pytest.mark.parametrize(("arguments", "code"), [((), 2), (("--all", "b1"), 2), (("b1", "b9"), 4)])
def test_bookies_are_named_and_registered_or_nothing_is_asked(
    site: Site, arguments: tuple[str, ...], code: int
) -> None:
    result = site.run(*arguments, "--execute")
    assert result.exit_code == code
    assert code == 2 or "bookie b9 is not registered: start it, or name one that is (b1, b2)" in result.output
    assert site.asked() == [[], []]


def test_what_was_asked_is_told_when_it_is_interrupted(site: Site) -> None:
    site.bookies[0].put = lambda: signal.raise_signal(signal.SIGINT)
    result = site.run("--all", "--execute")
    assert result.exit_code == 130
    assert "b1 writable" in " ".join(result.stdout.split())
    assert "interrupted; a bookie that was asked goes on by itself" in result.output
    assert [len(asked) for asked in site.asked()] == [1, 0]
