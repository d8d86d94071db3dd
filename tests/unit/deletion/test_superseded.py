"""A ledger that its holder names goes from one bookie cluster only if brokers read it, whole, from the active one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bookwarden.bookie_clusters.promoted import (
    NOT_PROMOTED,
    PROMOTION_PATH,
    Promotion,
    find_promotion,
    keep_promotion,
    void_promotion,
)
from bookwarden.bookie_clusters.registry import REGISTRY_PATH, Directive, serialize_registry
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import DeleteResult, LedgerState, StoredLedger
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import Waiver
from bookwarden.ledgers.received import ReceivedMark, waiving
from bookwarden.metastore.memory import MemoryStore
from unit.deletion.test_sweep_places import Site, mark_in
from unit.deletion.test_sweeping import NOW, POLICY
from unit.switching.two_bookie_clusters import COPY, DATA, ROOTS

SUPERSEDED = frozenset({Waiver.SUPERSEDED})
AT_ONCE = SUPERSEDED | {Waiver.ROLLBACK_WINDOW}
ORDER = Directive("a", "b", "test", 3, 0)


class Proof:
    """Bookies that give every entry, but for ledgers in ``problems``."""

    def __init__(self) -> None:
        self.problems: dict[int, str] = {}
        self.asked: list[tuple[int, str]] = []
        self.before: Callable[[], object] = lambda: None

    def problem_of(self, ledger: StoredLedger) -> str | None:
        self.before()
        self.asked.append((ledger.ledger_id, ledger.bookie_cluster))
        return self.problems.get(ledger.ledger_id)


class Switched(Site):
    """Brokers were switched from a to b, longer ago than the rollback window lasts."""

    def __init__(self) -> None:
        self.proof = Proof()
        self.named: list[int] = []
        #: By the store's clock, which tells when the registry was changed.
        self.now = NOW - POLICY.rollback_window - 1
        self.registry_now = NOW  #: By the store that has the registry.
        super().__init__(
            MemoryStore(lambda: self.now),
            proof=self.proof,
            clock_of=lambda name: self.registry_now if name is None else NOW,
        )
        self.register(replace(self.registry, directive=ORDER))
        self.promote(Promotion("b", 3, int(NOW * 1000), frozenset()))

    def promote(self, promotion: Promotion) -> None:
        """Keep this as the newest promotion."""
        keep_promotion(self.store, promotion, find_promotion(self.store)[1])

    def tell(self, received: ReceivedMark) -> tuple[Outcome, str]:
        """Sweep one mark; return its outcome and the reason."""
        (row,) = self.sweep(received)
        return row.outcome, row.reason

    def moved(self, ledger_id: int) -> None:
        """Make a ledger that its topic names, on a, and its copy on b."""
        self.named.append(ledger_id)
        self.population.names(DATA, self.named)
        self.ledger("a", ledger_id)
        self.ledger("b", ledger_id, **COPY)


@pytest.fixture
def site() -> Switched:
    return Switched()


def superseded_in(cluster: str, ledger_id: int, waives: frozenset[Waiver] = SUPERSEDED) -> ReceivedMark:
    received = mark_in(cluster, ledger_id)
    return replace(received, properties={**received.properties, **waiving(waives)})


def test_what_the_former_cluster_has_goes_although_it_is_named(site: Switched) -> None:
    site.moved(1)
    site.moved(2)
    assert site.outcomes(superseded_in("a", 1), superseded_in("a", 2)) == [Outcome.DELETED, Outcome.DELETED]
    assert (site.places_of(1), site.places_of(2)) == ("b", "b")
    assert site.proof.asked == [(1, "b"), (2, "b")]
    assert site.recorder.places == [(1, "a", "ledgers"), (2, "a", "ledgers")]
    assert site.outcomes(superseded_in("a", 1)) == [Outcome.ALREADY_GONE]


def test_a_mark_that_does_not_say_so_is_of_a_ledger_that_is_named(site: Switched) -> None:
    site.moved(1)
    assert site.outcomes(mark_in("a", 1)) == [Outcome.STILL_REFERENCED]
    assert site.places_of(1) == "ab"


def test_a_ledger_is_kept_where_its_copy_is_not_proven(site: Switched) -> None:
    site.moved(1)
    site.proof.problems[1] = "bookie b1:3181 answered ENOENTRY to entry 3"
    outcome, reason = site.tell(superseded_in("a", 1))
    assert outcome is Outcome.RETRY
    assert reason == (
        "brokers read it from bookie cluster b, where it is not proven: bookie b1:3181 answered ENOENTRY to entry 3"
    )
    assert site.places_of(1) == "ab"


def test_without_bookies_to_ask_nothing_is_superseded(site: Switched) -> None:
    site.moved(1)
    plain = Site(site.store)
    plain.register(replace(site.registry, directive=ORDER))
    assert plain.outcomes(superseded_in("a", 1, AT_ONCE)) == [Outcome.RETRY]
    assert site.places_of(1) == "ab"


def test_a_ledger_that_does_not_say_whose_it_is_goes_while_its_holder_names_it(site: Switched) -> None:
    for ledger_id in (1, 2):
        site.ledger("a", ledger_id, holder=None)
        site.ledger("b", ledger_id, holder=None, **COPY)
    site.population.names(DATA, [1])
    outcomes = site.outcomes(superseded_in("a", 1), superseded_in("a", 2))
    assert outcomes == [Outcome.DELETED, Outcome.MISMATCH]
    assert (site.places_of(1), site.places_of(2)) == ("b", "ab")


@pytest.mark.parametrize("said", [{"application": b"DistributedLog"}, {"component": b"schema"}])
def test_a_ledger_that_says_that_it_is_anothers_stays_although_it_is_named(
    site: Switched, said: dict[str, bytes]
) -> None:
    site.ledger("a", 1, holder=None, **said)
    site.ledger("b", 1, holder=None, **said, **COPY)
    site.population.names(DATA, [1])
    assert site.outcomes(superseded_in("a", 1, AT_ONCE)) == [Outcome.MISMATCH]
    assert site.places_of(1) == "ab"


def test_where_its_holder_cannot_be_read_a_ledger_that_does_not_say_whose_it_is_stays(site: Switched) -> None:
    site.ledger("a", 1, holder=None)
    site.ledger("b", 1, holder=None, **COPY)
    path = site.population.names(DATA, [1])
    node = site.store.get(path)
    assert node is not None
    site.store.put(path, b"\xff", node.version)
    assert site.outcomes(superseded_in("a", 1, AT_ONCE)) == [Outcome.RETRY]
    assert site.places_of(1) == "ab"


def test_a_promotion_that_became_void_since_it_was_marked_keeps_it(site: Switched) -> None:
    """Brokers that were switched back and forth again may have opened it in the former cluster meanwhile."""
    site.moved(1)
    for epoch, active, other in ((4, "a", "b"), (5, "b", "a")):
        site.register(
            replace(site.registry, epoch=epoch, active=active, directive=Directive(other, active, "t", epoch, 0))
        )
    assert site.tell(superseded_in("a", 1, AT_ONCE)) == (Outcome.RETRY, NOT_PROMOTED)
    assert (site.places_of(1), site.proof.asked) == ("ab", [])
    site.promote(Promotion("b", 5, int(NOW * 1000), frozenset({DATA.topic})))
    assert site.outcomes(superseded_in("a", 1, AT_ONCE)) == [Outcome.RETRY]
    site.promote(Promotion("b", 5, int(NOW * 1000), frozenset()))
    assert site.outcomes(superseded_in("a", 1, AT_ONCE)) == [Outcome.DELETED]


def test_a_promotion_that_cannot_be_read_keeps_it(site: Switched) -> None:
    site.moved(1)
    node = site.store.get(PROMOTION_PATH)
    assert node is not None
    site.store.put(PROMOTION_PATH, b"?", node.version)
    outcome, reason = site.tell(superseded_in("a", 1, AT_ONCE))
    assert (outcome, "is no record of a promotion" in reason, site.places_of(1)) == (Outcome.RETRY, True, "ab")


def test_where_brokers_read_it_nothing_is_superseded(site: Switched) -> None:
    site.moved(1)
    outcome, reason = site.tell(superseded_in("b", 1, AT_ONCE))
    assert (outcome, reason) == (Outcome.STILL_REFERENCED, "bookie cluster b is active: brokers read it there")
    # Switched back, it is the copy that may go.
    site.register(replace(site.registry, active="a", directive=Directive("b", "a", "test", 4, 0)))
    site.promote(Promotion("a", 4, int(NOW * 1000), frozenset()))
    assert site.outcomes(superseded_in("a", 1, AT_ONCE)) == [Outcome.STILL_REFERENCED]
    assert site.outcomes(superseded_in("b", 1, AT_ONCE)) == [Outcome.DELETED]
    assert site.places_of(1) == "a"


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (None, "bookie cluster b, which is active, does not have it"),
        ({"state": LedgerState.OPEN, "last": None, "length": 0}, "its copy in bookie cluster b is not finished"),
        ({"last": 8, "length": 900}, "its copy in bookie cluster b is not finished"),
    ],
)
def test_without_a_whole_copy_it_is_kept(site: Switched, kept: dict[str, Any] | None, says: str) -> None:
    site.ledger("a", 1)
    if kept is not None:
        site.ledger("b", 1, **kept, **COPY)
    assert site.tell(superseded_in("a", 1, AT_ONCE)) == (Outcome.RETRY, says)
    assert site.places_of(1) == ("a" if kept is None else "ab")
    assert site.proof.asked == []


def test_an_open_ledger_is_kept(site: Switched) -> None:
    site.ledger("a", 1, state=LedgerState.OPEN, last=None, length=0)
    site.ledger("b", 1, **COPY)
    outcome, reason = site.tell(superseded_in("a", 1, AT_ONCE))
    assert outcome is Outcome.RETRY
    assert "have it with another end" in reason
    assert site.places_of(1) == "ab"


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.CLOSED])
def test_an_unfinished_copy_beside_the_active_one_goes(site: Switched, state: LedgerState) -> None:
    """Nobody reads it, and a builder that goes on with it finds out by its compare-and-set."""
    site.ledger("b", 1)
    closed = state is LedgerState.CLOSED
    site.ledger("a", 1, state=state, last=5 if closed else None, length=600 if closed else 0, **COPY)
    outcome, _ = site.tell(superseded_in("a", 1, AT_ONCE))
    assert (outcome, site.places_of(1)) == (Outcome.DELETED, "b")


def test_an_unfinished_copy_beside_a_ledger_that_is_open_is_kept(site: Switched) -> None:
    site.ledger("b", 1, state=LedgerState.OPEN, last=None, length=0)
    site.ledger("a", 1, state=LedgerState.OPEN, last=None, length=0, **COPY)
    outcome, reason = site.tell(superseded_in("a", 1, AT_ONCE))
    assert (outcome, "do not have it closed" in reason) == (Outcome.RETRY, True)
    assert site.places_of(1) == "ab"


def test_two_originals_of_an_id_are_kept(site: Switched) -> None:
    site.ledger("a", 1)
    site.ledger("b", 1)
    outcome, _ = site.tell(superseded_in("a", 1, AT_ONCE))
    assert (outcome, site.places_of(1)) == (Outcome.RETRY, "ab")


def test_another_holders_ledger_is_kept(site: Switched) -> None:
    holder = ManagedLedgerHolder("t/ns/persistent/other")
    site.ledger("a", 1, holder=holder)
    site.ledger("b", 1, holder=holder, **COPY)
    assert site.outcomes(superseded_in("a", 1, AT_ONCE)) == [Outcome.MISMATCH]
    assert site.places_of(1) == "ab"


def test_the_rollback_window_is_waited_for_unless_that_is_waived(site: Switched) -> None:
    site.moved(1)
    site.now = NOW - 3600
    site.register(replace(site.registry, epoch=4, directive=ORDER))
    outcome, reason = site.tell(superseded_in("a", 1))
    assert outcome is Outcome.WAITING
    assert reason == "the switch to bookie cluster b can be rolled back for another 23.0 h"
    assert site.places_of(1) == "ab"
    assert site.outcomes(superseded_in("a", 1, AT_ONCE)) == [Outcome.DELETED]


def test_the_rollback_window_goes_by_the_clock_of_the_store_that_has_the_registry(site: Switched) -> None:
    site.moved(1)
    site.registry_now = NOW - 60
    outcome, reason = site.tell(superseded_in("a", 1))
    assert outcome is Outcome.WAITING
    assert "can be rolled back for another" in reason
    site.registry_now = NOW
    assert site.tell(superseded_in("a", 1))[0] is Outcome.DELETED


def test_a_time_to_come_counts_as_now(site: Switched) -> None:
    site.moved(1)
    site.now = NOW + 1e6
    site.register(replace(site.registry, epoch=4, directive=ORDER))
    assert "for another 24.0 h" in site.tell(superseded_in("a", 1))[1]


def test_where_nothing_was_switched_a_copy_made_ahead_goes_and_what_brokers_read_stays(site: Switched) -> None:
    """No broker has ever read it, so that nothing has to be promoted; the original is proven as ever."""
    site.moved(1)
    site.promote(Promotion("b", 2, int(NOW * 1000) + 1, frozenset()))
    site.register(replace(site.registry, active="a"))
    assert site.outcomes(superseded_in("a", 1)) == [Outcome.STILL_REFERENCED]
    site.proof.problems = {1: "bookie a1 answered ENOENTRY to entry 0"}
    assert site.outcomes(superseded_in("b", 1)) == [Outcome.RETRY]
    assert site.places_of(1) == "ab"
    site.proof.problems = {}
    assert site.outcomes(superseded_in("b", 1)) == [Outcome.DELETED]
    assert site.places_of(1) == "a"


@pytest.mark.parametrize("name", ["", "c"])
def test_a_mark_that_names_no_registered_cluster_is_kept(site: Switched, name: str) -> None:
    site.moved(1)
    assert site.outcomes(superseded_in(name, 1, AT_ONCE)) == [Outcome.RETRY if name else Outcome.MISMATCH]
    assert site.places_of(1) == "ab"


def test_a_ledger_that_is_written_after_the_proof_is_kept(site: Switched) -> None:
    site.moved(1)
    path = ledger_path(ROOTS["a"], 1)

    def write() -> None:
        node = site.store.get(path)
        assert node is not None
        site.store.put(path, node.value, node.version)

    site.proof.before = write
    assert site.outcomes(superseded_in("a", 1)) == [Outcome.WAITING]
    assert site.places_of(1) == "ab"


def switched_back(site: Switched) -> None:
    """Have a rollback of another process, which a batch that is under way does not see by itself."""
    back = replace(site.registry, epoch=4, active="a", directive=Directive("b", "a", "test", 4, 0))
    node = site.store.get(REGISTRY_PATH)
    assert node is not None
    site.store.put(REGISTRY_PATH, serialize_registry(back), node.version)


def test_a_rollback_while_ledgers_are_proven_keeps_them(site: Switched) -> None:
    site.moved(1)
    site.moved(2)
    site.proof.before = lambda: switched_back(site) if len(site.proof.asked) == 1 else None
    rows = site.sweep(superseded_in("a", 1, AT_ONCE), superseded_in("a", 2, AT_ONCE))
    assert [(row.outcome, row.attempts) for row in rows] == [(Outcome.WAITING, 0)] * 2
    assert "the registry of bookie clusters was changed while it was proven" in rows[0].reason
    assert (site.places_of(1), site.places_of(2), site.recorder.places) == ("ab", "ab", [])


def test_a_promotion_that_is_taken_away_while_ledgers_are_proven_keeps_them(site: Switched) -> None:
    site.moved(1)
    site.proof.before = lambda: void_promotion(site.store)
    assert site.tell(superseded_in("a", 1, AT_ONCE)) == (Outcome.WAITING, NOT_PROMOTED)
    assert site.places_of(1) == "ab"


def rewritten(site: Switched, path: str) -> None:
    node = site.store.get(path)
    assert node is not None
    site.store.put(path, node.value, node.version)


@pytest.mark.parametrize(
    "change",
    [
        switched_back,
        lambda site: void_promotion(site.store),
        lambda site: rewritten(site, ledger_path(ROOTS["b"], 1)),
    ],
    ids=["rollback", "promotion", "copy"],
)
def test_what_changes_at_the_very_moment_of_the_delete_keeps_the_ledger(
    site: Switched, change: Callable[[Switched], object]
) -> None:
    """The transaction demands the registry, the promotion and the copy as they were read."""
    site.moved(1)
    original = site.store.delete_many

    def late(expected: Sequence[tuple[str, int]], **options: Any) -> list[DeleteResult]:
        if expected[0][0].startswith(ROOTS["a"]):
            site.store.delete_many = original  # type: ignore[method-assign]  # as it was
            change(site)
        return original(expected, **options)

    site.store.delete_many = late  # type: ignore[method-assign]  # a moment too late for any look
    (row,) = site.sweep(superseded_in("a", 1, AT_ONCE))
    assert (row.outcome, "changed between check and delete" in row.reason) == (Outcome.WAITING, True)
    assert site.places_of(1) == "ab"


def test_of_many_ledgers_at_most_fifty_go_after_a_rollback(site: Switched) -> None:
    ledgers = range(1, 121)
    for ledger_id in ledgers:
        site.moved(ledger_id)
    original, gone = site.store.delete_many, list[int]()

    def counted(expected: Sequence[tuple[str, int]], **options: Any) -> list[DeleteResult]:
        results = original(expected, **options)
        if expected[0][0].startswith(ROOTS["a"]):
            gone.append(len(expected))
            if len(gone) == 1:
                switched_back(site)
        return results

    site.store.delete_many = counted  # type: ignore[method-assign]  # counts
    outcomes = site.outcomes(*(superseded_in("a", ledger_id, AT_ONCE) for ledger_id in ledgers))
    assert (gone, Counter(outcomes)) == ([50], {Outcome.DELETED: 50, Outcome.WAITING: 70})
    assert [len(site.places_of(ledger_id)) for ledger_id in ledgers].count(2) == 70


def test_a_holder_that_changes_meanwhile_is_no_matter(site: Switched) -> None:
    site.moved(1)
    site.proof.before = lambda: site.population.names(DATA, [1, 99])
    assert site.outcomes(superseded_in("a", 1)) == [Outcome.DELETED]
    assert site.places_of(1) == "b"
