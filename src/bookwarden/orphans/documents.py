"""Values as JSON documents that carry a checksum: read back byte for byte as they were written, or not at all.

A document is one object: the fields of the value, and ``document`` (what it is), ``format`` (its version) and
``checksum`` (SHA-256, in hexadecimal, over the document without it). Names are sorted and spaces left out, so that
every value has one text.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeVar

from bookwarden.errors import FormatError
from bookwarden.records import record_fields, record_of

_CHECKSUM = "checksum"
_DOCUMENT = "document"
_FORMAT = "format"

ValueT = TypeVar("ValueT")


def encode_document(value: Any, document: str, version: int) -> bytes:
    """Render a value, a dataclass whose fields JSON can express; ValueError for a number that it cannot."""
    fields = {**record_fields(value), _DOCUMENT: document, _FORMAT: version}
    return _render({**fields, _CHECKSUM: _checksum(fields)})


def decode_document(data: bytes, kind: type[ValueT], document: str, version: int, instead: str) -> ValueT:
    """Read a document back.

    Raises FormatError for anything that `encode_document` would not have written: another kind or version of
    document, fields that are missing or unknown, and any byte that was changed. ``instead`` says what to do then.
    """
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise FormatError(f"the {document} is damaged, it is not JSON: {instead}") from error
    if not isinstance(fields, dict) or fields.get(_DOCUMENT) != document:
        raise FormatError(f"this is no {document}: {instead}")
    if fields.get(_FORMAT) != version:
        raise FormatError(
            f"the {document} has format {fields.get(_FORMAT)!r}, and this bookwarden knows format {version}: {instead}"
        )
    stated = fields.pop(_CHECKSUM, None)
    if stated != _checksum(fields):
        raise FormatError(f"the {document} was changed or damaged, its checksum does not fit: {instead}")
    for name in (_DOCUMENT, _FORMAT):
        del fields[name]
    try:
        value = record_of(kind, fields)
    except FormatError as error:
        raise FormatError(f"the {document} is not usable, {error}: {instead}") from error
    if encode_document(value, document, version) != data:
        raise FormatError(f"the {document} was changed or damaged, it is not as bookwarden writes it: {instead}")
    return value


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(_render(fields)).hexdigest()


def _render(fields: dict[str, Any]) -> bytes:
    try:
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise FormatError(f"a number cannot be written as JSON: {error}") from error
