"""Orphans made as they come about in real life are found, planned and reclaimed, and every topic still reads back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pyspark.sql import SparkSession

from bookwarden.cli.main import cli
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.orphans.plan import PlanManifest
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.each_store import is_tried_again
from servers.orphan_grounds import Grounds
from servers.orphan_makers import ALL_MAKERS, BucketNotRecorded, Maker, make_orphans
from servers.pool import COLLECTING, Clusters
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

# What waits in real life, for clocks, compactions and a second look, need not wait for what has just been made.
SETTINGS = {
    "orphans.min_age_days": "0",
    "orphans.longest_compaction_hours": "0",
    "orphans.seen_apart_hours": "0",
    "orphans.max_share": "0.5",
}
HEALTHY = ("orders", "clicks", "audit")
MESSAGES = 40


@dataclass
class Orphanage:
    """A cluster with orphans among healthy topics, and what each topic must still give back."""

    grounds: Grounds
    site: DeletionSite
    made: dict[Maker, frozenset[int]]
    contents: dict[str, list[bytes]]

    @property
    def causes(self) -> dict[int, str]:
        """What a scan must put each orphan down to."""
        return {ledger_id: maker.cause.value for maker, made in self.made.items() for ledger_id in made}

    @property
    def orphans(self) -> frozenset[int]:
        return frozenset().union(*self.made.values())

    def entry_log_bytes(self) -> int:
        """Sum the sizes of the bookie's entry logs."""
        logs = (self.grounds.cluster.home / "bookie" / "ledgers" / "current").glob("*.log")
        return sum(path.stat().st_size for path in logs)


@pytest.fixture
def orphanage(
    request: pytest.FixtureRequest, clusters: Clusters, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> Iterator[Orphanage]:
    if is_tried_again(request):
        # With the orphans of the first try.
        clusters.taken(COLLECTING).kill()
    cluster = clusters.shared(COLLECTING)
    settings = SETTINGS | {"orphans.folder": str(tmp_path / "orphans")}
    site = DeletionSite.of(cluster, make_namespace(cluster), tmp_path / "site", overrides=settings)
    with (
        Cluster(site.settings) as opened,
        closing(Grounds(cluster, opened, lambda: make_namespace(cluster))) as grounds,
    ):
        yield _fill(grounds, site)


def _fill(grounds: Grounds, site: DeletionSite) -> Orphanage:
    site.create_topics()
    namespace = grounds.fresh_namespace()
    topics = [f"persistent://{namespace}/{name}" for name in HEALTHY]
    for topic in topics:
        grounds.send(topic, MESSAGES // 2)
    made = make_orphans([maker(grounds) for maker in ALL_MAKERS])
    for topic in topics:
        grounds.send(topic, MESSAGES // 2, first=MESSAGES // 2)
    numbers = dict.fromkeys(topics, range(MESSAGES)) | {maker.topic: maker.readable for maker in made if maker.readable}
    contents = {topic: [grounds.message(number) for number in readable] for topic, readable in numbers.items()}
    return Orphanage(grounds, site, made, contents)


def test_real_orphans_are_planned_and_reclaimed_and_every_topic_reads_back_in_full(
    orphanage: Orphanage, spark: SparkSession
) -> None:
    orphans, grounds, site = orphanage.orphans, orphanage.grounds, orphanage.site
    nobody_names_them(orphanage)
    scan = OrphanScan(spark, site.settings)
    found = scan.run(scan.begin())
    assert (found.orphans, found.missing) == (len(orphans), 0)
    assert planned_causes(site, found.plan) == orphanage.causes
    stored = {ledger.ledger_id: ledger.metadata.length for ledger, _ in grounds.stored()}
    kept = {ledger_id for topic in orphanage.contents for ledger_id in grounds.ledgers_of(topic)}
    apply = ("apply", "--plan", found.plan.plan_id)
    assert run_command(site, *apply)["marked"] == len(orphans)
    assert site.backlog() == 0
    assert run_command(site, *apply, "--execute")["marked"] == len(orphans)
    before = orphanage.entry_log_bytes()
    site.sweep_once(spark)
    # The broker died with the topic of the buckets loaded, which looks as if it had lost its session alone;
    # before that session has ended, as if it ran.
    (bucket,) = [maker for maker in orphanage.made if isinstance(maker, BucketNotRecorded)]
    waiting = {row["ledger_id"]: row["reason"] for row in site.outcomes() if row["outcome"] != Outcome.DELETED.value}
    assert waiting.keys() == orphanage.made[bucket]
    told = ("let a broker load and unload the topic", "the topic's owner has run since before it was made")
    assert [reason for reason in waiting.values() if not any(text in reason for text in told)] == []
    grounds.read_back(bucket.topic)
    grounds.cluster.broker.restart()

    def swept() -> bool:
        site.sweep_once(spark)
        return site.backlog() == 0

    eventually(swept, 120)
    assert site.counts()[Outcome.DELETED.value] == len(orphans)
    left = {ledger.ledger_id for ledger, _ in grounds.stored()}
    assert left >= kept
    assert left.isdisjoint(orphans)
    reclaimable = sum(stored[ledger_id] for ledger_id in orphans)
    assert reclaimable > 1_000_000

    eventually(lambda: before - orphanage.entry_log_bytes() > 0.9 * reclaimable, 60)
    # Entry logs are removed one by one.
    eventually(lambda: not grounds.on_bookie(orphans), 60, 0.2)
    for topic, content in orphanage.contents.items():
        assert grounds.read_back(topic) == content, topic


def nobody_names_them(orphanage: Orphanage) -> None:
    """Make sure that each way left ledgers, that these are all that is unnamed, and that they take up the disk."""
    assert all(orphanage.made.values())
    assert sum(len(made) for made in orphanage.made.values()) == len(orphanage.orphans)
    # A broker lists a new ledger a moment after it made it.
    eventually(lambda: set(orphanage.grounds.unnamed()) == orphanage.orphans, 30)
    assert orphanage.grounds.on_bookie(orphanage.orphans) == orphanage.orphans
    for topic in orphanage.contents:
        assert set(orphanage.grounds.ledgers_of(topic)).isdisjoint(orphanage.orphans)


def planned_causes(site: DeletionSite, plan: PlanManifest) -> dict[int, str]:
    """Tell what each candidate of the plan is put down to."""
    batches = plans_of(site.settings).candidates(plan, 1000)
    return {candidate.ledger_id: candidate.cause for batch in batches for candidate in batch}


def run_command(site: DeletionSite, *arguments: str) -> Any:
    """Run a command of `bookwarden orphans` and return what it says."""
    file = Path(site.settings.orphans.folder).with_name("bookwarden.yaml")
    file.write_text(yaml.safe_dump(site.settings.model_dump(mode="json", exclude_defaults=True)))
    result = CliRunner().invoke(cli, ["--config", str(file), "-o", "json", "orphans", *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
