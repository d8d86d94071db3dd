"""Parsing of protobuf messages, with protobuf's and text errors translated to ours."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from bookwarden.errors import FormatError

M = TypeVar("M", bound=Message)


def parse(message: M, raw: bytes, what: str) -> M:
    """Fill the message from all of the bytes; raise FormatError if they are no such message."""
    try:
        message.ParseFromString(raw)
    except (DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{what}: {len(raw)} bytes that cannot be parsed: {error}") from error
    return message


def require(message: Message, field: str, what: str) -> None:
    """Raise FormatError if the field is not set."""
    if not message.HasField(field):
        raise FormatError(f"{what}: {field} is missing")
