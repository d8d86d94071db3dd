"""The ZooKeeper store keeps to the limits that it is given, whatever it is asked."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from bookwarden.errors import StoreUnavailableError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.pacing import Pace
from bookwarden.metastore.zookeeper.store import ZooKeeperStore
from contract.conftest import StoreMaker
from servers.lone_zookeeper import LoneZooKeeper
from servers.waiting import eventually
from unit.metastore.test_throttle import Clock


def filled(store: ZooKeeperStore, count: int) -> list[str]:
    root = f"/t-{uuid4().hex}"
    paths = [f"{root}/n{index:03d}" for index in range(count)]
    for path in paths:
        store.create(path, b"value", make_parents=True)
    return paths


def test_every_request_takes_the_time_of_its_nodes(connect: StoreMaker) -> None:
    paths = filled(connect(), 250)
    store = connect(batch_size=100)
    clock = Clock()
    store._session.pace = Pace(8, 1000, now=clock.now, sleep=clock.sleep)
    asked = [
        (lambda: store.get_many(paths), 250),
        (lambda: store.list_children(paths[0]), 1),
        (store.sync, 1),
        # A read after a sync begins a new one only in a new session.
        (lambda: store.get_many(paths[:7]), 7),
        (lambda: store.put(paths[249], b"new", 0), 1),
        (lambda: store.create(f"{paths[0]}/x", b""), 1),
        (lambda: store.delete_many([(path, 0) for path in paths[1:249]]), 248),
    ]
    nodes = 0
    for call, count in asked:
        call()
        nodes += count
    # The next one goes when all those before it have had their time.
    assert store._session.pace.most_nodes(500) == 100
    store.sync()
    assert clock.passed == pytest.approx(nodes / 1000)
    assert store.get_many(paths[1:249]) == [None] * 248


def test_a_low_limit_costs_no_call_its_time(connect: StoreMaker) -> None:
    paths = filled(connect(), 30)
    # Every request is kept back for longer than a call may take without an answer.
    store = connect(max_requests_per_second=10, operation_timeout_s=0.5, connect_timeout_s=15)
    assert all(store.get_many(paths))
    assert store.delete_many([(path, 0) for path in paths]) == [DeleteResult.DELETED] * 30


def test_a_server_that_hangs_is_asked_less_and_more_again_when_it_is_quick(
    connect: StoreMaker, lone_zookeeper: LoneZooKeeper
) -> None:
    store = connect(max_latency_s=0.5, batch_size=10, in_flight=8)
    paths = filled(store, 200)
    pace = store._session.pace
    window = pace._window
    assert window is not None
    eventually(lambda: all(store.get_many(paths)) and window.size == 8)
    with ThreadPoolExecutor(1) as pool:
        lone_zookeeper.pause()
        try:
            work = pool.submit(store.get_many, paths)
            # Three answers that are slow are enough to ask less.
            eventually(lambda: len(pace._under_way) > 3)
            begin = time.monotonic()
            eventually(lambda: time.monotonic() - begin > 1)
        finally:
            lone_zookeeper.resume()
        assert all(work.result(60))
    assert window.size < 8
    eventually(lambda: all(store.get_many(paths)) and window.size == 8)


def test_no_more_is_sent_to_a_server_that_owes_answers_to_all_that_may_be_under_way(
    connect: StoreMaker, lone_zookeeper: LoneZooKeeper
) -> None:
    store = connect(max_latency_s=30, in_flight=1, operation_timeout_s=0.5, connect_timeout_s=15)
    (path,) = filled(connect(), 1)
    assert store.get(path)
    lone_zookeeper.pause()
    try:
        with pytest.raises(StoreUnavailableError, match=r"gave no answer within 0\.5 s"):
            store.get(path)
        with pytest.raises(StoreUnavailableError, match=r"left earlier requests without an answer for 0\.5 s"):
            store.delete_many([(path, 0)])
    finally:
        lone_zookeeper.resume()
    patient = connect()
    assert patient.get(path)
    patient.sync()
    assert patient.get(path)
