"""The bookie cluster of running brokers is switched under load, and back: nothing is lost, nothing goes astray.

Of the two brokers one is of 4.0.8 and one of 4.2.4, both with the same jar.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from bookwarden.bookie_clusters.brokers import read_followers
from bookwarden.bookie_clusters.checks.observing import TRIALS_PATH
from bookwarden.bookie_clusters.registry import serialize_registry
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.exit_codes import WOULD_FAIL
from bookwarden.findings import Verdict
from bookwarden_dev.demo.ledger_places import LedgerPlaces, ledgers_of_topic
from bookwarden_dev.demo.load import Load, TopicTally
from bookwarden_dev.devcluster.bookie_clusters import SiteBroker
from servers.pool import ServerPool
from servers.switching.broker_jar import broker_jar_0_1_0, with_jar
from servers.switching.shared_site import BOTH_VERSIONS, shared_site
from servers.switching.site import SwitchingSite
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]

_LOG = logging.getLogger(__name__)

# What a load costs grows with its pace and with each new ledger.
TOPICS = 4
PER_SECOND = 20
# More than a ledger of each topic.
ENOUGH = 28
FEW = 10
PATIENCE = 120
# What the switch may cost is below one second; two busy cores are given more.
LONGEST_GAP = 10.0


@pytest.fixture(scope="module")
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, BOTH_VERSIONS) as running:
        yield running


@contextlib.contextmanager
def load_on(site: SwitchingSite, topics: Sequence[str]) -> Iterator[Load]:
    """Send to and receive from all topics in the block."""
    with Load(site.connection, topics, PER_SECOND) as load:
        load.start()
        load.wait_for(FEW, PATIENCE)
        yield load


def assert_nothing_lost(tallies: Sequence[TopicTally], *, doubled: bool = False) -> None:
    """Check that each acknowledged message was received, in order; ``doubled`` allows some to come twice."""
    for tally in tallies:
        _LOG.warning("%s", tally)
    assert all(tally.sent for tally in tallies)
    assert [tally for tally in tallies if tally.lost or tally.send_errors] == []
    assert doubled or [tally for tally in tallies if tally.doubled or tally.disordered] == []


def assert_switched_at_once(load: Load, what: str, begin: float, followed: float) -> None:
    gap, before = load.longest_gap(begin, time.monotonic()), load.longest_gap(begin - 1, begin)
    _LOG.warning("%s: followed in %.3f s; longest gap %.3f s, in the second before %.3f s", what, followed, gap, before)
    assert gap < LONGEST_GAP


def assert_all_there(site: SwitchingSite, load: Load) -> None:
    """Check that a reader finds each acknowledged message."""
    assert set(load.lost_to_a_reader(site.connection).values()) == {0}


def assert_none_astray(site: SwitchingSite) -> LedgerPlaces:
    """Check that no ledger has bookies of two clusters, nor would have had, but for a refusal."""
    places = site.places()
    assert places.astray == ()
    assert site.metric("refusals_total") == [0.0, 0.0]
    return places


def has_ledgers_on(places: LedgerPlaces, site: SwitchingSite, topic: str) -> set[str]:
    return {name for name, count in places.of_topic(site.store, topic).items() if count}


def assert_tried_on(site: SwitchingSite, target: str) -> None:
    """Check that the precheck writes a ledger to all bookies there, and that nothing of it is left."""
    before = site.places().by_cluster[target]
    checks = site.command("precheck", "--name", target)["checks"]
    (trial,) = [check for check in checks if check["name"] == "trial ledger"]
    bookies = len(site.writable_bookies(target))
    assert (
        f"was written to {bookies} bookies of {target} from this machine, read back and compared, closed and deleted"
        in trial["evidence"]
    )
    # Nobody else writes there yet.
    assert (site.places().by_cluster[target], site.store.children_of(TRIALS_PATH)) == (before, [])
    assert not any(check["name"] == "trial ledger" for check in _without_trial(site, target))


def assert_quorums_of_topics_count(site: SwitchingSite, target: str, topic: str) -> None:
    """Check that a single topic that asks for more bookies than there are blocks the switch, until it does not."""
    path = f"{topic_path(topic)}/persistence"
    # As many as brokers allow.
    many = {"bookkeeperEnsemble": 5, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2}
    site.admin.post(path, {**many, "managedLedgerMaxMarkDeleteRate": 0})
    refused = site.command("precheck", "--name", target, exit_code=WOULD_FAIL)["checks"]
    (failing,) = [check for check in refused if check["severity"] == Verdict.FAILS.value]
    assert f"too few for an ensemble of 5 ({topic})" in failing["evidence"]
    assert not [check for check in refused if "policies of topics were not read" in check["evidence"]]
    site.admin.delete(path)
    assert all("of 5" not in check["evidence"] for check in _without_trial(site, target))


def _without_trial(site: SwitchingSite, target: str) -> list[dict[str, str]]:
    checks: list[dict[str, str]] = site.command("precheck", "--name", target, "--no-trial")["checks"]
    return checks


def test_a_cluster_is_registered_and_switched_to_under_load(site: SwitchingSite) -> None:
    assert site.brokers_without_jar() == []
    topics = site.new_topics(TOPICS)
    assert {site.owner(topic) for topic in topics} == {broker.service_url for broker in site.brokers}
    with load_on(site, topics) as load:
        site.ensure("a")
        assert_tried_on(site, "b")
        begin = time.monotonic()
        switched = site.command("switch", "--target", "b", "--yes")
        at_the_switch = site.places()
        load.wait_for(ENOUGH, PATIENCE)
        assert {each["name"] for each in switched["brokers"]} == {broker.broker_id for broker in site.brokers}
        assert_switched_at_once(load, "a to b", begin, max(each["seconds"] for each in switched["brokers"]))
        assert site.metric("epoch") == [switched["epoch"]] * 2
        made = assert_none_astray(site).since(at_the_switch)
        assert not made["a"]
        assert len(made["b"]) >= TOPICS
        assert_nothing_lost(load.stop())
        assert_all_there(site, load)
    assert_none_astray(site)


def test_it_is_switched_back_under_load_while_bundles_move(site: SwitchingSite) -> None:
    site.ensure("b")
    topics = site.new_topics(TOPICS)
    ended = threading.Event()

    def move_bundles() -> None:
        for shift in range(1, 100):
            site.spread(topics, shift)
            if ended.wait(1.0):
                return

    with load_on(site, topics) as load:
        load.wait_for(ENOUGH, PATIENCE)
        mover = threading.Thread(target=move_bundles)
        mover.start()
        try:
            assert site.command("rollback", "--yes")["target"] == "a"
            at_the_switch = site.places()
            load.wait_for(ENOUGH, PATIENCE)
        finally:
            ended.set()
            mover.join()
        # What was unacknowledged when a bundle moved comes again.
        assert_nothing_lost(load.stop(), doubled=True)
        made = assert_none_astray(site).since(at_the_switch)
        assert made["a"]
        assert not made["b"]
        assert_all_there(site, load)
    places = site.places()
    listed = frozenset[int]().union(*(ledgers_of_topic(site.store, topic) for topic in topics))
    for topic in topics:
        assert has_ledgers_on(places, site, topic) == {"a", "b"}
        site.admin.delete(topic_path(topic), params={"force": True})
    eventually(lambda: not listed & frozenset().union(*site.places().by_cluster.values()), PATIENCE)


def test_brokers_keep_to_the_last_good_registry_and_none_starts_without_one(site: SwitchingSite) -> None:
    site.ensure("b")
    site.ensure("a")
    good = site.registry()
    # As it was before the last switch.
    older = dataclasses.replace(good, epoch=good.epoch - 1, active="b", directive=None)
    wrong = dataclasses.replace(good.clusters["b"], instance="of another")
    elsewhere = dataclasses.replace(
        good.switched("b", "test", 1), epoch=good.epoch + 1, clusters={**good.clusters, "b": wrong}
    )
    topics = site.new_topics(TOPICS)
    with load_on(site, topics) as load:
        at_the_beginning = site.places()
        begin = time.monotonic()
        try:
            for value in (b"{", b"", serialize_registry(older), serialize_registry(elsewhere)):
                site.write_raw(value)
                load.wait_for(FEW, PATIENCE)
            site.remove_registry()
            load.wait_for(ENOUGH, PATIENCE)
            assert load.longest_gap(begin, time.monotonic()) < LONGEST_GAP
            assert site.followed_epochs() == {good.epoch}
            # One that starts now would not know where ledgers are.
            last = site.brokers[-1].process
            last.kill()
            last.start(wait=False)
            eventually(lambda: not last.is_running(), PATIENCE)
        finally:
            site.restore(good)
        site.servers.start_brokers()
        assert_nothing_lost(load.stop(), doubled=True)
        made = assert_none_astray(site).since(at_the_beginning)
        assert made["a"]
        assert not made["b"]
        site.switch("b")
        assert_all_there(site, load)


def test_an_outage_of_one_clusters_metadata_fails_no_read_of_another(site: SwitchingSite) -> None:
    site.ensure("b")
    topics = site.new_topics(TOPICS)
    with load_on(site, topics) as load:
        load.wait_for(ENOUGH, PATIENCE)
        begin = time.monotonic()
        followed = site.switch("c")
        load.wait_for(ENOUGH, PATIENCE)
        assert_switched_at_once(load, "b to c, on another ZooKeeper", begin, followed)
        site.switch("a")
        load.wait_for(ENOUGH, PATIENCE)
        assert_nothing_lost(load.stop())
        places = assert_none_astray(site)
        for topic in topics:
            assert has_ledgers_on(places, site, topic) == {"a", "b", "c"}
        assert_all_there(site, load)
    topics = site.new_topics(TOPICS)
    site.switch("b")
    with load_on(site, topics) as load:
        load.wait_for(ENOUGH, PATIENCE)
        site.switch("a")
        zookeeper = site.servers.clusters["c"].zookeeper
        assert zookeeper is not None
        with zookeeper.outage():
            # Brokers ask c for the ledgers of b before they ask b.
            load.wait_for(ENOUGH, PATIENCE)
            begin = time.monotonic()
            site.spread(topics, 1)
            load.wait_for(FEW, PATIENCE)
            # Each topic was opened anew, which reads what c would be asked for first.
            assert_switched_at_once(load, "bundles moved without c", begin, 0)
            site.switch("b")
            load.wait_for(ENOUGH, PATIENCE)
            assert_nothing_lost(load.stop(), doubled=True)
            assert_all_there(site, load)
    assert_none_astray(site)


def test_bookies_of_the_cluster_that_was_left_die(site: SwitchingSite) -> None:
    site.ensure("a")
    topics = site.new_topics(TOPICS)
    bookies = site.servers.clusters["a"].bookies
    dead = list(bookies)[:2]
    try:
        with load_on(site, topics) as load:
            for name in dead:
                site.ensure("a")
                load.wait_for(ENOUGH, PATIENCE)
                begin = time.monotonic()
                followed = site.switch("b")
                # Of what is open on a: the first time another bookie of a replaces it, the second time none is left.
                bookies[name].kill()
                load.wait_for(FEW, PATIENCE)
                assert_switched_at_once(load, f"a to b without {name}", begin, followed)
                # While it is registered, it may be chosen to take the place of another.
                site.end_registration("a", name)
            assert_nothing_lost(load.stop())
            assert_none_astray(site)
    finally:
        for name in dead:
            if not bookies[name].is_running():
                bookies[name].start()
    assert_all_there(site, load)


def test_a_bookie_of_the_cluster_that_was_left_dies_with_the_brokers(site: SwitchingSite) -> None:
    site.ensure("a")
    topics = site.new_topics(TOPICS)
    dead = site.servers.clusters["a"].processes[0]
    try:
        with load_on(site, topics) as load:
            load.wait_for(ENOUGH, PATIENCE)
            site.switch("b")
            dead.kill()
            # What was open on a is recovered without the bookie, by brokers whose new ledgers are on b.
            site.kill_brokers()
            load.wait_for(ENOUGH, PATIENCE)
            assert_nothing_lost(load.stop(), doubled=True)
            assert_none_astray(site)
            assert_all_there(site, load)
    finally:
        dead.start()


def test_a_broker_without_the_jar_is_seen_and_nothing_switched(site: SwitchingSite) -> None:
    site.ensure("a")
    assert_quorums_of_topics_count(site, "b", site.new_topics(1)[0])
    stock = site.servers.stock_broker()
    assert site.brokers_without_jar() == []
    stock.process.start()
    try:
        assert site.brokers_without_jar() == [stock.broker_id]
        refused = site.command("switch", "--target", "b", "--yes", exit_code=WOULD_FAIL)
        failing = [check["evidence"] for check in refused["checks"] if check["severity"] == Verdict.FAILS.value]
        assert [evidence.partition(" ")[0] for evidence in failing] == [stock.broker_id], failing
        assert site.registry().active == "a"
    finally:
        stock.process.stop()
    eventually(lambda: site.brokers_without_jar() == [], PATIENCE)


def test_brokers_get_the_jar_after_that_of_0_1_0_one_by_one_and_then_the_registry_is_upgraded(
    site: SwitchingSite,
) -> None:
    site.ensure("b")
    site.ensure("a")
    first, second = site.brokers
    topics = site.new_topics(TOPICS)
    with ExitStack() as load_ends:
        with with_jar([second], broker_jar_0_1_0()):
            with with_jar([first], broker_jar_0_1_0()):
                put_registry_of_0_1_0(site)
                site.kill_brokers(topics)
                load = load_ends.enter_context(load_on(site, topics))
                told = site.refusal("upgrade", "--yes")
                both = ", ".join(sorted(broker.broker_id for broker in site.brokers))
                assert f"{both} are with the jar of an earlier bookwarden" in told
            restart(site, load, first, topics)
            # Both jars write, read what the other wrote, and follow a switch.
            assert {site.owner(topic) for topic in topics} == {broker.service_url for broker in site.brokers}
            load.wait_for(ENOUGH, PATIENCE)
            assert site.command("switch", "--target", "b", "--yes")["phase"] == "DONE"
            load.wait_for(ENOUGH, PATIENCE)
            site.spread(topics, 1)
            load.wait_for(FEW, PATIENCE)
            before = site.registry()
            told = site.refusal("upgrade", "--yes")
            assert f"{second.broker_id} is with the jar of an earlier bookwarden" in told
            assert site.registry() == before
        restart(site, load, second, topics)
        assert site.command("upgrade", "--yes")["unmarkedBelow"].keys() == {"b", "c"}
        site.wait_until_followed()
        assert site.registry().open_ranges() == []
        load.wait_for(ENOUGH, PATIENCE)
        # What was unacknowledged when a broker went comes again.
        assert_nothing_lost(load.stop(), doubled=True)
        # Each broker opens what the other one wrote.
        site.spread(topics, 1)
        assert_all_there(site, load)
    assert_none_astray(site)


def put_registry_of_0_1_0(site: SwitchingSite) -> None:
    """Write the registry as 0.1.0 did: it said nothing of former owners, nor of ledgers without a mark."""
    fields = json.loads(serialize_registry(site.registry()))
    fields["epoch"] += 1
    del fields["formerOwners"]
    for cluster in fields["clusters"].values():
        del cluster["unmarkedBelow"]
    site.write_raw(json.dumps(fields).encode())
    site.wait_until_followed()


def restart(site: SwitchingSite, load: Load, broker: SiteBroker, topics: Sequence[str]) -> None:
    """Restart a broker as an operator does, and give it its part of the topics again."""
    broker.process.stop()
    broker.process.start()
    site.wait_until_followed()
    site.spread(topics)
    load.wait_for(FEW, PATIENCE)


def test_a_lost_registry_a_changed_address_and_a_lost_cluster_have_a_way_out(
    site: SwitchingSite, tmp_path: Path
) -> None:
    site.ensure("b")
    site.ensure("a")
    topics = site.new_topics(TOPICS)
    file, uri = str(tmp_path / "registry.json"), site.servers.clusters["c"].metadata_service_uri
    zookeeper = site.servers.clusters["c"].zookeeper
    assert zookeeper is not None
    with load_on(site, topics) as load:
        site.command("registry", "export", file)
        saved = site.registry()
        site.remove_registry()
        assert site.command("registry", "import", file, "--execute", "--yes")["epoch"] == saved.epoch + 1
        site.wait_until_followed()
        assert dataclasses.replace(site.registry(), epoch=saved.epoch) == saved
        other = uri.replace("127.0.0.1", "localhost")
        assert site.command("set-uri", "c", "--metadata-service-uri", other, "--yes")["changed"]
        site.wait_until_followed()
        assert site.registry().clusters["c"].store_url != saved.clusters["c"].store_url
        eventually(lambda: reach_c(site) == {True}, PATIENCE)
        with zookeeper.outage():
            eventually(lambda: reach_c(site) == {False}, PATIENCE)
            told = site.command("unregister", "c", "--lost", "--dry-run")
            assert "does not answer" in told["reason"]
            site.command("unregister", "c", "--lost", "--confirm", "c")
            site.wait_until_followed()
            # With c registered no removal succeeds.
            site.admin.delete(topic_path(site.new_topics(1)[0]), params={"force": True})
            load.wait_for(ENOUGH, PATIENCE)
        assert_nothing_lost(load.stop(), doubled=True)
        assert_all_there(site, load)
    site.register("c")
    site.wait_until_followed()
    # Their sessions ended.
    eventually(lambda: len(site.writable_bookies("c")) == len(site.servers.clusters["c"].ids), PATIENCE)
    assert_none_astray(site)


def reach_c(site: SwitchingSite) -> set[bool]:
    """Tell whether brokers read the metadata of c now."""
    followers = [found.follower for found in read_followers(site.store) if found.follower is not None]
    return {"c" in one.instances and "c" not in one.unreachable for one in followers}
