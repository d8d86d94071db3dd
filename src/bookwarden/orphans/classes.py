"""The classes that a scan puts every ledger in, and the causes that orphans are put down to."""

from __future__ import annotations

import enum


class LedgerClass(enum.Enum):
    """What a scan found a ledger to be; each has exactly one. The values travel in tables and stay as they are."""

    REFERENCED = "referenced"
    ORPHAN = "orphan"
    LEFT_BEHIND = "left behind"
    TOO_YOUNG = "too young"
    UNKNOWN_REFERENCES = "references unknown"
    UNKNOWN_OWNER = "unknown application or component"
    UNPARSABLE = "unparsable"
    INSIDE_LIST = "inside the list"
    MISSING = "missing"
    FOREIGN = "foreign"


class Cause(enum.Enum):
    """How a candidate probably came about, as far as its kind and what is left of its holder tell."""

    TRIM = "trimmed, never deleted"
    NEVER_LISTED = "created, never listed"
    TOPIC_DELETED = "topic deleted"
    NAMESPACE_DELETED = "namespace deleted"
    CURSOR_ROLLOVER = "cursor rollover"
    SUBSCRIPTION_DELETED = "subscription deleted"
    SCHEMA_VERSION = "schema version not recorded"
    SCHEMA_DELETED = "schema deleted"
    COMPACTION = "compaction failed or replaced"
    DELAYED_DELIVERY = "bucket of delayed messages not recorded"
    OFFLOADED = "offloaded, never deleted"
    REPLACED = "compacted ledger replaced, never deleted"


PLANNED = frozenset({LedgerClass.ORPHAN.value, LedgerClass.LEFT_BEHIND.value})
"""The values of the classes whose ledgers are candidates of the plan."""
