"""The Avro schemas that other writers registered: parsed, and refused where they could harm the reader."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from bookwarden.errors import MalformedMarkError

MAX_SCHEMA_CHARACTERS = 256 * 1024

_MAX_DEPTH = 32
_OF_PROTOCOLS = ("error", "error_union", "request")
# What the reader needs of a type; logical types are dropped, since they turn numbers into other values.
_KEPT = ("type", "name", "namespace", "fields", "symbols", "size", "items", "values", "default", "aliases")


@dataclass(frozen=True, slots=True)
class ParsedSchema:
    """A schema that payloads can be decoded by; cheap to use again, so keep it by schema version."""

    definition: Any


def parse_writer_schema(text: str) -> ParsedSchema:
    """Parse the JSON text of a writer's schema.

    Raises MalformedMarkError, since no payload of it can be read: if it is no Avro record, if it contains itself
    (a small payload could then nest without end), and if it has a value without bytes outside a union (a small
    payload could then hold any number of them).
    """
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise MalformedMarkError(
            f"writer's schema has {len(text)} characters; at most {MAX_SCHEMA_CHARACTERS} are read"
        )
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedMarkError(f"writer's schema is not JSON: {error}") from error
    if not isinstance(loaded, dict) or loaded.get("type") != "record":
        raise MalformedMarkError("writer's schema is not an Avro record")
    definition = _plain(loaded, 0)
    try:
        parsed = fastavro.parse_schema(definition)
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedMarkError(f"writer's schema is not valid Avro: {type(error).__name__} {error}") from error
    _check_shape(parsed, ())
    return ParsedSchema(parsed)


def _plain(node: Any, depth: int) -> Any:
    """Copy the definition of a type with only what the reader needs."""
    if depth > _MAX_DEPTH:
        raise MalformedMarkError(f"writer's schema is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(node, list):
        return [_plain(branch, depth + 1) for branch in node]
    if not isinstance(node, dict):
        return node
    kept = {key: node[key] for key in _KEPT if key in node}
    for key in ("type", "items", "values"):
        if key in kept:
            kept[key] = _plain(kept[key], depth + 1)
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [_plain(field, depth + 1) for field in kept["fields"]]
    return kept


def _check_shape(node: Any, inside: tuple[str, ...], *, in_union: bool = False) -> None:
    """Check a type within the records `inside`; a named type that was defined before was checked there."""
    if isinstance(node, list):
        for branch in node:
            _check_shape(branch, inside, in_union=True)
        return
    kind = node if isinstance(node, str) else node["type"]
    if kind in _OF_PROTOCOLS:
        raise MalformedMarkError(f"writer's schema: {kind!r} is no type of a record")
    if kind in inside:
        raise MalformedMarkError(f"writer's schema: record {kind!r} contains itself")
    if not in_union and _takes_no_bytes(node, kind):
        raise MalformedMarkError(f"writer's schema: a type that takes no bytes, {kind!r}, outside a union")
    if kind == "record":
        within = (*inside, node["name"])
        for field in node["fields"]:
            _check_shape(field["type"], within)
    elif kind in ("array", "map"):
        _check_shape(node["items" if kind == "array" else "values"], inside)
    elif not isinstance(kind, str):
        _check_shape(kind, inside, in_union=in_union)


def _takes_no_bytes(node: Any, kind: Any) -> bool:
    return kind == "null" or (kind == "record" and not node["fields"]) or (kind == "fixed" and not node["size"])
