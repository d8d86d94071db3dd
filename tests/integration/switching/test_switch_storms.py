"""Switches while something is killed, while brokers disagree, and while a broker's metadata session is lost.

One broker is of 4.0.8 and one of 4.2.4. More of it: `make soak STORM=switch`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bookwarden.bookie_clusters.brokers import read_brokers
from bookwarden.bookie_clusters.registry import BookieCluster, serialize_registry
from bookwarden.exit_codes import SOME_FAILED, WOULD_FAIL
from servers.lossy_proxy import LossyProxy
from servers.pool import ServerPool
from servers.switching.disagreement import disagreement, move_bundles
from servers.switching.drained import soon_after_a_switch
from servers.switching.lost_session import switch_without
from servers.switching.shared_site import BOTH_VERSIONS, shared_site
from servers.switching.site import SwitchingSite
from servers.switching.storm import KINDS, Storm
from servers.switching.suspended_broker import suspend_over_a_registration
from servers.switching.watched_load import watched_load
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]

# Each is killed right after a command kept its order; of the two commands that are killed one is a rollback.
SEED = 142
DISAGREEMENT = 6.0
PATIENCE = 120
REFUSED = 5


@pytest.fixture
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, BOTH_VERSIONS) as running:
        yield running


@pytest.fixture
def new_site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, BOTH_VERSIONS, anew=True) as running:
        yield running


def say(what: object) -> None:
    """Print it; of a test that fails pytest shows it."""
    sys.stdout.write(f"{what}\n")


def test_a_broker_that_does_not_know_the_active_cluster_loses_nothing(new_site: SwitchingSite) -> None:
    with watched_load(new_site) as load:
        suspend_over_a_registration(new_site, load, new_site.brokers[-1], "c")
        found = load.end()
    say(found)
    assert found.harm == {}


def test_a_cluster_that_brokers_refuse_or_do_not_reach_holds_up_no_rollback_and_leaves(site: SwitchingSite) -> None:
    site.ensure("c", ("a", "c"))
    bookies = site.servers.clusters["b"]
    node = site.store.get(f"{bookies.ledgers_root}/INSTANCEID")
    assert node is not None
    uri, instance, names = bookies.metadata_service_uri, node.value.decode(), {one.broker_id for one in site.brokers}
    common = f"{bookies.ledgers_root}/available/{min(site.servers.clusters['a'].ids)}"
    site.store.create(common, b"")
    before = site.registry().epoch
    # As a jar that knows of the bookie in two clusters only now; `register` would refuse it.
    site.write_raw(
        serialize_registry(site.registry().with_cluster(cluster_b(uri, None, bookies.ledgers_root, instance)))
    )
    eventually(lambda: all(site.metric("registry_errors_total")), PATIENCE)
    assert site.followed_epochs() == {before}
    site.command("switch", "--target", "a", "--yes", exit_code=WOULD_FAIL)
    rolled = site.command("rollback", "--yes", "--timeout", "1", exit_code=SOME_FAILED)
    assert (site.registry().active, len(rolled["behind"])) == ("a", len(names))
    with soon_after_a_switch():
        site.command("unregister", "b", "--yes")
    site.wait_until_followed()
    site.command("switch", "--resume", "--yes")
    assert site.command("status")["phase"] == "DONE"
    site.store.delete_many([(common, 0)])

    with closing(LossyProxy(int(site.servers.store_url.rpartition(":")[2]))) as proxy:
        proxy.cut_off()
        silent = cluster_b(uri, f"zk:127.0.0.1:{proxy.port}", bookies.ledgers_root, instance)
        # As a registration that was killed while it waited for the brokers.
        site.change(lambda registry: registry.with_cluster(silent))
        words = ("register", "--name", "b", "--metadata-service-uri", uri, "--yes", "--timeout", "1")
        ended = site.ended(*words)
        assert ended.exit_code == REFUSED
        assert all(name in ended.output for name in names)
        # This command did not register it.
        assert "'b' stays registered" in ended.output
        site.wait_until_followed()
        site.command("switch", "--target", "c", "--yes")
        site.command("rollback", "--yes")
        proxy.let_through()
        eventually(
            lambda: all(one.reaches(site.registry().clusters["b"]) for one in read_brokers(site.store)), PATIENCE
        )
        with soon_after_a_switch():
            site.command("unregister", "b", "--yes")
        site.wait_until_followed()


def cluster_b(uri: str, store_url: str | None, root: str, instance: str) -> BookieCluster:
    return BookieCluster("b", uri, store_url, root, instance, 0)


@pytest.mark.storm
def test_a_storm_of_kills_while_it_is_switched_back_and_forth(site: SwitchingSite, tmp_path: Path) -> None:
    site.ensure("a")
    with watched_load(site) as load:
        Storm(site, load, SEED, tmp_path).rage([*KINDS, "command"], say)
        found = load.end()
    say(found)
    assert found.harm == {}


@pytest.mark.storm
def test_a_broker_that_lost_its_metadata_session_follows_what_was_switched_meanwhile(site: SwitchingSite) -> None:
    site.ensure("a")
    last = site.brokers[-1]
    with watched_load(site) as load:
        switch_without(site, last, last.process.paused(), "b")
        load.goes_on()
        found = load.end()
    say(found)
    assert found.harm == {}


@pytest.mark.storm
def test_brokers_that_disagree_lose_nothing_while_bundles_move(site: SwitchingSite) -> None:
    site.ensure("a")
    with watched_load(site) as load:
        with disagreement(site):
            moves = move_bundles(site, load, DISAGREEMENT)
            made = site.places()
        load.goes_on()
        found = load.end()
    say(f"{moves} moves: {found}")
    assert found.harm == {}
    for topic in load.topics:
        counted = made.of_topic(site.store, topic)
        assert counted["a"]
        assert counted["b"]
