"""The value of a managed ledger's node: ManagedLedgerInfo, possibly in a compression envelope."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bookwarden.errors import FormatError
from bookwarden.ledgers.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadInfo, OffloadSegment, Position
from bookwarden.wire.envelope import Compression, unwrap, wrap
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wire.protobuf import has_unknown, parse, refuse_unknown, require

_WHAT = "managed-ledger node"
_BY_ID = attrgetter("ledger_id")


def decode_managed_ledger(raw: bytes) -> ManagedLedgerInfo:
    """Decode the node's value, its ledgers by growing id; an empty value is a managed ledger without ledgers.

    Raises FormatError for a broken envelope, bytes that are no such message, a field that the message or one of its
    properties cannot have, and a ledger without a possible id.
    """
    message, _ = _parse(raw)
    ledgers: list[LedgerInfo] = []
    puzzling: list[int] = []
    for ledger in message.ledgerInfo:
        ledger_id, offload = ledger.ledgerId, None
        if ledger_id <= 0:
            _check_id(ledger, ledger_id)
        if ledger.HasField("offloadContext"):
            offload = _offload(ledger.offloadContext, f"{_WHAT}, ledger {ledger_id}")
        unknown = len(UnknownFieldSet(ledger)) and has_unknown(ledger, f"{_WHAT}, ledger {ledger_id}")
        if unknown or (offload is not None and not offload.understood):
            puzzling.append(ledger_id)
        ledgers.append(LedgerInfo(ledger_id, ledger.entries, ledger.size, ledger.timestamp, offload))
    # An offload writes the list from a hash map (ManagedLedgerImpl.transformLedgerInfo): the last of the node may be
    # any, while the last by id is the one that is written to.
    ledgers.sort(key=_BY_ID)
    properties = _properties(message.properties, _WHAT)
    terminated = None
    if message.HasField("terminatedPosition"):
        terminated = _position(message.terminatedPosition)
    return ManagedLedgerInfo(tuple(ledgers), properties, frozenset(puzzling), terminated)


def remove_ledgers(raw: bytes, ids: Collection[int]) -> bytes:
    """Rewrite the node's value without these ledgers; everything else stays, also fields unknown to us.

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


def ledger_entries(raw: bytes) -> dict[int, bytes]:
    """Return each ledger's own part of the list, `LedgerInfo`, as it is there; FormatError as decoding raises it."""
    message, _ = _parse(raw)
    return {_ledger_id(ledger): ledger.SerializeToString() for ledger in message.ledgerInfo}


def with_ledger_entries(raw: bytes, entries: Mapping[int, bytes]) -> bytes:
    """Rewrite the node's value with exactly this list, by growing id; everything else stays.

    A value whose list is that already stays as it is, byte for byte. Raises FormatError as decoding does.
    """
    message, codec = _parse(raw)
    wanted = [_parse_entry(entries[ledger_id]) for ledger_id in sorted(entries)]
    if sorted(message.ledgerInfo, key=lambda ledger: ledger.ledgerId) == wanted:
        return raw
    del message.ledgerInfo[:]
    message.ledgerInfo.extend(wanted)
    plain = message.SerializeToString()
    return plain if codec is None else wrap(plain, codec)


def decode_ledger_entry(entry: bytes) -> LedgerInfo:
    """Decode one ledger's part of the list; FormatError as decoding raises it."""
    _parse_entry(entry)
    (info,) = decode_managed_ledger(pb.ManagedLedgerInfo(ledgerInfo=[_parse_entry(entry)]).SerializeToString()).ledgers
    return info


def new_ledger_entry(ledger_id: int, entries: int = 0, size: int = 0, timestamp_ms: int = 0) -> bytes:
    """Make one ledger's part of a list; with the ids alone that of the one that is written."""
    if not timestamp_ms:
        return pb.ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_id, timestamp=0).SerializeToString()
    info = pb.ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_id, entries=entries, size=size, timestamp=timestamp_ms)
    return info.SerializeToString()


def closed_ledger_entry(entry: bytes, entries: int, size: int, timestamp_ms: int) -> bytes:
    """Rewrite one ledger's part of the list as that of a closed one."""
    ledger = _parse_entry(entry)
    ledger.entries, ledger.size, ledger.timestamp = entries, size, timestamp_ms
    return ledger.SerializeToString()


