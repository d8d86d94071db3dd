"""Packed timers: they behave as a plain dictionary of timers, and take few bytes."""

from __future__ import annotations

import tracemalloc
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.follow import timers as module
from bookwarden.follow.drops import Drop, DropCause, Key
from bookwarden.follow.timers import PackedTimers, Timer
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.pending_deletion import OffloadContext

MANY = 100_000


def timer(ledger_id: int, due_ms: int, *, uuid: int | None = None, number: int = 0) -> Timer:
    copy = None if uuid is None else OffloadContext(uuid, -uuid, "S3", {"bucket": "b", "region": "\udc80"})
    path = f"/managed-ledgers/t/n/persistent/orders-{number}"
    drop = Drop(ledger_id, PlaceKind.MANAGED_LEDGER, DropCause.TRIMMED, path, "zk:one", 7, copy)
    return Timer(due_ms, drop, first_look_ms=number, looks=number, reason="damaged")


def contents(timers: PackedTimers) -> dict[Key, Timer]:
    return dict(timers.items())


# Small pages, so that all of it happens: full ones, and those of which a part was given out.
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 9), st.integers(0, 5000)),
        st.tuples(st.just("copy"), st.integers(1, 3), st.integers(0, 5000)),
        st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("due"), st.integers(1, 4), st.integers(0, 6000)),
    ),
    max_size=80,
)


@given(_steps)
def test_they_are_as_a_dictionary_of_timers(steps: list[tuple[str, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_IN_PAGE", 3)
        packed, plain, given_out = PackedTimers(), dict[Key, Timer](), set[Key]()
        for number, (what, subject, at_ms) in enumerate(steps):
            if what in ("put", "copy"):
                one = timer(subject, at_ms, uuid=subject if what == "copy" else None, number=number)
                packed.put(one)
                plain[one.drop.key] = one
                given_out.discard(one.drop.key)
            elif what == "end":
                packed.end(subject)
                plain.pop(subject, None)
                given_out.discard(subject)
            else:
                ready = {key for key, one in plain.items() if -(-one.due_ms // 1000) * 1000 <= at_ms} - given_out
                found = packed.due(at_ms, subject)
                assert [one.drop.key for one in found] == list(dict.fromkeys(one.drop.key for one in found))
                assert {one.drop.key for one in found} <= ready
                assert len(found) == min(subject, len(ready))
                assert all(plain[one.drop.key] == one for one in found)
                seconds = [-(-one.due_ms // 1000) for one in found]
                assert seconds == sorted(seconds)
                left = ready - {one.drop.key for one in found}
                assert all(-(-plain[key].due_ms // 1000) >= seconds[-1] for key in left if seconds)
                given_out.update(one.drop.key for one in found)
            assert contents(packed) == plain
            assert len(packed) == len(plain)
            assert all((key in packed) == (key in plain) for key in range(10))


def test_a_ledger_and_a_copy_of_the_same_number_are_two() -> None:
    packed = PackedTimers()
    packed.put(timer(5, 0))
    packed.put(timer(5, 0, uuid=1))
    assert len(packed) == 2
    assert UUID(int=5) not in packed


def test_what_was_given_out_and_ended_leaves_nothing_behind() -> None:
    packed = PackedTimers()
    for ledger_id in range(5000):
        packed.put(timer(ledger_id, 1000 + ledger_id % 7 * 1000))
    packed.end(17)
    while found := packed.due(10_000, 999):
        for one in found:
            packed.end(one.drop.key)
    assert (len(packed), packed._pages, packed._due_in, packed._seconds) == (0, {}, {}, [])


def test_a_timer_takes_less_than_160_bytes() -> None:
    """Ten million take less than 2 GiB: `python -m benchmarks pending`."""
    tracemalloc.start()
    try:
        packed = PackedTimers()
        for number in range(MANY):
            packed.put(timer(2**31 + number, number // 300 * 1000, number=number))
        size, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(packed) == MANY
    assert size / MANY < 160
    # While a dictionary grows it is there twice.
    assert peak / MANY < 200


def test_what_is_pulled_in_leaves_nothing_where_it_was() -> None:
    packed = PackedTimers()
    for ledger_id in range(3000):
        packed.put(timer(ledger_id, 10**9 + ledger_id))
    packed.put(timer(9999, 50_000))
    packed.end(5)
    assert packed.pull_in(1000, 60_000) == 2999
    assert {one.due_ms for _, one in packed.items()} == {50_000, 60_000}
    assert (len(packed), len(packed._pages)) == (3000, 4)
    assert len(packed.due(60_000, 9999)) == 3000
    assert packed._pages == {}
