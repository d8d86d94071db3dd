"""The classes of ledgers, and the causes of orphans."""

from __future__ import annotations

import enum


class LedgerClass(enum.Enum):
    """The one class that a scan puts a ledger in; the values are stored in tables and must not change."""

    REFERENCED = "referenced"
    ORPHAN = "orphan"
    LEFT_BEHIND = "left behind"
    TOO_YOUNG = "too young"
    IN_TRASH = "in the trash"
    UNKNOWN_REFERENCES = "references unknown"
    UNKNOWN_OWNER = "unknown application or component"
    UNPARSABLE = "unparsable"
    INSIDE_LIST = "inside the list"
    MISSING = "missing"
    FOREIGN = "foreign"


class Cause(enum.Enum):
    """The probable cause of a candidate, judged by its kind and by what is left of its holder."""

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
