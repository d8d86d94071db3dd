"""Brokers in mode two-phase with the driver for several bookie clusters, through a switch: 4.0.8 and 4.2.4."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bookwarden.wire.broker_marks import DELETION_TOPIC_NODE, MARKING_BROKERS, OUTBOX_ROOT
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster.bookie_clusters import SiteBroker
from servers.deletion_site import DeletionSite
from servers.marking_brokers import MARKING_SETTINGS, MarkingGround, outbox, run
from servers.pool import ENTRIES_PER_LEDGER, ServerPool
from servers.switching.shared_site import BOTH_VERSIONS, shared_site
from servers.switching.site import SwitchingSite
from servers.topic_contents import listed
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

_SETTINGS = {
    **MARKING_SETTINGS,
    "bookwardenMarks": "two-phase",
    "bookwardenMarksTakeOverAfterSeconds": "5",
    # Of the deletion topics' own ledgers, which a broker that is gone never deletes.
    "bookwardenMarksSendAfterSeconds": "10",
    "managedLedgerMaxEntriesPerLedger": str(ENTRIES_PER_LEDGER),
}


@pytest.fixture(scope="module")
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, BOTH_VERSIONS, _SETTINGS, anew=True) as running:
        yield running


def ground(site: SwitchingSite, topics: list[str], folder: Path) -> MarkingGround:
    """Make the deletion topic in the namespace of these topics; commands and lookups go to the last broker."""
    namespace = "/".join(topics[0].removeprefix("persistent://").split("/")[:2])
    broker = site.brokers[-1]
    deletion = DeletionSite(broker.service_url, broker.admin_url, site.servers.store_url, namespace, folder)
    made = MarkingGround(broker.connection(), deletion, ("/ledgers", "/bookies-b"))
    made.admin.post(f"/namespaces/{namespace}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    return made


def folder_of(site: SwitchingSite, broker: SiteBroker) -> str:
    """Return the name of its outbox; empty while it does not say that it marks."""
    names = site.store.children_of(MARKING_BROKERS)
    return next((name for name in names if name.startswith(f"{broker.broker_id}-")), "")


def keep_outboxes(site: SwitchingSite) -> None:
    """Take the deletion topic's node from the brokers, which keep all in their outboxes then."""
    node = site.store.get(DELETION_TOPIC_NODE)
    assert node is not None
    site.store.delete_many([(DELETION_TOPIC_NODE, node.version)])


def test_what_is_dropped_before_and_after_a_switch_is_left_to_the_sweep(site: SwitchingSite, tmp_path: Path) -> None:
    site.ensure("a")
    topics = site.new_topics(2)
    with closing(ground(site, topics, tmp_path)) as at, closing(at.connection.client()) as client:
        for topic in topics:
            client.subscribe(topic, "sub").close()
        # Each of the brokers, and so each version, has one of them.
        site.spread(topics)
        dropped = set[int]()
        for topic in topics:
            dropped |= at.trim(client, topic)
        site.switch("b")
        for topic in topics:
            for _ in range(2):
                dropped |= at.trim(client, topic)
        assert {ledger.bookie_cluster for ledger in at.swept.new_ledgers(sorted(dropped))} == {"a", "b"}
        for topic in topics:
            at.look(topic)
            at.admin.delete(f"/persistent/{topic.removeprefix('persistent://')}?force=true")
            eventually(lambda topic=topic: not listed(at.swept, topic), 30)
        assert at.gone() == []
        at.sweep_all(set(at.ever))
        modes = {one["name"]: one["marking"]["mode"] for one in run(at.site, "status")["brokers"]}
    assert modes == {one.broker_id: "two-phase" for one in site.brokers}


@pytest.mark.parametrize("fault", ["killed", "suspended"])
def test_the_outbox_of_a_broker_that_is_gone_is_taken_over(site: SwitchingSite, tmp_path: Path, fault: str) -> None:
    site.ensure("a")
    (topic,) = site.new_topics(1)
    victim, other = site.brokers
    with closing(ground(site, [topic], tmp_path)) as at, closing(at.connection.client()) as client:
        client.subscribe(topic, "sub").close()
        site.spread([topic], broker=victim)
        assert site.owner(topic) == victim.service_url
        keep_outboxes(site)
        dropped = at.trim(client, topic)
        taken = folder_of(site, victim)
        assert dropped <= set(outbox(site.store))
        if fault == "killed":
            victim.process.kill()
        else:
            victim.process.pause()
        try:
            with Cluster(at.site.settings) as cluster:
                topics = cluster.deletion_topics
                topics.publish()
            eventually(lambda: taken not in site.store.children_of(OUTBOX_ROOT), 120)
        finally:
            if fault == "suspended":
                victim.process.resume()
        assert at.gone() == []
        if fault == "killed":
            victim.process.start()
        # It marks again: in the folder that was deleted, if it was only away.
        eventually(lambda: folder_of(site, victim), 120)
        site.wait_until_served([topic])
        site.spread([topic], broker=victim)
        eventually(lambda: site.owner(topic) == victim.service_url, 60)
        dropped |= at.trim(client, topic)
        assert at.gone() == []
        at.sweep_all(dropped)
        assert {name.rpartition("-")[0] for name in site.store.children_of(MARKING_BROKERS)} == {
            victim.broker_id,
            other.broker_id,
        }
