"""What a sweep may ask of a metadata store is divided among its tasks; some stores take one task alone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from bookwarden.config import Settings, load_settings
from bookwarden.errors import StoreUnavailableError
from bookwarden.pipelines.streams.supervisor import Pulse
from bookwarden.pipelines.sweep.query import LedgerDeletion, SweepTask, Writers, most_cores, share_of_task
from bookwarden.wiring.stores import has_one_writer


@pytest.mark.parametrize(
    ("cores", "partitions", "share"), [(1, 4, 600), (2, 4, 300), (64, 4, 75), (64, 1, 300), (None, 4, 75)]
)
def test_the_tasks_that_run_at_once_share_the_limit(cores: int | None, partitions: int, share: float) -> None:
    settings = load_settings(
        overrides={
            "metadata_store.max_requests_per_second": "600",
            "deletion.two_phase_deletion_ledger_deletion_parallelism": str(partitions),
        }
    )
    divided = share_of_task(settings, cores, one_writer=False)
    assert divided.metadata_store.max_requests_per_second == share
    store = settings.metadata_store.model_copy(update={"max_requests_per_second": share})
    assert divided == settings.model_copy(update={"metadata_store": store})


@pytest.mark.parametrize(
    ("master", "conf", "cores"),
    [
        ("local[3]", {}, 3),
        ("local[3]", {"spark.default.parallelism": "1"}, None),
        ("local-cluster[2,1,1024]", {}, None),
        ("spark://master:7077", {}, None),
        ("spark://master:7077", {"spark.cores.max": "6"}, 6),
        ("spark://master:7077", {"spark.cores.max": "6", "spark.dynamicAllocation.enabled": "true"}, 6),
        ("yarn", {"spark.cores.max": "6"}, None),
        ("k8s://https://k:6443", {"spark.executor.instances": "2"}, None),
    ],
)
def test_executors_that_register_later_count_among_the_cores(
    master: str, conf: dict[str, str], cores: int | None
) -> None:
    # Right after its start Spark knows of three cores, whatever comes.
    context: Any = SimpleNamespace(master=master, defaultParallelism=3, getConf=lambda: conf)
    assert most_cores(context) == cores


def test_without_a_limit_there_is_nothing_to_divide() -> None:
    settings = load_settings()
    assert share_of_task(settings, 4, one_writer=False) is settings


OXIA, ZOOKEEPER = "oxia://o:6648/default", "zk:z:2181"


def on(url: str, **others: str) -> Settings:
    return load_settings(overrides={"metadata_store.urls": f"['{url}']", **others})


@pytest.mark.parametrize(
    ("settings", "one"),
    [
        (on(OXIA), True),
        (on(OXIA, **{"metadata_store.oxia_concurrent_writers": "true"}), False),
        (on(ZOOKEEPER), False),
        (on(ZOOKEEPER, **{"metadata_store.bookkeeper_url": OXIA}), True),
        (on(ZOOKEEPER, **{"metadata_store.bookkeeper_url": f"metadata-store:{OXIA}"}), True),
        (on(OXIA, **{"metadata_store.bookkeeper_url": ZOOKEEPER}), True),
    ],
    ids=[
        "on Oxia",
        "on an Oxia that can do it",
        "on ZooKeeper",
        "with BookKeeper's metadata in Oxia",
        "with BookKeeper's metadata in Oxia by its own setting",
        "with BookKeeper's metadata in ZooKeeper",
    ],
)
def test_one_task_alone_deletes_where_metadata_is_in_oxia(settings: Settings, one: bool) -> None:
    assert has_one_writer(settings.metadata_store) is one


def test_a_task_that_is_alone_has_the_whole_limit() -> None:
    settings = on(OXIA, **{"metadata_store.max_requests_per_second": "600"})
    assert share_of_task(settings, 4, one_writer=True) is settings


@pytest.mark.parametrize(("many_may", "outdated"), [("false", True), ("true", False)])
def test_a_query_of_many_tasks_is_outdated_once_its_ledgers_moved_to_where_one_may_write(
    many_may: str, outdated: bool
) -> None:
    spark: Any = SimpleNamespace(dataSource=SimpleNamespace(register=lambda _: None))
    moved_to: list[str | None] = [None]
    settings = on(ZOOKEEPER, **{"metadata_store.oxia_concurrent_writers": many_may})
    writers = Writers(settings.metadata_store, lambda: moved_to[0])
    query = LedgerDeletion(spark, settings, Pulse(), epoch=lambda: 0, writers=writers)
    assert not query.is_outdated
    moved_to[0] = OXIA
    assert query.is_outdated is outdated


@pytest.mark.parametrize(("many_may", "one"), [("false", True), ("true", False)])
def test_one_task_alone_deletes_where_a_registered_bookie_cluster_is_in_oxia(many_may: str, one: bool) -> None:
    registered = ["zk:y:2181"]
    settings = on(ZOOKEEPER, **{"metadata_store.oxia_concurrent_writers": many_may})
    writers = Writers(settings.metadata_store, registered=lambda: list(registered))
    writers.look()
    assert not writers.must_be_one
    registered.append(OXIA)
    # A query that runs keeps its tasks: the first ledger there fails its batch, and starts it anew.
    assert not writers.must_be_one
    writers.look()
    assert writers.must_be_one is one


def test_one_task_alone_deletes_while_the_registered_bookie_clusters_are_not_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    troubles = [StoreUnavailableError("no answer")]

    def read() -> list[str]:
        if troubles:
            raise troubles.pop()
        return []

    writers = Writers(on(ZOOKEEPER).metadata_store, registered=read)
    writers.look()
    assert writers.must_be_one
    assert "not known where all of them are: no answer" in caplog.text
    writers.look()
    assert not writers.must_be_one


def test_a_task_gives_signs_of_life_while_its_source_waits_for_a_lost_ledger() -> None:
    settings = load_settings(overrides={"sweep.stall_seconds": "0.06"})
    given = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        given.wait()
        yield pa.RecordBatch.from_pydict({})

    rows = SweepTask(settings, one_of_many=False)(source())
    assert [next(rows).column("outcome").to_pylist() for _ in range(3)] == [[""]] * 3
    given.set()
    assert not any(batch.column("outcome").to_pylist() != [""] for batch in rows)


def test_a_batch_is_told_with_each_outcome_once(caplog: pytest.LogCaptureFixture) -> None:
    spark: Any = SimpleNamespace(dataSource=SimpleNamespace(register=lambda _: None))
    query = LedgerDeletion(spark, on(ZOOKEEPER), Pulse(), epoch=lambda: 0)
    rows = {
        "outcome": ["deleted", "deleted", "deleted", "retry"],
        "ledger_type": ["LEDGER", "OFFLOAD_LEDGER", "LEDGER", "LEDGER"],
        "ledger_bytes": [10, None, 5, None],
    }
    with caplog.at_level(logging.INFO):
        query._account(pa.table(rows), 9.7)
    assert caplog.messages == ["swept 4 pending deletions in 9.70 s: 3 deleted, 1 retry"]
    assert query.totals == {"deleted": 3, "retry": 1}
