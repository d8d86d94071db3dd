"""Orphans made as they come about in real life are found, planned and reclaimed, and every topic still reads back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pulsar
import pytest
import yaml
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.brokers import broker_clock
from bookwarden.clusters.pulsar.topic_positions import topic_path
from bookwarden.context import MetadataContext
from bookwarden.deletion.named_ledgers import mark_of_holder
from bookwarden.devcluster import ClusterOptions, DevCluster
from bookwarden.devcluster.garbage import GarbageOnDemand
from bookwarden.devcluster.ports import free_ports
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.metastore.interface import Versioned
from bookwarden.orphans.classes import Cause, LedgerClass
from bookwarden.orphans.plan import PlanManifest
from bookwarden.pipelines.orphan_folder import plans_of
from bookwarden.pipelines.orphan_scan import OrphanScan
from bookwarden.wire.pb.managed_ledger_pb2 import ManagedLedgerInfo
from servers.deletion_site import DeletionSite
from servers.orphan_grounds import BROKER_SETTINGS, ENTRIES_PER_LEDGER, Grounds
from servers.orphan_makers import ALL_MAKERS, Maker, make_orphans
from servers.short_lived import running_until_killed
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

# Entry logs are small and full early, and are compacted as soon as anything in them is garbage.
BOOKIE_SETTINGS = {"logSizeLimit": "1048576", "flushInterval": "1000", "majorCompactionThreshold": "0.99"}
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
    garbage: GarbageOnDemand
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


@pytest.fixture(scope="module")
def orphanage(
    tmp_path_factory: pytest.TempPathFactory, make_namespace: Callable[[DevCluster], str]
) -> Iterator[Orphanage]:
    (port,) = free_ports(1)
    garbage = GarbageOnDemand(port)
    options = ClusterOptions(
        max_entries_per_ledger=ENTRIES_PER_LEDGER,
        broker_settings=BROKER_SETTINGS,
        bookie_settings={**garbage.bookie_settings, **BOOKIE_SETTINGS},
    )
    home = tmp_path_factory.mktemp("pulsar")
    with running_until_killed(DevCluster(home, options, avoid=[port])) as cluster:
        urls = (cluster.service_url, cluster.admin_url, cluster.store_url)
        settings = SETTINGS | {"orphans.folder": str(home / "orphans")}
        site = DeletionSite(*urls, make_namespace(cluster), home / "site", overrides=settings)
        with (
            MetadataContext(site.settings) as metadata,
            closing(Grounds(cluster, metadata, lambda: make_namespace(cluster))) as grounds,
        ):
            yield _fill(grounds, garbage, site)


def _fill(grounds: Grounds, garbage: GarbageOnDemand, site: DeletionSite) -> Orphanage:
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
    return Orphanage(grounds, garbage, site, made, contents)


def read_back(grounds: Grounds, topic: str) -> list[bytes]:
    """Read the topic from its beginning to its end."""
    with closing(grounds.client()) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=60_000).data())
        return found


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
    assert site.counts() == {Outcome.DELETED.value: len(orphans)}
    left = {ledger.ledger_id for ledger, _ in grounds.stored()}
    assert left >= kept
    assert left.isdisjoint(orphans)
    reclaimable = sum(stored[ledger_id] for ledger_id in orphans)
    assert reclaimable > 1_000_000

    def reclaimed() -> bool:
        orphanage.garbage.collect()
        return before - orphanage.entry_log_bytes() > 0.9 * reclaimable

    eventually(reclaimed, 60)
    assert grounds.on_bookie(orphans) == set()
    for topic, content in orphanage.contents.items():
        assert read_back(grounds, topic) == content, topic


def test_what_a_bad_write_takes_off_a_topics_list_is_kept_and_told_and_reads_back_once_the_list_is_put_back(
    orphanage: Orphanage, spark: SparkSession
) -> None:
    grounds, site = orphanage.grounds, orphanage.site
    namespace = grounds.fresh_namespace()
    damaged = {name: Damaged(grounds, f"persistent://{namespace}/{name}") for name in DAMAGES}
    # The broker has it loaded, so that its last ledger is open, and only the bookie knows of its entries.
    writing = damaged["writing"].listed[-1]
    for name, one in damaged.items():
        if name != "writing":
            grounds.admin.put(f"{topic_path(one.topic)}/unload")
        one.damage(DAMAGES[name])
    (trimmed,) = damaged["trimmed"].lost
    lost = frozenset().union(*(one.lost for name, one in damaged.items() if name != "trimmed"))
    closed = sorted(lost - {writing})
    # A broker tells whole seconds, and what is younger than its clock is too young.
    made_ms = int(time.time() * 1000)
    eventually(lambda: broker_clock(grounds.admin) > made_ms)
    scan = OrphanScan(spark, site.settings)
    found = scan.run(scan.begin())
    # Of these topics alone, whatever else was tried on this cluster before.
    assert [one.ledger_id for one in found.summary.inside_lists if one.ledger_id in lost] == closed
    assert found.summary.total(LedgerClass.INSIDE_LIST)[1] > 0
    assert found.exit_code == 21
    planned = planned_causes(site, found.plan)
    of_these = {one: cause for one, cause in planned.items() if one in lost | {trimmed}}
    assert of_these == {trimmed: Cause.TRIM.value, writing: Cause.NEVER_LISTED.value}
    assert run_command(site, "apply", "--plan", found.plan.plan_id, "--execute")["marked"] == len(planned)
    # Marks of before, or of whoever else; as old as it takes.
    holders = {ledger_id: holder for ledger, holder in grounds.stored() for ledger_id in [ledger.ledger_id] if holder}
    site.mark(*(replace(mark_of_holder(one, holders[one], "test"), marked_at=1) for one in closed))
    site.sweep_once(spark)
    left = {ledger.ledger_id for ledger, _ in grounds.stored()}
    assert lost <= left
    assert trimmed not in left
    for name, one in damaged.items():
        expected = {"trimmed": Outcome.DELETED, "bare": Outcome.RETRY}.get(name, Outcome.INSIDE_LIST)
        for ledger_id in one.lost:
            assert site.outcome_of(ledger_id)[0] == expected.value, (name, ledger_id)
    refused = invoke(site, "mark", "ledger", str(closed[0]), "--yes")
    assert refused.exit_code == 5
    assert "--inside-list" in refused.output
    assert json.loads(invoke(site, "ledger", "explain", str(writing)).stdout)["outcome"] == Outcome.INSIDE_LIST.value
    for name, one in damaged.items():
        if name != "trimmed":
            one.put_back()
        grounds.admin.put(f"{topic_path(one.topic)}/unload")
        first = ENTRIES_PER_LEDGER if name == "trimmed" else 0
        assert read_back(grounds, one.topic) == [grounds.message(number) for number in range(first, MESSAGES)], name


# What becomes of the ledgers that a topic lists.
DAMAGES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "holey": lambda listed: [*listed[:2], *listed[3:]],
    "cut": lambda listed: listed[:2],
    "bare": lambda _: [],
    "writing": lambda listed: listed[:-1],
    "trimmed": lambda listed: listed[1:],
}


class Damaged:
    """A topic with some ledgers, whose node is written by something other than its broker."""

    def __init__(self, grounds: Grounds, topic: str) -> None:
        self.topic = topic
        self._store = grounds.metadata.store
        self._path = f"/managed-ledgers/{TopicName.parse(topic).managed_ledger}"
        grounds.send(topic, MESSAGES)
        self.listed = grounds.ledgers_of(topic)
        assert len(self.listed) >= 4
        self.lost: frozenset[int] = frozenset()

    def damage(self, change: Callable[[list[Any]], list[Any]]) -> None:
        """Write the node with another list."""
        self._before = self._read()
        info = ManagedLedgerInfo.FromString(self._before.value)
        left = change(list(info.ledgerInfo))
        self.lost = frozenset(self.listed) - {one.ledgerId for one in left}
        changed = ManagedLedgerInfo()
        changed.CopyFrom(info)
        del changed.ledgerInfo[:]
        changed.ledgerInfo.extend(left)
        self._store.put(self._path, changed.SerializeToString() if left else b"", self._before.version)

    def put_back(self) -> None:
        """Write the node as it was."""
        self._store.put(self._path, self._before.value, self._read().version)

    def _read(self) -> Versioned:
        found = self._store.get(self._path)
        assert found is not None
        return found


def nobody_names_them(orphanage: Orphanage) -> None:
    """Make sure that each way left ledgers, that these are all that is unnamed, and that they take up the disk."""
    assert all(orphanage.made.values())
    assert sum(len(made) for made in orphanage.made.values()) == len(orphanage.orphans)
    assert set(orphanage.grounds.unnamed()) == orphanage.orphans
    assert orphanage.grounds.on_bookie(orphanage.orphans) == orphanage.orphans
    for topic in orphanage.contents:
        assert set(orphanage.grounds.ledgers_of(topic)).isdisjoint(orphanage.orphans)


def planned_causes(site: DeletionSite, plan: PlanManifest) -> dict[int, str]:
    """Tell what each candidate of the plan is put down to."""
    batches = plans_of(site.settings).candidates(plan, 1000)
    return {candidate.ledger_id: candidate.cause for batch in batches for candidate in batch}


def run_command(site: DeletionSite, *arguments: str) -> Any:
    """Run a command of `bookwarden orphans` and return what it says."""
    result = invoke(site, "orphans", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def invoke(site: DeletionSite, *arguments: str) -> Result:
    """Run a command."""
    file = Path(site.settings.orphans.folder).with_name("bookwarden.yaml")
    file.write_text(yaml.safe_dump(site.settings.model_dump(mode="json", exclude_defaults=True)))
    return CliRunner().invoke(cli, ["--config", str(file), "-o", "json", *arguments])
