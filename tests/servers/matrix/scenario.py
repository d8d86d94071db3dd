"""The scenario of a cell, on servers of its own and in the cell's environment: its parts, and what became of them."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import yaml
from pulsar import PulsarException

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.config import Settings, load_settings
from bookwarden.errors import BookwardenError, ServerError
from bookwarden.exit_codes import ORPHANS_FOUND
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.commands.demos.deletion import play_deletion
from bookwarden_dev.commands.demos.switch import play_switch
from bookwarden_dev.commands.dev import settings_of
from bookwarden_dev.demo.evidence import Evidence
from bookwarden_dev.demo.stage import MARKING_STORAGE, packaged_jar
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from bookwarden_dev.devcluster.temporary import temporary_files_in
from bookwarden_dev.leaks import Leak, make_leaks
from servers.matrix.cells import CELLS, LIBRARIES, Cell, parts_of
from servers.matrix.table import PASSED, CellResult, write_result
from servers.topic_contents import read_back, retain, send
from servers.waiting import eventually

Say = Callable[[str], None]
_NAMESPACE: Final = "public/matrix"
_TOPIC: Final = f"persistent://{_NAMESPACE}/orders"
_MESSAGES: Final = 50
_ENTRIES_PER_LEDGER: Final = 10
_COMMAND_S: Final = 300
_NO_MARKS: Final = "broker marks need Pulsar 4.0.4 or later"
_FOLLOWED_S: Final = 60


class Scenario:
    """Plays the parts of a cell; ``oxia_program`` is that of its Oxia, if it is not the one that is built."""

    def __init__(self, cell: Cell, home: Path, say: Say, oxia_program: str | None = None) -> None:
        self._cell = cell
        self._home = home
        self._say = say
        self._options = ClusterOptions(pulsar=cell.pulsar, metadata=cell.metadata, oxia_program=oxia_program)

    def play(self, part: str) -> None:
        """Play a part, or see it refused; raise BookwardenError or AssertionError if it does not end as it should."""
        acts = {
            "leaks": self._leaks,
            "deletion": self._deletion,
            "broker marks": self._marks_refused,
            "switch": self._switch,
        }
        home = self._home / part.replace(" ", "-")
        home.mkdir(parents=True)
        acts[part](home)

    def _leaks(self, home: Path) -> None:
        options = replace(self._options, max_entries_per_ledger=_ENTRIES_PER_LEDGER)
        with DevCluster(home, options, progress=self._say) as servers:
            settings = _write_settings(servers)
            commands = _Commands(home, self._say)
            commands.run("init")
            with closing(PulsarAdmin(servers.connection(), timeout_s=60)) as admin:
                admin.put(f"/namespaces/{_NAMESPACE}")
                retain(admin, _NAMESPACE)
            with closing(servers.connection().client()) as client:
                send(client, _TOPIC, _MESSAGES)
            leaks = self._make_leaks(servers, settings, lambda: commands.run("follow", "--once"))
            leaked = {ledger for leak in leaks for ledger in leak.ledgers}
            followed = {ledger for leak in leaks if leak.named_before for ledger in leak.ledgers}
            self._say(f"leaked: {', '.join(f'{leak.kind} {leak.ledgers}' for leak in leaks)}")
            plan = commands.run("orphans", "scan", code=ORPHANS_FOUND)["plan"]["plan_id"]
            shown = commands.run("orphans", "plan", "show", plan)
            assert {row["ledger_id"] for row in shown["candidates"]} == leaked, shown

            def seen() -> bool:
                commands.run("follow", "--once")
                return Evidence(settings).dropped() == followed

            eventually(seen, _FOLLOWED_S)
            commands.run("orphans", "apply", "--plan", plan, "--execute")
            self._sweep_and_undo(settings, commands, leaks)
            with closing(servers.connection().client()) as client:
                read = read_back(client, _TOPIC)
            assert read == [b"%d" % number for number in range(_MESSAGES)], read

    @staticmethod
    def _sweep_and_undo(settings: Settings, commands: _Commands, leaks: Sequence[Leak]) -> None:
        leaked = {ledger for leak in leaks for ledger in leak.ledgers}

        def swept() -> bool:
            commands.run("sweep", "--once")
            outcomes = Evidence(settings).outcomes()
            return all(Outcome.DELETED.value in outcomes[ledger] for ledger in leaked)

        eventually(swept, _FOLLOWED_S)
        (back,) = (leak.ledgers[0] for leak in leaks if leak.kind == "trim")
        undone = commands.run("undo", "--ledger", str(back), "--yes")
        assert [(row["ledger_id"], row["outcome"]) for row in undone["ledgers"]] == [(back, "restored")], undone
        with Cluster(settings) as cluster:
            assert Evidence.count_entries(cluster, back) > 0

    def _make_leaks(self, servers: DevCluster, settings: Settings, prepared: Callable[[], object]) -> list[Leak]:
        with Cluster(settings) as cluster:
            if servers.options.metadata == "zookeeper":
                return make_leaks(servers, cluster, self._say, prepared)
            # Oxia cannot be made to refuse a delete: the ledger is taken from the list as by a trim that ends there.
            topic = f"{_TOPIC}-trimmed"
            with closing(PulsarAdmin(servers.connection(), timeout_s=60)) as admin:
                with closing(servers.connection().client()) as client:
                    send(client, topic, _MESSAGES)
                prepared()
                admin.put(f"{topic_path(topic)}/unload")
            nodes = ManagedLedgers(cluster.store)
            node = nodes.read(TopicName.parse(topic).managed_ledger)
            assert node is not None
            lost = node.info.ledgers[0].ledger_id
            nodes.remove_ledgers(node, [lost])
            return [Leak("trim", topic, (lost,), "taken from the topic's list", named_before=True)]

    def _deletion(self, home: Path) -> None:
        finale = play_deletion(home, self._say, self._options)
        assert finale.as_it_should, [ending for ending in finale.endings if not ending.as_it_should] or finale

    def _switch(self, home: Path) -> None:
        finale = play_switch(home, self._say, self._cell.pulsar)
        assert finale.as_it_should, finale

    def _marks_refused(self, home: Path) -> None:
        settings = {"managedLedgerStorageClassName": MARKING_STORAGE}
        options = replace(self._options, broker_jar=str(packaged_jar()), broker_settings=settings)
        cluster = DevCluster(home, options, progress=self._say)
        try:
            with suppress(ServerError):
                cluster.up()
            lines = [line for line in cluster.broker.log_since_start().splitlines() if _NO_MARKS in line]
            assert lines, f"no line of the broker's log has {_NO_MARKS!r}"
            assert not cluster.broker.is_running(), "the broker runs"
        finally:
            cluster.kill()
        self._say(f"it does not start: {lines[0]}")


class _Commands:
    """Runs commands as a user of the cluster does."""

    def __init__(self, home: Path, say: Say) -> None:
        self._home = home
        self._say = say

    def run(self, *arguments: str, code: int = 0) -> Any:
        """Run a command, which must end with this code; return what it prints as JSON."""
        self._say(f"bookwarden {' '.join(arguments)}")
        file = self._home / "bookwarden.yaml"
        command = [sys.executable, "-m", "bookwarden.cli", "--config", str(file), "-o", "json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_S, cwd=self._home)
        assert done.returncode == code, (arguments, done.returncode, done.stdout[-2000:], done.stderr[-4000:])
        return json.loads(done.stdout) if done.stdout else None


def _write_settings(servers: DevCluster) -> Settings:
    settings = settings_of(servers)
    settings["deletion"] |= {"unlisted_grace_seconds": 0, "two_phase_deletion_reconsume_later_in_seconds": 2}
    settings["follow"] |= {"grace_seconds": 0.1}
    file = servers.home / "bookwarden.yaml"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return load_settings(file)


def played(scenario: Scenario, cell: Cell, say: Say) -> dict[str, str]:
    """Play or see refused each part of a cell; return by part what became of it."""
    ends = {}
    for part, play in parts_of(cell).items():
        if play not in PASSED:
            continue
        say(f"== {part}: to be {play}")
        try:
            scenario.play(part)
            ends[part] = PASSED[play]
        except (BookwardenError, AssertionError, PulsarException, subprocess.TimeoutExpired) as error:
            # What a part did not do is a finding, and no reason not to look at the others.
            say(f"{part}: {error!r}")
            ends[part] = f"**fails**: {str(error)[:200]}"
    return ends


def main() -> int:
    """Play a cell's scenario and keep its result; return 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m servers.matrix.scenario", description=__doc__)
    parser.add_argument("cell", choices=[cell.name for cell in CELLS])
    parser.add_argument("--home", type=Path, required=True, help="an empty folder for servers, data and logs")
    parser.add_argument("--results", type=Path, required=True, help="where the result is kept")
    parser.add_argument("--commit", required=True, help="the one that is run")
    parser.add_argument("--oxia", metavar="PROGRAM", help="of the cell's version, if that is not built here")
    asked = parser.parse_args()
    for name in ("pulsar", "bookwarden", "kazoo"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # What was exported for other clusters.
    for name in [name for name in os.environ if name.startswith("BOOKWARDEN_") and name != "BOOKWARDEN_CACHE"]:
        del os.environ[name]
    begin = time.monotonic()

    def say(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - begin:6.1f} s  {line}\n")
        sys.stdout.flush()

    (cell,) = (cell for cell in CELLS if cell.name == asked.cell)
    with temporary_files_in(asked.home / "tmp"):
        parts = played(Scenario(cell, asked.home, say, asked.oxia), cell, say)
    versions = {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}
    minutes = (time.monotonic() - begin) / 60
    result = CellResult(cell.name, asked.commit, time.strftime("%Y-%m-%d"), minutes, versions, parts)
    write_result(asked.results, result)
    say(f"{cell.name}: {parts}")
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())
