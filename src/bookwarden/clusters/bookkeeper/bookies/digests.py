"""The form in which a bookie stores an entry: its packet, and the digest that proves it whole. Pure.

Layout: ledger id, entry id, last add confirmed and length, 8 bytes each, big-endian and signed; then the digest;
then the payload. A packet of an explicit last add confirmed has ledger id, last add confirmed, digest. The digest
covers all but itself. Format: proto.checksum.*DigestManager of BookKeeper 4.17.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import google_crc32c

from bookwarden.errors import DigestMismatchError, FormatError

_ENTRY: Final = struct.Struct(">qqqq")
_LAC: Final = struct.Struct(">qq")
# BookKeeper's own tools use this for ledgers whose metadata, in its first formats, names no digest.
_OLDEST: Final = "CRC32"


class Entry(NamedTuple):
    """An entry; ``length`` is the number of payload bytes of the ledger through this entry."""

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Digest:
    """A kind of digest with its key: ``size`` is in bytes, ``compute`` takes the bytes before and after it."""

    kind: str
    size: int
    compute: Callable[[bytes, bytes], bytes]


def digest_of(kind: str | None, password: bytes = b"") -> Digest:
    """Make the digest that a ledger's metadata names; only HMAC needs the ledger's password.

    Raises FormatError for a kind that BookKeeper does not have.
    """
    chosen = kind or _OLDEST
    if chosen == "CRC32C":
        return Digest(chosen, 4, _crc32c)
    if chosen == "CRC32":
        return Digest(chosen, 8, _crc32)
    if chosen == "HMAC":
        return Digest(chosen, hashlib.sha1().digest_size, _hmac(password))
    if chosen == "DUMMY":
        return Digest(chosen, 0, lambda _head, _payload: b"")
    raise FormatError(f"ledger metadata names a digest that BookKeeper does not have: {chosen}")


def master_key_of(password: bytes) -> bytes:
    """Make the key by which bookies tell who may write a ledger, from its password.

    Format: checksum.MacDigestManager.genDigest.
    """
    return hashlib.sha1(b"ledger" + password).digest()


def pack_entry(digest: Digest, entry: Entry) -> bytes:
    """Make the packet that a bookie stores, byte for byte as BookKeeper's own client does."""
    head = _ENTRY.pack(*entry[:4])
    return head + digest.compute(head, entry.payload) + entry.payload


def verify_entry(digest: Digest, ledger_id: int, entry_id: int | None, packet: bytes) -> Entry:
    """Check a packet and take it apart; any entry of the ledger will do where ``entry_id`` is None.

    Raises DigestMismatchError unless every byte is as it was written for this entry of this ledger.
    """
    behind = _ENTRY.size + digest.size
    if len(packet) < behind:
        raise DigestMismatchError(f"ledger {ledger_id}: {len(packet)} bytes are no entry with a {digest.kind} digest")
    payload = packet[behind:]
    if packet[_ENTRY.size : behind] != digest.compute(packet[: _ENTRY.size], payload):
        raise DigestMismatchError(f"ledger {ledger_id}: the {digest.kind} digest of {_named(entry_id)} does not match")
    found_ledger, found_entry, last_confirmed, length = _ENTRY.unpack_from(packet)
    if found_ledger != ledger_id or entry_id not in (None, found_entry):
        raise DigestMismatchError(
            f"ledger {ledger_id}: in place of {_named(entry_id)} there is entry {found_entry} of ledger {found_ledger}"
        )
    return Entry(ledger_id, found_entry, last_confirmed, length, payload)


def verify_last_confirmed(digest: Digest, ledger_id: int, packet: bytes) -> int:
    """Check the packet of an explicit last add confirmed and return it; raises as verify_entry does."""
    head, found = packet[: _LAC.size], packet[_LAC.size :]
    if len(head) < _LAC.size or found != digest.compute(head, b""):
        raise DigestMismatchError(f"ledger {ledger_id}: the {digest.kind} digest of its last add confirmed is wrong")
    stored_ledger, last_confirmed = _LAC.unpack(head)
    if stored_ledger != ledger_id:
        raise DigestMismatchError(f"ledger {ledger_id}: a last add confirmed of ledger {stored_ledger} is in its place")
    return int(last_confirmed)


def _named(entry_id: int | None) -> str:
    return "its last entry" if entry_id is None else f"entry {entry_id}"


def _crc32c(head: bytes, payload: bytes) -> bytes:
    checksum: int = google_crc32c.extend(google_crc32c.value(head), payload)
    return checksum.to_bytes(4, "big")


def _crc32(head: bytes, payload: bytes) -> bytes:
    return zlib.crc32(payload, zlib.crc32(head)).to_bytes(8, "big")


def _hmac(password: bytes) -> Callable[[bytes, bytes], bytes]:
    keyed = hmac.new(hashlib.sha1(b"mac" + password).digest(), digestmod=hashlib.sha1)

    def compute(head: bytes, payload: bytes) -> bytes:
        code = keyed.copy()
        code.update(head)
        code.update(payload)
        return code.digest()

    return compute
