"""Whose a checkpoint is, where a sweep goes on, and what of its topics it needs: on real servers."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import (
    TopicPositions,
    create_subscription,
    move_subscription,
    read_positions,
    subscription_path,
    topic_path,
)
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.errors import DataGoneError, NotFoundError, RefusedError
from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.pipelines.follow.driver import run_follow
from bookwarden.pipelines.sweep.driver import run_sweep
from bookwarden.wiring.pulsar import connection_of
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from servers.deletion_site import PARTITIONS, DeletionSite
from servers.marked_load import sweep_process
from servers.population import Population
from servers.waiting import eventually

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(900)]

RECORDED = Path(__file__).parents[1] / "data" / "state_0_1_0"
SUBSCRIPTION = "ledger-deletion-worker"
# Cursors are stored once, and then not for an hour: a broker that is killed puts them back to there.
FORGETFUL = {"managedLedgerDefaultMarkDeleteRateLimit": "0.0003", "managedLedgerCursorPositionFlushSeconds": "3600"}


class Marked:
    """Ledgers of one site's that nothing names, and their marks."""

    def __init__(self, site: DeletionSite, store: MetadataStore) -> None:
        self.site = site
        self.paths: dict[int, str] = {}
        self._store = store
        self._population = Population(store)
        self._ids = iter(range(7_000_000_000 + (hash(site.namespace) % 500_000) * 1000, 8_000_000_000))

    def add(self, number: int) -> list[int]:
        """Make and mark so many more, of as many holders, so that each partition has some."""
        made, marks = [], []
        for _ in range(number):
            ledger = next(self._ids)
            holder = ManagedLedgerHolder(f"{self.site.namespace}/persistent/orders-{ledger % 97}")
            self.paths[ledger] = self._population.ledger(ledger, holder)
            marks.append(PendingDeletion(holder.name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger))
            made.append(ledger)
        self.site.mark(*marks)
        return made

    def left(self) -> set[int]:
        """Those whose metadata is still there."""
        self._store.sync()
        values = self._store.get_many(list(self.paths.values()))
        return {ledger for ledger, value in zip(self.paths, values, strict=True) if value is not None}


@pytest.fixture
def marked(site: DeletionSite, store: MetadataStore) -> Marked:
    return Marked(site, store)


