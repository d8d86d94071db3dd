"""The value of a managed ledger's node: ManagedLedgerInfo, possibly in a compression envelope."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import attrgetter

from google.protobuf.unknown_fields import UnknownFieldSet

from bookwarden.errors import FormatError
from bookwarden.ledgers.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadInfo, OffloadSegment, Position
from bookwarden.wire.envelope import Compression, unwrap, wrap
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wire.protobuf import parse, require

_WHAT = "managed-ledger node"
_BY_ID = attrgetter("ledger_id")


def decode_managed_ledger(raw: bytes) -> ManagedLedgerInfo:
    """Decode the node's value, its ledgers by growing id; no bytes at all are a managed ledger without ledgers.

    Raises FormatError for a broken envelope, bytes that are no such message, and a ledger without a possible id.
    """
    message, _ = _parse(raw)
    # An offload writes the list from a hash map (ManagedLedgerImpl.transformLedgerInfo): the last of the node may be
    # any, while the last by id is the one that is written to.
    ledgers = tuple(sorted([_ledger(ledger) for ledger in message.ledgerInfo], key=_BY_ID))
    return ManagedLedgerInfo(ledgers, _terminated(message), {entry.key: entry.value for entry in message.properties})


def remove_ledgers(raw: bytes, ids: Collection[int]) -> bytes:
    """Rewrite the node's value without these ledgers; all else, fields unknown to us too, stays as it is.

    Raises FormatError as decoding does, and when one of the ledgers is not listed.
    """
    message, codec = _parse(raw)
    listed = [_ledger_id(ledger) for ledger in message.ledgerInfo]
    absent = set(ids).difference(listed)
    if absent:
        raise FormatError(f"{_WHAT}: it does not list ledger {min(absent)}; read it again before removing ledgers")
    leaving = set(ids)
    for index in reversed(range(len(listed))):
        if listed[index] in leaving:
            del message.ledgerInfo[index]
    plain = message.SerializeToString()
    return plain if codec is None else wrap(plain, codec)


def _parse(raw: bytes) -> tuple[pb.ManagedLedgerInfo, Compression | None]:
    plain, codec = unwrap(raw)
    return parse(pb.ManagedLedgerInfo(), plain, _WHAT), codec


def _ledger_id(ledger: pb.ManagedLedgerInfo.LedgerInfo) -> int:
    ledger_id = ledger.ledgerId
    if ledger_id <= 0:
        require(ledger, "ledgerId", _WHAT)
        if ledger_id < 0:
            raise FormatError(f"{_WHAT}: it lists a ledger with the impossible id {ledger_id}")
    return ledger_id


def _ledger(ledger: pb.ManagedLedgerInfo.LedgerInfo) -> LedgerInfo:
    offload = _offload(ledger.offloadContext) if ledger.HasField("offloadContext") else None
    return LedgerInfo(_ledger_id(ledger), ledger.entries, ledger.size, ledger.timestamp, offload)


def _terminated(message: pb.ManagedLedgerInfo) -> Position | None:
    if not message.HasField("terminatedPosition"):
        return None
    position = message.terminatedPosition
    require(position, "ledgerId", f"{_WHAT}, terminatedPosition")
    require(position, "entryId", f"{_WHAT}, terminatedPosition")
    return Position(position.ledgerId, position.entryId)


def _offload(context: pb.OffloadContext) -> OffloadInfo:
    return OffloadInfo(
        context.uidMsb,
        context.uidLsb,
        context.complete,
        context.bookkeeperDeleted != 0,
        context.timestamp,
        context.driverMetadata.name,
        _driver_properties(context.driverMetadata),
        tuple(_segment(segment) for segment in context.offloadSegment),
        _is_understood(context),
    )


def _is_understood(context: pb.OffloadContext) -> bool:
    """Whether all that the node says of a copy is known here, down to the yes or no of bookkeeperDeleted."""
    messages = (context, context.driverMetadata, *context.offloadSegment)
    return context.bookkeeperDeleted in (0, 1) and not any(len(UnknownFieldSet(message)) for message in messages)


def _segment(segment: pb.OffloadSegment) -> OffloadSegment:
    metadata = segment.driverMetadata
    return OffloadSegment(segment.uidMsb, segment.uidLsb, segment.complete, metadata.name, _driver_properties(metadata))


def _driver_properties(metadata: pb.OffloadDriverMetadata) -> Mapping[str, str]:
    return {entry.key: entry.value for entry in metadata.properties}
