"""The index of an offloaded copy: what is no index of a whole ledger is refused, and what one says is told."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.errors import FormatError
from bookwarden.ledgers.offloaded_copies import CopyIndex
from bookwarden.wire.offload_index import INDEX_BEGINNING, decode_index_beginning
from servers.offload_index import index_of

INDEX = index_of(5000, 10, 4000)


def _with(place: int, form: str, value: int) -> bytes:
    changed = bytearray(INDEX)
    struct.pack_into(form, changed, place, value)
    return bytes(changed)


def test_an_index_tells_its_data_and_its_ledger() -> None:
    assert decode_index_beginning(INDEX, len(INDEX)) == CopyIndex(5000, 9, 4000)


def test_of_a_long_index_the_beginning_is_enough() -> None:
    blocks = 60_000
    long = bytearray(INDEX + bytes(20 * (blocks - 1)))
    struct.pack_into(">i", long, 4, len(long))
    struct.pack_into(">i", long, 24, blocks)
    assert decode_index_beginning(bytes(long[:INDEX_BEGINNING]), len(long)) == CopyIndex(5000, 9, 4000)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"x", "its header has 32"),
        (bytes(len(INDEX)), "begins with 0x00000000"),
        (_with(0, ">I", 0x3D1FB0BC), "begins with 0x3d1fb0bc"),
        (INDEX[:-1], "its header says"),
        (INDEX + b"x", "its header says"),
        (_with(4, ">i", len(INDEX) + 20), "its header says"),
        (_with(8, ">q", 0), "0 bytes of data"),
        (_with(28, ">I", 2**32 - 1), "its parts have"),
        (INDEX[:32] + b"\xff" * (len(INDEX) - 32), "cannot be parsed"),
        (index_of(5000, 10, 4000, state="OPEN"), "not closed"),
    ],
)
def test_what_is_no_index_of_a_whole_ledger_is_refused(raw: bytes, told: str) -> None:
    with pytest.raises(FormatError, match=told):
        decode_index_beginning(raw, len(raw))


def test_an_index_without_blocks_is_refused() -> None:
    empty = bytearray(INDEX[:-20])
    struct.pack_into(">i", empty, 4, len(empty))
    struct.pack_into(">i", empty, 24, 0)
    with pytest.raises(FormatError, match="0 blocks"):
        decode_index_beginning(bytes(empty), len(empty))


@given(st.binary(max_size=80), st.integers(0, len(INDEX)))
def test_any_bytes_are_an_index_or_refused(noise: bytes, at: int) -> None:
    for raw in (noise, INDEX[:at] + noise, INDEX[:at] + noise + INDEX[at + len(noise) :]):
        try:
            found = decode_index_beginning(raw, len(raw))
        except FormatError:
            continue
        assert found.data_bytes is not None
        assert found.data_bytes > 0
