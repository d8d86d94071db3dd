"""How fast a copier may be for each bookie, by a clock of the test's own."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits, CopyPacer
from bookwarden.errors import ConfigError
from unit.metastore.test_throttle import Clock

AHEAD_S = 0.1


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_without_limits_nothing_waits(clock: Clock) -> None:
    pacing = CopyPacer(CopyLimits(None, None), now=clock.now)
    for _ in range(3):
        pacing.count_bytes(["b1"], 10**12)
        pacing.count_ledger(["b1"])
    assert (pacing.wait_for_bytes(["b1"]), pacing.wait_for_ledger(["b1"])) == (0, 0)


def test_bytes_take_their_time_at_each_bookie_that_they_go_to(clock: Clock) -> None:
    pacing = CopyPacer(CopyLimits(bytes_per_second=1000), now=clock.now)
    assert pacing.wait_for_bytes(["b1", "b2"]) == 0
    pacing.count_bytes(["b1", "b2"], 1000)
    pacing.count_bytes(["b2"], 1000)
    assert pacing.wait_for_bytes(["b1"]) == pytest.approx(1 - AHEAD_S)
    assert pacing.wait_for_bytes(["b1", "b2", "b3"]) == pytest.approx(2 - AHEAD_S)
    assert pacing.wait_for_bytes(["b3"]) == 0
    assert pacing.wait_for_ledger(["b1", "b2"]) == 0
    clock.sleep(2 - AHEAD_S)
    assert pacing.wait_for_bytes(["b1", "b2"]) == pytest.approx(0)


def test_ledgers_take_their_time_too(clock: Clock) -> None:
    pacing = CopyPacer(CopyLimits(ledgers_per_second=2), now=clock.now)
    begun = 0
    while clock.passed < 10:
        wait = pacing.wait_for_ledger(["b1", "b2"])
        clock.sleep(wait)
        if not wait:
            pacing.count_ledger(["b1", "b2"])
            begun += 1
    assert begun == 21


def test_idle_time_is_not_made_up_for(clock: Clock) -> None:
    pacing = CopyPacer(CopyLimits(bytes_per_second=1000), now=clock.now)
    pacing.count_bytes(["b1"], 10)
    clock.sleep(3600)
    pacing.count_bytes(["b1"], 1000)
    assert pacing.wait_for_bytes(["b1"]) == pytest.approx(1 - AHEAD_S)


@given(
    sizes=st.lists(st.integers(1, 300), min_size=50, max_size=200),
    late=st.lists(st.floats(0, AHEAD_S), min_size=200, max_size=200),
)
def test_one_that_is_late_each_time_has_its_full_rate_and_no_more(sizes: list[int], late: list[float]) -> None:
    clock = Clock()
    pacing = CopyPacer(CopyLimits(bytes_per_second=1000), now=clock.now)
    sent = 0
    for size, delay in zip(sizes, late, strict=False):
        while wait := pacing.wait_for_bytes(["b1"]):
            clock.sleep(wait + delay)
        assert sent <= 1000 * (clock.passed + AHEAD_S) + 1
        pacing.count_bytes(["b1"], size)
        sent += size
    assert sent >= 1000 * (clock.passed - AHEAD_S) - 1


def test_processes_share_what_is_allowed() -> None:
    assert CopyLimits(1000, None).shared_by(4) == CopyLimits(250, None)
    assert CopyLimits(None, 1).shared_by(4) == CopyLimits(None, 0.25)


@pytest.mark.parametrize(
    "limits",
    [
        lambda: CopyLimits(bytes_per_second=0),
        lambda: CopyLimits(ledgers_per_second=-1),
        lambda: CopyLimits(bytes_per_second=math.nan),
        lambda: CopyLimits(ledgers_per_second=math.inf),
    ],
)
def test_a_limit_that_lets_nothing_through_is_refused(limits: Callable[[], CopyLimits]) -> None:
    with pytest.raises(ConfigError, match="per_second"):
        limits()
