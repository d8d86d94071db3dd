"""Records of ours, in nodes and in files, as JSON: a dataclass says which fields there are, and of which types.

A field is named in JSON as in its class, in camelCase, or by its alias. A field that is missing without a default, or
of another type, makes a value no record; one that this release does not know is passed over.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, TypeVar

from pydantic import ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from bookwarden.errors import FormatError

#: For ``__pydantic_config__`` of a dataclass that is a record, or within one.
RECORD: Final = ConfigDict(alias_generator=to_camel)

#: Written in their order, so that the same set has one text.
Names = Annotated[frozenset[str], PlainSerializer(sorted, return_type=list[str])]
Text = Annotated[str, Field(min_length=1)]
#: From 0, below 2**63.
Whole = Annotated[int, Field(ge=0, lt=2**63)]

RecordT = TypeVar("RecordT")

_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def record_fields(value: Any) -> dict[str, Any]:
    """Return a record's fields as values of JSON."""
    fields: dict[str, Any] = _adapter(type(value)).dump_python(value, mode="json", by_alias=True)
    return fields


def record_of(kind: type[RecordT], fields: object) -> RecordT:
    """Return the record that has these fields, values of JSON; FormatError if they are none of this kind."""
    try:
        # Text is what strictness is defined for: a list is no set in Python, and is one in JSON.
        record: RecordT = _adapter(kind).validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "it"
        raise FormatError(f"{where}: {problem['msg']}") from error
    return record


def encode_record(value: Any, version: int | None = None) -> bytes:
    """Return the bytes of a record; ``version`` is that of its format, None for one that has none."""
    fields = record_fields(value)
    return json.dumps(fields if version is None else {"format": version, **fields}, indent=1).encode()


def decode_record(kind: type[RecordT], data: bytes, version: int | None = None) -> RecordT:
    """Return the record that these bytes are; FormatError if they are none of this kind and format."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"it is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise FormatError("it is no JSON object")
    found = fields.pop("format", None)
    if version is not None and (type(found) is not int or found != version):
        raise FormatError(f"format {found} is not {version}: use the bookwarden that wrote it")
    return record_of(kind, fields)


def _adapter(kind: Any) -> TypeAdapter[Any]:
    # Making an adapter takes longer than using it.
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
