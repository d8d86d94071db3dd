"""The index object of an offloaded copy, written as a broker does."""

from __future__ import annotations

import struct

from bookwarden.wire.pb import ledger_metadata_pb2 as pb


def index_of(data_bytes: int, entries: int, length: int, *, state: str = "CLOSED") -> bytes:
    """Make the index of a ledger whose data is one block."""
    metadata = pb.LedgerMetadataFormat(
        quorumSize=1, ackQuorumSize=1, ensembleSize=1, length=length, lastEntryId=entries - 1, state=state
    ).SerializeToString()
    size = 32 + len(metadata) + 20
    header = struct.pack(">IiqqiI", 0xDE47DE47, size, data_bytes, 128, 1, len(metadata))
    return header + metadata + struct.pack(">qiq", 0, 1, 0)
