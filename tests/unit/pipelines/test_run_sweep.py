"""The driver of the sweep without Spark: what a JVM that was killed leaves to be told."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import bookwarden.pipelines.streams.running as running
import bookwarden.pipelines.sweep.driver as driver
import bookwarden.wiring.metadata
from bookwarden.config import load_settings
from bookwarden.errors import RefusedError, SparkError
from bookwarden.ledgers.names import encode_local_name
from bookwarden.metastore.memory import MemoryStore
from bookwarden.pipelines.session import end_session
from bookwarden.pipelines.streams.lock import StreamLock


class KilledSpark:
    """A session whose JVM ends when a query is running."""

    def __init__(self) -> None:
        self.alive = True
        self.streams = self
        self.dataSource = self

    def addListener(self, _: object) -> None:
        assert self.alive

    def register(self, _: object) -> None:
        assert self.alive

    def removeListener(self, _: object) -> None:
        self.stop()

    def stop(self) -> None:
        if not self.alive:
            raise ConnectionRefusedError(111, "Connection refused")


def test_a_killed_jvm_is_told_as_one_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = KilledSpark()

    class Query:
        @property
        def isActive(self) -> bool:
            spark.alive = False
            raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(driver, "prove_roots", lambda *_: None)
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
    monkeypatch.setattr(bookwarden.wiring.metadata, "open_metadata_store", lambda *_, **__: store)
    monkeypatch.setattr(running, "_SESSION_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(driver, "prove_roots", lambda *_: None)
    monkeypatch.setattr(driver.LedgerDeletion, "start", lambda *_, once: FinishedQuery())
    usual = {"deletion.subscription": "one", "metadata_store.session_timeout_seconds": "0.1"}
    other = "/bookwarden/sweeps/" + encode_local_name(f"{load_settings().deletion.topic} one")
    StreamLock(store, other).acquire(0)
    spark: Any = KilledSpark()
    with pytest.raises(RefusedError, match="another sweep runs on"):
        driver.run_sweep(spark, load_settings(overrides=usual), once=True)
    store = MemoryStore()
    StreamLock(store, other).acquire(0)
    for allowed in ({"sweep.dry_run": "true"}, {"sweep.lock": "''"}, {"deletion.subscription": "two"}):
        driver.run_sweep(spark, load_settings(overrides={**usual, **allowed}), once=True)
