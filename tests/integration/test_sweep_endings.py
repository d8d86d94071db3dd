"""How a sweep ends that cannot go on: without its journal, stopped while its batches fail, without its messages."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.errors import DataGoneError, FileError, SparkError, StoppedFailingError
from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.metastore.interface import MetadataStore
from bookwarden.pipelines.streams import supervisor
from bookwarden.pipelines.sweep.driver import run_sweep
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.pulsar import connection_of
from servers.deletion_site import PARTITIONS, DeletionSite
from servers.full_disk import enlarge, small_disk
from servers.population import Population

pytestmark = pytest.mark.servers


def leaked(site: DeletionSite, store: MetadataStore, number: int) -> list[str]:
    """Make and mark ledgers that nobody names; return their paths."""
    holder = ManagedLedgerHolder(f"{site.namespace}/persistent/gone")
    first = 3_000_000_000 + int.from_bytes(os.urandom(3), "big") * 10
    paths = [Population(store).ledger(ledger, holder) for ledger in range(first, first + number)]
    site.mark(
        *(
            PendingDeletion(holder.name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger)
            for ledger in range(first, first + number)
        )
    )
    return paths


def test_a_journal_that_is_another_folder_for_the_executors_deletes_nothing(
    site: DeletionSite, store: MetadataStore, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of this Spark have the working folder of its JVM, which this path means in each process."""
    paths = leaked(site, store, 2)
    monkeypatch.chdir(tmp_path)
    own = f"/proc/self/cwd/journal-{tmp_path.name}"
    site.overrides = {"sweep.journal": own, "sweep.max_failures": "1"}
    told = f"journal {own} on .* is not the folder that the driver has by this name, so nothing is deleted"
    with pytest.raises(SparkError, match=told):
        run_sweep(spark, site.settings, once=True)
    assert all(store.get_many(paths))


class StopAtFailure(logging.Handler):
    """Asks this process to stop as soon as the supervisor tells of a failure."""

    def emit(self, record: logging.LogRecord) -> None:
        if "failure 1" in record.getMessage():
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_stop_while_batches_fail_tells_what_failed_and_what_is_in_flight(
    site: DeletionSite, store: MetadataStore, spark: SparkSession, tmp_path: Path
) -> None:
    paths = leaked(site, store, 2)
    # No journal can be written below a file, and without it nothing is deleted.
    (tmp_path / "file").write_text("")
    site.overrides = {"sweep.journal": str(tmp_path / "file" / "journal"), "sweep.max_unreachable_seconds": "1"}
    handler, logger = StopAtFailure(), logging.getLogger(supervisor.__name__)
    logger.addHandler(handler)
    try:
        with pytest.raises(StoppedFailingError, match=r"2 pending deletions in flight; .*journal") as told:
            run_sweep(spark, site.settings, once=True)
    finally:
        logger.removeHandler(handler)
    assert told.value.exit_code == 15
    with Cluster(site.settings) as cluster:
        topics = cluster.deletion_topics
        assert topics.in_flight().messages == 2
    assert all(store.get_many(paths))


def test_a_sweep_whose_checkpoint_has_no_room_says_so_and_works_once_there_is_some(
    site: DeletionSite, store: MetadataStore, spark: SparkSession, tmp_path: Path
) -> None:
    paths = leaked(site, store, 2)
    # Room for what is written before the first batch, and not for that.
    with small_disk(tmp_path / "full", "16k") as folder:
        site.overrides = {"sweep.checkpoint": str(folder / "checkpoint")}
        with pytest.raises(FileError, match=rf"No space left on device.*The checkpoint is {folder}/checkpoint"):
            run_sweep(spark, site.settings, once=True)
        assert all(store.get_many(paths))
        enlarge(folder, "4m")
        assert run_sweep(spark, site.settings, once=True).drained
        assert not any(store.get_many(paths))


def test_marks_that_somebody_skipped_end_the_sweep_at_once(
    site: DeletionSite, store: MetadataStore, spark: SparkSession
) -> None:
    leaked(site, store, 1)
    assert run_sweep(spark, site.settings, once=True).drained
    leaked(site, store, 1)
    admin, subscription = (
        PulsarAdmin(connection_of(site.settings.pulsar), timeout_s=60),
        site.settings.deletion.subscription,
    )
    for partition in range(PARTITIONS):
        admin.post(f"/persistent/{site.namespace}/deletion-partition-{partition}/subscription/{subscription}/skip_all")
    failures: list[str] = []

    class Failures(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            failures.append(record.getMessage())

    handler, logger = Failures(logging.ERROR), logging.getLogger(supervisor.__name__)
    logger.addHandler(handler)
    try:
        with pytest.raises(DataGoneError, match="Start with a new checkpoint") as told:
            run_sweep(spark, site.settings, once=True)
    finally:
        logger.removeHandler(handler)
    assert told.value.exit_code == 10
    assert not failures, "the query was started again"
