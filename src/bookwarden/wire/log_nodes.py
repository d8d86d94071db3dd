"""Nodes of DistributedLog that name ledgers: segments of a log, and the ledger allocated for the next one.

Formats: LogSegmentMetadata, LogMetadata, SimpleLedgerAllocator and DLUtils of BookKeeper 4.17. A log lies at any depth
below its namespace, since names of logs may have slashes: its segments are ``<log>/<default>/ledgers/<segment>``, its
allocation ``<log>/<default>/allocation``.
"""

from __future__ import annotations

import re

from bookwarden.errors import FormatError

_SEGMENTS = "ledgers"
_ALLOCATION = "allocation"
_LEDGER_ID = re.compile(rb"-?[0-9]{1,19}")
_SHOWN = 40


def is_segment(path: str) -> bool:
    """Return whether a node of this path is a segment of a log."""
    return path.rpartition("/")[0].endswith(f"/{_SEGMENTS}")


def is_allocation(path: str) -> bool:
    """Return whether a node of this path holds the ledger that is allocated next."""
    return path.endswith(f"/{_ALLOCATION}")


def decode_segment(raw: bytes) -> int:
    """Return the segment's ledger, the second field of every version; FormatError if there is none."""
    fields = raw.split(b";")
    if len(fields) < 3 or not _LEDGER_ID.fullmatch(fields[1]) or int(fields[1]) < 0:
        raise FormatError(f"log segment: {raw[:_SHOWN]!r} is not version;ledger;first transaction")
    return int(fields[1])


def decode_allocation(raw: bytes) -> int | None:
    """Return the allocated ledger, not in use yet; None if there is none. Raises FormatError for other text."""
    if not raw:
        return None
    if not _LEDGER_ID.fullmatch(raw):
        raise FormatError(f"log allocation: {raw[:_SHOWN]!r} is not a ledger's number")
    ledger_id = int(raw)
    return ledger_id if ledger_id >= 0 else None
