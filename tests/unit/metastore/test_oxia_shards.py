"""Which shard has a key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.errors import StoreError
from bookwarden.metastore.oxia.shards import Shard, ShardMap, hash_of, shard_map
from bookwarden.wire.pb import oxia_client_pb2 as pb


@pytest.mark.parametrize(("key", "expected"), [("foo", 125730186), ("bar", 2687685474), ("baz", 862947621)])
def test_keys_hash_as_in_oxia_s_own_test(key: str, expected: int) -> None:
    assert hash_of(key) == expected


@given(st.lists(st.integers(1, 2**32 - 1), unique=True, max_size=9), st.text())
def test_a_key_is_on_the_shard_whose_range_has_its_hash(cuts: list[int], key: str) -> None:
    begins = [0, *sorted(cuts)]
    ends = [*(begin - 1 for begin in begins[1:]), 2**32 - 1]
    shards = ShardMap(Shard(number, "a:1", *ends) for number, ends in enumerate(zip(begins, ends, strict=True)))
    found = shards.of(key)
    assert found.lowest <= hash_of(key) <= found.highest
    assert shards.parted([key]) == {list(shards.shards).index(found): [key]}


@pytest.mark.parametrize("ranges", [[], [(0, 5)], [(1, 2**32 - 1)], [(0, 5), (7, 2**32 - 1)], [(0, 9), (9, 2**32 - 1)]])
def test_shards_that_leave_a_hash_out_or_have_it_twice_are_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(StoreError, match="do not fit together"):
        ShardMap(Shard(number, "a:1", *ends) for number, ends in enumerate(ranges))


def test_another_way_of_hashing_is_refused() -> None:
    answer = pb.ShardAssignments()
    answer.namespaces["default"].shard_key_router = 2  # type: ignore[assignment]  # one that comes with a later Oxia
    with pytest.raises(StoreError, match="update bookwarden"):
        shard_map(answer, "default")
