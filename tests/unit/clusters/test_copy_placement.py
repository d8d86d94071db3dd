"""Which bookies a ledger's copy goes to, by racks, groups and what is writable; by a clock of the test's own."""

from __future__ import annotations

import json
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookwarden.clusters.bookkeeper.copying.placement import (
    Affinity,
    BookieTopology,
    CopyPlacement,
    candidates,
    ensemble_from,
    ring_of,
    shared_racks,
)
from bookwarden.clusters.pulsar.metadata.bookie_placement import read_affinity
from bookwarden.errors import BookieUnavailableError, FormatError
from bookwarden.ledgers.kinds import CursorHolder, Holder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment, StoredLedger
from bookwarden.metastore.memory import MemoryStore
from unit.metastore.test_throttle import Clock

NOBODY = Affinity()


def ledger(ledger_id: int, ensemble: int = 2, write_quorum: int = 2) -> StoredLedger:
    segments = (Segment(0, tuple(f"old{number}" for number in range(ensemble))),)
    metadata = LedgerMetadata(3, LedgerState.CLOSED, ensemble, write_quorum, 1, segments, 10, 0)
    return StoredLedger(ledger_id, f"/ledgers/{ledger_id}", 0, 0, b"", metadata)


def bookies(count: int, name: str = "b") -> frozenset[str]:
    return frozenset(f"{name}{number}" for number in range(count))


def fixed(ground: BookieTopology, affinity: Affinity = NOBODY) -> CopyPlacement:
    return CopyPlacement(lambda: ground, lambda _: affinity)


@st.composite
def grounds(draw: st.DrawFn) -> tuple[BookieTopology, int, int, int]:
    """Some bookies in racks, with the size, write quorum and beginning of an ensemble of them."""
    writable = sorted(bookies(draw(st.integers(1, 7))))
    racks = {bookie: rack for bookie in writable if (rack := draw(st.sampled_from(["", "/r1", "/r2", "/r3"])))}
    size = draw(st.integers(1, min(5, len(writable))))
    quorum = draw(st.integers(1, size))
    return BookieTopology(frozenset(writable), {}, racks), size, quorum, draw(st.integers(0, len(writable) - 1))


@example((BookieTopology(bookies(4), {}, {"b2": "/r1", "b3": "/r2"}), 4, 2, 0))
@given(grounds())
def test_replicas_share_a_rack_only_where_no_other_order_of_any_bookies_parts_them(
    drawn: tuple[BookieTopology, int, int, int],
) -> None:
    ground, size, quorum, start = drawn
    ring = ring_of(ground.writable, ground.racks)
    chosen = ensemble_from(ring, start, size, quorum, ground.racks)
    assert len(set(chosen)) == len(chosen) == size
    assert set(chosen) <= ground.writable
    fewest = min(shared_racks(other, quorum, ground.racks) for other in permutations(sorted(ground.writable), size))
    assert shared_racks(chosen, quorum, ground.racks) == fewest


@pytest.mark.parametrize(
    ("ensemble", "quorum", "racks", "shared"),
    [
        ("ab", 2, {"a": "/r1", "b": "/r2"}, 0),
        ("ab", 2, {"a": "/r1", "b": "/r1"}, 1),
        ("ab", 2, {}, 1),
        ("ab", 1, {}, 0),
        # The last is a neighbour of the first.
        ("abc", 2, {"a": "/r1", "b": "/r2", "c": "/r1"}, 1),
        ("abcd", 2, {"a": "/r1", "b": "/r2", "c": "/r1", "d": "/r2"}, 0),
        ("abcd", 3, {"a": "/r1", "b": "/r2", "c": "/r1", "d": "/r2"}, 2),
    ],
)
def test_replicas_of_an_entry_are_neighbours(ensemble: str, quorum: int, racks: dict[str, str], shared: int) -> None:
    assert shared_racks(ensemble, quorum, racks) == shared


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 8, 64, 1000])
@pytest.mark.parametrize("racks", [1, 2, 3])
def test_ledgers_are_spread_evenly_over_all_bookies(step: int, racks: int) -> None:
    writable = bookies(6)
    ground = BookieTopology(
        writable, {}, {bookie: f"/r{int(bookie[1:]) * racks // 6}" for bookie in writable if racks > 1}
    )
    placement = fixed(ground)
    counts = Counter(
        bookie for number in range(3000) for bookie in placement.choose(ledger(7_000_000 + number * step), None)
    )
    assert set(counts) == writable
    assert max(counts.values()) < 1.2 * min(counts.values())


def test_an_ensemble_shrinks_to_the_write_quorum_and_no_further() -> None:
    for count, size in ((5, 4), (4, 4), (3, 3), (2, 2)):
        chosen = fixed(BookieTopology(bookies(count), {}, {})).choose(ledger(1, 4, 2), None)
        assert len(set(chosen)) == len(chosen) == size
    with pytest.raises(BookieUnavailableError, match=r"ledger 1 goes to 2 bookies.* writable there are 1: 1 missing;"):
        fixed(BookieTopology(bookies(1), {}, {})).choose(ledger(1, 4, 2), None)
    placement = fixed(BookieTopology(bookies(3), {}, {}))
    assert set(placement.choose(ledger(1, 3, 2), None, {"b0"})) == {"b1", "b2"}
    with pytest.raises(BookieUnavailableError, match=r"1: 1 missing \(b0, b1 cannot be used now\); start bookies"):
        placement.choose(ledger(1, 3, 2), None, {"b0", "b1", "another"})


