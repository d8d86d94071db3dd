"""Lists of topics that something other than their broker wrote, on a real broker: nothing of them is deleted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.rest.brokers import broker_clock
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.metastore.interface import Versioned
from bookwarden.orphans.classes import Cause, LedgerClass
from bookwarden.pipelines.scan.folder import plans_of
from bookwarden.pipelines.scan.operation import OrphanScan
from bookwarden.wire.pb.managed_ledger_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import DevCluster
from servers.deletion_site import DeletionSite
from servers.orphan_grounds import Grounds
from servers.pool import ENTRIES_PER_LEDGER
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

# What waits in real life, for clocks, compactions and a second look, need not wait for what has just been made.
SETTINGS = {
    "orphans.min_age_days": "0",
    "orphans.longest_compaction_hours": "0",
    "orphans.seen_apart_hours": "0",
    "orphans.max_share": "0.9",
}
# The last ledger of a topic is half full: a broker makes the next one only for an entry.
MESSAGES = 4 * ENTRIES_PER_LEDGER + ENTRIES_PER_LEDGER // 2


@dataclass
class Ground:
    """A cluster with its metadata, and the sweep of it."""

    grounds: Grounds
    site: DeletionSite


@pytest.fixture
def ground(
    pulsar_cluster: DevCluster, namespace: str, make_namespace: Callable[[DevCluster], str], tmp_path: Path
) -> Iterator[Ground]:
    settings = SETTINGS | {"orphans.folder": str(tmp_path / "orphans")}
    site = DeletionSite.of(pulsar_cluster, namespace, tmp_path / "site", overrides=settings)
    with (
        Cluster(site.settings) as opened,
        closing(Grounds(pulsar_cluster, opened, lambda: make_namespace(pulsar_cluster))) as grounds,
    ):
        site.create_topics()
        yield Ground(grounds, site)


def test_what_a_bad_write_takes_off_a_topics_list_is_kept_and_told_and_reads_back_once_the_list_is_put_back(
    ground: Ground, spark: SparkSession
) -> None:
    grounds, site = ground.grounds, ground.site
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
    lengths = {ledger.ledger_id: ledger.metadata.length for ledger, _ in grounds.stored()}
    closed = sorted(one for one in lost if lengths[one])
    # A broker tells whole seconds, and what is younger than its clock is too young.
    made_ms = int(time.time() * 1000)
    eventually(lambda: broker_clock(grounds.admin) > made_ms)
    scan = OrphanScan(spark, site.settings)
    found = scan.run(scan.begin())
    # Of these topics alone, whatever else was tried on this cluster before.
    assert [one.ledger_id for one in found.summary.inside_lists if one.ledger_id in lost] == closed
    assert found.summary.total(LedgerClass.INSIDE_LIST)[1] > 0
    assert found.exit_code == 21
    planned = {one.ledger_id: one.cause for one in plans_of(site.settings).all_candidates(found.plan)}
    of_these = {one: cause for one, cause in planned.items() if one in lost | {trimmed}}
    assert of_these == {trimmed: Cause.TRIM.value}
    # The one that the broker writes to is above the list, and may be empty for all that the metadata says.
    (doubted,) = [one for one in found.summary.doubts if damaged["writing"].path == one.path]
    assert "may be damaged: its last ledger" in doubted.reason
    emptied = [word for one in found.plan.emptied for word in ("--allow-emptied", one.name)]
    applied = invoke(site, "orphans", "apply", "--plan", found.plan.plan_id, *emptied, "--execute")
    assert applied.exit_code == 0, applied.output
    assert json.loads(applied.stdout)["marked"] == len(planned)
    # Marks of before, or of whoever else; as old as it takes.
    holders = {ledger_id: holder for ledger, holder in grounds.stored() for ledger_id in [ledger.ledger_id] if holder}
    site.mark(*(replace(mark_of_holder(one, holders[one], "test"), marked_at=1) for one in [*closed, writing]))
    # A node may be damaged for a moment: the first look settles nothing.
    site.sweep_once(spark)
    assert {site.outcome_of(one)[-1] for one in [*closed, writing]} == {Outcome.RETRY.value}

    def second_look() -> bool:
        site.sweep_once(spark)
        return all(site.outcome_of(one)[-1] != Outcome.RETRY.value for one in closed)

    eventually(second_look)
    left = {ledger.ledger_id for ledger, _ in grounds.stored()}
    assert lost <= left
    assert trimmed not in left
    for name, one in damaged.items():
        expected = {"trimmed": Outcome.DELETED, "writing": Outcome.RETRY}.get(name, Outcome.INSIDE_LIST)
        for ledger_id in one.lost.intersection([*closed, writing, trimmed]):
            assert site.outcome_of(ledger_id)[-1] == expected.value, (name, ledger_id)
    refused = invoke(site, "mark", "ledger", str(closed[0]), "--yes")
    assert refused.exit_code == 5
    assert "--inside-list" in refused.output
    explained = json.loads(invoke(site, "ledger", "explain", str(writing)).stdout)
    assert explained["outcome"] == Outcome.RETRY.value
    assert "may be damaged: its last ledger" in explained["reason"]
    for name, one in damaged.items():
        if name != "trimmed":
            one.put_back()
        grounds.admin.put(f"{topic_path(one.topic)}/unload")
        first = ENTRIES_PER_LEDGER if name == "trimmed" else 0
        assert grounds.read_back(one.topic) == [grounds.message(number) for number in range(first, MESSAGES)], name


def test_a_list_that_holds_something_else_costs_no_ledger_and_reads_back_once_it_is_put_back(
    ground: Ground, spark: SparkSession
) -> None:
    grounds, site = ground.grounds, ground.site
    namespace = grounds.fresh_namespace()
    other_bytes = {
        "nothing": b"",
        "number": b"\x08\x05",
        "cursor": ManagedCursorInfo(cursorsLedgerId=7, lastActive=1).SerializeToString(),
    }
    damaged = {name: Damaged(grounds, f"persistent://{namespace}/{name}") for name in other_bytes}
    for name, one in damaged.items():
        grounds.admin.put(f"{topic_path(one.topic)}/unload")
        one.write(other_bytes[name])
    listed = frozenset().union(*(one.listed for one in damaged.values()))
    holders = {ledger.ledger_id: holder for ledger, holder in grounds.stored() if holder}
    site.mark(*(replace(mark_of_holder(one, holders[one], "test"), marked_at=1) for one in sorted(listed)))
    site.sweep_once(spark)
    assert {site.outcome_of(one)[0] for one in listed} == {Outcome.RETRY.value}
    assert listed <= {ledger.ledger_id for ledger, _ in grounds.stored()}
    for name, one in damaged.items():
        one.put_back()
        grounds.admin.put(f"{topic_path(one.topic)}/unload")
        assert grounds.read_back(one.topic) == [grounds.message(number) for number in range(MESSAGES)], name


# What becomes of the ledgers that a topic lists.
DAMAGES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "holey": lambda listed: [*listed[:2], *listed[3:]],
    "cut": lambda listed: listed[:2],
    "writing": lambda listed: listed[:-1],
    "trimmed": lambda listed: listed[1:],
}


class Damaged:
    """A topic with some ledgers, whose node is written by something other than its broker."""

    def __init__(self, grounds: Grounds, topic: str) -> None:
        self.topic = topic
        self._store = grounds.opened.store
        self.path = f"/managed-ledgers/{TopicName.parse(topic).managed_ledger}"
        grounds.send(topic, MESSAGES)
        self.listed = grounds.ledgers_of(topic)
        assert len(self.listed) == 5
        self.lost: frozenset[int] = frozenset()

    def damage(self, change: Callable[[list[Any]], list[Any]]) -> None:
        """Write the node with another list."""
        info = ManagedLedgerInfo.FromString(self._read().value)
        left = change(list(info.ledgerInfo))
        self.lost = frozenset(self.listed) - {one.ledgerId for one in left}
        changed = ManagedLedgerInfo()
        changed.CopyFrom(info)
        del changed.ledgerInfo[:]
        changed.ledgerInfo.extend(left)
        self.write(changed.SerializeToString())

    def write(self, value: bytes) -> None:
        """Write the node with another value."""
        self._before = self._read()
        self._store.put(self.path, value, self._before.version)

    def put_back(self) -> None:
        """Write the node as it was."""
        self._store.put(self.path, self._before.value, self._read().version)

    def _read(self) -> Versioned:
        found = self._store.get(self.path)
        assert found is not None
        return found


def invoke(site: DeletionSite, *arguments: str) -> Result:
    """Run a command."""
    file = Path(site.settings.orphans.folder).with_name("bookwarden.yaml")
    file.write_text(yaml.safe_dump(site.settings.model_dump(mode="json", exclude_defaults=True)))
    return CliRunner().invoke(cli, ["--config", str(file), "-o", "json", *arguments])