@pytest.fixture(scope="module")
def other_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A second cluster, whose broker may be killed."""
    cluster = DevCluster(tmp_path_factory.mktemp("pulsar"), ClusterOptions(broker_settings=FORGETFUL))
    cluster.up()
    yield cluster
    cluster.kill()


@pytest.fixture
def others(other_cluster: DevCluster, make_namespace: Callable[[DevCluster], str], tmp_path: Path) -> Iterator[Marked]:
    """Marked ledgers of the second cluster."""
    site = DeletionSite.of(other_cluster, make_namespace(other_cluster), tmp_path / "other")
    site.create_topics()
    with closing(open_store(site.store_url)) as store:
        yield Marked(site, store)


def admin_of(site: DeletionSite) -> PulsarAdmin:
    return PulsarAdmin(connection_of(site.settings.pulsar), timeout_s=60)


def positions(site: DeletionSite, *topics: str) -> dict[str, TopicPositions]:
    """The positions of all partitions of the deletion topic and its retry topic, or of these."""
    admin = admin_of(site)
    found = {}
    for topic in topics or ("deletion", "deletion-RETRY"):
        for number in range(PARTITIONS):
            partition = f"persistent://{site.namespace}/{topic}-partition-{number}"
            found[partition] = read_positions(admin, partition)
    return found


def offsets_in(checkpoint: Path) -> dict[str, str]:
    """The offsets of the last batch, as Spark keeps them."""
    newest = max(
        (file for file in (checkpoint / "offsets").iterdir() if file.name.isdecimal()), key=lambda f: int(f.name)
    )
    offsets: dict[str, str] = json.loads(newest.read_text().splitlines()[-1])
    return offsets


def rewrite_offsets(checkpoint: Path, offsets: Mapping[str, str]) -> None:
    """Put these offsets into the place of those of each batch; without the checksums that Hadoop keeps beside them."""
    for file in list((checkpoint / "offsets").iterdir()):
        if file.suffix == ".crc":
            file.unlink()
        else:
            file.write_text("\n".join([*file.read_text().splitlines()[:-1], json.dumps(dict(sorted(offsets.items())))]))


def without_identity(checkpoint: Path) -> Path:
    """The checkpoint as 0.1.0 leaves it."""
    for name in ("identity.json", ".identity.json.crc"):
        (checkpoint / name).unlink(missing_ok=True)
    return checkpoint


def test_a_checkpoint_of_another_cluster_is_refused_by_name_and_nothing_of_it_is_believed(
    marked: Marked, others: Marked, spark: SparkSession
) -> None:
    marked.add(5)
    assert run_sweep(spark, marked.site.settings, once=True).counts == {"deleted": 5}
    checkpoint = others.site.folder / "checkpoint"
    shutil.copytree(marked.site.folder / "checkpoint", checkpoint)
    others.add(20)
    with pytest.raises(RefusedError, match=rf"{checkpoint} is the checkpoint of another cluster .*INSTANCE|instance"):
        run_sweep(spark, others.site.settings, once=True)
    assert len(others.left()) == 20
    # Nor is it where it does not say whose it is, and has offsets of topics of the same names that lie past their ends,
    for last, error in (
        ("512000:-1", "lies past the end of the topic"),
        ("512000:33", "lies past the end of the topic"),
    ):
        rewrite_offsets(without_identity(checkpoint), dict.fromkeys(positions(others.site), last))
        with pytest.raises(DataGoneError, match=rf"{last} {error}.*The checkpoint is {checkpoint}"):
            run_sweep(spark, others.site.settings, once=True)
        assert len(others.left()) == 20
        assert others.site.backlog() > 0
    # or ahead of their subscription: then everything is read.
    rewrite_offsets(
        without_identity(checkpoint), {topic: str(found.latest) for topic, found in positions(others.site).items()}
    )
    assert run_sweep(spark, others.site.settings, once=True).counts["deleted"] == 20
    assert (others.left(), others.site.backlog()) == (set(), 0)


def test_what_a_killed_broker_forgot_of_the_cursor_is_read_again_and_nothing_else_happens(
    other_cluster: DevCluster, others: Marked, spark: SparkSession
) -> None:
    site = others.site
    for number in (20, 20, 20):
        others.add(number)
        assert run_sweep(spark, site.settings, once=True).drained
    assert site.counts() == {"deleted": 60}
    other_cluster.broker.kill()
    other_cluster.broker.start()
    at = offsets_in(site.folder / "checkpoint")
    behind = {
        topic
        for topic, found in positions(site).items()
        if topic in at and found.cursors[SUBSCRIPTION] < Position.parse(at[topic]) and found.latest.entry_id >= 0
    }
    assert behind, "the broker had stored its cursors"
    late = set(others.add(5))
    assert run_sweep(spark, site.settings, once=True).drained
    assert (others.left(), site.backlog(), site.backlog_of_dlq()) == (set(), 0, 0)
    counts = site.counts()
    assert counts["deleted"] == 65
    assert counts["already gone"] > 0
    assert {row["ledger_id"] for row in site.outcomes() if row["outcome"] == "already gone"}.isdisjoint(late)


def test_a_checkpoint_of_0_1_0_goes_on_where_it_was_with_one_line(
    marked: Marked, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Recorded, with the topics and ledgers of this cluster in the place of its own."""
    site, checkpoint = marked.site, marked.site.folder / "checkpoint"
    shutil.copytree(RECORDED / "checkpoint", checkpoint)
    recorded = json.loads((RECORDED / "topics.json").read_text())
    written = "\n".join(file.read_text() for file in (checkpoint / "offsets").iterdir())
    assert set(re.findall(r"persistent://[^\"]+", written)) == set(recorded["topics"])
    swept = marked.add(8)
    admin, acknowledged = admin_of(site), {}
    for topic, found in positions(site).items():
        acknowledged[topic] = str(found.latest)
        move_subscription(admin, topic, SUBSCRIPTION, found.latest)
    rewrite_offsets(checkpoint, acknowledged)
    fresh = set(marked.add(6))
    caplog.set_level(logging.INFO, logger="bookwarden")
    assert run_sweep(spark, site.settings, once=True).counts == {"deleted": 6}
    assert {row["ledger_id"] for row in site.outcomes()} == fresh
    assert marked.left() == set(swept)
    (line,) = (text for text in caplog.messages if "does not say whose checkpoint" in text)
    assert f"{checkpoint} " in line
    # It is known from now on, and what it holds is what 0.1.0 reads.
    assert json.loads((checkpoint / "identity.json").read_text())["pulsarClusters"] == ["dev"]
    assert all(Position.parse(text) for text in offsets_in(checkpoint).values())
    caplog.clear()
    marked.add(1)
    assert run_sweep(spark, site.settings, once=True).counts == {"deleted": 1}
    assert not [text for text in caplog.messages if "whose checkpoint" in text]
    # 0.1.0 in between leaves the file as it is.
    rewrite_offsets(checkpoint, offsets_in(checkpoint))
    assert run_sweep(spark, site.settings, once=True).drained


