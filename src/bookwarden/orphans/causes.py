"""Probable cause of an orphan: from its kind, and from what is left of its holder."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from bookwarden.ledgers.kinds import BucketHolder, CompactedHolder, CursorHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.listing import ListedLedger
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.orphans.classes import Cause
from bookwarden.orphans.owners import Owner

# Looking up an enum's name is slow in Python, and this is asked of every orphan.
_CLOSED: Final = LedgerState.CLOSED.name


def cause_of(row: ListedLedger, owner: Owner, namespaces: Container[str], existing: Container[str]) -> Cause:
    """Return the probable cause of an orphan; `existing` has the texts of holders, `namespaces` names, that exist."""
    holder = owner.holder
    if isinstance(holder, SchemaHolder):
        if str(holder) in existing:
            return Cause.SCHEMA_VERSION
        return Cause.SCHEMA_DELETED if owner.namespace in namespaces else Cause.NAMESPACE_DELETED
    if owner.topic not in existing:
        return Cause.TOPIC_DELETED if owner.namespace in namespaces else Cause.NAMESPACE_DELETED
    if isinstance(holder, ManagedLedgerHolder):
        return _of_data(row)
    if isinstance(holder, CompactedHolder):
        return Cause.COMPACTION
    if isinstance(holder, CursorHolder):
        return Cause.CURSOR_ROLLOVER if str(holder) in existing else Cause.SUBSCRIPTION_DELETED
    if isinstance(holder, BucketHolder) and str(CursorHolder(holder.managed_ledger, holder.cursor)) in existing:
        return Cause.DELAYED_DELIVERY
    return Cause.SUBSCRIPTION_DELETED


def _of_data(row: ListedLedger) -> Cause:
    # Only closed ledgers are trimmed, and an empty one is dropped from the list when the next is made.
    trimmed = row.state == _CLOSED and row.length > 0
    return Cause.TRIM if trimmed else Cause.NEVER_LISTED
