"""A scan that may read so many nodes a second, by a clock of the test's own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from bookwarden.errors import ConfigError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.wrappers import ThrottledStore, throttled


class Clock:
    """Time that passes while somebody sleeps, and then only."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    @property
    def passed(self) -> float:
        return round(self.seconds - 100.0, 6)


class Counting(MemoryStore):
    """Notes the sizes of the batches that arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        self.batches.append(len(paths))
        return super().get_many(paths)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def slow(store: MemoryStore, clock: Clock, rate: float = 100) -> ThrottledStore:
    return ThrottledStore(store, rate, now=clock.now, sleep=clock.sleep)


def test_reads_take_the_time_that_their_number_needs(clock: Clock) -> None:
    store = slow(Counting(), clock)
    for number in range(50):
        store.create(f"/n{number}", b"")
    assert clock.passed == 0
    # The first ten go at once; whoever comes next waits for them to be paid for.
    assert store.get_many([f"/n{number}" for number in range(60)])[48:52] == [
        *store.get_many(["/n48", "/n49"]),
        None,
        None,
    ]
    assert clock.passed == pytest.approx(0.62 - 0.02)
    store.list_children("/")
    assert clock.passed == pytest.approx(0.62)
    assert store.get("/n1") is not None
    assert clock.passed == pytest.approx(0.63)


@pytest.mark.parametrize(("rate", "batches"), [(100, [10, 10, 5]), (1, [1] * 25), (0.5, [1] * 25), (10_000, [25])])
def test_a_batch_is_spread_over_its_time(clock: Clock, rate: float, batches: list[int]) -> None:
    inner = Counting()
    assert slow(inner, clock, rate).get_many(["/"] * 25) == inner.get_many(["/"]) * 25
    assert inner.batches[:-1] == batches
    assert clock.passed == pytest.approx((25 - batches[-1]) / rate)


def test_parents_are_asked_for_at_the_pace_of_reads(clock: Clock) -> None:
    store = slow(Counting(), clock)
    store.create("/a/b", b"", make_parents=True)
    assert store.parents_among(["/a", "/a/b"] * 13) == {"/a"}
    assert clock.passed == pytest.approx(0.2)


def test_time_in_which_nothing_was_read_is_not_made_up_for(clock: Clock) -> None:
    store = slow(MemoryStore(), clock)
    clock.seconds += 1000
    store.get_many(["/"] * 100)
    assert clock.passed == pytest.approx(1000.9)


def test_threads_share_the_limit(clock: Clock) -> None:
    waits: list[float] = []
    store = ThrottledStore(MemoryStore(), 10, now=clock.now, sleep=waits.append)
    together = threading.Barrier(4)

    def read(_: int) -> None:
        together.wait(30)
        store.list_children("/")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(4)))
    # Nobody's clock moved: one went at once, and each of the others has a place of its own.
    assert sorted(waits) == pytest.approx([0.1, 0.2, 0.3])


def test_everything_else_goes_straight_through(clock: Clock) -> None:
    store = slow(MemoryStore(), clock, 0.001)
    changes: list[str] = []
    store.create("/a/b", b"1", make_parents=True)
    end = store.watch("/a/b", changes.append)
    assert store.put("/a/b", b"2", 0) == 1
    end()
    store.sync()
    assert store.ephemeral_sequential("/a/id-", b"") == "/a/id-0000000000"
    assert store.delete_many([("/a/b", 1)], created_ms=[1]) == [DeleteResult.DELETED]
    assert changes == ["/a/b"]
    store.close()
    assert clock.passed == 0


def test_no_limit_is_the_store_itself() -> None:
    store = MemoryStore()
    assert throttled(store, None) is store
    assert isinstance(throttled(store, 5), ThrottledStore)


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_limit_that_would_read_nothing_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="max_reads_per_second"):
        ThrottledStore(MemoryStore(), rate)
