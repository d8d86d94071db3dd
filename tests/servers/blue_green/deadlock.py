"""The deadlock inside blue's broker, provoked: last acknowledgements that meet the check for the end of their topics.

A broker makes that check 10 ms after the last dispatch; a consumer whose acknowledgement comes 6.5 to 10 ms after the
receipt meets it on one of some 60 topics (4.0.8 and 4.2.4, two cores; one of 360 on 4.2.4 with TLS, which no test has).
"""

from __future__ import annotations

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.java_peer import JavaPeer, java_peer

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.exit_codes import DEADLOCKED
from bookwarden_dev.devcluster.servers.specs import load_runtime
from servers.blue_green.late import QUESTION, ask_with
from servers.blue_green.moving import drained
from servers.blue_green.site import BlueGreenSite

_PROGRAM: Final = Path(__file__).parents[2] / "java/TimedAcks.java"
_TOPICS: Final = 60
_ROUNDS: Final = 9
#: Microseconds from the receipt to the earliest acknowledgement, by turns: a busy machine takes longer.
_EARLIEST: Final = (6500, 5000, 8000)
_SPREAD: Final = 3500


def deadlock_is_reported_and_cured(site: BlueGreenSite, version: str) -> None:
    """Provoke it while `start` asks: that and `finish` refuse, `watch` and `release` name it; then cure it."""
    with java_peer(_PROGRAM, [site.blue.service_url], release=load_runtime(version).release, heap_mb=256) as consumers:
        asking = site.make_namespace(site.fresh("asking"))
        site.run("prepare", asking, "--execute", "--yes")
        provoked: list[tuple[str, list[str]]] = []
        act = {QUESTION: lambda: provoked.append(_provoke(site, consumers))}
        assert ask_with(site, "start", asking, on=act) == DEADLOCKED
        with site.context() as context:
            assert not context.blue.nodes.is_flagged(asking)
        namespace, topics = provoked[0]
        command = site.command("release", namespace, "--execute", "-o", "json")
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=site.home) as release:
            watched = site.run("watch", namespace, "--release", "--every", "1", "-o", "json", expected=DEADLOCKED)
            released = json.loads(release.communicate()[0])
        # Where it comes to no topic of the threads that wait, each unload is answered.
        assert (release.returncode == DEADLOCKED) == bool(released["timed_out"]), released
        step = json.loads(watched.stdout.splitlines()[-1])
        assert step["ending"] == "deadlocked broker"
        assert len(step["deadlocked"]) == 1
        (warning,) = step["warnings"]
        assert step["deadlocked"][0] in warning
        assert "kill -9" in warning
        assert "kill -9" in site.run("start", namespace, "--yes", expected=DEADLOCKED).stderr
        site.run("finish", namespace, expected=DEADLOCKED)
        aborted = site.answer("abort", namespace, expected=1)
        assert aborted["taken_off"] == [namespace]
        assert (aborted["unloaded"], aborted["made_again"]) == ([], [])
        assert "kill -9" in aborted["troubles"][0]
        site.blue.broker.kill()
        site.blue.broker.start()
        again = site.answer("abort", namespace)
        assert (again["troubles"], again["taken_off"]) == ([], [])
        consumers.ask(f"connect app {' '.join(topics)}")
        consumers.ask("go 0 0")
        drained(site, namespace)
        site.run("start", namespace, "--yes", "--accept", "idle-subscriptions")
        site.run("watch", namespace, "--release", "--every", "1", "--timeout", "90")
    assert site.answer("verify", namespace)["done"]


def _provoke(site: BlueGreenSite, consumers: JavaPeer) -> tuple[str, list[str]]:
    """Move namespaces until blue's broker is deadlocked; return the last one, and its topics."""
    for number in range(_ROUNDS):
        namespace = site.make_namespace(site.fresh("deadlock"))
        topics = [f"persistent://{namespace}/t{index}" for index in range(_TOPICS)]
        with site.admin(site.blue) as admin, ThreadPoolExecutor(8) as pool:
            list(pool.map(partial(_make, admin), topics))
        with closing(site.blue.connection().client()) as client:
            for topic in topics:
                client.create_producer(topic).send(b"last")
        before = int(consumers.ask(f"connect app {' '.join(topics)}"))
        site.run("prepare", namespace, "--execute", "--yes")
        site.run("start", namespace, "--yes")
        earliest = _EARLIEST[number % len(_EARLIEST)]
        consumers.ask(f"go {earliest} {earliest + _SPREAD}")
        wanted, deadline = before + _TOPICS, time.monotonic() + 3
        while int(consumers.ask("count")) < wanted and time.monotonic() < deadline:
            time.sleep(0.1)
        # What was acknowledged last is in its locks by then.
        time.sleep(0.5)
        with site.context() as context:
            if context.blue.deadlocked_brokers():
                return namespace, topics
        site.run("abort", namespace)
    raise AssertionError(f"no deadlock in {_ROUNDS} rounds of {_TOPICS} topics")


def _make(admin: PulsarAdmin, topic: str) -> None:
    admin.put(topic_path(topic))
    admin.put(f"{topic_path(topic)}/subscription/app", {"ledgerId": -1, "entryId": -1})