def ledger_entry_without_copy(entry: bytes) -> bytes:
    """Rewrite one ledger's part of the list without its offloaded copy."""
    ledger = _parse_entry(entry)
    ledger.ClearField("offloadContext")
    return ledger.SerializeToString()


def ledger_entry_of_copy(entry: bytes) -> bytes:
    """Rewrite one ledger's part of the list as that of one that only its offloaded copy has."""
    ledger = _parse_entry(entry)
    ledger.offloadContext.bookkeeperDeleted = 1
    return ledger.SerializeToString()


def _parse_entry(entry: bytes) -> pb.ManagedLedgerInfo.LedgerInfo:
    ledger = parse(pb.ManagedLedgerInfo.LedgerInfo(), entry, f"{_WHAT}, one ledger")
    _ledger_id(ledger)
    return ledger


def without_termination(raw: bytes, migrated_property: str) -> bytes:
    """Rewrite the node's value as one that accepts messages: no terminated position, no property of a migration.

    Everything else stays, also fields unknown to us. Raises FormatError as decoding does, and where it is not
    terminated.
    """
    message, codec = _parse(raw)
    if not message.HasField("terminatedPosition"):
        raise FormatError(f"{_WHAT}: it is not terminated")
    message.ClearField("terminatedPosition")
    kept = [entry for entry in message.properties if entry.key != migrated_property]
    del message.properties[:]
    message.properties.extend(kept)
    plain = message.SerializeToString()
    return plain if codec is None else wrap(plain, codec)


def _parse(raw: bytes) -> tuple[pb.ManagedLedgerInfo, Compression | None]:
    plain, codec = unwrap(raw)
    message = parse(pb.ManagedLedgerInfo(), plain, _WHAT)
    refuse_unknown(message, _WHAT)
    return message, codec


def _ledger_id(ledger: pb.ManagedLedgerInfo.LedgerInfo) -> int:
    ledger_id = ledger.ledgerId
    if ledger_id <= 0:
        _check_id(ledger, ledger_id)
    return ledger_id


def _check_id(ledger: pb.ManagedLedgerInfo.LedgerInfo, ledger_id: int) -> None:
    require(ledger, "ledgerId", _WHAT)
    if ledger_id < 0:
        raise FormatError(f"{_WHAT}: it lists a ledger with the impossible id {ledger_id}")


def _position(position: pb.NestedPositionInfo) -> Position:
    refuse_unknown(position, f"{_WHAT}, terminatedPosition")
    require(position, "ledgerId", f"{_WHAT}, terminatedPosition")
    require(position, "entryId", f"{_WHAT}, terminatedPosition")
    return Position(position.ledgerId, position.entryId)


def _offload(context: pb.OffloadContext, what: str) -> OffloadInfo:
    return OffloadInfo(
        context.uidMsb,
        context.uidLsb,
        context.complete,
        context.bookkeeperDeleted != 0,
        context.timestamp,
        context.driverMetadata.name,
        _driver_properties(context.driverMetadata),
        tuple(_segment(segment) for segment in context.offloadSegment),
        _is_understood(context, what),
    )


def _is_understood(context: pb.OffloadContext, what: str) -> bool:
    """Return whether every field of a copy is known here, down to the yes or no of bookkeeperDeleted."""
    messages: list[Message] = [context, context.driverMetadata]
    for segment in context.offloadSegment:
        messages += [segment, segment.driverMetadata]
    # Each is looked at, since it may also be refused.
    unknown = [message for message in messages if has_unknown(message, what)]
    return context.bookkeeperDeleted in (0, 1) and not unknown


def _segment(segment: pb.OffloadSegment) -> OffloadSegment:
    metadata = segment.driverMetadata
    return OffloadSegment(segment.uidMsb, segment.uidLsb, segment.complete, metadata.name, _driver_properties(metadata))


def _driver_properties(metadata: pb.OffloadDriverMetadata) -> Mapping[str, str]:
    return _properties(metadata.properties, f"{_WHAT}, offloaded copy")


def _properties(entries: Iterable[pb.KeyValue], what: str) -> dict[str, str]:
    """Read properties; one that is not whole might be the one that makes a topic a shadow."""
    properties = {}
    for entry in entries:
        refuse_unknown(entry, f"{what}, property {entry.key!r}")
        require(entry, "key", f"{what}, property")
        require(entry, "value", f"{what}, property {entry.key!r}")
        properties[entry.key] = entry.value
    return properties
