"""What Pulsar writes into a ledger's custom metadata, and whether it fits the holder that wants it gone.

Keys and values: LedgerMetadataUtils in Pulsar 4.0. The name written is that of the owner at creation, so a shadow
topic, which lists its source's ledgers, never matches.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from bookwarden.errors import FormatError
from bookwarden.ledgers.holders import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.names import TopicName, decode_local_name, encode_local_name

APPLICATION = "application"
COMPONENT = "component"
MANAGED_LEDGER = "pulsar/managed-ledger"
CURSOR = "pulsar/cursor"
SCHEMA_ID = "pulsar/schemaId"
COMPACTED_TOPIC = "pulsar/compactedTopic"
BUCKET_TOPIC = "pulsar/delayedIndexTopic"
BUCKET_CURSOR = "pulsar/delayedIndexCursor"
_NAMES = (APPLICATION, COMPONENT, MANAGED_LEDGER, CURSOR, SCHEMA_ID, COMPACTED_TOPIC, BUCKET_TOPIC, BUCKET_CURSOR)


def expected_custom_metadata(holder: Holder) -> dict[str, str]:
    """Give the custom metadata that Pulsar writes for a ledger of this holder."""
    if isinstance(holder, SchemaHolder):
        return {APPLICATION: "pulsar", COMPONENT: "schema", SCHEMA_ID: holder.schema_id}
    if isinstance(holder, CompactedHolder):
        topic = str(TopicName.of_managed_ledger(holder.managed_ledger))
        return {APPLICATION: "pulsar", COMPONENT: "compacted-ledger", COMPACTED_TOPIC: topic}
    if isinstance(holder, BucketHolder):
        topic, cursor_name = str(TopicName.of_managed_ledger(holder.managed_ledger)), decode_local_name(holder.cursor)
        tags = {APPLICATION: "pulsar", COMPONENT: "delayed-index-bucket"}
        return {**tags, BUCKET_TOPIC: topic, BUCKET_CURSOR: cursor_name}
    if isinstance(holder, CursorHolder):
        managed_ledger, cursor = holder.managed_ledger, {CURSOR: holder.cursor}
    else:
        managed_ledger, cursor = holder.name, {}
    return {APPLICATION: "pulsar", COMPONENT: "managed-ledger", MANAGED_LEDGER: managed_ledger, **cursor}


def custom_metadata_mismatch(holder: Holder, custom: Mapping[str, bytes]) -> str | None:
    """Say how the ledger differs from what the holder's would be; None when it is the holder's.

    A data ledger and a cursor's share their component; only the cursor's name tells them apart, so a name that
    should not be there counts as a difference too.
    """
    expected = _expected_values(holder)
    if custom == expected or all(custom.get(name, b"") == expected.get(name, b"") for name in _NAMES):
        return None
    wanted = ", ".join(f"{name}={value}" for name, value in expected_custom_metadata(holder).items())
    return f"pending deletion says {wanted}; ledger says {describe_custom_metadata(custom)}"


# A holder's ledgers come together.
@lru_cache(maxsize=8192)
def _expected_values(holder: Holder) -> Mapping[str, bytes]:
    return {name: value.encode() for name, value in expected_custom_metadata(holder).items()}


def describe_custom_metadata(custom: Mapping[str, bytes]) -> str:
    """Render custom metadata as text for people; binary values by their length."""
    if not custom:
        return "nothing (no custom metadata)"
    return ", ".join(f"{name}={_printable(value)}" for name, value in sorted(custom.items()))


def identify_holder(custom: Mapping[str, bytes]) -> Holder | None:
    """Name the holder that the custom metadata tells of; None when it is not Pulsar's or of no known kind."""
    try:
        text = {name: custom[name].decode() for name in _NAMES if name in custom}
    except UnicodeDecodeError:
        return None
    if text.get(APPLICATION) != "pulsar":
        return None
    if text.get(COMPONENT) == "schema" and SCHEMA_ID in text:
        return SchemaHolder(text[SCHEMA_ID])
    if text.get(COMPONENT) == "managed-ledger" and MANAGED_LEDGER in text:
        if CURSOR in text:
            return CursorHolder(text[MANAGED_LEDGER], text[CURSOR])
        return ManagedLedgerHolder(text[MANAGED_LEDGER])
    try:
        return _identify_by_topic(text)
    except FormatError:
        return None


def _identify_by_topic(text: Mapping[str, str]) -> Holder | None:
    """Name the holder whose topic is written in full, and its subscription as it is."""
    if text.get(COMPONENT) == "compacted-ledger" and COMPACTED_TOPIC in text:
        return CompactedHolder(TopicName.parse(text[COMPACTED_TOPIC]).managed_ledger)
    if text.get(COMPONENT) == "delayed-index-bucket" and BUCKET_TOPIC in text and BUCKET_CURSOR in text:
        managed_ledger = TopicName.parse(text[BUCKET_TOPIC]).managed_ledger
        return BucketHolder(managed_ledger, encode_local_name(text[BUCKET_CURSOR]))
    return None


def _printable(value: bytes) -> str:
    text = value[:200].decode("utf-8", errors="replace")
    return text if text.isprintable() else f"<{len(value)} bytes>"
