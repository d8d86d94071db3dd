"""The store's time, as it is carried on between two readings, and what is done without it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from bookwarden.errors import OutcomeUnknownError, StoreAccessError, StoreUnavailableError
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.store_clock import CLOCK_PATH, UNKNOWN_SKEW_SECONDS, StoreClock


class Refusing(MemoryStore):
    """A store that raises this for each write."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error: Exception | None = error

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        if self.error is not None:
            raise self.error
        super().create(path, value, make_parents=make_parents)


def clock_on(store: MemoryStore, steady: Callable[[], float], local: float = 0.0) -> StoreClock:
    return StoreClock(store, steady=steady, local=lambda: local)


def test_the_time_is_the_stores_and_goes_on_between_two_readings() -> None:
    now = 1000.0
    store = MemoryStore()
    clock = clock_on(store, lambda: now, local=time.time() + 86_400)
    first = clock()
    assert abs(first - time.time()) < 60
    now += 299
    assert clock() == first + 299
    node = store.get(CLOCK_PATH)
    assert node is not None
    assert node.version == 0
    # Then it is read again.
    now += 2
    assert abs(clock() - time.time()) < 60
    assert store.get(CLOCK_PATH).version == 1  # type: ignore[union-attr]  # it was there


def test_without_the_stores_time_everything_looks_younger() -> None:
    clock = clock_on(Refusing(StoreAccessError("no right to write")), lambda: 1.0, local=5_000.0)
    assert clock() == 5_000.0 - UNKNOWN_SKEW_SECONDS


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), OutcomeUnknownError("the answer was lost")])
def test_a_store_that_does_not_answer_is_waited_for(error: Exception) -> None:
    store = Refusing(error)
    clock = clock_on(store, lambda: 1.0)
    with pytest.raises(StoreUnavailableError):
        clock()
    store.error = None
    assert abs(clock() - time.time()) < 60
