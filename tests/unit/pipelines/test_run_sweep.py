"""The driver of the sweep without Spark: what a JVM that was killed leaves to be told."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

import bookwarden.pipelines.streams.checks as checks
import bookwarden.pipelines.sweep.driver as driver
import bookwarden.wiring.cluster
from bookwarden.config import load_settings
from bookwarden.errors import (
    ConfigError,
    DataGoneError,
    NotFoundError,
    PulsarUnavailableError,
    RefusedError,
    SparkError,
)
from bookwarden.ledgers.names import encode_local_name
from bookwarden.metastore.lock import StoreLock
from bookwarden.metastore.memory import MemoryStore
from bookwarden.pipelines.session import end_session
from bookwarden.pipelines.streams.checks import once_answered
from bookwarden.pipelines.streams.supervisor import StreamLimits
from bookwarden.preflight import require_absolute_journal


class KilledSpark:
    """A session whose JVM ends when a query is running."""

    def __init__(self) -> None:
        self.alive = True
        self.streams = self
        self.dataSource = self
        self.sparkContext = SimpleNamespace(master="local[2]")

    def addListener(self, _: object) -> None:
        assert self.alive

    def register(self, _: object) -> None:
        assert self.alive

    def removeListener(self, _: object) -> None:
        self.stop()

    def stop(self) -> None:
        if not self.alive:
            raise ConnectionRefusedError(111, "Connection refused")


@pytest.fixture(autouse=True)
def _nothing_to_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what a sweep asks of servers before its first batch."""
    for name in ("prove_roots", "require_sweeping", "_look_at_directives", "_require_own_checkpoint"):
        monkeypatch.setattr(driver, name, lambda *_: None)


def test_a_killed_jvm_is_told_as_one_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = KilledSpark()

    class Query:
        @property
        def isActive(self) -> bool:
            spark.alive = False
            raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(driver.LedgerDeletion, "start", lambda *_, once: Query())
    settings = load_settings(overrides={"sweep.lock": "''", "metadata_store.urls": "['memory:killed']"})
    with pytest.raises(SparkError, match="no longer answers"):
        sweep_and_end(spark, settings)


def sweep_and_end(spark: SparkSession, settings: driver.Settings) -> None:
    try:
        driver.run_sweep(spark, settings)
    finally:
        end_session(spark)


class FinishedQuery:
    """A query of `once` that had nothing to do."""

    isActive = False

    def exception(self) -> None:
        return None


