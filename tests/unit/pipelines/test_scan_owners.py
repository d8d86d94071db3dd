"""Owners of unreferenced ledgers, brought together from many pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.pipelines.columns.tables import OWNERS, UnnamedOwner, rows_in
from bookwarden.pipelines.scan import join
from bookwarden.pipelines.scan.join import owners_together

owners = st.builds(
    UnnamedOwner,
    st.sampled_from(["MANAGED_LEDGER", "SCHEMA"]),
    st.sampled_from("abc"),
    st.booleans(),
    st.none() | st.integers(0, 9),
)


@pytest.fixture(scope="module", params=[1, 4, 100_000], autouse=True)
def grouped_at_once(request: pytest.FixtureRequest) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join, "_GROUPED_AT_ONCE", request.param)
        yield


@given(st.lists(st.lists(owners, max_size=4), max_size=8))
def test_each_owner_has_one_row_whatever_pieces_its_ledgers_are_in(pieces: list[list[UnnamedOwner]]) -> None:
    expected: dict[tuple[str, str], tuple[bool, int | None]] = {}
    for owner in (one for piece in pieces for one in piece):
        lately, last = expected.get((owner.kind, owner.holder), (False, None))
        written = [one for one in (last, owner.last_written) if one is not None]
        expected[owner.kind, owner.holder] = (lately or owner.lately, max(written, default=None))
    found = list(rows_in(owners_together(OWNERS.table(piece) for piece in pieces)))
    assert len(found) == len(expected)
    assert {(kind, holder): (lately, last) for kind, holder, lately, last in found} == expected
