"""Switches back and forth by the real commands, while brokers, the commands themselves and ZooKeeper are killed.

What is killed, when, and how a command is carried on comes from a seed alone; what each finds does not.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookwarden.bookie_clusters.operation import FoundOrder, find_order
from bookwarden_dev.devcluster.processes.process import ServerProcess, ServerSpec
from servers.switching.site import SwitchingSite
from servers.switching.suspended_broker import suspend_over_a_registration
from servers.switching.watched_load import WatchedLoad
from servers.waiting import eventually

#: What can be killed.
KINDS: Final = ("command", "broker", "zookeeper")
#: A broker that is suspended over a registration and a switch, and left alone while the new cluster is silent: once
#: for a site, while its cluster `NEWCOMER` is not registered.
SUSPENDED: Final = "suspended"
NEWCOMER: Final = "c"
_PATIENCE_S: Final = 180.0
_ATTEMPTS: Final = 5
# How many of ten are killed when the order is kept, and what is left to do then takes about so long.
_AFTER_THE_ORDER: Final = 0.7
_AT_WORK_S: Final = 0.1
_NOTHING_TO_CARRY_ON: Final = 4
# An error that nobody foresaw, and a usage that is none.
_OUR_FAULTS: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill, and what it took to bring the switch to its end."""

    victim: str
    words: str  #: The command that was under way.
    moment: str  #: The phase of its switch, where it had kept its order.
    exit_codes: tuple[int, ...]  #: Of this command and of those that carried it on; -9 is a kill.
    seconds: float  #: Until the switch was at its end, and all topics were written to again.

    def __str__(self) -> str:
        codes = " ".join(map(str, self.exit_codes))
        return f"{self.victim}, `{self.words}` {self.moment}: exit {codes}; well after {self.seconds:.0f} s"


class Storm:
    """Kills on a site whose brokers all follow its two bookie clusters, under a load; ``folder`` gets what
    commands say.
    """

    def __init__(self, site: SwitchingSite, load: WatchedLoad, seed: int, folder: Path) -> None:
        self._site = site
        self._folder = folder
        self._load = load
        self._random = random.Random(seed)
        self._commands = 0
        # How long a command took that nothing happened to; a guess at first.
        self._whole_s = 3.0
        self._rolled_back = True

    def rage(self, kinds: Sequence[str], tell: Callable[[Kill], object]) -> None:
        """Kill what is of these kinds, in some order; AssertionError as soon as anything does not come back."""
        drawn = list(kinds)
        self._random.shuffle(drawn)
        for kind in drawn:
            tell(self._suspend() if kind == SUSPENDED else self._kill(kind))

    def _suspend(self) -> Kill:
        begin = time.monotonic()
        broker = self._random.choice(self._site.brokers)
        suspend_over_a_registration(self._site, self._load, broker, NEWCOMER)
        assert self._site.command("status")["phase"] == "DONE"
        assert self._site.places().astray == ()
        self._rolled_back = False
        victim = f"all but a broker of {broker.version} that was suspended"
        return Kill(victim, f"switch --target {NEWCOMER} --yes", "before its return", (0,), time.monotonic() - begin)

    def _kill(self, kind: str) -> Kill:
        while True:
            target, words = self._next()
            before = self._record()
            begin = time.monotonic()
            command = self._start(words)
            if self._random.random() < _AFTER_THE_ORDER:
                self._await_order(command, before)
                time.sleep(self._random.uniform(0.0, _AT_WORK_S))
            else:
                time.sleep(self._random.uniform(0.0, self._whole_s))
            moment = self._moment(before)
            if kind != "command" or command.is_running():
                break
            # It was faster, so that there is nothing to kill.
            self._whole_s = time.monotonic() - begin
            assert command.exit_code == 0, command.log_since_start()
        victim = self._kill_one(kind, command)
        codes = [self._end_of(command), *self._carry_on(command, words)]
        assert self._site.registry().active == target
        self._site.servers.start_brokers()
        self._site.wait_until_followed()
        assert self._site.command("status")["phase"] == "DONE"
        self._load.goes_on()
        assert self._site.places().astray == ()
        return Kill(victim, " ".join(words), moment, tuple(codes), time.monotonic() - begin)

    def _next(self) -> tuple[str, list[str]]:
        """Return a cluster to be active next, and the command for it."""
        registry = self._site.registry()
        # After a rollback the other way is no rollback.
        self._rolled_back = not self._rolled_back and self._random.random() < 0.5
        if self._rolled_back:
            assert registry.directive is not None
            return registry.directive.source, ["rollback", "--yes"]
        others = sorted(registry.clusters.keys() - {registry.active})
        target = others[0] if len(others) == 1 else self._random.choice(others)
        return target, ["switch", "--target", target, "--yes"]

    def _kill_one(self, kind: str, command: ServerProcess) -> str:
        if kind == "command":
            command.kill()
            return "the command"
        if kind == "zookeeper":
            self._site.servers.zookeeper.kill()
            self._site.servers.zookeeper.start()
            return "ZooKeeper"
        broker = self._random.choice(self._site.brokers)
        broker.process.kill()
        broker.process.start(wait=False)
        return f"a broker of {broker.version}"

    def _carry_on(self, command: ServerProcess, words: list[str]) -> list[int]:
        """Bring the switch to its end, by the same command or by `--resume`; return the exit codes."""
        codes: list[int] = []
        while command.exit_code != 0:
            assert len(codes) < _ATTEMPTS, f"{words} does not end well: {codes}: {command.log_since_start()}"
            if codes:
                self._site.servers.start_brokers()
            resumes = command.exit_code != _NOTHING_TO_CARRY_ON and self._random.random() < 0.5
            command = self._start(["switch", "--resume", "--yes"] if resumes else words)
            codes.append(self._end_of(command))
        return codes

    def _start(self, words: list[str]) -> ServerProcess:
        self._commands += 1
        line = [sys.executable, "-m", "bookwarden.cli", *self._site.options, "bookie-clusters", *words]
        name = f"{self._commands}-{words[0]}"
        spec = ServerSpec(name, lambda: line, self._folder / f"{name}.log", lambda _: True, self._folder)
        command = ServerProcess(spec)
        command.start(wait=False)
        return command

    def _end_of(self, command: ServerProcess) -> int:
        eventually(lambda: not command.is_running(), _PATIENCE_S)
        code = command.exit_code
        assert code is not None
        assert code not in _OUR_FAULTS, command.log_since_start()
        return code

    def _await_order(self, command: ServerProcess, before: FoundOrder | None) -> None:
        """Wait until the command has kept its order, or ended."""
        eventually(lambda: not command.is_running() or self._record() != before, _PATIENCE_S, pause=0.005)

    def _moment(self, before: FoundOrder | None) -> str:
        found = self._record()
        return "before its order" if found is None or found == before else f"in {found.order.phase.value}"

    def _record(self) -> FoundOrder | None:
        return find_order(self._site.store)
