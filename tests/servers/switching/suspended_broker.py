"""A broker that is suspended over a registration and a switch, and is back while the new bookie cluster is silent."""

from __future__ import annotations

from contextlib import ExitStack

from bookwarden.bookie_clusters.brokers import read_brokers
from bookwarden_dev.demo.ledger_places import ledgers_of_topic
from bookwarden_dev.devcluster.bookie_clusters import SiteBroker
from servers.switching.site import SwitchingSite
from servers.switching.watched_load import WatchedLoad
from servers.waiting import eventually

_PATIENCE_S = 180.0
_NOT_TAKEN_FOR_ABSENT = "was found in no bookie cluster, which is not taken for its absence"


def suspend_over_a_registration(site: SwitchingSite, load: WatchedLoad, broker: SiteBroker, added: str) -> None:
    """Suspend the broker, register a cluster and switch to it; leave all topics to the broker while that is silent.

    AssertionError where a list of ledgers then loses one, or the broker does not follow once the cluster answers.
    """
    others = [one for one in site.brokers if one is not broker]
    new_store = site.servers.clusters[added].own_store
    assert new_store is not None
    with ExitStack() as silent:
        with broker.process.paused():
            eventually(
                lambda: {one.name for one in read_brokers(site.store)} == {one.broker_id for one in others}, _PATIENCE_S
            )
            site.register(added)
            site.command("switch", "--target", added, "--yes")
            eventually(lambda: _all_have_ledgers_on(site, load, added), _PATIENCE_S, pause=0.5)
            silent.enter_context(new_store.paused())
        listed = {topic: ledgers_of_topic(site.store, topic) for topic in load.topics}
        eventually(lambda: broker.broker_id in {one.name for one in read_brokers(site.store)}, _PATIENCE_S)
        since = site.registry().clusters[added].since
        (back,) = [one.follower for one in read_brokers(site.store) if one.name == broker.broker_id]
        assert back is None or back.epoch < since
        for one in others:
            one.process.kill()
        log = broker.process.spec.log_file
        eventually(lambda: _NOT_TAKEN_FOR_ABSENT in log.read_text(encoding="utf-8", errors="replace"), _PATIENCE_S)
    site.servers.start_brokers()
    site.wait_until_followed()
    load.goes_on()
    there = frozenset[int]().union(*site.places().by_cluster.values())
    for topic, before in listed.items():
        # An empty ledger is deleted by the broker that loads its topic.
        assert not (before - ledgers_of_topic(site.store, topic)) & there, topic


def _all_have_ledgers_on(site: SwitchingSite, load: WatchedLoad, cluster: str) -> bool:
    places = site.places()
    # One that is followed by another has entries.
    return all(places.of_topic(site.store, topic)[cluster] > 1 for topic in load.topics)
