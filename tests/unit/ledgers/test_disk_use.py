"""What a ledger takes on the disks of bookies."""

from __future__ import annotations

import pytest

from bookwarden.ledgers.disk_use import MOST_BYTES, disk_bytes, shares
from bookwarden.ledgers.metadata import Segment

BEGIN = Segment(0, ("a", "b"))


def test_each_copy_of_an_entry_has_its_bytes_and_an_overhead() -> None:
    assert disk_bytes(2, 1_000, 10) == 2 * (1_000 + 400)
    assert disk_bytes(3, 0, 0) == 0
    assert disk_bytes(3, 2**62, 2**62) == MOST_BYTES


@pytest.mark.parametrize(
    ("segments", "entries", "expected"),
    [
        ([BEGIN], 7, {"a": 0.5, "b": 0.5}),
        ([BEGIN], 0, {"a": 0.5, "b": 0.5}),
        ([BEGIN, Segment(6, ("a", "c"))], 8, {"a": 0.5, "b": 0.375, "c": 0.125}),
        # A bookie was replaced, and then nothing more written.
        ([BEGIN, Segment(6, ("a", "c"))], 6, {"a": 0.5, "b": 0.5, "c": 0}),
        ([BEGIN, Segment(6, ("a", "c"))], 4, {"a": 0.5, "b": 0.5, "c": 0}),
        ([BEGIN, Segment(6, ("c", "d"))], 0, {"a": 0, "b": 0, "c": 0.5, "d": 0.5}),
    ],
)
def test_bookies_share_a_ledger_by_the_entries_of_its_segments(
    segments: list[Segment], entries: int, expected: dict[str, float]
) -> None:
    found = dict.fromkeys(expected, 0.0)
    for bookie, part in shares(segments, entries):
        found[bookie] += part
    assert found == pytest.approx(expected)
