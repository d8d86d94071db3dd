"""Brokers in mode two-phase with the driver for several bookie clusters, through a switch: 4.0.8 and 4.2.4."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from servers.deletion_site import DeletionSite
from servers.marking_brokers import MARKING_SETTINGS, MarkingGround, run
from servers.pool import ENTRIES_PER_LEDGER, ServerPool
from servers.switching.shared_site import BOTH_VERSIONS, shared_site
from servers.switching.site import SwitchingSite
from servers.topic_contents import listed
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

_SETTINGS = {
    **MARKING_SETTINGS,
    "bookwardenMarks": "two-phase",
    "managedLedgerMaxEntriesPerLedger": str(ENTRIES_PER_LEDGER),
}


@pytest.fixture
def site(pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchingSite]:
    with shared_site(pool, tmp_path_factory, BOTH_VERSIONS, _SETTINGS, anew=True) as running:
        yield running


def test_what_is_dropped_before_and_after_a_switch_is_left_to_the_sweep(site: SwitchingSite, tmp_path: Path) -> None:
    site.ensure("a")
    topics = site.new_topics(2)
    namespace = "/".join(topics[0].removeprefix("persistent://").split("/")[:2])
    broker = site.brokers[0]
    deletion = DeletionSite(broker.service_url, broker.admin_url, site.servers.store_url, namespace, tmp_path)
    with (
        closing(MarkingGround(broker.connection(), deletion, ("/ledgers", "/bookies-b"))) as at,
        closing(at.connection.client()) as client,
    ):
        at.admin.post(f"/namespaces/{namespace}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
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
        modes = {one["name"]: one["marking"]["mode"] for one in run(deletion, "status")["brokers"]}
    assert modes == {one.broker_id: "two-phase" for one in site.brokers}
