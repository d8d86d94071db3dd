"""Clients moved to a newer green with two brokers, and from blue to green of 4.2.4 with tokens and TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookwarden.demo.traffic import FAILOVER, SHARED, Account, Flow
from bookwarden.devcluster import ClusterOptions
from servers.blue_green.further_broker import SHARING, further_broker
from servers.blue_green.moving import SECONDS, require_exact, traffic
from servers.blue_green.site import BlueGreenSite, blue_green_site

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]


def flows(namespace: str) -> list[Flow]:
    topics = [f"persistent://{namespace}/{name}" for name in ("a", "b", "c", "d", "e", "f")]
    shared = [Flow(topic, kind=SHARED, consumers=2) for topic in topics[:2]]
    return [*shared, *map(Flow, topics[2:]), Flow(f"persistent://{namespace}/failover", kind=FAILOVER, consumers=2)]


def move(site: BlueGreenSite, namespace: str) -> list[Account]:
    """Move a namespace of seven topics under load, by the commands; return the accounts."""
    with traffic(site, flows(namespace)) as running:
        site.run("prepare", namespace, "--execute", "--yes")
        site.run("start", namespace, "--yes")
        site.run("watch", namespace, "--release", "--timeout", "120", "--every", "1")
        running.wait_for(20, SECONDS)
        accounts = running.stop()
    assert site.answer("verify", namespace)["done"]
    return accounts


def test_a_namespace_moves_to_a_newer_green_with_two_brokers(tmp_path: Path) -> None:
    green = ClusterOptions(pulsar="4.2.4", broker_settings=SHARING)
    with (
        blue_green_site(tmp_path, ClusterOptions(), green) as site,
        further_broker(site.green, tmp_path / "green-2"),
    ):
        namespace = site.make_namespace("newer/live")
        require_exact(move(site, namespace))
        with site.context() as context:
            loaded = context.green.nodes.brokers()
        assert len(loaded) == 2


def test_a_namespace_of_4_2_moves_with_tokens_and_tls_and_comes_back(tmp_path: Path) -> None:
    with blue_green_site(tmp_path, ClusterOptions(pulsar="4.2.4", auth="token")) as site:
        accounts = move(site, site.make_namespace("secured/live"))
        # The client gives up a connection when a topic on it moves, and gets again what it had not acknowledged.
        assert [(one.tally.lost, one.tally.send_errors) for one in accounts] == [(0, 0)] * len(accounts)
        namespace = site.make_namespace("back/live")
        topic = f"persistent://{namespace}/orders"
        with traffic(site, [Flow(topic)]) as running:
            site.run("prepare", namespace, "--execute", "--yes")
            site.run("start", namespace, "--yes")
            running.wait_for(20, SECONDS)
            assert running.stop()[0].tally.lost == 0
        site.run("abort", namespace)
        assert [one["done"] for one in site.answer("reopen", topic, "--execute")] == [True]
        with traffic(site, [Flow(topic)], before=20) as running:
            assert running.stop()[0].tally.lost == 0
