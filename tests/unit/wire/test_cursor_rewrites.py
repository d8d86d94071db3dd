"""Nodes of cursors and topics rewritten for a restore: what is not meant stays, as a broker wrote it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.errors import FormatError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.wire.cursor import (
    acknowledged_behind,
    at_position,
    decode_cursor,
    with_acknowledged,
    without_buckets,
)
from bookwarden.wire.envelope import Compression, wrap
from bookwarden.wire.managed_ledger import (
    closed_ledger_entry,
    decode_ledger_entry,
    decode_managed_ledger,
    ledger_entries,
    ledger_entry_without_copy,
    with_ledger_entries,
)
from bookwarden.wire.pb import managed_ledger_pb2 as pb

BUCKET = "#pulsar.internal.delayed.bucket_5_7"


def message_range(ledger: int, first: int, last: int) -> bytes:
    """As Pulsar's own MessageRange, by its field numbers."""
    ends = [pb.NestedPositionInfo(ledgerId=ledger, entryId=one).SerializeToString() for one in (first, last)]
    return b"\x0a" + bytes([len(ends[0])]) + ends[0] + b"\x12" + bytes([len(ends[1])]) + ends[1]


def cursor_node(ledger: int = 40, position: tuple[int, int] | None = (5, 3), *ranges: bytes) -> bytes:
    node = pb.ManagedCursorInfo(cursorsLedgerId=ledger, individualDeletedMessages=ranges)
    if position is not None:
        node.markDeleteLedgerId, node.markDeleteEntryId = position
    node.properties.add(name="p", value=1)
    node.cursorProperties.add(name="user", value="kept")
    node.cursorProperties.add(name=BUCKET, value="60")
    return node.SerializeToString()


def entry(position: tuple[int, int], *ranges: bytes) -> bytes:
    return pb.PositionInfo(
        ledgerId=position[0], entryId=position[1], individualDeletedMessages=ranges
    ).SerializeToString()


@pytest.mark.parametrize("codec", [None, Compression.ZSTD])
def test_a_cursor_goes_on_from_its_ledger_s_last_entry(codec: Compression | None) -> None:
    raw = cursor_node() if codec is None else wrap(cursor_node(), codec)
    moved = decode_cursor(at_position(raw, entry((6, 0), message_range(6, 2, 4))))
    assert (moved.cursors_ledger_id, moved.mark_delete) == (None, Position(6, 0))
    assert moved.acknowledged == (message_range(6, 2, 4),)
    assert moved.cursor_properties == {"user": "kept", BUCKET: "60"}
    stays = decode_cursor(at_position(raw, None))
    assert (stays.cursors_ledger_id, stays.mark_delete, stays.properties) == (None, Position(5, 3), {"p": 1})
    with pytest.raises(FormatError):
        at_position(cursor_node(40, None), None)


