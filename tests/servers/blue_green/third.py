"""A third cluster, west, with which a namespace of blue is replicated both ways, and goes on with green."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from servers.blue_green.java_traffic import JavaAccount, JavaFlow, JavaTraffic
from servers.blue_green.moving import Watching
from servers.blue_green.site import BlueGreenSite
from servers.waiting import eventually

_SECONDS: Final = 180.0
_MESSAGES: Final = 60
NAMESPACE: Final = "far/live"


@contextmanager
def third_cluster(site: BlueGreenSite, home: Path, version: str) -> Iterator[DevCluster]:
    """Run west for the block, known to blue and green, and they to it."""
    options = ClusterOptions(pulsar=version, cluster_name="west")
    taken = [port for side in (site.blue, site.green) for port in dataclasses.astuple(side.ports) if port]
    west = DevCluster(home / "west", options, avoid=taken)
    try:
        west.up()
        for here, others in ((site.blue, [west]), (site.green, [west]), (west, [site.blue, site.green])):
            with site.admin(here) as admin:
                for other in others:
                    urls = {"serviceUrl": other.admin_url, "brokerServiceUrl": other.service_url}
                    admin.put(f"/clusters/{other.options.cluster_name}", urls)
        yield west
    finally:
        west.kill()


def flows() -> list[JavaFlow]:
    """List what is sent on each side, and who reads it on both; what west confirms counts as blue's."""
    return [
        JavaFlow("far", "replicated: read where it was sent", earliest=True),
        JavaFlow("far-west", "replicated: the same, read in west", of="far", earliest=True),
        JavaFlow("back", "replicated: sent and read in west", earliest=True),
        JavaFlow("back-here", "replicated: the same, read on blue, then green", of="back", earliest=True),
    ]


class Replicated:
    """The namespace on blue and west; its topics are moved to green while both sides send and read."""

    def __init__(self, site: BlueGreenSite, west: DevCluster, traffic: JavaTraffic) -> None:
        self._site = site
        self._west = west
        self._traffic = traffic
        self._far, self._far_west, self._back, self._back_here = self.flows = flows()
        #: By flow: a broker that is killed has its messages sent, and received, again.
        self.doubled_before: dict[str, int] = {}

    def begin(self) -> None:
        """Make the namespace on both sides, and have messages come and go."""
        self._make(self._site.blue, ["blue", "west"], ["blue", "west"])
        self._make(self._west, ["west", "blue", "green"], ["west", "blue"])
        traffic = self._traffic
        for one in ("west-producers", "west-consumers"):
            traffic.client(one, self._west.service_url)
        for flow in (self._far, self._back_here):
            traffic.receive(flow, NAMESPACE, "far-consumers")
        for flow in (self._far_west, self._back):
            traffic.receive(flow, NAMESPACE, "west-consumers")
        traffic.send(self._far, NAMESPACE, "far-producers")
        traffic.send(self._back, NAMESPACE, "west-producers")
        self._goes_on()

    def is_refused_while_west_is_away(self) -> list[str]:
        """Kill west's broker, and return what stands in the way of a start; it runs again behind it."""
        self._west.broker.kill()
        self._traffic.wait_for(_MESSAGES, [self._far])
        self._site.run("prepare", NAMESPACE, "--execute", "--yes")
        answer = self._site.answer("start", NAMESPACE, "--yes", expected=23)
        self._west.broker.start()
        self._goes_on()
        self.doubled_before = {one.flow.name: one.doubled for one in self.accounts()}
        return sorted({one["check"] for one in answer["findings"] if one["verdict"] == "would fail"})

    def move(self) -> None:
        """Move it, and have west name green instead of blue behind that."""
        # What was just sent may be under way to west: then it is refused, and tried again.
        eventually(lambda: self._site.run("start", NAMESPACE, "--yes", expected=None).exit_code == 0, _SECONDS, 1.0)
        with Watching(self._site, NAMESPACE) as watching:
            watching.until("drained")
        self._goes_on()
        # What is under way in that moment is lost, as was measured: nobody sends, as the runbook says.
        # And the replication to green begins behind what is there when each topic learns of the list.
        with self._traffic.held(self._back, [self._back, self._back_here]), self._site.admin(self._west) as admin:
            admin.post(f"/namespaces/{NAMESPACE}/replication", ["west", "green"])

            def replicates_to_green() -> bool:
                told = [
                    admin.get_json(f"{topic_path(flow.topic(NAMESPACE))}/stats")["replication"]
                    for flow in (self._far, self._back)
                ]
                return all(set(one) == {"green"} and one["green"]["connected"] for one in told)

            eventually(replicates_to_green, _SECONDS, 0.5)
        self._goes_on()

    def accounts(self) -> list[JavaAccount]:
        """Count what became of all messages."""
        return [self._traffic.account(flow) for flow in self.flows]

    def _make(self, side: DevCluster, allowed: list[str], clusters: list[str]) -> None:
        with self._site.admin(side) as admin:
            admin.put(f"/tenants/{NAMESPACE.partition('/')[0]}", {"allowedClusters": allowed})
            admin.put(f"/namespaces/{NAMESPACE}", {"replication_clusters": clusters})
            # A broker makes topics of a replicated namespace on the other cluster as well.
            for flow in (self._far, self._back) if side is self._site.blue else ():
                admin.put(topic_path(flow.topic(NAMESPACE)))

    def _goes_on(self) -> None:
        """Wait until each side has sent and received more."""
        before = {flow.name: self._traffic.account(flow).received for flow in self.flows}
        self._traffic.wait_for(_MESSAGES, [self._far, self._back])

        def behind() -> list[str]:
            return [one.flow.name for one in self.accounts() if one.received < before[one.flow.name] + _MESSAGES]

        eventually(lambda: not behind(), _SECONDS, 0.5)
