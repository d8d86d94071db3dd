"""An entry of a topic as a broker hands it to a reader: checksum, metadata, and the payload of one message or a batch.

Layout, big endian: perhaps 0x0e02, the length of the broker's own metadata as uint32, and that; 0x0e01 and the CRC-32C
of all behind it; the length of the metadata as uint32, the metadata, the payload. A batch has for each message the
length of its own metadata as uint32, that, and its payload; all of them are compressed as one.
Format: Commands of pulsar-common 4.0. The producer chooses all of it but the broker's part, and wrong sizes end the
process of the C++ client (docs/findings.md): so nothing is believed here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import google_crc32c

from bookwarden.errors import FormatError
from bookwarden.wire.envelope import Compression, decompress
from bookwarden.wire.pb.pulsar_api_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata
from bookwarden.wire.protobuf import parse

_BROKERS_MAGIC: Final = b"\x0e\x02"
_CHECKSUM_MAGIC: Final = b"\x0e\x01"
_VERSION_BYTES: Final = 8
_SIZE: Final = struct.Struct(">I")


class EntryMessage(NamedTuple):
    """A message of an entry; texts are as the producer wrote them, UTF-8 or not."""

    batch_index: int  #: -1 if it is the only one of an entry that is no batch.
    value: bytes | None  #: None for a tombstone.
    key: bytes  #: Empty if unset.
    ordering_key: bytes  #: Empty if unset.
    properties: Sequence[KeyValue]  #: In the producer's order; a name may come twice.
    event_time: int  #: In ms since the epoch; 0 if unset.


def open_entry(raw: bytes) -> tuple[MessageMetadata, bytes]:
    """Return metadata and payload, the latter still compressed; raise FormatError for what is no entry."""
    at = 0
    if raw.startswith(_BROKERS_MAGIC):
        at = 6 + _size(raw, 2)
    if raw[at : at + 2] == _CHECKSUM_MAGIC:
        at += 6
        if google_crc32c.value(raw[at:]) != _size(raw, at - 4):
            raise FormatError("its checksum is not that of its bytes")
    size = _size(raw, at)
    at += 4
    if size > len(raw) - at:
        raise FormatError(f"its metadata should have {size:,} bytes, and {len(raw) - at:,} are left")
    return parse(MessageMetadata(), raw[at : at + size], "its metadata"), raw[at + size :]


def is_chunk(metadata: MessageMetadata) -> bool:
    """Return whether the entry is a part of a message."""
    return metadata.num_chunks_from_msg > 1


def batch_size(metadata: MessageMetadata) -> int:
    """Return the number of messages that the entry claims to hold; an encrypted batch is one."""
    return 1 if metadata.encryption_keys else metadata.num_messages_in_batch


def schema_version(metadata: MessageMetadata) -> bytes | None:
    """Return the version of the writer's schema; None if there is none, or one that no broker gives."""
    return metadata.schema_version if len(metadata.schema_version) == _VERSION_BYTES else None


def messages(metadata: MessageMetadata, payload: bytes, largest: int) -> list[EntryMessage]:
    """Return the messages of an entry that is no chunk; raise FormatError if they cannot be separated.

    ``largest`` is the most bytes that it may have once it is decompressed. An encrypted payload is given as it is.
    """
    if metadata.encryption_keys:
        return [_only(metadata, payload)]
    plain = _plain(metadata, payload, largest)
    return _batch(metadata, plain) if metadata.HasField("num_messages_in_batch") else [_only(metadata, plain)]


def _only(metadata: MessageMetadata, payload: bytes) -> EntryMessage:
    value = None if metadata.null_value else payload
    texts = metadata.partition_key, metadata.ordering_key, metadata.properties
    return EntryMessage(-1, value, *texts, metadata.event_time)


def _plain(metadata: MessageMetadata, payload: bytes, largest: int) -> bytes:
    try:
        codec = Compression(metadata.compression)
    except ValueError:
        raise FormatError(f"its compression is of an unknown kind ({metadata.compression})") from None
    if codec is Compression.NONE:
        return payload
    size = metadata.uncompressed_size
    if size > largest:
        raise FormatError(f"it claims {size:,} bytes once it is decompressed; at most {largest:,} are read")
    return decompress(codec, payload, size)


def _batch(metadata: MessageMetadata, payload: bytes) -> list[EntryMessage]:
    count = metadata.num_messages_in_batch
    if count < 1:
        raise FormatError(f"it is a batch of {count} messages")
    found, at, end = [], 0, len(payload)
    for index in range(count):
        # Each message takes four bytes at least, so that a false count ends here.
        if at + 4 > end:
            raise FormatError(f"it is a batch of {count:,} messages, and ends within message {index:,}")
        (size,) = _SIZE.unpack_from(payload, at)
        at += 4
        single = parse(SingleMessageMetadata(), payload[at : at + size], f"the metadata of message {index:,}")
        at += size
        length = single.payload_size
        if length < 0 or at + length > end:
            raise FormatError(f"message {index:,} should have {length:,} bytes, and {max(0, end - at):,} are left")
        value = None if single.null_value else payload[at : at + length]
        at += length
        texts = single.partition_key, single.ordering_key, single.properties
        found.append(EntryMessage(index, value, *texts, single.event_time))
    return found


def _size(raw: bytes, at: int) -> int:
    if len(raw) < at + 4:
        raise FormatError(f"it ends after {len(raw)} bytes")
    size: int = _SIZE.unpack_from(raw, at)[0]
    return size
