"""The value of a schema's node, SchemaLocator, and the entry of its ledgers, SchemaEntry; never compressed."""

from __future__ import annotations

from hashlib import sha256

from bookwarden.errors import FormatError
from bookwarden.ledgers.managed_ledger import Position, SchemaEntryIndex, SchemaIndexEntry, SchemaLocator
from bookwarden.wire.pb import schema_locator_pb2 as pb
from bookwarden.wire.protobuf import parse, refuse_unknown, require

_NODE = "schema node"
_ENTRY = "entry of a schema's ledger"
_NOWHERE = -1


def decode_schema_locator(raw: bytes) -> SchemaLocator:
    """Decode the node's value; raises FormatError if it is malformed, or a version has no position.

    A field that the message cannot have is refused too, at every depth.
    """
    message = parse(pb.SchemaLocator(), raw, _NODE)
    refuse_unknown(message, _NODE)
    require(message, "info", _NODE)
    return SchemaLocator(tuple(_index_entry(entry, _NODE) for entry in (message.info, *message.index)))


def decode_schema_entry(raw: bytes) -> SchemaEntryIndex:
    """Decode the entry of a schema's ledger, without the schema; FormatError as for the node.

    Its index has the versions before it; that of the first version has this one, at no place yet
    (BookkeeperSchemaStorage.putSchema and createNewSchema of Pulsar 4.0).
    """
    message = parse(pb.SchemaEntry(), raw, _ENTRY)
    refuse_unknown(message, _ENTRY)
    index = [_index_entry(entry, _ENTRY) for entry in message.index]
    if not index:
        raise FormatError(f"{_ENTRY}: it has no index, so its version is not known")
    earlier = tuple((one.version, one.position) for one in index if one.position.ledger_id != _NOWHERE)
    return SchemaEntryIndex(earlier[-1][0] + 1 if earlier else index[-1].version, earlier)


def locator_of_entry(raw: bytes, ledger_id: int) -> bytes:
    """Make the node's value again from the entry of the newest version's ledger; FormatError as for that entry.

    Each ledger of a schema has one entry, and a version's hash is that of its data; a deleted schema's version has none
    (SchemaRegistryServiceImpl of Pulsar 4.0).
    """
    newest = pb.IndexEntry(version=decode_schema_entry(raw).version)
    newest.position.ledgerId, newest.position.entryId = ledger_id, 0
    message = parse(pb.SchemaEntry(), raw, _ENTRY)
    schema = parse(pb.SchemaInfo(), message.schema_data, _ENTRY)
    newest.hash = b"" if schema.deleted else sha256(schema.schema).digest()
    earlier = [one for one in message.index if one.position.ledgerId != _NOWHERE]
    return pb.SchemaLocator(info=newest, index=[*earlier, newest]).SerializeToString()


def _index_entry(entry: pb.IndexEntry, what: str) -> SchemaIndexEntry:
    refuse_unknown(entry, what)
    require(entry, "version", what)
    require(entry, "position", what)
    position = entry.position
    of_version = f"{what}, version {entry.version}"
    refuse_unknown(position, of_version)
    require(position, "ledgerId", of_version)
    require(position, "entryId", of_version)
    return SchemaIndexEntry(entry.version, Position(position.ledgerId, position.entryId), entry.hash)
