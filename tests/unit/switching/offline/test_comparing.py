"""One ledger as two bookie clusters have it: only what is proven to be the same counts as the same."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bookwarden.bookie_clusters.offline.ledgers import CopyStatus, compare
from bookwarden.ledgers.custom_metadata import COPY_KEY, OWNER_KEY
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    LedgerMetadata,
    LedgerReading,
    LedgerState,
    Segment,
    StoredLedger,
    UnreadableLedger,
)

OWNER = "5f2c9a41"
OURS = {OWNER_KEY: OWNER.encode()}
TAGS = {"application": b"pulsar"}
WHOLE = {**TAGS, **OURS, COPY_KEY: b"9:1000"}
UNPROVEN = {**TAGS, **OURS, COPY_KEY: b"unproven"}
ABSENT, UNREADABLE = AbsentLedger(5), UnreadableLedger(5, "no protobuf")
SAME, TO_COPY, DIFFERENT = CopyStatus.SAME, CopyStatus.TO_COPY, CopyStatus.DIFFERENT


def ledger(state: LedgerState = LedgerState.CLOSED, **changes: Any) -> StoredLedger:
    closed = state is LedgerState.CLOSED
    metadata = LedgerMetadata(
        *(3, state, 1, 1, 1, (Segment(0, ("a1:3181",)),), 1000 if closed else 0, 9 if closed else None, "CRC32C", 7),
        custom=TAGS,
    )
    return StoredLedger(5, "/ledgers/5", 0, 0, b"", metadata._replace(**changes))


OPEN = ledger(LedgerState.OPEN)


@pytest.mark.parametrize(
    ("source", "target", "status", "says"),
    [
        (ledger(), ledger(custom=WHOLE), SAME, ""),
        (ledger(), ledger(), SAME, ""),
        (ledger(custom=WHOLE), ledger(), SAME, ""),
        (ledger(), ABSENT, TO_COPY, ""),
        (ledger(), ledger(LedgerState.OPEN, custom=UNPROVEN), TO_COPY, ""),
        (ledger(), ledger(custom=UNPROVEN), TO_COPY, ""),
        (OPEN, ABSENT, CopyStatus.OPEN, ""),
        (ledger(LedgerState.IN_RECOVERY), ABSENT, CopyStatus.OPEN, ""),
        (ABSENT, ABSENT, CopyStatus.MISSING, ""),
        (ABSENT, ledger(), DIFFERENT, "on the target, and not on the source"),
        (UNREADABLE, ledger(), DIFFERENT, "on the source cannot be understood: no protobuf"),
        (ledger(), UNREADABLE, DIFFERENT, "on the target cannot be understood: no protobuf"),
        (
            ledger(),
            ledger(length=999),
            DIFFERENT,
            "ends at entry 9 with 1,000 bytes on the source, and at entry 9 with",
        ),
        (ledger(), ledger(last_entry_id=8), DIFFERENT, "at entry 8"),
        (ledger(), OPEN, DIFFERENT, r"and at no known entry \(OPEN\)"),
        (OPEN, ledger(custom=WHOLE), DIFFERENT, "no known entry"),
        (ledger(), ledger(custom={**UNPROVEN, OWNER_KEY: b"00000000"}), DIFFERENT, "not of this move"),
        (ledger(), ledger(digest_type="CRC32"), DIFFERENT, r"another ledger of this id \(other digest\)"),
        (ledger(), ledger(ctime_ms=8), DIFFERENT, "other creation time"),
        (ledger(), ledger(custom={**WHOLE, "application": b"x"}), DIFFERENT, "other custom metadata"),
        (ledger(custom=UNPROVEN), ABSENT, DIFFERENT, "the source has an unfinished copy"),
    ],
)
def test_it_stands_so(source: LedgerReading, target: LedgerReading, status: CopyStatus, says: str) -> None:
    found = compare(source, target, OWNER)
    assert (found.ledger_id, found.status) == (5, status)
    assert re.search(says, found.reason) if says else not found.reason
