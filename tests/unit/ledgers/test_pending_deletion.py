"""Pending deletions: which are possible, and whose metadata decides about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.custom_metadata import custom_metadata_mismatch, identify_holder
from bookwarden.ledgers.kinds import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    LedgerComponent,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion

DATA = PendingDeletion("persistent://t/n/a b", LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, 7)
CURSOR = replace(DATA, component=LedgerComponent.MANAGED_CURSOR, cursor_name="sub/one")
SCHEMA = replace(DATA, component=LedgerComponent.SCHEMA_STORAGE, schema_id="t/n/other")
COMPACTED = replace(DATA, component=LedgerComponent.COMPACTED_LEDGER)
BUCKET = replace(DATA, component=LedgerComponent.DELAYED_INDEX_BUCKET, cursor_name="sub/one")


@pytest.mark.parametrize(
    ("deletion", "holder"),
    [
        (DATA, ManagedLedgerHolder("t/n/persistent/a+b")),
        (replace(DATA, topic_name="t/n/persistent/a%2Fb"), ManagedLedgerHolder("t/n/persistent/a%2Fb")),
        (CURSOR, CursorHolder("t/n/persistent/a+b", "sub%2Fone")),
        (SCHEMA, SchemaHolder("t/n/other")),
        (replace(SCHEMA, topic_name=""), SchemaHolder("t/n/other")),
        (replace(SCHEMA, schema_id="17"), SchemaHolder("t/n/a+b")),
        (replace(SCHEMA, schema_id=None, topic_name="t/n/x-partition-1"), SchemaHolder("t/n/x")),
        (COMPACTED, CompactedHolder("t/n/persistent/a+b")),
        (BUCKET, BucketHolder("t/n/persistent/a+b", "sub%2Fone")),
    ],
)
def test_the_holder_is_the_one_that_the_fields_name(deletion: PendingDeletion, holder: Holder) -> None:
    deletion.validate()
    assert deletion.holder() == holder


@pytest.mark.parametrize(
    ("deletion", "reason"),
    [
        (replace(DATA, ledger_id=-1), "ledgerId -1"),
        (replace(DATA, ledger_id=2**63), "ledgerId 9223372036854775808"),
        (replace(DATA, topic_name=""), "topicName is missing"),
        (replace(DATA, topic_name="non-persistent://t/n/x"), "has no ledgers"),
        (replace(DATA, topic_name="t/n/elsewhere/x"), "has no ledgers"),
        (replace(DATA, topic_name="../../x"), "'..'"),
        (replace(DATA, topic_name="t/n/.."), "'..' cannot be a part"),
        (replace(CURSOR, cursor_name=None), "needs cursorName"),
        (replace(CURSOR, cursor_name=".."), "'..' cannot be a part"),
        (replace(BUCKET, cursor_name=None), "needs cursorName"),
        (replace(COMPACTED, topic_name="t/n/persistent/a%2Fb"), "full name of another"),
        (replace(BUCKET, topic_name="t/n/persistent/a%2Fb"), "full name of another"),
        (replace(SCHEMA, schema_id="../../managed-ledgers"), "'..'"),
        (replace(SCHEMA, schema_id="t/n/a b"), "not encoded"),
        (replace(SCHEMA, schema_id=None, topic_name=""), "topicName is missing"),
        (replace(DATA, ledger_type=LedgerType.OFFLOAD_LEDGER), "needs offloadContext"),
    ],
)
def test_an_impossible_pending_deletion_says_why(deletion: PendingDeletion, reason: str) -> None:
    with pytest.raises(MalformedMarkError, match=reason.replace(".", r"\.")):
        deletion.validate()


def test_an_offloaded_copy_needs_only_its_context() -> None:
    replace(DATA, ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=OffloadContext(1, -2, "S3")).validate()


def _bytes(tags: dict[str, str]) -> dict[str, bytes]:
    return {name: value.encode() for name, value in tags.items()}


# As Pulsar 4.0.8 writes them (tests/data/pulsar_4_0_8_nodes.json).
COMPACTED_TAGS = {
    "application": "pulsar",
    "component": "compacted-ledger",
    "pulsar/compactedTopic": "persistent://t/n/a b",
    "pulsar/compactedTo": "\x08\x01",
}
BUCKET_TAGS = {
    "application": "pulsar",
    "component": "delayed-index-bucket",
    "pulsar/delayedIndexTopic": "persistent://t/n/a b",
    "pulsar/delayedIndexCursor": "sub/one",
    "pulsar/delayedIndexBucketKey": "#pulsar.internal.delayed.bucket_1_2",
}


@pytest.mark.parametrize(("deletion", "tags"), [(COMPACTED, COMPACTED_TAGS), (BUCKET, BUCKET_TAGS)])
def test_compacted_ledgers_and_buckets_are_known_by_their_custom_metadata(
    deletion: PendingDeletion, tags: dict[str, str]
) -> None:
    assert identify_holder(_bytes(tags)) == deletion.holder()
    assert custom_metadata_mismatch(deletion.holder(), _bytes(tags)) is None


@pytest.mark.parametrize(
    ("deletion", "tags", "change"),
    [
        (COMPACTED, COMPACTED_TAGS, {"pulsar/compactedTopic": "persistent://t/n/a"}),
        (COMPACTED, COMPACTED_TAGS, {"application": "other"}),
        (COMPACTED, COMPACTED_TAGS, {"pulsar/managed-ledger": "t/n/persistent/a+b"}),
        (BUCKET, BUCKET_TAGS, {"pulsar/delayedIndexCursor": "sub%2Fone"}),
        (BUCKET, BUCKET_TAGS, {"pulsar/delayedIndexTopic": "persistent://t/n/a+b"}),
        (BUCKET, COMPACTED_TAGS, {}),
        (COMPACTED, BUCKET_TAGS, {}),
        (DATA, COMPACTED_TAGS, {}),
        (CURSOR, BUCKET_TAGS, {}),
    ],
)
def test_another_topic_subscription_or_kind_is_a_mismatch(
    deletion: PendingDeletion, tags: dict[str, str], change: dict[str, str]
) -> None:
    assert custom_metadata_mismatch(deletion.holder(), _bytes({**tags, **change})) is not None


@pytest.mark.parametrize(
    "tags",
    [
        {**COMPACTED_TAGS, "pulsar/compactedTopic": ""},
        {**COMPACTED_TAGS, "pulsar/compactedTopic": "persistent://t"},
        {**BUCKET_TAGS, "pulsar/delayedIndexCursor": ""},
        {"application": "pulsar", "component": "delayed-index-bucket"},
    ],
)
def test_impossible_custom_metadata_names_no_holder(tags: dict[str, str]) -> None:
    assert identify_holder(_bytes(tags)) is None