GROUPS = {"g": frozenset({"g1", "g2", "gone"}), "s": frozenset({"s1"}), "other": frozenset({"o1", "o2", "g2"})}
EVERY = BookieTopology(frozenset({"g1", "g2", "s1", "o1", "o2", "free"}), GROUPS, {})
IN_G, IN_G_OR_S = Affinity(frozenset({"g"})), Affinity(frozenset({"g"}), frozenset({"s"}))


@pytest.mark.parametrize(
    ("affinity", "size", "avoid", "expected"),
    [
        (NOBODY, 2, set(), EVERY.writable),
        (NOBODY, 2, {"o1", "free"}, {"g1", "g2", "s1", "o2"}),
        (IN_G, 2, set(), {"g1", "g2"}),
        (IN_G_OR_S, 2, set(), {"g1", "g2"}),
        (IN_G_OR_S, 3, set(), {"g1", "g2", "s1"}),
        (IN_G_OR_S, 2, {"g2"}, {"g1", "s1"}),
        # Bookies of no group come last, those of others never.
        (IN_G, 3, set(), {"g1", "g2", "free"}),
        (IN_G_OR_S, 4, set(), {"g1", "g2", "s1", "free"}),
        (IN_G_OR_S, 9, {"free"}, {"g1", "g2", "s1"}),
        (Affinity(frozenset({"unknown"})), 2, set(), {"free"}),
    ],
)
def test_groups_are_followed_as_brokers_do(affinity: Affinity, size: int, avoid: set[str], expected: set[str]) -> None:
    assert candidates(EVERY, affinity, size, avoid) == expected


def test_a_namespace_gets_its_groups_or_an_error_that_names_them() -> None:
    placement = fixed(EVERY, IN_G_OR_S)
    holder = ManagedLedgerHolder("t/n/persistent/x")
    assert set(placement.choose(ledger(5), holder)) == {"g1", "g2"}
    assert set(placement.choose(ledger(5, 5), holder)) == {"g1", "g2", "s1", "free"}
    with pytest.raises(BookieUnavailableError, match=r"in the groups g, s, .* there are 1: 1 missing .*--group"):
        placement.choose(ledger(5), holder, {"g1", "g2", "free"})


@pytest.mark.parametrize(
    ("holder", "asked"),
    [
        (ManagedLedgerHolder("t/n/persistent/x"), ["t/n"]),
        (ManagedLedgerHolder("t/c/n/persistent/x"), ["t/c/n"]),
        (CursorHolder("t/n/persistent/x", "s"), ["t/n"]),
        (SchemaHolder("t/n/x"), ["t/n"]),
        (ManagedLedgerHolder("odd"), []),
        (None, []),
    ],
)
def test_the_namespace_of_the_holder_is_asked_once(holder: Holder | None, asked: list[str]) -> None:
    found: list[str] = []

    def affinity_of(namespace: str) -> Affinity:
        found.append(namespace)
        return NOBODY

    placement = CopyPlacement(lambda: EVERY, affinity_of)
    placement.choose(ledger(1), holder)
    placement.choose(ledger(2), holder)
    assert found == asked


def test_what_it_goes_by_is_never_older_than_five_seconds() -> None:
    clock, grounds_now, reads = Clock(), [BookieTopology(bookies(2), {}, {})], []

    def read() -> BookieTopology:
        reads.append(clock.passed)
        return grounds_now[-1]

    groups = [NOBODY]
    placement = CopyPlacement(read, lambda _: groups[-1], now=clock.now)
    holder = ManagedLedgerHolder("t/n/persistent/x")
    assert set(placement.choose(ledger(1), holder)) == bookies(2)
    grounds_now.append(BookieTopology(bookies(2, "c"), {"g": frozenset({"c0"})}, {}))
    groups.append(IN_G)
    clock.sleep(4.9)
    assert set(placement.choose(ledger(1), holder)) == bookies(2)
    clock.sleep(0.2)
    assert set(placement.choose(ledger(1, 1, 1), holder)) == {"c0"}
    assert reads == [0, 5.1]


def test_what_one_namespace_asks_for_is_read() -> None:
    store = MemoryStore()
    path = "/admin/local-policies/t/n"
    assert read_affinity(store, "t/n") == (frozenset(), frozenset())
    asked = {"bookkeeperAffinityGroupPrimary": "g, h", "bookkeeperAffinityGroupSecondary": ""}
    store.create(path, json.dumps({"bookieAffinityGroup": asked}).encode(), make_parents=True)
    assert read_affinity(store, "t/n") == (frozenset({"g", "h"}), frozenset())
    store.put(path, b"{", 0)
    with pytest.raises(FormatError, match="t/n"):
        read_affinity(store, "t/n")
