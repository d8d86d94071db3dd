"""Clients moved to a newer green with two brokers, and from blue to green of 4.2.4 with tokens and TLS."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from bookwarden_dev.demo.traffic import Flow
from bookwarden_dev.devcluster import ClusterOptions
from servers.blue_green.application import Application
from servers.blue_green.deadlock import deadlock_is_reported_and_cured
from servers.blue_green.further_broker import SHARING, further_broker
from servers.blue_green.late import late_subscriptions_lose_nothing
from servers.blue_green.moving import SECONDS, drain, has_all, traffic
from servers.blue_green.site import QUICK_ROUNDS, BlueGreenSite, blue_green_site
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]


def move(site: BlueGreenSite, namespace: str, folder: Path) -> None:
    """Move a namespace of three topics under load, by the commands; each message has to arrive."""
    topics = [f"persistent://{namespace}/{name}" for name in ("a", "b", "c")]
    with ExitStack() as running:
        applications = {
            topic: running.enter_context(
                Application(site.blue.connection(), topic, "app", 0.0, folder / f"received-{number}")
            )
            for number, topic in enumerate(topics)
        }
        sending = running.enter_context(traffic(site, [Flow(topic, subscription=None) for topic in topics]))
        eventually(lambda: all(application.received for application in applications.values()), SECONDS)
        site.run("prepare", namespace, "--execute", "--yes")
        site.run("start", namespace, "--yes")
        drain(site, [namespace], list(applications.values()))
        sending.wait_for(20, SECONDS)
        assert [one.tally.send_errors for one in sending.stop()] == [0] * len(topics)
        for topic, application in applications.items():
            eventually(partial(has_all, application, sending.numbers(topic)), SECONDS, 0.5)
    assert site.answer("verify", namespace)["done"]


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlueGreenSite]:
    """Blue and green of 4.2.4."""
    blue = ClusterOptions(pulsar="4.2.4", broker_settings=QUICK_ROUNDS)
    green = ClusterOptions(pulsar="4.2.4", broker_settings=SHARING)
    with blue_green_site(tmp_path_factory.mktemp("newer"), blue, green) as site:
        yield site


def test_late_subscriptions_of_4_2_lose_nothing(newer: BlueGreenSite, tmp_path: Path) -> None:
    late_subscriptions_lose_nothing(newer, "4.2.4", tmp_path)


def test_a_namespace_moves_to_a_newer_green_with_two_brokers(
    site: BlueGreenSite, newer: BlueGreenSite, tmp_path: Path
) -> None:
    with further_broker(newer.green, tmp_path / "green-2"):
        clusters = copy.copy(site.clusters)
        clusters.green = newer.green
        mixed = BlueGreenSite(clusters, tmp_path)
        move(mixed, mixed.make_namespace(mixed.fresh("newer")), tmp_path)
        with mixed.context() as context:
            loaded = context.green.nodes.brokers()
        assert len(loaded) == 2


def test_a_namespace_of_4_2_moves_with_tokens_and_tls_and_comes_back(tmp_path: Path) -> None:
    options = ClusterOptions(pulsar="4.2.4", auth="token", broker_settings=QUICK_ROUNDS)
    with blue_green_site(tmp_path, options) as site:
        move(site, site.make_namespace("secured/live"), tmp_path)
        namespace = site.make_namespace("back/live")
        topic = f"persistent://{namespace}/orders"
        with traffic(site, [Flow(topic, is_away=True)]) as running:
            site.run("prepare", namespace, "--execute", "--yes")
            site.run("start", namespace, "--yes", "--accept", "idle-subscriptions")
            running.stop(seconds=1)
        site.run("abort", namespace)
        assert [one["done"] for one in site.answer("reopen", topic, "--execute")] == [True]
        with traffic(site, [Flow(topic, subscription=None)], before=20) as running:
            assert running.stop()[0].tally.send_errors == 0


@pytest.mark.storm
def test_a_deadlock_in_blues_broker_is_reported_and_cured(site: BlueGreenSite) -> None:
    """That of 4.2.4 is provoked by `make soak STORM=blue-green`."""
    deadlock_is_reported_and_cured(site, "4.0.8")
