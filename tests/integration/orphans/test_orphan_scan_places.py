"""The orphan scan on Spark over two bookie clusters of a real ZooKeeper: a ledger is found wherever it is, and once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from bookwarden.errors import RefusedError
from bookwarden.ledgers.custom_metadata import OWNER_KEY
from bookwarden.ledgers.kinds import CursorHolder
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.orphans.classes import LedgerClass
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.scan import OrphanApply
from servers.lone_zookeeper import LoneZooKeeper
from servers.population import register_bookie
from servers.scanned_site import ScannedSite, broker_telling_the_time
from unit.switching.two_bookie_clusters import COPY, OWNER, TwoBookieClusters

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "t/n/persistent/orders"
GONE = CursorHolder(TOPIC, "gone")
IN_B: dict[str, Any] = {OWNER_KEY: OWNER.encode()}
UNFINISHED: dict[str, Any] = {"state": LedgerState.OPEN, "last": None, "length": 0, **COPY, **IN_B}


@pytest.fixture
def site(quiet_zookeeper: LoneZooKeeper, tmp_path: Path) -> Iterator[ScannedSite]:
    # A clock that is ahead, so that ledgers of just now are older than the cutoff.
    with (
        broker_telling_the_time(60) as admin_url,
        closing(ScannedSite(quiet_zookeeper.hosts, f"/s-{uuid4().hex}", admin_url, tmp_path / "orphans")) as made,
    ):
        yield made


def test_a_scan_lists_every_cluster_and_a_plan_is_of_all_of_them(spark: SparkSession, site: ScannedSite) -> None:
    two = TwoBookieClusters(site.store)
    site.overrides |= {"orphans.max_share": "1", "orphans.seen_apart_hours": "0"}
    two.registry = two.changed("a", instance="0f1e-2d3c")
    two.register()
    register_bookie(site.store, "/bookies-b")
    topic = site.topic(TOPIC, [1, 2])
    two.ledger("b", 2, holder=topic, **COPY, **IN_B)
    two.ledger("b", 3, holder=topic, **IN_B)
    two.ledger("b", 4, holder=topic, **UNFINISHED)
    # Ledger 4 is lost: what is left of it is a copy that was never finished.
    site.population.names(topic, [1, 2, 3, 4])
    two.ledger("a", 102, holder=GONE)
    two.ledger("b", 103, holder=GONE, **IN_B)
    two.ledger("a", 104, holder=GONE)
    two.ledger("b", 104, holder=GONE, **COPY, **IN_B)
    two.ledger("b", 105, holder=GONE, **COPY, **IN_B)
    two.ledger("b", 106, holder=GONE, **UNFINISHED)
    two.ledger("b", 107, holder=GONE)
    two.ledger("a", 108, holder=GONE)
    two.ledger("b", 108, holder=GONE, **IN_B)
    result = site.scan(spark)
    assert site.candidates(result) == dict.fromkeys([102, 103, 104, 105], "subscription deleted")
    paths = {one.ledger_id: one.path.split("/")[1] for one in plans_of(site.settings).all_candidates(result.plan)}
    assert paths == {102: "ledgers", 103: "bookies-b", 104: "ledgers", 105: "bookies-b"}
    assert [one.ledger_id for one in result.summary.missing] == [4]
    assert result.summary.total(LedgerClass.REFERENCED)[0] == 3
    assert result.summary.total(LedgerClass.FOREIGN)[0] == 1
    # Two originals of one id.
    assert result.summary.total(LedgerClass.UNPARSABLE)[0] == 2
    plans = plans_of(site.settings)
    with Cluster(site.settings) as opened:
        applied = OrphanApply(opened, plans).ledgers.run(result.plan.plan_id)
    assert (applied.marked, applied.dropped_total) == (4, 0)
    # With another registry the plan is another cluster's, and so is a scan that was begun before.
    begun = OrphanScan(spark, site.settings).begin()
    two.register(replace(two.registry, active="a", clusters={"a": two.registry.clusters["a"]}))
    with Cluster(site.settings) as opened, pytest.raises(RefusedError):
        OrphanApply(opened, plans).ledgers.run(result.plan.plan_id)
    with pytest.raises(RefusedError, match="was begun on the cluster"):
        OrphanScan(spark, site.settings).run(begun)
