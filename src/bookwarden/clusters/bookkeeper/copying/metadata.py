"""The metadata of a copy: as it is made, begun anew and closed, and what stands in the way of it. Pure.

A copy is made with a mark that no end can equal, and gets the mark of its end when it is closed, after every entry was
compared. So whoever closes it otherwise, as an auditor does, makes nothing that brokers would read.
"""

from __future__ import annotations

from typing import Final

from bookwarden.ledgers.custom_metadata import COPY_KEY, OWNER_KEY, is_unfinished, why_not_the_same
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment, StoredLedger

_UNPROVEN: Final = b"unproven"


def opened_copy(source: LedgerMetadata, ensemble: tuple[str, ...], owner: str | None) -> LedgerMetadata:
    """Make the metadata of a copy before its entries are there, on these bookies."""
    owned = {} if owner is None else {OWNER_KEY: owner.encode()}
    return source._replace(
        format_version=3,
        state=LedgerState.OPEN,
        ensemble_size=len(ensemble),
        segments=(Segment(0, ensemble),),
        length=0,
        last_entry_id=None,
        custom={**source.custom, **owned, COPY_KEY: _UNPROVEN},
    )


def closed_copy(opened: LedgerMetadata, source: LedgerMetadata) -> LedgerMetadata:
    """Make the metadata of a copy whose entries are proven."""
    end = f"{source.last_entry_id}:{source.length}".encode()
    return opened._replace(
        state=LedgerState.CLOSED,
        length=source.length,
        last_entry_id=source.last_entry_id,
        custom={**opened.custom, COPY_KEY: end},
    )


def why_not_replaced(source: StoredLedger, found: StoredLedger) -> str | None:
    """Return why what the target has at this id must not be touched; None for an unfinished copy of the source."""
    if not is_unfinished(found.metadata):
        return f"the target has another ledger of this id: {why_not_the_same((source, found)) or 'its end differs'}"
    return why_not_the_same((source, found))


def is_complete(source: StoredLedger, found: StoredLedger) -> bool:
    """Return whether the target has the whole ledger: the original, or a copy that its copier proved."""
    return (
        not is_unfinished(found.metadata)
        and why_not_the_same((source, found)) is None
        and (found.metadata.last_entry_id, found.metadata.length)
        == (source.metadata.last_entry_id, source.metadata.length)
    )
