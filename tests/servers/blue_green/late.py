"""Subscriptions that come late: while `start` asks, and between the flag and the mark of their topic."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable, Sequence

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from servers.blue_green.java_traffic import JavaFlow, JavaTraffic
from servers.blue_green.site import BlueGreenSite

QUESTION, FLAGGED = "to green? [y/N]", "flagged; its topics are marked"


def start_with(site: BlueGreenSite, namespace: str, *options: str, on: dict[str, Callable[[], None]]) -> int:
    """Run `start` at a terminal, act on each of these texts once it is shown, and answer yes; return the exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        site.command("start", namespace, *options), stdin=theirs, stdout=theirs, stderr=theirs, cwd=site.home
    )
    os.close(theirs)
    shown, due = "", dict(on)
    while True:
        try:
            read = os.read(ours, 4096)
        except OSError:  # A terminal without a process.
            break
        shown += read.decode(errors="replace")
        for text in [text for text in due if text in shown]:
            due.pop(text)()
            if text == QUESTION:
                os.write(ours, b"y\n")
    os.close(ours)
    code = process.wait()
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
