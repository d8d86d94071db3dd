"""Whole numbers of seven bits a byte, the lowest first, as in protobuf and Avro."""

from __future__ import annotations


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