def test_a_sweep_beside_another_is_refused_and_a_dry_run_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr(bookwarden.wiring.cluster, "open_metadata_store", lambda *_, **__: store)
    monkeypatch.setattr(checks, "_SESSION_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(driver.LedgerDeletion, "start", lambda *_, once: FinishedQuery())
    usual = {"deletion.subscription": "one", "metadata_store.session_timeout_seconds": "0.1"}
    other = "/bookwarden/sweeps/" + encode_local_name(f"{load_settings().deletion.topic} one")
    StoreLock(store, other).acquire(0)
    spark: Any = KilledSpark()
    with pytest.raises(RefusedError, match="another sweep runs on"):
        driver.run_sweep(spark, load_settings(overrides=usual), once=True)
    store = MemoryStore()
    StoreLock(store, other).acquire(0)
    for allowed in ({"sweep.dry_run": "true"}, {"sweep.lock": "''"}, {"deletion.subscription": "two"}):
        driver.run_sweep(spark, load_settings(overrides={**usual, **allowed}), once=True)


@pytest.mark.parametrize("master", ["spark://master:7077", "yarn", "k8s://https://k:6443", "local-cluster[2,1,512]"])
def test_a_journal_in_the_working_folders_of_executors_is_refused_before_anything_begins(master: str) -> None:
    spark: Any = KilledSpark()
    spark.sparkContext.master = master
    with pytest.raises(ConfigError, match=rf"sweep.journal 'var/journal' is a relative path, .* {re.escape(master)}"):
        driver.run_sweep(spark, load_settings(overrides={"metadata_store.urls": "['memory:journal']"}))


@pytest.mark.parametrize(
    ("journal", "master", "dry_run"),
    [
        ("var/journal", "local[*]", "false"),
        ("var/journal", "local", "false"),
        ("/shared/journal", "yarn", "false"),
        ("s3://bucket/journal", "yarn", "false"),
        ("var/journal", "yarn", "true"),
    ],
)
def test_a_journal_that_is_one_place_for_all_is_taken(journal: str, master: str, dry_run: str) -> None:
    sweep = load_settings(overrides={"sweep.journal": journal, "sweep.dry_run": dry_run}).sweep
    require_absolute_journal(sweep, master)


@pytest.mark.parametrize("missing", [NotFoundError("there is no topic"), PulsarUnavailableError("no answer")])
def test_topics_are_looked_for_before_a_query_begins(missing: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it was started: by the command line or by spark-submit."""

    def fail(*_: object) -> None:
        raise missing

    def start(*_: object, once: bool) -> None:
        pytest.fail("a query began")

    monkeypatch.setattr(driver, "require_sweeping", fail)
    monkeypatch.setattr(driver.LedgerDeletion, "start", start)
    overrides = {
        "sweep.lock": "''",
        "metadata_store.urls": "['memory:topics']",
        "sweep.max_failures": "2",
        "sweep.backoff_seconds": "0.001",
    }
    spark: Any = KilledSpark()
    with pytest.raises(type(missing), match=str(missing)):
        driver.run_sweep(spark, load_settings(overrides=overrides), once=True)


def test_an_error_of_the_source_names_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        isActive = False

        def exception(self) -> Exception:
            return DataGoneError("offset 512000:-1 lies past the end")

    monkeypatch.setattr(driver.LedgerDeletion, "start", lambda *_, once: Refused())
    overrides = {
        "sweep.lock": "''",
        "metadata_store.urls": "['memory:gone']",
        "sweep.checkpoint": "s3a://bucket/checkpoint",
    }
    spark: Any = KilledSpark()
    with pytest.raises(DataGoneError, match=r"512000:-1 lies past the end. The checkpoint is s3a://bucket/checkpoint"):
        driver.run_sweep(spark, load_settings(overrides=overrides))


@pytest.mark.parametrize(("once", "tries"), [(False, 10), (True, 3)])
def test_a_broker_that_is_away_at_the_start_is_asked_again_and_by_a_run_that_ends_by_itself_for_seconds(
    once: bool, tries: int
) -> None:
    now = 0.0
    asked: list[float] = []

    def check() -> None:
        asked.append(now)
        raise PulsarUnavailableError("no answer")

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return False

    with pytest.raises(PulsarUnavailableError):
        once_answered(check, StreamLimits(max_failures=10, backoff=1.0), wait, once=once, clock=lambda: now)
    assert len(asked) == tries


def test_a_check_that_takes_long_is_not_repeated_by_a_run_that_ends_by_itself() -> None:
    now, asked = 0.0, 0

    def check() -> None:
        nonlocal now, asked
        now += 10.0
        asked += 1
        raise PulsarUnavailableError("no answer in time")

    with pytest.raises(PulsarUnavailableError):
        once_answered(check, StreamLimits(), lambda _: False, once=True, clock=lambda: now)
    assert asked == 1


def test_a_sweep_of_once_gives_up_on_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def away(*_: object) -> None:
        nonlocal asked
        asked += 1
        raise PulsarUnavailableError("no answer")

    monkeypatch.setattr(driver, "require_sweeping", away)
    monkeypatch.setattr(checks, "_ONCE_SECONDS", 0.0)
    spark: Any = KilledSpark()
    settings = load_settings(overrides={"sweep.lock": "''", "metadata_store.urls": "['memory:away']"})
    with pytest.raises(PulsarUnavailableError):
        driver.run_sweep(spark, settings, once=True)
    assert asked == 1
