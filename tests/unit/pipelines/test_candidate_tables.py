"""Candidates as tables: put in order from pieces that overlap; since when a ledger has been an orphan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.errors import FormatError
from bookwarden.orphans.plan import Candidate
from bookwarden.pipelines.plan_files import CANDIDATES, ORPHANS, carry_over, in_order, merged


def candidate(ledger_id: int, **fields: Any) -> Candidate:
    made = Candidate(ledger_id, "MANAGED_LEDGER", "t/n/persistent/a", "?", f"/l/{ledger_id}", 3, 5, 6, 10, "CLOSED", 0)
    return made._replace(**fields)


def orphans_in(candidates: Sequence[Candidate]) -> pa.Table:
    return ORPHANS.table([one[:-1] for one in candidates])


def rows_of(tables: Sequence[pa.Table] | Iterator[pa.Table]) -> list[Candidate]:
    found = list(tables)
    assert all(table.schema.equals(CANDIDATES.arrow, check_metadata=True) for table in found)
    return [Candidate(*row) for table in found for row in zip(*(one.to_pylist() for one in table.columns), strict=True)]


def carried(candidates: Sequence[Candidate], before: Sequence[Candidate], created_ms: int) -> list[Candidate]:
    return rows_of(carry_over([orphans_in(candidates)], [CANDIDATES.table(before)], created_ms))


def seen(candidates: Sequence[Candidate]) -> list[int]:
    return [one.first_seen_ms for one in candidates]


def test_an_orphan_keeps_the_time_it_was_first_seen_only_as_the_same_node() -> None:
    before = [candidate(number, first_seen_ms=100) for number in (1, 2, 3, 4, 6)]
    now = [
        candidate(1),
        candidate(2, path="/elsewhere"),
        candidate(3, created_ms=4),
        candidate(4, version=4),
        candidate(5),
        candidate(6, length=11),
    ]
    found = carried(now, before, 900)
    assert seen(found) == [100, 900, 900, 900, 900, 100]
    assert [one[:-1] for one in found] == [one[:-1] for one in now]


def test_a_first_plan_and_one_from_the_future_begin_anew() -> None:
    assert seen(carried([candidate(1)], [], 900)) == [900]
    assert seen(carried([candidate(1)], [candidate(1, first_seen_ms=901)], 900)) == [900]
    assert seen(carried([candidate(1)], [candidate(1, first_seen_ms=900)], 900)) == [900]


@given(st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=6))
def test_the_time_is_that_of_the_first_plan_of_an_unbroken_series(series: list[set[int]]) -> None:
    plan: list[Candidate] = []
    for number, orphans in enumerate(series):
        plan = carried([candidate(one) for one in sorted(orphans)], plan, number)
    for one in plan:
        first = next(
            start for start in range(len(series)) if all(one.ledger_id in orphans for orphans in series[start:])
        )
        assert one.first_seen_ms == first


LARGE = 2**63 - 1
NODES = st.builds(
    lambda ledger_id, path, created_ms, version, first_seen_ms: candidate(
        ledger_id, path=path, created_ms=created_ms, version=version, first_seen_ms=first_seen_ms
    ),
    # Close together, so that most are in both plans.
    st.one_of(st.integers(0, 12), st.sampled_from([LARGE - 1, LARGE])),
    st.sampled_from(["/a", "/a", "/ü"]),
    st.sampled_from([5, 5, -1]),
    st.sampled_from([0, 0, 1]),
    st.integers(8, 12),
)
PLANS = st.lists(NODES, unique_by=lambda one: one.ledger_id).map(lambda plan: sorted(plan))


@st.composite
def cut(draw: st.DrawFn, rows: list[Candidate]) -> list[list[Candidate]]:
    """Cut a plan anywhere, also where nothing is between two cuts."""
    cuts = draw(st.lists(st.integers(0, len(rows)), max_size=4).map(sorted))
    return [rows[start:end] for start, end in pairwise([0, *cuts, len(rows)])]


@given(st.data(), PLANS, PLANS)
def test_each_ledger_has_the_time_that_the_earlier_plan_has_for_the_same_node(
    data: st.DataObject, now: list[Candidate], before: list[Candidate]
) -> None:
    created_ms = 10
    earlier = {(one.ledger_id, one.path, one.created_ms, one.version): one.first_seen_ms for one in before}
    tables = [orphans_in(part) for part in data.draw(cut(now))]
    old = [CANDIDATES.table(part) for part in data.draw(cut(before))]
    for one, given_one in zip(rows_of(carry_over(tables, old, created_ms)), now, strict=True):
        of_before = earlier.get((one.ledger_id, one.path, one.created_ms, one.version), created_ms)
        assert one == given_one._replace(first_seen_ms=of_before if of_before <= created_ms else created_ms)


OUT_OF_ORDER = [[(2, 1)], [(1, 1)], [(2,), (1,)], [(1,), (), (1,)], [(1, 3), (2, 4)], [(-1,)]]


@pytest.mark.parametrize("ids", OUT_OF_ORDER, ids=str)
def test_candidates_out_of_order_are_refused(ids: list[tuple[int, ...]]) -> None:
    parts = [[candidate(number) for number in part] for part in ids]
    with pytest.raises(FormatError, match=r"out of order: ledger -?\d comes after ledger -?\d$"):
        list(in_order(CANDIDATES.table(part) for part in parts))
    with pytest.raises(FormatError, match="out of order"):
        list(carry_over([orphans_in(part) for part in parts], [], 1))
    with pytest.raises(FormatError, match="out of order"):
        list(carry_over([orphans_in([candidate(9)])], [CANDIDATES.table(part) for part in parts], 1))


def test_of_the_earlier_plan_no_more_is_read_than_the_candidates_so_far_need() -> None:
    read: list[int] = []

    def before() -> Iterator[pa.Table]:
        for number in range(0, 10, 2):
            read.append(number)
            yield CANDIDATES.table([candidate(number, first_seen_ms=number), candidate(number + 1, first_seen_ms=7)])

    found = carry_over((orphans_in([candidate(number)]) for number in (2, 3, 7)), before(), 9)
    for number, first_seen_ms, read_then in ((2, 2, [0, 2]), (3, 7, [0, 2, 4]), (7, 7, [0, 2, 4, 6, 8])):
        (one,) = rows_of([next(found)])
        assert (one.ledger_id, one.first_seen_ms, read) == (number, first_seen_ms, read_then)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), unique_by=lambda one: one[0]))
def test_pieces_that_overlap_come_by_growing_id(ids_in_pieces: list[tuple[int, int]]) -> None:
    pieces: dict[int, list[int]] = {}
    for ledger_id, piece in ids_in_pieces:
        pieces.setdefault(piece, []).append(ledger_id)
    tables = [orphans_in([candidate(one) for one in ids]) for ids in sorted(pieces.values(), key=min)]
    found = [one for table in merged(tables) for one in table.column("ledger_id").to_pylist()]
    assert found == sorted(ledger_id for ledger_id, _ in ids_in_pieces)


def test_what_no_later_piece_can_come_before_is_passed_on() -> None:
    read: list[int] = []

    def pieces() -> Iterator[pa.Table]:
        for ids in ((1, 2, 9), (3, 4), (5, 6), (20,)):
            read.append(ids[0])
            yield orphans_in([candidate(number) for number in ids])

    found = [(table.column("ledger_id").to_pylist(), list(read)) for table in merged(pieces()) if table.num_rows]
    assert found == [
        ([1, 2], [1, 3]),
        ([3, 4], [1, 3, 5]),
        ([5, 6, 9], [1, 3, 5, 20]),
        ([20], [1, 3, 5, 20]),
    ]
