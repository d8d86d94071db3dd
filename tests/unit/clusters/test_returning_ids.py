"""Ids that come again: whether they do, and that no ledger is deleted while they do."""

from __future__ import annotations

import logging

import pytest

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.returning_ids import ReturningIds, SharedCounter
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.errors import StoreUnavailableError
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.shared_doubts import DoubtCause
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.wrappers import ForwardingStore, ThrottledStore
from servers.swept_store import SweptStore

ROOT = "/ledgers"
DATA = ManagedLedgerHolder("t/n/persistent/orders")
COMMAND = "bookwarden metadata-migration counters --execute"


class Store:
    """A store in memory, whose counter gave some ids."""

    def __init__(self, given: int = 0, counter: str = f"{ROOT}/idgen") -> None:
        self.nodes = MemoryStore()
        self.counter = counter
        self.nodes.create(counter, b"", make_parents=True)
        self.now = 1000.0
        self.starts_over = True
        self.ids = ReturningIds(self.nodes, ROOT, lambda: self.starts_over, clock=lambda: self.now)
        self.give(given)

    def give(self, count: int) -> None:
        for _ in range(count):
            self.nodes.ephemeral_sequential(f"{self.counter}/ID-", b"")

    def ledger(self, ledger_id: int) -> None:
        self.nodes.create(ledger_path(ROOT, ledger_id), b"", make_parents=True)

    def remove(self, path: str) -> None:
        node = self.nodes.get(path)
        assert node is not None
        self.nodes.delete_many([(path, node.version)])


@pytest.mark.parametrize(("largest", "given", "come_again"), [(7, 8, False), (7, 7, True), (7, 0, True), (0, 1, False)])
def test_ids_come_again_where_the_next_one_is_not_past_the_largest_ledger(
    largest: int, given: int, come_again: bool
) -> None:
    store = Store(given)
    store.ledger(largest)
    doubt = store.ids.doubt()
    assert (doubt is not None) is come_again
    if doubt is not None:
        assert f"gets the id {given}, but there is a ledger {largest}" in doubt.reason
        assert COMMAND in doubt.reason
        assert (doubt.cause, doubt.path) == (DoubtCause.RETURNING_IDS, ROOT)


def test_a_store_without_ledgers_gives_none_again() -> None:
    assert Store(0).ids.doubt() is None


def test_a_counter_that_is_not_there_is_a_doubt() -> None:
    store = Store(0)
    store.ledger(1)
    store.remove(store.counter)
    doubt = store.ids.doubt()
    assert doubt is not None
    assert "it is not known which id the next ledger gets" in doubt.reason
    assert COMMAND in doubt.reason


def test_each_counter_is_held_against_the_ledgers_that_it_numbers() -> None:
    store = Store(3, f"{ROOT}/idgen-long/HOB-0000000002")
    # Those of the short counter that was used up, of another half, and one that chose its id.
    for other in (2**31 - 5, (1 << 32) + 9, (2 << 32) + 2**31, (3 << 32) + 5):
        store.ledger(other)
    store.ledger((2 << 32) + 2)
    assert store.ids.doubt() is None
    store.ledger((2 << 32) + 3)
    store.now += 61
    assert f"gets the id {(2 << 32) + 3}" in str(store.ids.doubt())


def test_a_store_that_carries_its_count_along_is_not_asked() -> None:
    store = Store(0)
    store.ledger(7)
    store.starts_over = False
    assert store.ids.doubt() is None
    # As soon as the metadata has moved it is.
    store.starts_over = True
    assert store.ids.doubt() is not None


def test_a_counter_that_is_ahead_is_believed_for_a_minute_and_one_that_is_behind_is_looked_at_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store(5)
    store.ledger(4)
    assert store.ids.doubt() is None
    store.ledger(5)
    store.now += 59
    assert store.ids.doubt() is None
    store.now += 2
    with caplog.at_level(logging.WARNING):
        assert store.ids.doubt() is not None
        assert store.ids.doubt() is not None
    (told,) = [record.getMessage() for record in caplog.records]
    assert COMMAND in told
    store.give(1)
    assert store.ids.doubt() is None


def test_a_store_that_does_not_tell_is_an_error() -> None:
    class Silent(ForwardingStore):
        """Forwards nothing of how it numbers nodes."""

        def next_number(self, path: str) -> int:
            raise StoreUnavailableError("away")

    store = Store(5)
    with pytest.raises(StoreUnavailableError):
        ReturningIds(Silent(store.nodes), ROOT, lambda: True).doubt()


def test_a_throttled_store_tells_too() -> None:
    store = Store(2)
    assert ThrottledStore(store.nodes, 100, sleep=lambda _: None).next_number(store.counter) == 2


def test_what_would_be_deleted_waits_and_everything_else_is_as_it_was() -> None:
    store = Store(3)
    site = SweptStore(store.nodes, ids=store.ids)
    site.ledgers(DATA, 2, 9)
    site.population.names(DATA, [9])
    rows = site.sweep(DATA, 2, 9, 10)
    assert [rows[found].outcome for found in (2, 9, 10)] == [
        Outcome.WAITING,
        Outcome.STILL_REFERENCED,
        Outcome.ALREADY_GONE,
    ]
    assert [(what, found) for what, found, _ in site.sent] == [("wait", 2)]
    assert COMMAND in rows[2].reason
    assert (site.left(2), site.journaled) == ({2}, [])
    store.give(7)
    assert site.outcomes(DATA, 2) == [Outcome.DELETED]


def test_what_was_verified_for_a_later_delete_is_verified_anew() -> None:
    store = Store(3)
    site = SweptStore(store.nodes, ids=store.ids, policy=DeletionPolicy(delete_delay=60))
    site.ledgers(DATA, 2, 9)
    assert site.outcomes(DATA, 2) == [Outcome.WAITING]
    store.give(7)
    assert site.outcomes(DATA, 2) == [Outcome.DELAYED]


def test_nobody_looks_at_the_counter_where_nothing_is_to_be_deleted() -> None:
    class Forbidden:
        """Fails at each look."""

        def doubt(self) -> str | None:
            raise AssertionError

    site = SweptStore(MemoryStore(), ids=Forbidden())
    site.ledgers(DATA, 9)
    site.population.names(DATA, [9])
    assert site.outcomes(DATA, 9, 10) == [Outcome.STILL_REFERENCED, Outcome.ALREADY_GONE]


def test_the_one_counter_of_several_bookie_clusters_has_to_be_past_the_ids_of_all() -> None:
    store, elsewhere = Store(given=8), MemoryStore()
    store.ledger(5)
    elsewhere.create(ledger_path("/bookies-b", 9), b"", make_parents=True)
    registered = True
    clusters = [(store.nodes, ROOT), (elsewhere, "/bookies-b")]
    counter = SharedCounter(lambda: (store.nodes, ROOT) if registered else None, lambda: clusters, lambda: True)
    # What the settings name counts by itself, which is asked where nothing is registered.
    ids = ReturningIds(elsewhere, "/bookies-b", lambda: False, shared_counter=counter, clock=lambda: store.now)
    doubt = ids.doubt()
    assert doubt is not None
    assert "gets the id 8, but there is a ledger 9" in doubt.reason
    registered = False
    assert ids.doubt() is None
    registered = True
    store.give(2)
    assert ids.doubt() is None
