"""Requests as kazoo's connection thread meets them."""

from __future__ import annotations

import pytest

from bookwarden.metastore.zookeeper_batches import halves, split
from bookwarden.metastore.zookeeper_requests import Multi, delete_operation, failed_at


def test_a_withdrawn_change_is_sent_as_one_that_changes_nothing() -> None:
    request = Multi([delete_operation("/ledgers/00/0000/L0001", 0)])
    assert request.withdraw()
    assert request.serialize() == Multi([]).serialize()
    assert b"ledgers" not in request.serialize()


def test_a_change_that_was_sent_cannot_be_withdrawn() -> None:
    request = Multi([delete_operation("/ledgers/00/0000/L0001", 0)])
    assert b"/ledgers/00/0000/L0001" in request.serialize()
    assert not request.withdraw()


@pytest.mark.parametrize(
    ("results", "failed"),
    [([0, 0], None), (["/created", (3,), 0], None), ([0, -103, -2], 1), ([-101, -2, -2], 0), ([0, 0, -111], 2)],
)
def test_the_results_of_a_multi_tell_what_it_was_refused_for(results: list[object], failed: int | None) -> None:
    assert failed_at(results) == failed


def test_batches_hold_every_item_once_within_both_limits() -> None:
    items = ["x" * size for size in (10, 4000, 4000, 4000, 20, 20, 20, 9000, 1)]
    batches = list(split(items, 3, 10_000, str))
    assert [item for batch in batches for item in batch] == items
    assert [len(batch) for batch in batches] == [3, 3, 1, 1, 1]
    assert list(split([], 3, 10_000, str)) == []


def test_a_batch_is_halved_down_to_single_items() -> None:
    assert halves([1, 2, 3]) == [[1], [2, 3]]
    assert halves([1]) == [[1]]
