"""The index of references: who names a ledger, and which doubts leave that open."""

from __future__ import annotations

import pytest

from bookwarden.ledgers.kinds import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    ManagedLedgerHolder,
    PlaceKind,
    SchemaHolder,
)
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
    NodeReferences,
    ReferenceIndex,
    ReferencePlace,
    doubt_about_cursor,
    doubt_about_managed_ledger,
    doubt_about_schemas,
    doubt_about_topics,
    named_by_cursor,
    named_by_managed_ledger,
    named_by_schema,
)
from servers.index_answers import is_referenced

TOPIC, ROOT = "t/n/persistent/a", "zk:one"
ORDERS = ReferencePlace(PlaceKind.MANAGED_LEDGER, TOPIC, "/managed-ledgers/t/n/persistent/a", ROOT)
OTHER = ReferencePlace(PlaceKind.MANAGED_LEDGER, "t/n/persistent/b", "/managed-ledgers/t/n/persistent/b", "zk:two")


def places(index: ReferenceIndex, ledger_id: int) -> set[ReferencePlace]:
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
    assert is_referenced(index, 5, None) is True
    assert is_referenced(index, 9, None) is False


def test_a_ledger_is_unreferenced_only_without_a_doubt_about_its_holder() -> None:
    index = ReferenceIndex()
    index.add(ORDERS, [5])
    holder = ManagedLedgerHolder(TOPIC)
    assert is_referenced(index, 6, holder) is False
    index.note(doubt_about_cursor(TOPIC, "s", "/managed-ledgers/t/n/persistent/a/s", ROOT, "broken"))
    assert is_referenced(index, 6, holder) is False
    assert is_referenced(index, 6, CursorHolder(TOPIC, "s")) is None
    assert is_referenced(index, 6, BucketHolder(TOPIC, "s")) is None
    assert is_referenced(index, 6, CursorHolder(TOPIC, "other")) is False
    assert is_referenced(index, 6, CompactedHolder(TOPIC)) is False
    assert is_referenced(index, 6, None) is None
    assert is_referenced(index, 5, CursorHolder(TOPIC, "s")) is True


def test_a_topic_that_cannot_be_read_may_be_a_shadow_of_any_other() -> None:
    index = ReferenceIndex()
    index.note(doubt_about_managed_ledger("/managed-ledgers/x", ROOT, "broken"))
    assert is_referenced(index, 6, ManagedLedgerHolder(TOPIC)) is None
    assert is_referenced(index, 6, SchemaHolder("t/n/a")) is False
    assert [doubt.path for doubt in index.doubts_about(ManagedLedgerHolder("any"))] == ["/managed-ledgers/x"]


def test_a_doubt_about_nobody_in_particular_is_about_every_ledger() -> None:
    index = ReferenceIndex()
    index.note(Doubt("/pulsar/functions/x", ROOT, "broken"))
    assert is_referenced(index, 6, SchemaHolder("t/n/a")) is None
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
    assert list(named_by_managed_ledger(TOPIC, info, "/x", ROOT)) == [(ReferencePlace(kind, TOPIC, "/x", ROOT), {1, 2})]


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


def test_a_cursors_place_is_called_as_its_holder() -> None:
    ((place, _),) = named_by_cursor(TOPIC, "s%2F1", CursorInfo(11), "/x", ROOT)
    assert place.holder == str(CursorHolder(TOPIC, "s%2F1"))


def test_what_nodes_say_is_found_by_ledger_whenever_it_is_asked() -> None:
    index = ReferenceIndex()
    index.add_node(NodeReferences("/a", ROOT, ((ORDERS, frozenset({1, 2})), (OTHER, frozenset({2})))))
    assert places(index, 2) == {ORDERS, OTHER}
    doubt = doubt_about_cursor(TOPIC, "s", "/b", ROOT, "broken")
    index.add_node(NodeReferences("/b", ROOT, ((OTHER, frozenset({3})),), doubt=doubt))
    assert index.doubts == (doubt,)
    assert places(index, 3) == {OTHER}
    assert len(index) == 4


def test_of_many_nodes_only_the_wanted_ledgers_are_kept() -> None:
    index = ReferenceIndex([7])
    for number in range(2500):
        index.add_node(NodeReferences(f"/{number}", ROOT, ((ORDERS, frozenset({number % 10, 70})),)))
    assert len(index) == 250
    assert len(index.who_names(7)) == 250
    assert index.who_names(70) == ()


def test_an_index_of_nodes_tells_each_roots_word_and_never_takes_unasked_for_absent() -> None:
    index = ReferenceIndex(keep_nodes=True)
    node = NodeReferences("/a", ROOT, ((ORDERS, frozenset({1})), (OTHER, frozenset({2}))))
    index.add_node(node)
    index.note_absent("/b", ROOT)
    assert index.at("/a") == [node]
    assert node.ledger_ids == {1, 2}
    assert index.at("/b") == [None]
    with pytest.raises(KeyError):
        index.at("/c")
    index.note_absent("/a", "zk:two")
    assert index.at("/a") == [node, None]
    with pytest.raises(KeyError):
        index.at("/b")
    assert places(index, 2) == {OTHER}


@pytest.mark.parametrize("namespace", ["t", "t/n"])
def test_a_namespace_that_cannot_be_read_leaves_its_own_topics_open_and_no_others(namespace: str) -> None:
    doubt = doubt_about_topics(namespace, f"/managed-ledgers/{namespace}", ROOT, "no access")
    holders: list[Holder] = [ManagedLedgerHolder(TOPIC), CompactedHolder(TOPIC)]
    assert all(doubt.concerns(one) for one in [*holders, CursorHolder(TOPIC, "s"), BucketHolder(TOPIC, "s"), None])
    others: list[Holder] = [ManagedLedgerHolder("t2/n/persistent/a"), CursorHolder("tt/n/persistent/a", "s")]
    assert not any(doubt.concerns(one) for one in [*others, SchemaHolder("t/n/a")])
    assert doubt.concerns(ManagedLedgerHolder("t/n2/persistent/a")) is (namespace == "t")


def test_a_namespace_whose_schemas_cannot_be_read_leaves_these_open() -> None:
    doubt = doubt_about_schemas("t/n", "/schemas/t/n", ROOT, "no access")
    assert doubt.concerns(SchemaHolder("t/n/a"))
    assert not doubt.concerns(SchemaHolder("t/n2/a"))
    assert not doubt.concerns(ManagedLedgerHolder(TOPIC))
