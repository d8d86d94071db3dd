"""The index object of an offloaded copy, as OffloadIndexBlockImpl of Pulsar's offloader for object stores writes it.

Big-endian: magic number, bytes of the index, bytes of the data object, bytes of the header of a block of it, number of
blocks, bytes of the ledger's metadata; then that metadata (LedgerMetadataFormat, bare), and 20 bytes a block.
"""

from __future__ import annotations

import struct

from bookwarden.errors import FormatError
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.ledgers.offloaded_copies import CopyIndex
from bookwarden.wire.pb import ledger_metadata_pb2 as pb
from bookwarden.wire.protobuf import parse

_WHAT = "index of an offloaded copy"
_MAGIC = 0xDE47DE47
_HEADER = struct.Struct(">IiqqiI")
_BLOCK = 20
# Enough for any metadata, which fits into a node of a metadata store; an index of a thousand blocks has 20 KB.
INDEX_BEGINNING = 1 << 20


def decode_index_beginning(raw: bytes, index_bytes: int) -> CopyIndex:
    """Decode the first INDEX_BEGINNING bytes of an index of this size.

    Raises FormatError unless an offloader could have written it for a whole ledger.
    """
    if len(raw) < _HEADER.size:
        raise FormatError(f"{_WHAT}: {len(raw)} bytes, and its header has {_HEADER.size}")
    magic, length, data_bytes, _, blocks, metadata_bytes = _HEADER.unpack_from(raw)
    if magic != _MAGIC:
        raise FormatError(f"{_WHAT}: it begins with 0x{magic:08x} instead of 0x{_MAGIC:08x}")
    described = _HEADER.size + metadata_bytes + blocks * _BLOCK
    if not length == described == index_bytes:
        raise FormatError(
            f"{_WHAT}: {index_bytes:,} bytes, where its header says {length:,} and its parts have {described:,}"
        )
    if blocks < 1 or data_bytes < 1:
        raise FormatError(f"{_WHAT}: it is of {blocks} blocks and {data_bytes} bytes of data")
    found = parse(pb.LedgerMetadataFormat(), raw[_HEADER.size : _HEADER.size + metadata_bytes], _WHAT)
    if found.state != LedgerState.CLOSED.value:
        raise FormatError(f"{_WHAT}: its ledger is not closed")
    return CopyIndex(data_bytes, found.lastEntryId, found.length)
