"""An entry of a topic taken apart: what producers send, and what they should not."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.errors import FormatError
from bookwarden.wire.entry import EntryMessage, batch_size, is_chunk, messages, open_entry, schema_version
from bookwarden.wire.pb.pulsar_api_pb2 import EncryptionKeys
from servers.pulsar_topics import raw_entry, single

LARGEST = 1 << 20
BODY = b"mark " * 40
LZ4, ZLIB, ZSTD, SNAPPY = 1, 2, 3, 4
PACKED = {
    LZ4: lambda plain: bytes(cramjam.lz4.compress_block(plain, store_size=False)),
    ZLIB: zlib.compress,
    ZSTD: lambda plain: bytes(cramjam.zstd.compress(plain)),
    SNAPPY: lambda plain: bytes(cramjam.snappy.compress_raw(plain)),
}


def read(raw: bytes, largest: int = LARGEST) -> list[EntryMessage]:
    return messages(*open_entry(raw), largest)


def test_a_message_alone_has_what_its_metadata_says() -> None:
    (found,) = read(raw_entry(b"value", partition_key=b"k", ordering_key=b"o", event_time=7))
    assert found[:4] == (-1, b"value", b"k", b"o")
    assert (list(found.properties), found.event_time) == ([], 7)


def test_a_tombstone_has_no_value_and_an_empty_message_has() -> None:
    assert read(raw_entry(b"", null_value=True))[0].value is None
    assert read(raw_entry(b""))[0].value == b""


def test_each_message_of_a_batch_has_its_own_metadata() -> None:
    first = single(b"1", partition_key=b"a", event_time=3, properties=[{"key": b"n", "value": b"\xff"}])
    raw = raw_entry(first + single(b"", null_value=True), num_messages_in_batch=2, partition_key=b"of the batch")
    one, two = read(raw)
    assert (one[:3], one.event_time, one.properties[0].value) == ((0, b"1", b"a"), 3, b"\xff")
    assert two[:3] == (1, None, b"")
    assert batch_size(open_entry(raw)[0]) == 2


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("batched", [False, True])
def test_what_is_compressed_is_read(codec: int, batched: bool) -> None:
    plain = single(BODY) + single(b"") if batched else BODY
    more = {"num_messages_in_batch": 2} if batched else {}
    raw = raw_entry(PACKED[codec](plain), compression=codec, uncompressed_size=len(plain), **more)
    assert [found.value for found in read(raw)] == ([BODY, b""] if batched else [BODY])


def test_what_the_broker_adds_is_passed_over() -> None:
    raw = b"\x0e\x02" + struct.pack(">I", 3) + b"\x08\x96\x01" + raw_entry(b"value")
    assert read(raw)[0].value == b"value"


def test_an_entry_without_a_checksum_is_read() -> None:
    assert read(raw_entry(b"value")[6:])[0].value == b"value"


def test_what_is_encrypted_is_given_as_it_is() -> None:
    raw = raw_entry(b"secret", num_messages_in_batch=5, encryption_keys=[EncryptionKeys(key=b"k")])
    (found,) = read(raw)
    assert (found.batch_index, found.value, batch_size(open_entry(raw)[0])) == (-1, b"secret", 1)


@pytest.mark.parametrize(("written", "version"), [(bytes(8), bytes(8)), (b"", None), (b"\xff", None), (bytes(9), None)])
def test_a_version_of_a_schema_has_the_bytes_that_brokers_give(written: bytes, version: bytes | None) -> None:
    assert schema_version(open_entry(raw_entry(b"", schema_version=written))[0]) == version


def test_a_part_of_a_message_is_told() -> None:
    assert is_chunk(open_entry(raw_entry(b"", num_chunks_from_msg=2, chunk_id=0))[0])
    assert not is_chunk(open_entry(raw_entry(b"", num_chunks_from_msg=1, chunk_id=0))[0])


WRONG = {
    "checksum": (raw_entry(b"value", checksum=1), "checksum"),
    "nothing": (b"", "ends after 0 bytes"),
    "metadata cut off": (raw_entry(b"")[6:-1], "metadata should have"),
    "no metadata": (struct.pack(">I", 2) + b"\xff\xff", "cannot be parsed"),
    "compression of no kind": (raw_entry(b"", compression=99), "unknown kind"),
    "garbage for ZSTD": (raw_entry(b"garbage!!", compression=ZSTD, uncompressed_size=100), "cannot be decompressed"),
    "too short for its size": (
        raw_entry(zlib.compress(b"abc"), compression=ZLIB, uncompressed_size=1000),
        "1000 bytes it claims",
    ),
    "bomb": (
        raw_entry(zlib.compress(bytes(1 << 24)), compression=ZLIB, uncompressed_size=1 << 24),
        "at most 1,048,576 are read",
    ),
    "bomb that claims to be small": (
        raw_entry(zlib.compress(bytes(1 << 24)), compression=ZLIB, uncompressed_size=10),
        "cut off, too long",
    ),
    "no messages": (raw_entry(b"", num_messages_in_batch=0), "a batch of 0"),
    "less than none": (raw_entry(b"", num_messages_in_batch=-5), "a batch of -5"),
    "a batch without a payload": (raw_entry(b"", num_messages_in_batch=1), "ends within message 0"),
    "a thousand million": (raw_entry(single(b"a"), num_messages_in_batch=10**9), "ends within message 1"),
    "length of metadata": (raw_entry(struct.pack(">I", 2**31 - 1) + b"a", num_messages_in_batch=1), "metadata of"),
    "length of a message": (raw_entry(single(b"a", payload_size=2**30), num_messages_in_batch=1), "should have"),
    "negative length": (raw_entry(single(b"a", payload_size=-1), num_messages_in_batch=1), "should have"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_and_fills_no_memory(case: str) -> None:
    raw, text = WRONG[case]
    with pytest.raises(FormatError, match=text):
        read(raw)


METADATA = st.fixed_dictionaries(
    {},
    optional={
        "compression": st.integers(-1, 5),
        "uncompressed_size": st.integers(0, 3000),
        "num_messages_in_batch": st.integers(-3, 5),
        "num_chunks_from_msg": st.integers(0, 2),
        "partition_key": st.binary(max_size=4),
    },
)


@settings(max_examples=300, deadline=None)
@given(METADATA, st.one_of(st.binary(max_size=60), st.lists(st.binary(max_size=9).map(single)).map(b"".join)))
def test_whatever_a_producer_sends_is_read_or_refused(metadata: dict[str, object], payload: bytes) -> None:
    with suppress(FormatError):
        assert read(raw_entry(payload, **metadata), 2000)


@given(st.binary(max_size=80))
def test_whatever_the_bytes_they_are_an_entry_or_refused(raw: bytes) -> None:
    with suppress(FormatError):
        read(raw)
