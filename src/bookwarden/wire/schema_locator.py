"""The value of a schema's node, SchemaLocator, and the entry of its ledger, SchemaEntry; never compressed."""

from __future__ import annotations

from collections.abc import Iterable

from bookwarden.ledgers.managed_ledger import Position, SchemaEntry, SchemaIndexEntry, SchemaLocator
from bookwarden.wire.pb import schema_locator_pb2 as pb
from bookwarden.wire.protobuf import parse, refuse_unknown, require

_NODE = "schema node"
_ENTRY = "entry of a schema's ledger"


def decode_schema_locator(raw: bytes) -> SchemaLocator:
    """Decode the node's value; raises FormatError if it is none, or a version has no position.

    A field that the message cannot have is refused too, at every depth.
    """
    message = parse(pb.SchemaLocator(), raw, _NODE)
    refuse_unknown(message, _NODE)
    require(message, "info", _NODE)
    return SchemaLocator((_index_entry(message.info, _NODE), *_index(message.index, _NODE)))


def decode_schema_entry(raw: bytes) -> SchemaEntry:
    """Decode the entry of a schema's ledger; raises FormatError if it is none."""
    message = parse(pb.SchemaEntry(), raw, _ENTRY)
    require(message, "schema_data", _ENTRY)
    return SchemaEntry(message.schema_data, _index(message.index, _ENTRY))


def _index(entries: Iterable[pb.IndexEntry], what: str) -> tuple[SchemaIndexEntry, ...]:
    return tuple(_index_entry(entry, what) for entry in entries)


def _index_entry(entry: pb.IndexEntry, what: str) -> SchemaIndexEntry:
    refuse_unknown(entry, what)
    require(entry, "version", what)
    require(entry, "position", what)
    position = entry.position
    refuse_unknown(position, f"{what}, version {entry.version}")
    require(position, "ledgerId", f"{what}, version {entry.version}")
    require(position, "entryId", f"{what}, version {entry.version}")
    return SchemaIndexEntry(entry.version, Position(position.ledgerId, position.entryId), entry.hash)
