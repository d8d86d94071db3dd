"""The deadlock inside blue's broker, provoked: last acknowledgements that meet the check for the end of their topics.

A broker makes that check 10 ms after the last dispatch; a consumer whose acknowledgement comes 6.5 to 10 ms after the
receipt meets it on one of some 60 topics (4.0.8 and 4.2.4, two cores).
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final

import pulsar
from benchmarks.java_peer import JavaPeer, java_peer

from bookwarden.cli.cluster_migration.exit_codes import DEADLOCKED
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.devcluster.servers.specs import load_runtime
from servers.blue_green.moving import drained
from servers.blue_green.site import BlueGreenSite

_PROGRAM: Final = Path(__file__).parents[2] / "java/TimedAcks.java"
_PARTITIONS: Final = 60
_ROUNDS: Final = 8


def deadlock_is_reported_and_cured(site: BlueGreenSite, version: str) -> None:
    """Provoke it; `watch` has to name it, `start` and `finish` to refuse, and what the runbook says to cure it."""
    connection = site.blue.connection()
    token = connection.current_token() if connection.auth == "token" else "-"
    access = [site.blue.service_url, token, connection.tls_trust_certs_file or "-"]
    with java_peer(_PROGRAM, access, release=load_runtime(version).release, heap_mb=256) as consumers:
        namespace, topics = _provoke(site, consumers)
        watched = site.run("watch", namespace, "--release", "--every", "1", "-o", "json", expected=DEADLOCKED)
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
    """Move namespaces until blue's broker is deadlocked; return the last one, and its partitions."""
    for _ in range(_ROUNDS):
        namespace = site.make_namespace(site.fresh("deadlock"))
        topic = f"persistent://{namespace}/acknowledged"
        topics = [f"{topic}-partition-{number}" for number in range(_PARTITIONS)]
        with site.admin(site.blue) as admin:
            admin.put(f"{topic_path(topic)}/partitions", _PARTITIONS)
            paths = [f"{topic_path(one)}/subscription/app" for one in topics]
            with ThreadPoolExecutor(8) as pool:
                # A broker that was just started loads no sixty topics at once.
                list(pool.map(lambda path: admin.put(path, {"ledgerId": -1, "entryId": -1}), paths))
        with closing(site.blue.connection().client()) as client:
            routing = pulsar.PartitionsRoutingMode.RoundRobinDistribution
            producer = client.create_producer(topic, message_routing_mode=routing, batching_enabled=False)
            for number in range(_PARTITIONS):
                producer.send(b"%d" % number)
        before = int(consumers.ask(f"connect app {' '.join(topics)}"))
        site.run("prepare", namespace, "--execute", "--yes")
        site.run("start", namespace, "--yes")
        consumers.ask("go 6500 10000")
        wanted, deadline = before + _PARTITIONS, time.monotonic() + 3
        while int(consumers.ask("count")) < wanted and time.monotonic() < deadline:
            time.sleep(0.1)
        # What was acknowledged last is in its locks by then.
        time.sleep(0.5)
        with site.context() as context:
            if context.health.deadlocked():
                return namespace, topics
        site.run("watch", namespace, "--release", "--timeout", "60")
    raise AssertionError(f"no deadlock in {_ROUNDS} rounds of {_PARTITIONS} partitions")
