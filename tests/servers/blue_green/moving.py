"""Namespaces of blue with traffic, moved by the commands as an operator would, and accounts of every message."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bookwarden.exit_codes import DEADLOCKED, LATE
from bookwarden_dev.demo.traffic import Account, Flow, Traffic
from servers.blue_green.application import Application
from servers.blue_green.site import BlueGreenSite
from servers.waiting import eventually

SECONDS = 120.0


@contextmanager
def traffic(site: BlueGreenSite, flows: Sequence[Flow], before: int = 60) -> Iterator[Traffic]:
    """Run the flows on blue; the block begins when each has some messages."""
    with Traffic(site.blue.connection(), flows) as running:
        running.start()
        running.wait_for(before, SECONDS)
        yield running


def require_exact(accounts: Sequence[Account]) -> None:
    """Fail unless each message that was confirmed was received, once."""
    for account in accounts:
        tally = account.tally
        told = (tally.topic, tally.sent, tally.lost, tally.doubled, tally.send_errors, account.errors)
        assert told == (tally.topic, tally.received, 0, 0, 0, ()), told
        assert tally.sent > 0


class Watching:
    """`watch -o json` in the background; its lines are read as they come."""

    def __init__(self, site: BlueGreenSite, namespace: str) -> None:
        self._process = subprocess.Popen(
            site.command("watch", namespace, "--release", "--every", "0.5", "-o", "json"),
            stdout=subprocess.PIPE,
            text=True,
            cwd=site.home,
        )
        self.steps: list[dict[str, Any]] = []

    def until(self, wanted: str) -> dict[str, Any]:
        """Read lines until one has a topic in this state, or ends so; return it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.steps.append(json.loads(line))
            if wanted in self.steps[-1]["states"] or wanted == self.steps[-1]["ending"]:
                return self.steps[-1]
        raise AssertionError(f"watch ended with {self._process.wait()} and never said {wanted}: {self.steps[-3:]}")

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def drained(site: BlueGreenSite, namespace: str) -> None:
    """Wait until blue has nothing left to read of a namespace, with or without a flag."""

    def is_read() -> bool:
        with site.context() as context:
            topics = context.observer.snapshot([namespace]).topics
        return bool(topics) and all(seen.is_read for seen in topics)

    eventually(is_read, SECONDS, 0.5)


def has_all(application: Application, numbers: set[int]) -> bool:
    """Return whether the application received all of these."""
    return not numbers - set(application.received)


def drain(site: BlueGreenSite, namespaces: Sequence[str], applications: Sequence[Application]) -> None:
    """Watch to the end, as an operator: clients of this kind may hang while they move, and are restarted then.

    Blue's broker can deadlock where a topic ends; that is cured once.
    """
    cured = False
    for _ in range(3):
        watched = site.run("watch", *namespaces, "--release", "--timeout", "90", "--every", "1", expected=None)
        if watched.exit_code == 0:
            return
        if not cured and watched.exit_code == DEADLOCKED:
            cured = True
            cure(site, namespaces, applications)
            continue
        assert any(word in watched.stdout for word in ("CONSUMERS LEFT", "STUCK", "DRAINING")), watched.stdout
        restart(applications)
    raise AssertionError(f"not drained: {watched.stdout[-2000:]}")


def drain_or_abort(
    site: BlueGreenSite,
    namespaces: Sequence[str],
    say: Callable[[str], None],
    accepted: Sequence[str] = ("--accept", "idle-subscriptions"),
) -> None:
    """Watch to the end, as an operator: where consumers cannot reach what is left, abort, let them, start again."""
    for _ in range(3):
        watched = site.run("watch", *namespaces, "--release", "--timeout", "120", "--every", "1", expected=None)
        if watched.exit_code in (0, LATE):
            return
        if watched.exit_code == DEADLOCKED:
            cure(site, namespaces, [])
            continue
        say(f"watch: {' '.join(watched.stdout.splitlines()[-3:])}")
        assert any(word in watched.stdout for word in ("STUCK and PRODUCERS LEFT", "STRANDED")), watched.stdout
        aborted = site.answer("abort", *namespaces)
        say(f"abort: on no side were {aborted['on_no_side']}")
        for namespace in namespaces:
            drained(site, namespace)
        begun = site.run("start", *namespaces, "--yes", *accepted, expected=None)
        assert begun.exit_code in (0, LATE), begun.stdout
        say("drained, and started again")
    raise AssertionError(f"not drained: {watched.stdout[-2000:]}")


def cure(site: BlueGreenSite, namespaces: Sequence[str], applications: Sequence[Application]) -> None:
    """Kill and start blue's broker while no flag is set, let applications read what is left, and start again."""
    sys.stdout.write(f"{', '.join(namespaces)}: blue's broker is deadlocked, which is Pulsar's; it is killed\n")
    # It takes the flags off, and says so where a broker in this state unloads nothing any more.
    site.run("abort", *namespaces, expected=None)
    site.blue.broker.kill()
    site.blue.broker.start()
    site.run("abort", *namespaces)
    restart(applications)
    for namespace in namespaces:
        drained(site, namespace)
    site.run("start", *namespaces, "--yes", "--accept", "idle-subscriptions")


def restart(applications: Sequence[Application]) -> None:
    """Restart each."""
    for application in applications:
        application.restart()
