"""Parsing of protobuf messages, with errors translated to ours, and its whole numbers of seven bits a byte."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bookwarden.errors import FormatError

M = TypeVar("M", bound=Message)


def encode_varint(value: int) -> bytes:
    """Encode a number that is not negative."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_zigzag(value: int) -> bytes:
    """Encode a signed 64-bit number as Avro's long; raise OverflowError for one that has more bits."""
    if not -(2**63) <= value < 2**63:
        raise OverflowError(f"{value} has more than 64 bits")
    return encode_varint((value << 1) ^ (value >> 63))


def parse(message: M, raw: bytes, what: str) -> M:
    """Parse all of the bytes into the message; raise FormatError if they are no such message."""
    try:
        message.ParseFromString(raw)
    except (DecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{what}: {len(raw)} bytes that cannot be parsed: {error}") from error
    return message


def require(message: Message, field: str, what: str) -> None:
    """Raise FormatError if the field is not set."""
    if not message.HasField(field):
        raise FormatError(f"{what}: {field} is missing")


def refuse_unknown(message: Message, what: str) -> None:
    """Raise FormatError if the message itself has an unknown field, or one of another type.

    Almost any bytes parse as a message without required fields, with such fields.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown):
        numbers = ", ".join(map(str, sorted({unknown[at].field_number for at in range(len(unknown))})[:5]))
        raise FormatError(f"{what}: it cannot have the field {numbers} that is there: it is something else, or too new")


def has_unknown(message: Message, what: str) -> bool:
    """Return whether the message itself has fields of unknown numbers, as of a later version.

    Raises FormatError for a field that is known and has another type, since that no version changes.
    """
    unknown = UnknownFieldSet(message)
    if not len(unknown):
        return False
    for at in range(len(unknown)):
        number = unknown[at].field_number
        if number in message.DESCRIPTOR.fields_by_number:
            raise FormatError(f"{what}: its field {number} is of a type that it cannot have: it is something else")
    return True
