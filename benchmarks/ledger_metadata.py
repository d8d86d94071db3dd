"""Metadata of ledgers as a BookKeeper client writes it, for benchmarks and tests."""

from __future__ import annotations

from bookwarden.ledgers.metadata import LedgerMetadata
from bookwarden.wire.pb import ledger_metadata_pb2 as pb
from bookwarden.wire.varint import encode_varint


def encode_ledger_metadata(metadata: LedgerMetadata, *, password: bytes = b"") -> bytes:
    """Encode as version 3, as a BookKeeper client would."""
    message = pb.LedgerMetadataFormat(
        quorumSize=metadata.write_quorum,
        ackQuorumSize=metadata.ack_quorum,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length,
        lastEntryId=-1 if metadata.last_entry_id is None else metadata.last_entry_id,
        state=metadata.state.name,
        digestType=metadata.digest_type,
        password=password,
        ctime=metadata.ctime_ms,
    )
    for segment in metadata.segments:
        message.segment.add(ensembleMember=segment.ensemble, firstEntryId=segment.first_entry_id)
    for key, value in metadata.custom.items():
        message.customMetadata.add(key=key, value=value)
    body = message.SerializeToString()
    return b"BookieMetadataFormatVersion\t3\n" + encode_varint(len(body)) + body
