"""Gaps in ledger lists: data ledgers that their topic's list lacks although no trim can have taken them.

A broker trims from the front of the list. ManagedLedgerImpl.internalTrimLedgers (Pulsar 4.0) begins with the smallest
id, stops at the first ledger that stays, and never takes the one that is written to. So a ledger with entries that lies
within the list, or above all of it, was lost by a bad write of the topic's node: its entries were acknowledged. Ledgers
without entries are another matter: a broker replaces them at a rollover and when it loads the topic, wherever they are.
"""

from __future__ import annotations

import enum
from typing import Final

from bookwarden.ledgers.metadata import LedgerMetadata

NAMES_NOTHING: Final = -1
"""Stands for the smallest id of an empty list: any ledger lies above it."""


class ListStatus(enum.Enum):
    """The status of a data ledger that its topic's list does not name."""

    LET_GO = "let go"
    UNPROVEN = "let go if it has no entry"
    INSIDE = "inside the list"
    OF_NO_LIST = "of a list without any ledger"


def list_status_of(ledger_id: int, first_listed: int | None, has_entries: bool | None) -> ListStatus:
    """Return whether a topic can have let go of a data ledger of its own that it does not name.

    ``first_listed`` is the smallest id that any of the topic's nodes lists, NAMES_NOTHING where one of them lists none,
    and None where there is no node: then the topic is dead. ``has_entries`` is None where that is not known.
    """
    if first_listed is None or ledger_id < first_listed or has_entries is False:
        return ListStatus.LET_GO
    if has_entries is None:
        return ListStatus.UNPROVEN
    return ListStatus.OF_NO_LIST if first_listed == NAMES_NOTHING else ListStatus.INSIDE


def has_entries(metadata: LedgerMetadata) -> bool | None:
    """Return whether a ledger has entries; None while it is open or in recovery, when only the bookies know."""
    if metadata.last_entry_id is None:
        return None
    return metadata.last_entry_id >= 0 or metadata.length > 0
