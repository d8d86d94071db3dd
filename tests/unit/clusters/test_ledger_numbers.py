"""The counter of ledger ids and the largest id, on the tree of a store that numbers its nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.clusters.bookkeeper.ledger_ids import (
    NUMBERS_OF_HALF,
    LedgerNumbers,
    largest_ledger_id,
    read_ledger_numbers,
)
from bookwarden.clusters.bookkeeper.ledger_paths import LedgerLayout, ledger_path
from bookwarden.errors import NotFoundError
from bookwarden.metadata_migration.counters import ledger_ids, producer_names

ROOT = "/pulsar/ledgers"
LAYOUTS = [LedgerLayout.FLAT, LedgerLayout.HIERARCHICAL, LedgerLayout.LONG_HIERARCHICAL]


class Tree:
    """The paths of a store; a number of a path is what it numbers next, 0 for a node that never had a child."""

    def __init__(self, numbers: dict[str, int] | None = None) -> None:
        self.numbers = {ROOT: 0} if numbers is None else numbers
        self.listed: list[str] = []

    def add(self, path: str) -> None:
        while path:
            self.numbers.setdefault(path, 0)
            path = path.rpartition("/")[0]

    def list_children(self, path: str) -> list[str]:
        self.listed.append(path)
        self.next_number(path)
        return sorted({one[len(path) + 1 :].partition("/")[0] for one in self.numbers if one.startswith(f"{path}/")})

    def children_of(self, path: str) -> list[str]:
        return self.list_children(path) if path in self.numbers else []

    def next_number(self, path: str) -> int:
        if path not in self.numbers:
            raise NotFoundError(f"no node {path}")
        return self.numbers[path]


def tree_of(*paths: str) -> Tree:
    tree = Tree()
    for path in paths:
        tree.add(path)
    return tree


@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 1) | st.integers(0, 30_000), st.sampled_from(LAYOUTS)), max_size=12),
    st.integers(0, 2**63 - 1) | st.integers(0, 30_000),
    st.integers(0, 2**63 - 1) | st.integers(0, 30_000),
)
def test_the_largest_id_in_a_range_is_found_in_every_layout(
    ledgers: list[tuple[int, LedgerLayout]], first: int, end: int
) -> None:
    tree = tree_of(*(ledger_path(ROOT, ledger_id, layout) for ledger_id, layout in ledgers))
    wanted = max((ledger_id for ledger_id, _ in ledgers if first <= ledger_id < end), default=None)
    assert largest_ledger_id(tree, ROOT, first, end) == wanted


def test_only_the_way_to_the_largest_id_is_listed() -> None:
    tree = tree_of(*(ledger_path(ROOT, ledger_id) for ledger_id in range(0, 400_000, 1_000)))
    # Directories stay when their last ledger goes.
    tree.add(f"{ROOT}/00/0077")
    assert largest_ledger_id(tree, ROOT, 0, 2**31) == 399_000
    assert tree.listed == [ROOT, f"{ROOT}/00", f"{ROOT}/00/0077", f"{ROOT}/00/0039"]


def test_what_is_no_ledger_is_passed_over() -> None:
    tree = tree_of(
        ledger_path(ROOT, 7), *(f"{ROOT}/{name}/99" for name in ("available", "cookies", "idgen", "1", "L9"))
    )
    assert largest_ledger_id(tree, ROOT, 0, 2**63) == 7
    assert largest_ledger_id(tree, "/elsewhere", 0, 2**63) is None


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({}, None),
        ({f"{ROOT}/idgen": 5}, LedgerNumbers(f"{ROOT}/idgen", 0, 5)),
        ({f"{ROOT}/idgen": 5, f"{ROOT}/idgen-long": 0}, None),
        (
            {
                f"{ROOT}/idgen": 2**31,
                f"{ROOT}/idgen-long": 0,
                f"{ROOT}/idgen-long/HOB-0000000002": 8,
                f"{ROOT}/idgen-long/HOB-0000000010": 3,
            },
            LedgerNumbers(f"{ROOT}/idgen-long/HOB-0000000010", 10, 3),
        ),
    ],
    ids=["none", "short", "between", "long"],
)
def test_the_counter_in_use_is_read(numbers: dict[str, int], expected: LedgerNumbers | None) -> None:
    assert read_ledger_numbers(Tree({ROOT: 0, **numbers}), ROOT) == expected


SHORT = LedgerNumbers(f"{ROOT}/idgen", 0, 17)
LONG = LedgerNumbers(f"{ROOT}/idgen-long/HOB-0000000003", 3, 4)


@pytest.mark.parametrize(
    ("source", "target", "largest_id", "behind"),
    [
        (SHORT._replace(next_number=9), SHORT, 16, 0),
        # The source counted further than what is left of it: the ids between were of ledgers that were deleted.
        (SHORT._replace(next_number=100), SHORT, 40, 83),
        # Somebody chose larger ids than the counter.
        (SHORT, SHORT, 40, 24),
        # A counter of other upper bits says nothing of these.
        (SHORT._replace(next_number=2**31), LONG, None, 0),
        (SHORT, LONG, LONG.id_of(5), 2),
        (None, SHORT, NUMBERS_OF_HALF - 1, NUMBERS_OF_HALF - 17),
        (SHORT._replace(next_number=2**31 + 5), SHORT, None, NUMBERS_OF_HALF - 17),
        (None, SHORT._replace(next_number=2**31 + 5), None, 0),
    ],
)
def test_a_counter_is_behind_by_the_ids_that_it_would_give_again(
    source: LedgerNumbers | None, target: LedgerNumbers, largest_id: int | None, behind: int
) -> None:
    counter = ledger_ids(source, target, largest_id)
    assert (counter.behind, counter.base, counter.path) == (behind, target.first_id, target.path)
    assert (counter.source_next is None) == (source is None or source.path != target.path)


@pytest.mark.parametrize(("source", "behind"), [(None, 0), (3, 0), (9, 5)])
def test_brokers_are_counted_on_from_those_of_the_source(source: int | None, behind: int) -> None:
    assert producer_names("/counters/producer-name", source, 4).behind == behind


def test_an_id_has_its_number_in_the_lower_half() -> None:
    assert (LONG.first_id, LONG.id_of(LONG.next_number), LONG.end_id) == (3 << 32, (3 << 32) + 4, (3 << 32) + 2**31 - 1)
