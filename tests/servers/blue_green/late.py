"""Subscriptions that come late: while `start` asks, before the mark, and while an earlier namespace is proven."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.exit_codes import LATE
from servers.blue_green.java_traffic import JavaFlow, JavaTraffic, java_traffic
from servers.blue_green.moving import SECONDS, drain_or_abort
from servers.blue_green.rows import table
from servers.blue_green.site import BlueGreenSite
from servers.waiting import eventually

QUESTION: Final = "to green? [y/N]"
FLAGGED: Final = "flagged; its topics are marked"
# With coordinators, brokers take a snapshot of each topic that a Java producer comes to.
_ACCEPTED: Final = ("--accept", "transactions", "--accept", "idle-subscriptions")


def late_subscriptions_lose_nothing(site: BlueGreenSite, version: str, folder: Path) -> None:
    """Move two namespaces while Latest subscriptions and partitions come; count each message owed.

    Some come between `start` and `watch`, when nobody looks, and blue deletes them in that time.

    What a client was faster to make on green than we were is reported, and gets all once that is asked for.
    """
    first, second = (site.make_namespace(site.fresh(name)) for name in ("late", "later"))
    steady = [JavaFlow(f"steady-{number}", "steady", per_second=40) for number in range(3)]
    grown = JavaFlow("grown", "partitioned", "Shared", partitions=2)
    other = JavaFlow("other", "steady, second namespace", per_second=40)
    asked, flagged = late_flows(steady, "asked", 200), late_flows(steady, "flagged", 200)
    behind = late_flows([other], "flagged", 200)
    between = late_flows(steady, "between", 0)
    namespaces = {flow.name: first for flow in (*steady, grown, *asked, *flagged)}
    namespaces |= {flow.name: first for flow in between} | {flow.name: second for flow in (other, *behind)}
    flows, owed = [*steady, grown, other], [*steady, grown, other, *asked, *flagged, *behind, *between]
    with java_traffic(folder / "traffic", site.blue.service_url, version) as clients:
        make_topics(site, first, [*steady, grown])
        make_topics(site, second, [other])
        for flow in flows:
            clients.receive(flow, namespaces[flow.name])
        eventually(lambda: all(clients.is_received(flow, 0) for flow in flows), SECONDS, 0.2)
        for flow in flows:
            clients.send(flow, namespaces[flow.name])
        clients.wait_for(20, flows)
        site.run("prepare", first, second, "--execute", "--yes")

        def while_it_asks() -> None:
            subscribe(clients, first, asked)
            eventually(lambda: all(clients.is_received(flow, 3) for flow in asked), SECONDS, 0.2)
            with site.admin(site.blue) as admin:
                admin.post(f"{topic_path(grown.topic(first))}/partitions", 4)

        def once_flagged() -> None:
            subscribe(clients, first, flagged)
            subscribe(clients, second, behind)

        acts = {QUESTION: while_it_asks, FLAGGED: once_flagged}
        assert ask_with(site, "start", first, second, *_ACCEPTED, on=acts) in (0, LATE)
        # Green has entries before the slow consumers come; a producer on no side sends none before all is drained.
        time.sleep(1)
        subscribe(clients, first, between)
        # Blue has looked at its topics by then.
        time.sleep(3)
        clients.hurry()
        drain_or_abort(site, [first, second], print, _ACCEPTED)
        clients.wait_for(20, [*steady, other])
        clients.end()
        with site.context() as context:
            assert context.green.admin.partition_count(grown.topic(first)) == 4
        # Not `watch`: a client may come to green once that has ended.
        verified = site.run("verify", first, second, "-o", "json", expected=None)
        reported = _reported(verified.stdout)
        assert verified.exit_code == (LATE if reported else 0), verified.stdout

        def lost(flow: JavaFlow) -> int:
            return reported.get((flow.topic(namespaces[flow.name]), flow.subscription), 0)

        for flow in clients.lacking(owed, 20, lost):
            clients.receive_again(flow, namespaces[flow.name], site.green.service_url)
        left = clients.lacking(owed, 120, lost)
        lines = table([clients.account(flow) for flow in owed])
        for line in lines:
            sys.stdout.write(f"{line}\n")
        assert not left, "\n".join([*lines, f"reported: {reported}"])
        assert not any(map(lost, asked))
        if reported:
            site.run("watch", first, second, "--late-subscriptions", "reset", "--timeout", "60")
            assert not clients.lacking(owed, 40)
            assert site.answer("verify", first, second)["done"]


def _reported(answer: str) -> dict[tuple[str, str], int]:
    """Return the subscriptions that `verify -o json` says came too late, and behind how many entries."""
    found = {}
    for topic in json.loads(answer)["topics"]:
        for text in topic["late"]:
            name, _, behind = text.partition(" (behind ")
            found[topic["topic"], name] = int(behind.split()[0])
    return found


def ask_with(site: BlueGreenSite, *command: str, on: dict[str, Callable[[], None]]) -> int:
    """Run a command at a terminal, act on each of these texts once it is shown, answer yes; return the exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(site.command(*command), stdin=theirs, stdout=theirs, stderr=theirs, cwd=site.home)
    os.close(theirs)
    shown, due = "", dict(on)
    try:
        while True:
            try:
                read = os.read(ours, 4096)
            except OSError:  # A terminal without a process.
                break
            shown += read.decode(errors="replace")
            for text in [text for text in due if text in shown]:
                due.pop(text)()
                if text.endswith("[y/N]"):
                    os.write(ours, b"y\n")
        code = process.wait()
    finally:
        os.close(ours)
        process.kill()
        process.wait()
    assert not due, shown
    return code


def late_flows(flows: list[JavaFlow], name: str, pause_ms: int) -> list[JavaFlow]:
    """Return a Latest subscription of this name for each flow; with a pause it has a backlog when its topic moves."""
    return [
        JavaFlow(
            f"{flow.name}-{name}", f"late: {name}", of=flow.name, subscription=name, pause_ms=pause_ms, is_late=True
        )
        for flow in flows
    ]


def subscribe(traffic: JavaTraffic, namespace: str, flows: list[JavaFlow]) -> None:
    """Subscribe, one after the other."""
    for flow in flows:
        traffic.receive(flow, namespace, f"late-{flow.subscription}")


def make_topics(site: BlueGreenSite, namespace: str, flows: Sequence[JavaFlow]) -> None:
    """Create the topics of these flows on blue."""
    with site.admin(site.blue) as admin:
        for flow in flows:
            path = topic_path(flow.topic(namespace))
            if flow.partitions:
                admin.put(f"{path}/partitions", flow.partitions)
            elif flow.persistent:
                admin.put(path)