def test_a_subscription_that_is_missing_at_the_start_ends_sweep_and_follow_however_they_are_started(
    marked: Marked, spark: SparkSession
) -> None:
    """These functions are all that the scripts for spark-submit call."""
    site, admin = marked.site, admin_of(marked.site)
    site.overrides = {
        "follow.checkpoint": str(site.folder / "follow"),
        "follow.outcomes": str(site.folder / "follow-outcomes"),
        "follow.lock": f"/bookwarden/follow-{site.folder.name}",
    }
    marked.add(2)
    dlq = f"persistent://{site.namespace}/deletion-DLQ"
    admin.delete(subscription_path(dlq, SUBSCRIPTION))
    with pytest.raises(NotFoundError, match=rf"{dlq} has no subscription '{SUBSCRIPTION}': `bookwarden init`"):
        run_sweep(spark, site.settings, once=True)
    admin.delete(topic_path(dlq), params={"force": True})
    with pytest.raises(NotFoundError, match=rf"there is no topic {dlq}: `bookwarden init`"):
        run_sweep(spark, site.settings, once=True)
    assert len(marked.left()) == 2
    partition = f"persistent://{site.namespace}/deletion-partition-{PARTITIONS - 1}"
    admin.delete(subscription_path(partition, SUBSCRIPTION))
    with pytest.raises(NotFoundError, match=f"{partition} has no subscription"):
        run_follow(None, site.settings, once=True)
    assert not (site.folder / "follow").exists()


def test_while_the_dlq_keeps_nothing_nothing_is_given_up_and_everything_else_goes_on(
    marked: Marked, tmp_path: Path
) -> None:
    site, admin = marked.site, admin_of(marked.site)
    dlq = f"persistent://{site.namespace}/deletion-DLQ"
    sweep = sweep_process(site, tmp_path)
    sweep.start()
    try:
        marked.add(1)
        eventually(lambda: site.counts()["deleted"] == 1, 240)
        admin.delete(subscription_path(dlq, SUBSCRIPTION), params={"force": True})
        send_raw(site, b"this is no mark")
        marked.add(3)
        eventually(lambda: site.counts()["waiting"] >= 2 and site.counts()["deleted"] == 4, 240)
        waiting = [row for row in site.outcomes() if row["outcome"] == "waiting"]
        assert {row["attempts"] for row in waiting} == {0}
        assert all(
            row["reason"].startswith(
                f"it is not given up, since its dead letter would not be kept ({dlq} has no subscription"
            )
            for row in waiting
        )
        assert site.counts()["malformed"] == 0
        assert Topics(admin).why_nothing_is_kept(dlq, SUBSCRIPTION) is not None
        create_subscription(admin, dlq, SUBSCRIPTION, read_positions(admin, dlq).earliest)
        eventually(lambda: site.counts()["malformed"] == 1 and site.backlog() == 0, 240)
        sweep.stop()
        # By SIGTERM.
        assert sweep.exit_code == 0
    finally:
        if sweep.is_running():
            sweep.kill()
    assert site.backlog_of_dlq() == 1


def send_raw(site: DeletionSite, payload: bytes) -> None:
    producers = ConfirmedProducers(connection_of(site.settings.pulsar).client)
    try:
        producers.send(site.settings.deletion.topic, payload, schema=None, key="k", properties={})
        producers.flush()
    finally:
        producers.close()
