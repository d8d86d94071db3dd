"""What an index of references answers about a ledger, as one word."""

from __future__ import annotations

from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.references import ReferenceIndex


def is_referenced(index: ReferenceIndex, ledger_id: int, holder: Holder | None) -> bool | None:
    """Say whether any place names the ledger; None where a doubt about its holder leaves that open."""
    if index.who_names(ledger_id):
        return True
    return None if index.doubts_about(holder) else False
