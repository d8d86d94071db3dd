"""The envelope around compressed managed-ledger and cursor nodes (MetaStoreImpl.compressManagedInfo).

Big endian: 0x4778, the length of the metadata as int32, the metadata message, the compressed body. No plain value
begins with 0x47, so a value that begins with 0x4778 and cannot be unwrapped is broken, never plain.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable

import cramjam
from google.protobuf.message import DecodeError

from bookwarden.errors import FormatError
from bookwarden.wire.pb import compression_pb2

MAGIC = b"\x47\x78"
MAX_UNCOMPRESSED_BYTES = 64 * 1024 * 1024

_HEAD = struct.Struct(">2si")
_ZLIB_FLUSHED = b"\x00\x00\xff\xff"


class Compression(enum.Enum):
    """The codecs of the envelope, with their values in the metadata message."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


def unwrap(raw: bytes) -> tuple[bytes, Compression | None]:
    """Return the plain value of a node and how it was compressed, None if it has no envelope.

    Raises FormatError for a broken envelope, and for one that claims more than MAX_UNCOMPRESSED_BYTES.
    """
    if not raw.startswith(MAGIC):
        return raw, None
    codec, size, body = _open(raw)
    try:
        return decompress(codec, body, size), codec
    except FormatError as error:
        raise FormatError(f"compressed node: {error}") from error


def decompress(codec: Compression, body: bytes, size: int) -> bytes:
    """Return the plain bytes, of which there must be `size`; raise FormatError.

    No more than that is written, so that a small body cannot fill the memory: limit `size` before.
    """
    try:
        plain = _DECOMPRESS[codec](body, size)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise FormatError(f"its {codec.name} body cannot be decompressed: {error}") from error
    if len(plain) != size:
        raise FormatError(f"its {codec.name} body does not have the {size} bytes it claims")
    return plain


def wrap(plain: bytes, codec: Compression) -> bytes:
    """Put a plain value into an envelope as a broker would."""
    head = compression_pb2.EnvelopeMetadata(compressionType=codec.name, uncompressedSize=len(plain))
    metadata = head.SerializeToString()
    return _HEAD.pack(MAGIC, len(metadata)) + metadata + _COMPRESS[codec](plain)


def _open(raw: bytes) -> tuple[Compression, int, bytes]:
    if len(raw) < _HEAD.size:
        raise FormatError(f"compressed node: {len(raw)} bytes are too few for an envelope")
    _, length = _HEAD.unpack_from(raw)
    end = _HEAD.size + length
    if length < 0 or end > len(raw):
        raise FormatError(f"compressed node: metadata of {length} bytes in a value of {len(raw)}")
    head = compression_pb2.EnvelopeMetadata()
    try:
        head.ParseFromString(raw[_HEAD.size : end])
    except DecodeError as error:
        raise FormatError(f"compressed node: its envelope cannot be parsed: {error}") from error
    if not (head.HasField("compressionType") and head.HasField("uncompressedSize")):
        raise FormatError("compressed node: its envelope names no known compression or no size")
    if not 0 <= head.uncompressedSize <= MAX_UNCOMPRESSED_BYTES:
        raise FormatError(
            f"compressed node: it claims {head.uncompressedSize} bytes; at most {MAX_UNCOMPRESSED_BYTES} are read"
        )
    return Compression(head.compressionType), head.uncompressedSize, raw[end:]


def _unlz4(body: bytes, size: int) -> bytes:
    buffer = bytearray(size)
    written = cramjam.lz4.decompress_block_into(body, buffer, output_len=size)
    return bytes(buffer[:written])


def _unzlib(body: bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    plain = stream.decompress(body, size + 1)
    # A broker flushes its stream and never ends it, so the end is that of a flush; others end theirs.
    if stream.unused_data or not (stream.eof or body.endswith(_ZLIB_FLUSHED)):
        raise FormatError("its ZLIB body is cut off, too long, or followed by other bytes")
    return plain


def _zlib(plain: bytes) -> bytes:
    stream = zlib.compressobj()
    return stream.compress(plain) + stream.flush(zlib.Z_SYNC_FLUSH)


def _unzstd(body: bytes, size: int) -> bytes:
    buffer = bytearray(size)
    written = cramjam.zstd.decompress_into(body, buffer)
    return bytes(buffer[:written])


def _unsnappy(body: bytes, size: int) -> bytes:
    buffer = bytearray(size)
    written = cramjam.snappy.decompress_raw_into(body, buffer)
    return bytes(buffer[:written])


_DECOMPRESS: dict[Compression, Callable[[bytes, int], bytes]] = {
    Compression.NONE: lambda body, size: body,
    Compression.LZ4: _unlz4,
    Compression.ZLIB: _unzlib,
    Compression.ZSTD: _unzstd,
    Compression.SNAPPY: _unsnappy,
}

_COMPRESS: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.NONE: lambda plain: plain,
    Compression.LZ4: lambda plain: bytes(cramjam.lz4.compress_block(plain, store_size=False)),
    Compression.ZLIB: _zlib,
    Compression.ZSTD: lambda plain: bytes(cramjam.zstd.compress(plain)),
    Compression.SNAPPY: lambda plain: bytes(cramjam.snappy.compress_raw(plain)),
}
