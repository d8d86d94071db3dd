"""The envelope around compressed nodes: each codec, and everything that can be wrong with one."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.errors import FormatError
from bookwarden.wire.envelope import MAX_UNCOMPRESSED_BYTES, Compression, unwrap, wrap
from bookwarden.wire.pb.compression_pb2 import EnvelopeMetadata

PLAIN = b"\x0a\x05hello" * 400


def _envelope(metadata: bytes, body: bytes) -> bytes:
    return struct.pack(">2si", b"\x47\x78", len(metadata)) + metadata + body


def _claiming(codec: Compression, size: int, body: bytes) -> bytes:
    return _envelope(EnvelopeMetadata(compressionType=codec.name, uncompressedSize=size).SerializeToString(), body)


def _body(codec: Compression) -> bytes:
    metadata = EnvelopeMetadata(compressionType=codec.name, uncompressedSize=len(PLAIN)).SerializeToString()
    return wrap(PLAIN, codec)[6 + len(metadata) :]


@pytest.mark.parametrize("codec", Compression)
@given(plain=st.binary(max_size=2000))
def test_what_was_wrapped_is_unwrapped(codec: Compression, plain: bytes) -> None:
    assert unwrap(wrap(plain, codec)) == (plain, codec)


def test_a_value_without_envelope_is_taken_as_it_is() -> None:
    for plain in (b"", b"\x47", b"\x0a\x00", b"\x78\x47"):
        assert unwrap(plain) == (plain, None)


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("claimed", [0, len(PLAIN) - 1, len(PLAIN) + 1])
def test_a_size_that_is_not_the_true_one_is_refused(codec: Compression, claimed: int) -> None:
    with pytest.raises(FormatError):
        unwrap(_claiming(codec, claimed, _body(codec)))


@pytest.mark.parametrize("codec", Compression)
def test_a_body_that_is_cut_off_or_goes_on_is_refused(codec: Compression) -> None:
    body = _body(codec)
    for broken in (body[:-1], body[: len(body) // 2], b"", body + b"x"):
        with pytest.raises(FormatError):
            unwrap(_claiming(codec, len(PLAIN), broken))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x47\x78",
        b"\x47\x78\x00\x00\x00\x05\x08",
        b"\x47\x78\xff\xff\xff\xff",
        b"\x47\x78\x00\x00\x00\x0a\x08\x00\x10\x00",
        _claiming(Compression.ZLIB, len(PLAIN), zlib.compress(PLAIN) + b"x"),
        _envelope(b"\xff", b""),
        _envelope(b"", PLAIN),
        _envelope(b"\x08\x01", PLAIN),
        _envelope(b"\x08\x09\x10\x05", PLAIN),
        _claiming(Compression.NONE, -1, b""),
    ],
)
def test_a_broken_envelope_is_never_taken_for_a_plain_value(raw: bytes) -> None:
    with pytest.raises(FormatError):
        unwrap(raw)


@pytest.mark.parametrize("codec", Compression)
def test_a_claim_beyond_the_limit_is_refused_before_memory_is_taken(codec: Compression) -> None:
    with pytest.raises(FormatError, match="claims"):
        unwrap(_claiming(codec, MAX_UNCOMPRESSED_BYTES + 1, b"\x00"))


def test_a_zlib_stream_with_an_end_is_read_too() -> None:
    assert unwrap(_claiming(Compression.ZLIB, len(PLAIN), zlib.compress(PLAIN))) == (PLAIN, Compression.ZLIB)


def test_a_body_that_grows_beyond_its_claim_is_stopped() -> None:
    bomb = zlib.compress(bytes(50_000_000))
    with pytest.raises(FormatError):
        unwrap(_claiming(Compression.ZLIB, 10, bomb))
