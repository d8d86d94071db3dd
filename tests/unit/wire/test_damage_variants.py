"""The variants that `make soak STORM=damage` writes: made from healthy nodes and a seed, and each what it says."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path

import pytest

from bookwarden.errors import FormatError
from bookwarden.ledgers.kinds import BucketHolder, CompactedHolder, CursorHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.pending_deletion import OffloadContext, contexts_of
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.envelope import unwrap
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wire.pb.managed_ledger_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from bookwarden.wire.pb.schema_locator_pb2 import SchemaLocator
from bookwarden.wire.schema_locator import decode_schema_locator
from servers.damage.nodes import (
    Node,
    NodeKind,
    copies_named,
    fields,
    kind_of,
    ledgers_listed,
    ledgers_named,
)
from servers.damage.variants import (
    Damage,
    Exemption,
    Variant,
    exemption_of,
    field_ends,
    in_envelope,
    make_variants,
    variants_of,
)
from servers.population import node_of

SAMPLES = json.loads((Path(__file__).parents[2] / "data/pulsar_4_0_8_nodes.json").read_text())["samples"]
RECORDED = {path: base64.b64decode(value) for sample in SAMPLES for path, value in sample["nodes"].items()}
TOPIC, OTHER = ManagedLedgerHolder("t/n/persistent/a"), ManagedLedgerHolder("t/n/persistent/b")
CURSOR = CursorHolder("t/n/persistent/a", "s")
SCHEMA = SchemaHolder("t/n/a")


def nodes() -> list[Node]:
    """Make healthy nodes of every kind."""
    held = {TOPIC: [88, 91, 95], OTHER: [7, 300], CURSOR: [90], CursorHolder("t/n/persistent/b", "s"): [301]}
    values = [node_of(holder, ids) for holder, ids in {**held, SCHEMA: [5, 6], SchemaHolder("t/n/b"): [8]}.items()]
    older = {node_of(TOPIC, [])[0]: (node_of(TOPIC, [88])[1], node_of(TOPIC, [88, 91])[1])}
    return [Node(path, kind, value, older.get(path, ())) for path, value in values if (kind := kind_of(path))]


def variants_by_damage(node: Node, seeds: int = 40) -> dict[Damage, list[Variant]]:
    made = [variant for seed in range(seeds) for variant in variants_of(node, nodes(), str(seed))]
    return {damage: [variant for variant in made if variant.damage is damage] for damage in Damage}


def differing(one: bytes, other: bytes) -> list[int]:
    """Return how many bits differ in each byte that differs."""
    assert len(one) == len(other)
    return [(a ^ b).bit_count() for a, b in zip(one, other, strict=True) if a != b]


@pytest.mark.parametrize("path", RECORDED)
def test_recorded_nodes_are_read_as_the_product_reads_them(path: str) -> None:
    kind = kind_of(path)
    if kind is None:
        return
    value, _ = unwrap(RECORDED[path])
    found = ledgers_named(path, kind, value)
    if kind is NodeKind.MANAGED_LEDGER:
        info = decode_managed_ledger(value)
        listed = [(one.ledger_id, one.entries or 0, one.size or 0) for one in info.ledgers]
        assert [tuple(one) for one in ledgers_listed(value)] == listed
        contexts = [context for one in info.ledgers for context in contexts_of(one.offload)]
        assert [copy.context for copy in copies_named(value)] == contexts
        assert set(found) == set(info.ledger_ids)
    elif kind is NodeKind.CURSOR:
        cursor = decode_cursor(value)
        own = {cursor.cursors_ledger_id, cursor.compacted_ledger_id, *cursor.delayed_bucket_ids} - {None}
        assert set(found) == own
    else:
        assert set(found) == set(decode_schema_locator(value).ledger_ids)


def test_each_ledger_of_a_node_has_its_holder() -> None:
    path, value = node_of(CompactedHolder(TOPIC.name), [12])
    cursor = ManagedCursorInfo.FromString(value)
    cursor.cursorsLedgerId = 13
    cursor.cursorProperties.add(name="#pulsar.internal.delayed.bucket_1_2", value="14")
    cursor.cursorProperties.add(name="a user's own", value="15")
    found = ledgers_named(path, NodeKind.CURSOR, cursor.SerializeToString())
    assert {number: str(holder) for number, holder in found.items()} == {
        12: str(CompactedHolder(TOPIC.name)),
        13: f"{TOPIC.name}/__compaction",
        14: str(BucketHolder(TOPIC.name, "__compaction")),
    }
    assert ledgers_named("/schemas/t/n/a", NodeKind.SCHEMA, node_of(SCHEMA, [5, 6])[1]) == {5: SCHEMA, 6: SCHEMA}


def test_a_schema_names_its_newest_ledger_outside_of_its_index_too() -> None:
    locator = SchemaLocator.FromString(node_of(SCHEMA, [5, 6])[1])
    locator.info.position.ledgerId = 7
    assert set(ledgers_named("/schemas/t/n/a", NodeKind.SCHEMA, locator.SerializeToString())) == {5, 6, 7}


def test_of_a_number_that_is_there_twice_the_last_one_counts() -> None:
    (_, value) = node_of(CURSOR, [90])
    path = f"/managed-ledgers/{CURSOR}"
    assert set(ledgers_named(path, NodeKind.CURSOR, value + node_of(CURSOR, [91])[1])) == {91}


def test_a_copy_that_is_not_finished_is_no_copy() -> None:
    info = ManagedLedgerInfo.FromString(node_of(TOPIC, [88])[1])
    offload = info.ledgerInfo[0].offloadContext
    offload.uidMsb, offload.uidLsb, offload.driverMetadata.name = -2, 3, "S3"
    assert copies_named(info.SerializeToString()) == []
    offload.complete = True
    (copy,) = copies_named(info.SerializeToString())
    assert copy.context == OffloadContext(-2, 3, "S3")
    name = f"{copy.context.uuid}-ledger-88"
    assert copy.keys == {name, f"{name}-index"}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/managed-ledgers/t/n/persistent/a", NodeKind.MANAGED_LEDGER),
        ("/managed-ledgers/t/c/n/persistent/a", NodeKind.MANAGED_LEDGER),
        ("/managed-ledgers/t/n/persistent/a/s", NodeKind.CURSOR),
        ("/managed-ledgers/t/c/n/persistent/a/s", NodeKind.CURSOR),
        ("/schemas/t/n/a", NodeKind.SCHEMA),
        ("/managed-ledgers/t/n/persistent", None),
        ("/managed-ledgers/t/c/n", None),
        ("/schemas/t/n", None),
    ],
)
def test_the_kind_of_a_node_stands_in_its_path(path: str, kind: NodeKind | None) -> None:
    assert kind_of(path) is kind


def test_what_is_no_message_is_refused() -> None:
    info = ManagedLedgerInfo.FromString(node_of(TOPIC, [88, 300])[1]).SerializeToString()
    assert [field.number for field in fields(info)] == [1, 1]
    for broken in (info[:-1], b"\x08", b"\x00\x01", b"\x0b", b"\x08" + b"\xff" * 10 + b"\x01", b"\x0a\x05ab"):
        with pytest.raises(ValueError):
            fields(broken)


def test_the_ends_of_fields_are_those_of_all_levels() -> None:
    # A list of one ledger (id, entries), then a property ("k", "v").
    assert field_ends(bytes.fromhex("0a0408581003 1a06 0a016b 120176")) == [4, 6, 11, 14]


def test_the_same_seed_makes_the_same_variants_and_another_others() -> None:
    assert make_variants(nodes(), 200, 1) == make_variants(nodes(), 200, 1)
    assert make_variants(nodes(), 200, 1) != make_variants(nodes(), 200, 2)


def test_as_many_are_made_as_asked_for_in_rounds_that_repeat_nothing_that_no_seed_changes() -> None:
    made = make_variants(nodes(), 1000, 1)
    assert len(made) == 1000
    counts = Counter(variant.damage for variant in made)
    assert counts[Damage.EMPTY] == counts[Damage.ENVELOPE] == len(nodes())
    assert counts[Damage.OLDER] == 2
    assert set(counts) == set(Damage)
    assert make_variants([], 10, 1) == []


@pytest.mark.parametrize("node", nodes(), ids=lambda node: node.path)
def test_each_variant_is_what_it_says(node: Node) -> None:
    made = variants_by_damage(node)
    values = {damage: [dict(variant.writes)[node.path] for variant in some] for damage, some in made.items()}
    assert all(value != node.value for some in values.values() for value in some)
    flips = [differing(node.value, value) for value in values[Damage.FLIP]]
    assert {len(flip) for flip in flips} == set(range(1, min(3, len(node.value)) + 1))
    bits = [flip for variant, flip in zip(made[Damage.FLIP], flips, strict=True) if variant.detail.startswith("bits")]
    assert max(map(sum, bits)) == 3
    assert set(values[Damage.TRUNCATE]) == {node.value[:end] for end in field_ends(node.value)[:-1]}
    for value in values[Damage.REPEAT] + values[Damage.REPEAT_LAST]:
        assert len(fields(value)) == len(fields(node.value)) + 1
        assert {one.value for one in fields(value)} == {one.value for one in fields(node.value)}
    assert set(values[Damage.EMPTY]) == {b""}
    assert {unwrap(value)[0] for value in values[Damage.ENVELOPE]} == {node.value}
    for damage in (Damage.SWAP_SAME, Damage.SWAP_OTHER):
        for variant in made[damage]:
            (_, value), (path, own) = variant.writes
            (other,) = [one for one in nodes() if one.path == path]
            assert (value, own) == (other.value, node.value)
            assert (other.kind is node.kind) is (damage is Damage.SWAP_SAME)


def test_every_wrong_envelope_is_made_and_none_can_be_opened_but_one_around_a_cut_value() -> None:
    (node, *_) = nodes()
    made = variants_by_damage(node)[Damage.BROKEN_ENVELOPE]
    assert len({variant.detail.split(" cut by ")[0] for variant in made}) == 8
    for variant in made:
        value = dict(variant.writes)[node.path]
        if variant.detail.startswith("no codec"):
            assert unwrap(value)[0] == node.value[:-1]
        else:
            with pytest.raises(FormatError):
                unwrap(value)


def test_a_right_envelope_is_the_brokers() -> None:
    assert unwrap(in_envelope(b"plain" * 9, "NONE"))[0] == b"plain" * 9


def test_a_list_with_id_and_size_of_one_entry_changed_is_not_counted_and_one_with_the_id_alone_is() -> None:
    (node, *_) = nodes()

    def changed(**values: int) -> Variant:
        info = ManagedLedgerInfo.FromString(node.value)
        for name, value in values.items():
            setattr(info.ledgerInfo[0], name, value)
        return Variant("1", Damage.FLIP, "", node.kind, ((node.path, info.SerializeToString()),))

    assert exemption_of(changed(ledgerId=91), node) is None
    assert exemption_of(changed(size=1, entries=1), node) is None
    assert exemption_of(changed(ledgerId=91, size=1), node) is Exemption.ID_AND_SIZE
    assert exemption_of(changed(ledgerId=91, entries=1), node) is Exemption.ID_AND_SIZE
    info = ManagedLedgerInfo.FromString(node.value)
    # Of two entries, one in each.
    info.ledgerInfo[0].ledgerId, info.ledgerInfo[1].size = 89, 1
    two = Variant("1", Damage.FLIP, "", node.kind, ((node.path, info.SerializeToString()),))
    assert exemption_of(two, node) is None


def test_an_older_value_is_not_counted_for_a_topic_alone_and_a_swap_for_none() -> None:
    other = ManagedLedgerInfo.FromString(node_of(OTHER, [7, 9, 300])[1])
    other.ledgerInfo[0].size = 17
    of_its_length = Node(node_of(OTHER, [])[0], NodeKind.MANAGED_LEDGER, other.SerializeToString())
    for node in nodes():
        healthy = Node(node.path, node.kind, node.value, (node.value[:-1],))
        for variant in variants_of(healthy, [*nodes(), of_its_length], "1"):
            is_exempt = exemption_of(variant, node) is Exemption.OLDER_LIST
            assert is_exempt is (variant.damage is Damage.OLDER and node.kind is NodeKind.MANAGED_LEDGER)
            if variant.damage is Damage.SWAP_SAME:
                assert exemption_of(variant, node) is None
    swap = Variant("1", Damage.SWAP_SAME, "", NodeKind.MANAGED_LEDGER, ((nodes()[0].path, of_its_length.value),))
    assert exemption_of(swap, nodes()[0]) is None


def test_what_is_printed_makes_a_variant_again() -> None:
    variant = make_variants(nodes(), 1, 7)[0]
    text = str(variant)
    for path, value in variant.writes:
        assert f"{path}={value.hex() or '(empty)'}" in text
    (node,) = [one for one in nodes() if one.path == variant.path]
    assert variant in variants_of(node, nodes(), variant.seed)
