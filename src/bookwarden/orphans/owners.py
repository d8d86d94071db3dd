"""Whose a listed ledger is: the holder that its custom metadata names, read back from the listing's text."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from bookwarden.deletion.phase_one.named_ledgers import mark_of_holder
from bookwarden.errors import FormatError
from bookwarden.ledgers.holders import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.names import decode_local_name, encode_local_name
from bookwarden.ledgers.pending_deletion import LedgerComponent

_PARTITION: Final = re.compile(r"-partition-[0-9]+$")
_SCHEMA = "schema:"
_COMPACTED = "compacted:"
_BUCKETS = "buckets:"


class Owner(NamedTuple):
    """A holder, and where it belongs; ``topic`` is the name of the managed ledger.

    That of a schema is the topic without partitions that has it; its partitions, which share it, are others.
    ``namespace`` is ``tenant/namespace``, or ``tenant/cluster/namespace`` in names of the first version.
    """

    holder: Holder
    tenant: str
    namespace: str
    topic: str


# The ledgers of a topic come together.
@lru_cache(maxsize=65_536)
def owner_of(kind: str, text: str) -> Owner | None:
    """Read a holder's text back, where `kind` is the name of its LedgerComponent.

    None where it is not the text of any holder of this kind, or of one that phase two would not take a mark of.
    """
    holder = _parse(kind, text)
    if holder is None or not _is_markable(holder):
        return None
    return _place(holder)


def without_partition(topic: str) -> str:
    """Give the name, among managed ledgers, of the topic that this one is a partition of; of others their own."""
    return _PARTITION.sub("", topic)


def _is_markable(holder: Holder) -> bool:
    """Whether a mark of the holder says the same holder; its parts are those of many others."""
    if isinstance(holder, ManagedLedgerHolder):
        return _marks_itself(holder)
    if isinstance(holder, CursorHolder):
        return _is_cursor(holder.cursor) and _marks_itself(ManagedLedgerHolder(holder.managed_ledger))
    if isinstance(holder, BucketHolder):
        return _is_cursor(holder.cursor) and _marks_itself(CompactedHolder(holder.managed_ledger))
    return _marks_itself(holder)


@lru_cache(maxsize=65_536)
def _marks_itself(holder: Holder) -> bool:
    try:
        return mark_of_holder(0, holder, "").holder() == holder
    except FormatError:
        return False


@lru_cache(maxsize=4096)
def _is_cursor(cursor: str) -> bool:
    try:
        return encode_local_name(decode_local_name(cursor)) == cursor
    except FormatError:
        return False


def _parse(kind: str, text: str) -> Holder | None:
    if kind == LedgerComponent.MANAGED_LEDGER.name:
        return ManagedLedgerHolder(text)
    if kind == LedgerComponent.MANAGED_CURSOR.name:
        managed_ledger, _, cursor = text.rpartition("/")
        return CursorHolder(managed_ledger, cursor)
    if kind == LedgerComponent.SCHEMA_STORAGE.name and text.startswith(_SCHEMA):
        return SchemaHolder(text[len(_SCHEMA) :])
    if kind == LedgerComponent.COMPACTED_LEDGER.name and text.startswith(_COMPACTED):
        return CompactedHolder(text[len(_COMPACTED) :])
    if kind == LedgerComponent.DELAYED_INDEX_BUCKET.name and text.startswith(_BUCKETS):
        managed_ledger, _, cursor = text[len(_BUCKETS) :].rpartition("/")
        return BucketHolder(managed_ledger, cursor)
    return None


def _place(holder: Holder) -> Owner:
    if isinstance(holder, SchemaHolder):
        namespace, _, name = holder.schema_id.rpartition("/")
        topic = f"{namespace}/persistent/{name}"
    else:
        topic = holder.name if isinstance(holder, ManagedLedgerHolder) else holder.managed_ledger
        # tenant/namespace/persistent/topic, with a cluster after the tenant in names of the first version.
        namespace = topic.rpartition("/")[0].rpartition("/")[0]
    return Owner(holder, namespace.partition("/")[0], namespace, topic)
