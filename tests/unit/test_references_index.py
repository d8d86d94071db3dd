"""The index of references: who names a ledger, and which doubts leave that open."""

from __future__ import annotations

import pytest

from bookwarden.ledgers.holders import BucketHolder, CompactedHolder, CursorHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.managed_ledger import (
    CursorInfo,
    LedgerInfo,
    ManagedLedgerInfo,
    Position,
    SchemaIndexEntry,
    SchemaLocator,
)
from bookwarden.ledgers.references import (
    Doubt,
    Place,
    PlaceKind,
    ReferenceIndex,
    doubt_about_cursor,
    doubt_about_managed_ledger,
    named_by_cursor,
    named_by_managed_ledger,
    named_by_schema,
)

TOPIC, ROOT = "t/n/persistent/a", "zk:one"
ORDERS = Place(PlaceKind.MANAGED_LEDGER, TOPIC, "/managed-ledgers/t/n/persistent/a", ROOT)
OTHER = Place(PlaceKind.MANAGED_LEDGER, "t/n/persistent/b", "/managed-ledgers/t/n/persistent/b", "zk:two")


def places(index: ReferenceIndex, ledger_id: int) -> set[Place]:
    return {reference.place for reference in index.who_names(ledger_id)}


def test_all_places_that_name_a_ledger_are_told_whatever_the_order_of_adding() -> None:
    index = ReferenceIndex()
    index.add(ORDERS, [9, 3, 5])
    assert places(index, 3) == {ORDERS}
    index.add(OTHER, [1, 5])
    assert places(index, 5) == {ORDERS, OTHER}
    assert places(index, 4) == set()
    assert places(index, 2**63 - 1) == set()
    assert len(index) == 5
    assert {reference.ledger_id for reference in index.who_names(5)} == {5}


def test_an_index_of_wanted_ledgers_keeps_no_others() -> None:
    index = ReferenceIndex([5])
    index.add(ORDERS, [9, 3, 5])
    index.add(OTHER, [1])
    assert len(index) == 1
    assert index.is_referenced(5, None) is True
    assert index.is_referenced(9, None) is False


def test_a_ledger_is_unreferenced_only_without_a_doubt_about_its_holder() -> None:
    index = ReferenceIndex()
    index.add(ORDERS, [5])
    holder = ManagedLedgerHolder(TOPIC)
    assert index.is_referenced(6, holder) is False
    index.note(doubt_about_cursor(TOPIC, "s", "/managed-ledgers/t/n/persistent/a/s", ROOT, "broken"))
    assert index.is_referenced(6, holder) is False
    assert index.is_referenced(6, CursorHolder(TOPIC, "s")) is None
    assert index.is_referenced(6, BucketHolder(TOPIC, "s")) is None
    assert index.is_referenced(6, CursorHolder(TOPIC, "other")) is False
    assert index.is_referenced(6, CompactedHolder(TOPIC)) is False
    assert index.is_referenced(6, None) is None
    assert index.is_referenced(5, CursorHolder(TOPIC, "s")) is True


def test_a_topic_that_cannot_be_read_may_be_a_shadow_of_any_other() -> None:
    index = ReferenceIndex()
    index.note(doubt_about_managed_ledger("/managed-ledgers/x", ROOT, "broken"))
    assert index.is_referenced(6, ManagedLedgerHolder(TOPIC)) is None
    assert index.is_referenced(6, SchemaHolder("t/n/a")) is False
    assert [doubt.path for doubt in index.doubts_about(ManagedLedgerHolder("any"))] == ["/managed-ledgers/x"]


def test_a_doubt_about_nobody_in_particular_is_about_every_ledger() -> None:
    index = ReferenceIndex()
    index.note(Doubt("/pulsar/functions/x", ROOT, "broken"))
    assert index.is_referenced(6, SchemaHolder("t/n/a")) is None
    assert index.doubts == index.doubts_about(SchemaHolder("t/n/a"))


def test_the_compaction_cursor_may_name_the_compacted_ledger() -> None:
    doubt = doubt_about_cursor(TOPIC, "__compaction", "/x", ROOT, "broken")
    assert doubt.concerns(CompactedHolder(TOPIC))
    assert not doubt.concerns(CompactedHolder("t/n/persistent/b"))


@pytest.mark.parametrize(
    ("properties", "kind"),
    [({}, PlaceKind.MANAGED_LEDGER), ({"PULSAR.SHADOW_SOURCE": "persistent://t/n/b"}, PlaceKind.SHADOW_TOPIC)],
)
def test_a_managed_ledger_names_its_list(properties: dict[str, str], kind: PlaceKind) -> None:
    info = ManagedLedgerInfo((LedgerInfo(1), LedgerInfo(2)), properties=properties)
    assert list(named_by_managed_ledger(TOPIC, info, "/x", ROOT)) == [(Place(kind, TOPIC, "/x", ROOT), {1, 2})]


def test_a_cursor_names_its_ledger_its_buckets_and_a_compacted_ledger() -> None:
    buckets = {"#pulsar.internal.delayed.bucket_1_2": "12", "#pulsar.internal.delayed.bucket_3_4": "13", "mine": "14"}
    info = CursorInfo(11, properties={"CompactedTopicLedger": 15, "x": 16}, cursor_properties=buckets)
    named = {place.kind: (place.holder, set(ids)) for place, ids in named_by_cursor(TOPIC, "s", info, "/x", ROOT)}
    assert named == {
        PlaceKind.CURSOR: (f"{TOPIC}/s", {11}),
        PlaceKind.COMPACTED: (f"compacted:{TOPIC}", {15}),
        PlaceKind.BUCKET: (f"buckets:{TOPIC}/s", {12, 13}),
    }
    assert list(named_by_cursor(TOPIC, "s", CursorInfo(None), "/x", ROOT)) == []


def test_a_schema_names_the_ledgers_of_all_versions_and_no_placeholder() -> None:
    entries = tuple(SchemaIndexEntry(version, Position(ledger, 0), b"") for version, ledger in enumerate((-1, 21, 22)))
    ((place, ids),) = named_by_schema("t/n/a", SchemaLocator(entries), "/x", ROOT)
    assert (place.holder, ids) == ("schema:t/n/a", {21, 22})
