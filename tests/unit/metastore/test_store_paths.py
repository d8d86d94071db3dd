"""Paths of nodes, one by one and many at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.errors import FormatError
from bookwarden.metastore.paths import MAX_PATH_BYTES, validate_path, validate_paths

parts = st.sampled_from(
    ["/", "a", "ü", ".", "..", "/.", "/..", "\n", "\0", "/a", "/\n", "\n/", "\ud800", "x" * (MAX_PATH_BYTES - 1)]
)
paths = st.one_of(st.just("/a/b"), st.lists(parts, max_size=5).map("".join))


def refused(path: str) -> str | None:
    try:
        validate_path(path)
    except FormatError as error:
        return str(error)
    return None


@settings(max_examples=500)
@given(st.lists(paths, max_size=4))
def test_many_paths_are_judged_as_each_of_them_is(many: list[str]) -> None:
    expected = next((error for error in map(refused, many) if error), None)
    if expected is None:
        assert validate_paths(many) == many
    else:
        with pytest.raises(FormatError) as caught:
            validate_paths(many)
        assert str(caught.value) == expected


@pytest.mark.parametrize("path", ["/", "/a", "/a\n", "/a\n/b", "/..a", "/a" * 100])
def test_unusual_paths_are_paths(path: str) -> None:
    assert validate_paths(["/x", path, "/y"]) == ["/x", path, "/y"]
    assert validate_paths([]) == []
