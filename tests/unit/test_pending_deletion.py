"""Pending deletions: which are possible, and whose metadata decides about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.holders import CursorHolder, Holder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.pending_deletion import LedgerComponent, LedgerType, OffloadContext, PendingDeletion

DATA = PendingDeletion("persistent://t/n/a b", LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, 7)
CURSOR = replace(DATA, component=LedgerComponent.MANAGED_CURSOR, cursor_name="sub/one")
SCHEMA = replace(DATA, component=LedgerComponent.SCHEMA_STORAGE, schema_id="t/n/other")


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
