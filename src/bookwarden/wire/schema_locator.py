"""The value of a schema's node, SchemaLocator; never compressed."""

from __future__ import annotations

from bookwarden.ledgers.managed_ledger import Position, SchemaIndexEntry, SchemaLocator
from bookwarden.wire.pb import schema_locator_pb2 as pb
from bookwarden.wire.protobuf import parse, refuse_unknown, require

_NODE = "schema node"


def decode_schema_locator(raw: bytes) -> SchemaLocator:
    """Decode the node's value; raises FormatError if it is malformed, or a version has no position.

    A field that the message cannot have is refused too, at every depth.
    """
    message = parse(pb.SchemaLocator(), raw, _NODE)
    refuse_unknown(message, _NODE)
    require(message, "info", _NODE)
    return SchemaLocator(tuple(map(_index_entry, (message.info, *message.index))))


def _index_entry(entry: pb.IndexEntry) -> SchemaIndexEntry:
    refuse_unknown(entry, _NODE)
    require(entry, "version", _NODE)
    require(entry, "position", _NODE)
    position = entry.position
    of_version = f"{_NODE}, version {entry.version}"
    refuse_unknown(position, of_version)
    require(position, "ledgerId", of_version)
    require(position, "entryId", of_version)
    return SchemaIndexEntry(entry.version, Position(position.ledgerId, position.entryId), entry.hash)
