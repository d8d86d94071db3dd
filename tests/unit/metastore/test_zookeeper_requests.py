"""Requests as kazoo's connection thread meets them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.pacing import Pace
from bookwarden.metastore.request_batches import halves, split
from bookwarden.metastore.zookeeper.batches import BatchReader
from bookwarden.metastore.zookeeper.requests import (
    NO_NODE,
    GetChildren,
    GetData,
    Multi,
    MultiRead,
    _names,
    _names_alike,
    _read_result,
    delete_operation,
    failed_at,
)
from bookwarden.metastore.zookeeper.session import PendingReply, ZooKeeperConnection


def encoded_node(value: bytes, *, length: int | None = None, owner: int = 6) -> bytes:
    """A node as a server sends it: the children are 9, the version 3, created at 11, modified at 12."""
    stat = struct.pack("!qqqqiiiqiiq", 1, 2, 11, 12, 3, 4, 5, owner, len(value), 9, 8)
    return struct.pack("!i", len(value) if length is None else length) + value + stat


def answer(nodes: Iterable[bytes | int]) -> bytes:
    rows = [
        struct.pack("!iBii", -1, 0, node, node) if isinstance(node, int) else struct.pack("!iBi", 4, 0, 0) + node
        for node in nodes
    ]
    return b"".join(rows) + struct.pack("!iBi", -1, 1, -1)


def test_a_multi_read_asks_for_each_path_in_its_own_operation() -> None:
    paths = ["/a/b", "/c/d", "/ü", "/e", "/a/b"]
    operations = b"".join(struct.pack("!iBii", 4, 0, -1, len(path.encode())) + path.encode() + b"\0" for path in paths)
    assert MultiRead(paths).serialize() == operations + struct.pack("!iBi", -1, 1, -1)


def test_the_answer_to_a_multi_read_has_a_node_or_an_error_for_each() -> None:
    reply = b"header" + answer([encoded_node(b"one"), NO_NODE, encoded_node(b""), encoded_node(b"", length=-1), -102])
    request = MultiRead([])
    empty, one = (Versioned(value, 3, 11, 12, 9, True, session=6) for value in (b"", b"one"))
    assert request.deserialize(reply, 6) == [one, NO_NODE, empty, empty, -102]
    assert request.reply_bytes == len(reply) - 6
    assert MultiRead([]).deserialize(answer([]), 0) == []
    assert GetData.deserialize(b"header" + encoded_node(b"one"), 6) == one


# The owners of a persistent node, of a container, of a node with a TTL, and of two sessions' nodes.
@pytest.mark.parametrize(
    ("owner", "ephemeral"),
    [(0, False), (-(2**63), False), (-(2**56) + 1000, False), (0x100123456789ABC, True), (-(2**57), True)],
)
def test_an_ephemeral_node_is_told_by_its_owner(owner: int, ephemeral: bool) -> None:
    node = encoded_node(b"", owner=owner)
    expected = Versioned(b"", 3, 11, 12, 9, ephemeral, session=owner if ephemeral else None)
    assert MultiRead([]).deserialize(answer([node]), 0) == [expected]
    assert GetData.deserialize(node, 0) == expected


nodes = st.builds(
    lambda value, owner: encoded_node(value, owner=owner),
    st.binary(max_size=5),
    st.sampled_from([0, -(2**63), -(2**56) + 1000, 0x100123456789ABC, -(2**57)]),
)


@given(st.lists(st.one_of(nodes, st.just(encoded_node(b"", length=-1)), st.sampled_from([NO_NODE, -102, 0]))))
def test_many_nodes_are_read_as_each_is_by_itself(rows: list[bytes | int]) -> None:
    expected = [row if isinstance(row, int) else GetData.deserialize(row, 0) for row in rows]
    assert MultiRead([]).deserialize(b"xy" + answer(rows), 2) == expected


@given(st.lists(st.one_of(st.text(max_size=3), st.sampled_from(["/a/b", "/c/d", "/ü"]))))
def test_many_nodes_are_asked_for_as_each_is_by_itself(paths: list[str]) -> None:
    single = b"".join(struct.pack("!iBi", 4, 0, -1) + GetData(path).serialize() for path in paths)
    assert MultiRead(paths).serialize() == single + struct.pack("!iBi", -1, 1, -1)


@pytest.mark.parametrize("cut", [1, 5, 9, 12, 40])
def test_an_answer_that_is_cut_off_is_an_error(cut: int) -> None:
    with pytest.raises((ValueError, struct.error)):
        MultiRead([]).deserialize(answer([encoded_node(b"one"), NO_NODE])[:-cut], 0)


def encoded_names(names: list[str]) -> bytes:
    parts = [struct.pack("!i", len(name.encode())) + name.encode() for name in names]
    return struct.pack("!i", len(names)) + b"".join(parts)


@given(
    st.one_of(
        st.lists(st.text(max_size=4)),
        st.integers(0, 300).flatmap(lambda size: st.lists(st.text("ab\0\x7f", min_size=size, max_size=size))),
        st.lists(st.sampled_from(["L0001", "L0002", "", "grüße", "grüß", "\0\0\0\x05"])),
    )
)
def test_children_are_named_in_the_order_of_the_answer(names: list[str]) -> None:
    assert GetChildren.deserialize(b"xy" + encoded_names(names), 2) == names


@given(
    st.lists(st.sampled_from(["L0001", "L0002", "", "\0\0\0\x05", "grüße"])),
    st.integers(-1, 12),
    st.sampled_from([b"", b"\0", b"\0\0\0\x05", b"\0\0\0\x05L000", b"\0\0\0\x01\xff"]),
)
def test_names_are_read_together_as_one_by_one_or_not_at_all(names: list[str], count: int, tail: bytes) -> None:
    reply = encoded_names(names) + tail
    try:
        together = _names_alike(reply, 4, count)
    except struct.error:
        with pytest.raises(struct.error):
            _names(reply, 4, count)
    else:
        assert together is None or together == _names(reply, 4, count)


@pytest.mark.parametrize("names", [["L0001", "L0002"], ["L0001", "grüße"]])
@pytest.mark.parametrize("cut", [1, 3, 6, 11])
def test_children_are_never_fewer_or_shorter_because_the_answer_was_cut_off(names: list[str], cut: int) -> None:
    with pytest.raises((ValueError, struct.error)):
        GetChildren.deserialize(encoded_names(names)[:-cut], 0)


def test_children_are_asked_for_by_path() -> None:
    assert GetChildren("/a").serialize() == b"\0\0\0\x02/a\0"


class Answering:
    """A session that has the same node at every path, and notes how many are asked for at once."""

    def __init__(self, size: int, max_requests_per_second: float | None = None, chroot: str = "") -> None:
        self.connection = ZooKeeperConnection(hosts="none", batch_size=10, in_flight=2, chroot=chroot)
        self.pace = Pace(2, max_requests_per_second)
        self.asked: list[int] = []
        self.grow_to(size)

    def grow_to(self, size: int) -> None:
        self._node = encoded_node(b"v" * size)

    def send(self, request: MultiRead, deadline: Deadline) -> PendingReply:
        count = request.nodes
        self.asked.append(count)
        return PendingReply(_Answered(request.deserialize(answer([self._node] * count), 0)), deadline)

    def read_fresh(self, reader: Any, _: Deadline) -> Any:
        return reader()


class _Answered:
    def __init__(self, rows: Sequence[object]) -> None:
        self._rows = rows

    def get(self, timeout: float) -> Sequence[object]:
        assert timeout > 0
        return self._rows


@pytest.mark.parametrize(
    ("size", "asked"), [(300, [10, 10, 50, 50, 5]), (0, [10, 10, 50, 50, 5]), (2000, [10] * 12 + [5])]
)
def test_more_nodes_are_asked_for_at_once_while_they_are_small(size: int, asked: list[int]) -> None:
    session: Any = Answering(size)
    paths = [f"/n{number}" for number in range(125)]
    rows = BatchReader(session).read(paths, Deadline(30))
    assert [row and len(row.value) for row in rows] == [size] * 125
    assert session.asked == asked


def test_the_size_of_a_kind_of_nodes_is_remembered_for_the_next_read() -> None:
    session: Any = Answering(300)
    reader = BatchReader(session)
    ledgers = [f"/ledgers/n{number}" for number in range(70)]
    reader.read(ledgers, Deadline(30))
    reader.read(ledgers, Deadline(30))
    assert session.asked == [10, 10, 50, 50, 20]
    session.asked.clear()
    reader.read([f"/managed-ledgers/n{number}" for number in range(30)], Deadline(30))
    assert session.asked == [10, 10, 10]
    session.grow_to(2000)
    reader.read(ledgers[:50], Deadline(30))
    session.asked.clear()
    reader.read(ledgers[:30], Deadline(30))
    assert session.asked == [10, 10, 10]


def test_kinds_of_nodes_are_told_apart_below_a_chroot() -> None:
    session: Any = Answering(300, chroot="/pulsar/")
    reader = BatchReader(session)
    reader.read([f"/pulsar/ledgers/n{number}" for number in range(20)], Deadline(30))
    session.asked.clear()
    reader.read([f"/pulsar/managed-ledgers/n{number}" for number in range(20)], Deadline(30))
    assert session.asked == [10, 10]
    assert reader.read(["/pulsar"], Deadline(30))[0] is not None
    assert reader.read([], Deadline(30)) == []


@pytest.mark.parametrize(("limit", "asked"), [(30, [3] * 41 + [2]), (200, [10, 10, 20, 20, 20, 20, 20, 5])])
def test_a_limit_a_second_makes_batches_small(limit: float, asked: list[int]) -> None:
    session: Any = Answering(300, limit)
    paths = [f"/n{number}" for number in range(125)]
    assert all(BatchReader(session).read(paths, Deadline(30)))
    assert session.asked == asked


def test_a_withdrawn_change_is_sent_as_one_that_changes_nothing() -> None:
    request = Multi([delete_operation("/ledgers/00/0000/L0001", 0)])
    assert request.withdraw()
    assert request.serialize() == Multi([]).serialize()
    assert b"ledgers" not in request.serialize()


def test_a_change_that_was_sent_cannot_be_withdrawn() -> None:
    request = Multi([delete_operation("/ledgers/00/0000/L0001", 0)])
    assert b"/ledgers/00/0000/L0001" in request.serialize()
    assert not request.withdraw()


def result(kind: int, error: int | None = None) -> bytes:
    code = error or 0
    return struct.pack("!iBi", kind, 0, code) + (b"" if error is None else struct.pack("!i", error))


@pytest.mark.parametrize(
    ("reply", "results"),
    [
        ([result(2), result(2), result(13)], [0, 0, 0]),
        ([], []),
        ([result(2), result(-1, -103), result(-1, -2)], [0, -103, -2]),
        # So many errors that their length is one of headers.
        ([result(-1, -2)] * 8 + [result(-1, -101)], [-2] * 8 + [-101]),
        ([result(2), result(5) + encoded_node(b"")[4:]], [0, (3,)]),
        ([result(1) + struct.pack("!i", 5) + b"/made", result(2)], ["/made", 0]),
        # The path makes it as long as headers alone.
        ([result(1) + struct.pack("!i", 5) + b"/made"] * 9, ["/made"] * 9),
    ],
)
def test_a_multi_has_a_result_for_each_operation(reply: list[bytes], results: list[object]) -> None:
    assert Multi.deserialize(b"header" + b"".join(reply) + struct.pack("!iBi", -1, 1, -1), 6) == results


RESULTS: list[tuple[bytes, object]] = [
    (result(2), 0),
    (result(13), 0),
    (result(-1, -103), -103),
    (result(1) + struct.pack("!i", 5) + b"/made", "/made"),
    (result(5) + encoded_node(b"")[4:], (3,)),
]


@given(st.one_of(st.lists(st.sampled_from(RESULTS)), st.lists(st.sampled_from(RESULTS[:2]))))
def test_results_that_are_all_alike_are_read_as_each_is_by_itself(parts: list[tuple[bytes, object]]) -> None:
    reply = b"header" + b"".join(encoded for encoded, _ in parts) + struct.pack("!iBi", -1, 1, -1)
    alone = [_read_result(struct.unpack_from("!i", encoded)[0], encoded, 9)[0] for encoded, _ in parts]
    assert Multi.deserialize(reply, 6) == alone == [expected for _, expected in parts]


@pytest.mark.parametrize("cut", [1, 9])
def test_an_answer_to_a_multi_that_is_cut_off_is_an_error(cut: int) -> None:
    reply = result(2) * 3 + struct.pack("!iBi", -1, 1, -1)
    with pytest.raises(struct.error):
        Multi.deserialize(reply[:-cut], 0)


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
