"""The generator of ledger ids is raised by taking ids, and beyond what can be counted by a leap."""

from __future__ import annotations

import pytest

from bookwarden.clusters.bookkeeper import ledger_ids as module
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.errors import StoreError
from bookwarden.metastore.memory import MemoryStore

ROOT = "/bookwarden/ledger-ids"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def ids(store: MemoryStore) -> LedgerIds:
    return LedgerIds(store, ROOT)


def take(store: MemoryStore, path: str = f"{ROOT}/idgen") -> int:
    return int(store.ephemeral_sequential(f"{path}/ID-", b"").rpartition("-")[2])


def test_without_a_counter_the_first_id_is_0_and_raising_makes_one(store: MemoryStore, ids: LedgerIds) -> None:
    assert ids.next_id() == 0
    told: list[int] = []
    ids.raise_to(2_345, told.append)
    assert (told[0], told == sorted(told), ids.next_id()) == (0, True, 2_345)
    assert store.list_children(f"{ROOT}/idgen") == []
    assert take(store) == 2_345


def test_one_that_is_ahead_stays(store: MemoryStore, ids: LedgerIds) -> None:
    ids.raise_to(10)
    for wanted in (10, 3, 0):
        ids.raise_to(wanted)
    assert ids.next_id() == 10


def test_raising_to_nothing_makes_a_counter(store: MemoryStore, ids: LedgerIds) -> None:
    ids.raise_to(0)
    assert store.get(f"{ROOT}/idgen") is not None


def test_what_cannot_be_counted_is_leapt_over(
    store: MemoryStore, ids: LedgerIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_COUNTED", 100)
    ids.raise_to(50)
    assert (ids.needs_leap(150), ids.needs_leap(151)) == (False, True)
    ids.raise_to(151)
    assert ids.next_id() == 1 << 32
    assert take(store, f"{ROOT}/idgen-long/HOB-0000000001") == 0
    # In the new half it is counted again.
    assert not ids.needs_leap((1 << 32) + 100)
    ids.raise_to((1 << 32) + 100)
    assert ids.next_id() == (1 << 32) + 100


@pytest.mark.parametrize(
    ("wanted", "following"),
    [((1 << 32) + 1, 2 << 32), (1 << 32, 1 << 32), ((7 << 32) - 1, 7 << 32), ((2**31 - 3) << 32, (2**31 - 3) << 32)],
)
def test_a_leap_goes_to_the_next_half(ids: LedgerIds, wanted: int, following: int) -> None:
    assert ids.needs_leap(wanted)
    ids.raise_to(wanted)
    assert ids.next_id() == following


def test_beyond_the_last_half_there_is_no_id(ids: LedgerIds) -> None:
    with pytest.raises(StoreError, match="no ledger id is left"):
        ids.raise_to(2**63 - 1)


def test_a_half_without_its_first_node_is_no_counter(store: MemoryStore, ids: LedgerIds) -> None:
    store.create(f"{ROOT}/idgen-long", b"", make_parents=True)
    with pytest.raises(StoreError, match="no HOB node"):
        ids.raise_to(5)


def test_an_id_that_is_taken_is_given_to_nobody_else(store: MemoryStore, ids: LedgerIds) -> None:
    assert [ids.take(), ids.take()] == [0, 1]
    assert take(store) == 2
    ids.raise_to(7)
    assert ids.take() == 7
    store.create(f"{ROOT}/idgen-long/HOB-0000000003", b"", make_parents=True)
    assert [ids.take(), ids.take()] == [3 << 32, (3 << 32) + 1]
    assert ids.next_id() == (3 << 32) + 2
    assert store.list_children(f"{ROOT}/idgen-long/HOB-0000000003") == []