@given(st.sets(st.integers(2, 200), min_size=1), st.sampled_from([5, 9]))
def test_acknowledgements_as_bits_become_ranges(entries: set[int], ledger: int) -> None:
    words = [0] * (max(entries) // 64 + 1)
    for one in entries:
        words[one // 64] |= 1 << one % 64
    signed = [word - 2**64 if word >= 2**63 else word for word in words]
    bits = pb.LongListMap(key=ledger, values=signed).SerializeToString()
    last = pb.PositionInfo(ledgerId=5, entryId=1, individualDeletedMessageRanges=[bits]).SerializeToString()
    acknowledged = decode_cursor(at_position(cursor_node(), last)).acknowledged
    edges = [one for one in range(1, 203) if (one in entries) != (one - 1 in entries)]
    expected = [message_range(ledger, first - 1, end - 1) for first, end in zip(edges[::2], edges[1::2], strict=True)]
    assert list(acknowledged) == expected
    # Another version's way of writing them would have some before the position.
    own = pb.LongListMap(key=5, values=signed).SerializeToString()
    behind = pb.PositionInfo(ledgerId=5, entryId=min(entries), individualDeletedMessageRanges=[own])
    with pytest.raises(FormatError, match="in a form that is not known"):
        at_position(cursor_node(), behind.SerializeToString())


def test_a_cursor_has_acknowledged_what_the_live_one_has_and_joined_again_the_same() -> None:
    former = cursor_node(-1, (5, 3), message_range(5, 4, 6))
    live = cursor_node(-1, (9, 1), message_range(9, 2, 3))
    joined = with_acknowledged(former, live, {8: 9, 9: 1, 7: -1})
    found = decode_cursor(joined)
    assert found.mark_delete == Position(5, 3)
    assert found.acknowledged == (
        message_range(5, 4, 6),
        message_range(8, -1, 9),
        message_range(9, -1, 1),
        message_range(9, 2, 3),
    )
    assert decode_cursor(with_acknowledged(former, joined, {})).acknowledged == (
        *found.acknowledged[:1],
        *found.acknowledged[1:],
    )


def test_a_bucket_that_is_gone_is_named_no_more() -> None:
    assert decode_cursor(without_buckets(cursor_node(), {60})).cursor_properties == {"user": "kept"}
    assert without_buckets(cursor_node(), {61}) == cursor_node()


@pytest.mark.parametrize("codec", [None, Compression.LZ4])
def test_a_list_is_rewritten_and_one_that_is_that_already_stays_byte_for_byte(codec: Compression | None) -> None:
    node = pb.ManagedLedgerInfo()
    for ledger_id, entries in ((9, 0), (5, 10)):
        node.ledgerInfo.add(ledgerId=ledger_id, entries=entries, size=entries * 7, timestamp=entries)
    node.properties.add(key="k", value="v")
    raw = node.SerializeToString() if codec is None else wrap(node.SerializeToString(), codec)
    entries_of = ledger_entries(raw)
    assert with_ledger_entries(raw, entries_of) == raw
    third = closed_ledger_entry(ledger_entries(raw)[9], 3, 21, 1000)
    assert decode_ledger_entry(third)[:4] == (9, 3, 21, 1000)
    more = pb.ManagedLedgerInfo.LedgerInfo(ledgerId=3, entries=1, size=1, timestamp=1)
    more.offloadContext.uidMsb = 1
    assert decode_ledger_entry(more.SerializeToString()).offload is not None
    without = ledger_entry_without_copy(more.SerializeToString())
    changed = decode_managed_ledger(with_ledger_entries(raw, {3: without, 5: entries_of[5], 9: third}))
    assert [ledger[:4] for ledger in changed.ledgers] == [(3, 1, 1, 1), (5, 10, 70, 10), (9, 3, 21, 1000)]
    assert changed.ledgers[0].offload is None
    assert changed.properties == {"k": "v"}


def test_what_is_acknowledged_behind_a_position_is_listed_in_order() -> None:
    node = cursor_node(40, (5, 3), message_range(7, -1, 9), message_range(5, 5, 8))
    assert acknowledged_behind(node, None) == (
        (Position(5, 5), Position(5, 8)),
        (Position(7, -1), Position(7, 9)),
    )
    # Once its ledger was read, what the node has is no more.
    assert acknowledged_behind(node, entry((6, 0), message_range(6, 2, 4))) == ((Position(6, 2), Position(6, 4)),)
    words = pb.PositionInfo(ledgerId=6, entryId=0)
    words.individualDeletedMessageRanges.append(pb.LongListMap(key=6, values=[0b1101_1000]).SerializeToString())
    assert acknowledged_behind(node, words.SerializeToString()) == (
        (Position(6, 2), Position(6, 4)),
        (Position(6, 5), Position(6, 7)),
    )
    with pytest.raises(FormatError, match="in a form that is not known here"):
        acknowledged_behind(cursor_node(40, (5, 3), b"\x08\x05"), None)
