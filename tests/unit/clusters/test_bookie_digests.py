"""Packets of entries and their digests, as BookKeeper's own code makes them."""

from __future__ import annotations

import pytest

from bookwarden.clusters.bookkeeper.bookies.digests import (
    Digest,
    Entry,
    digest_of,
    master_key_of,
    pack_entry,
    verify_entry,
    verify_last_confirmed,
)
from bookwarden.errors import DigestMismatchError, FormatError
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.wire.ledger_metadata import decode_ledger_password, encode_ledger_metadata

LEDGER = 4711
ENTRY = Entry(LEDGER, 5, 4, 21, b"payload")
HEAD = "0000000000001267000000000000000500000000000000040000000000000015"
PAYLOAD = b"payload".hex()
LAC_HEAD = "00000000000012670000000000000004"
# From DigestManager.computeDigestAndPackageForSending and ...SendingLac of bookkeeper-server 4.17.2: the kind, the
# ledger's password, the digest of the entry above, and that of its explicit last add confirmed.
PACKETS = [
    ("CRC32C", b"", "79553b05", "67aa8a7b"),
    ("CRC32C", b"secret", "79553b05", "67aa8a7b"),
    ("CRC32", b"", "0000000014979f4c", "00000000f08f32f4"),
    ("HMAC", b"", "2e05331ecf6de6d06268f4d02d090af57b4f3403", "2a7bbf768b5848dbc509a5132d3027f682400c39"),
    ("HMAC", b"secret", "d1183822e310fc603c6bd3a9f8933c81f93570c2", "b64ea3284100cfef849530a42663bc9b339410d3"),
    ("DUMMY", b"", "", ""),
]


@pytest.mark.parametrize(("kind", "password", "code", "lac_code"), PACKETS)
def test_packets_of_bookkeeper_are_taken_apart(kind: str, password: bytes, code: str, lac_code: str) -> None:
    digest = digest_of(kind, password)
    packet = bytes.fromhex(HEAD + code + PAYLOAD)
    assert pack_entry(digest, ENTRY) == packet
    assert verify_entry(digest, LEDGER, 5, packet) == ENTRY
    assert verify_entry(digest, LEDGER, None, packet) == ENTRY
    assert verify_last_confirmed(digest, LEDGER, bytes.fromhex(LAC_HEAD + lac_code)) == 4


def test_the_key_of_writers_is_that_of_bookkeeper() -> None:
    # By DigestManager.generateMasterKey: SHA-1 of "ledger" and the password; bookies compare it.
    assert master_key_of(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
    assert master_key_of(b"secret").hex() == "e793cbc379107648537183605cd361d3bb789a39"


@pytest.mark.parametrize(("kind", "password", "code", "lac_code"), [row for row in PACKETS if row[0] != "DUMMY"])
def test_any_byte_that_changed_is_found(kind: str, password: bytes, code: str, lac_code: str) -> None:
    digest = digest_of(kind, password)
    for whole, verify in (
        (bytes.fromhex(HEAD + code + PAYLOAD), lambda packet: verify_entry(digest, LEDGER, 5, packet)),
        (bytes.fromhex(LAC_HEAD + lac_code), lambda packet: verify_last_confirmed(digest, LEDGER, packet)),
    ):
        for index in range(len(whole)):
            damaged = bytearray(whole)
            damaged[index] ^= 0x40
            with pytest.raises(DigestMismatchError, match="ledger 4711"):
                verify(bytes(damaged))
            with pytest.raises(DigestMismatchError, match="ledger 4711"):
                verify(whole[:index])


def test_another_entry_in_the_place_of_the_one_asked_for_is_found_even_without_a_digest() -> None:
    digest = digest_of("DUMMY")
    packet = bytes.fromhex(HEAD + PAYLOAD)
    with pytest.raises(DigestMismatchError, match="in place of entry 6 there is entry 5 of ledger 4711"):
        verify_entry(digest, LEDGER, 6, packet)
    with pytest.raises(DigestMismatchError, match="in place of its last entry there is entry 5 of ledger 4711"):
        verify_entry(digest, 12, None, packet)
    with pytest.raises(DigestMismatchError, match="ledger 12"):
        verify_last_confirmed(digest, 12, bytes.fromhex(LAC_HEAD))


@pytest.mark.parametrize("digest", [digest_of("HMAC", b"other"), digest_of("HMAC"), digest_of("CRC32")])
def test_the_wrong_password_or_kind_is_a_mismatch(digest: Digest) -> None:
    packet = bytes.fromhex(HEAD + PACKETS[4][2] + PAYLOAD)
    with pytest.raises(DigestMismatchError, match=f"the {digest.kind} digest of entry 5"):
        verify_entry(digest, LEDGER, 5, packet)


def test_no_digest_is_bookkeepers_oldest_and_an_unknown_one_is_refused() -> None:
    assert digest_of(None).kind == "CRC32"
    with pytest.raises(FormatError, match="SHA3"):
        digest_of("SHA3")


def test_the_password_is_read_from_metadata_of_every_format() -> None:
    metadata = LedgerMetadata(3, LedgerState.CLOSED, 1, 1, 1, (Segment(0, ("a:1",)),), last_entry_id=0)
    assert decode_ledger_password(encode_ledger_metadata(metadata, password=b"\x00secret")) == b"\x00secret"
    assert decode_ledger_password(b'BookieMetadataFormatVersion\t2\npassword: "\\000secret"\n') == b"\x00secret"
    assert decode_ledger_password(b"BookieMetadataFormatVersion\t1\n1\n1\n0\n0\ta:1") == b""
    with pytest.raises(FormatError):
        decode_ledger_password(b"BookieMetadataFormatVersion\t3\n\x05")
