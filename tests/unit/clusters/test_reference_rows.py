"""The rows that a scan makes of nodes: which of them say that a ledger must be there, one by one and together."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.clusters.pulsar.references.nodes import cursor_node, managed_ledger_node
from bookwarden.clusters.pulsar.references.pieces import TOPICS, ReferencePiece, ReferencePieces
from bookwarden.clusters.pulsar.references.rows import rows_of
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.listing import ListedReference
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.memory import MemoryStore
from bookwarden.pipelines.columns.topics import TopicRows
from bookwarden.wire.envelope import Compression, wrap
from bookwarden.wire.pb import managed_ledger_pb2
from bookwarden.wire.protobuf import encode_varint

SAMPLES = json.loads((Path(__file__).parents[2] / "data/pulsar_4_0_8_nodes.json").read_text())["samples"]
RECORDED = [
    base64.b64decode(value)
    for sample in SAMPLES
    for path, value in sample["nodes"].items()
    if path.startswith("/managed-ledgers/") and path.count("/") == 5
]
COMPACTED, CURSORS_OWN = 7, 8


@pytest.mark.parametrize(("cursors_ledger", "gone"), [(CURSORS_OWN, True), (-1, False)])
def test_the_compacted_ledger_in_a_cursors_node_need_not_exist_while_the_cursors_ledger_is_open(
    cursors_ledger: int, gone: bool
) -> None:
    cursor = managed_ledger_pb2.ManagedCursorInfo(cursorsLedgerId=cursors_ledger)
    cursor.properties.add(name="CompactedTopicLedger", value=COMPACTED)
    node = cursor_node("t/n/persistent/topic", "__compaction")
    rows = list(rows_of(node, node.read(Versioned(cursor.SerializeToString(), 0, 0), "zk:a")))
    found = {row.ledger_id: (row.place, row.gone) for row in rows if row.ledger_id is not None}
    assert found.pop(COMPACTED) == (PlaceKind.COMPACTED.value, gone)
    assert found == ({} if cursors_ledger == -1 else {CURSORS_OWN: (PlaceKind.CURSOR.value, False)})


def topic_of(*ids: int, **more: object) -> managed_ledger_pb2.ManagedLedgerInfo:
    topic = managed_ledger_pb2.ManagedLedgerInfo(**more)  # type: ignore[arg-type]  # free-form fields
    for ledger_id in ids:
        topic.ledgerInfo.add(ledgerId=ledger_id, entries=7, size=ledger_id * 1000, timestamp=1_700_000_000_000)
    return topic


def rows_together(values: list[bytes]) -> list[list[ListedReference] | None]:
    """Read topics together; None for each that was left to be read by itself."""
    reader = TopicRows("zk:a")
    nodes = [managed_ledger_node(f"t/n/persistent/topic-{number}") for number in range(len(values))]
    taken = reader(nodes, values)
    rows = [ListedReference(**row) for table in reader.tables for row in table.to_pylist()]
    assert {row.holder for row in rows} <= {node.name for node, was in zip(nodes, taken, strict=True) if was}
    return [
        [row for row in rows if row.holder == node.name] if was_taken else None
        for node, was_taken in zip(nodes, taken, strict=True)
    ]


def rows_by_itself(value: bytes, number: int) -> list[ListedReference]:
    node = managed_ledger_node(f"t/n/persistent/topic-{number}")
    references = node.read(Versioned(value, 0, 0), "zk:a")
    assert references.doubt is None
    return list(rows_of(node, references))


def check_together(values: list[bytes]) -> None:
    for number, rows in enumerate(rows_together(values)):
        assert rows is None or rows == rows_by_itself(values[number], number)


def test_usual_topics_are_read_together() -> None:
    values = [topic_of(9, 8, 2**40).SerializeToString(), topic_of(0, 4).SerializeToString()]
    assert RECORDED
    check_together(values + RECORDED)
    assert [rows and [row.ledger_id for row in rows] for row, rows in enumerate(rows_together(values))] == [
        [8, 9, 2**40],
        [0, 4],
    ]


def test_a_topic_with_more_than_ledgers_is_read_by_itself() -> None:
    offloaded, shadow, described = topic_of(1), topic_of(1), topic_of(1, 2)
    offloaded.ledgerInfo[0].offloadContext.bookkeeperDeleted = 1
    shadow.properties.add(key="PULSAR.SHADOW_SOURCE", value="persistent://t/n/source")
    described.ledgerInfo[1].properties.add(key="a", value="b")
    topics = [offloaded, shadow, described, topic_of(terminatedPosition={"ledgerId": 1, "entryId": 2}), topic_of(-1)]
    values = [*(topic.SerializeToString() for topic in topics), b"", b"\x0a\x00", b"\xff"]
    values += [wrap(topic_of(1).SerializeToString(), Compression.ZSTD), topic_of(*range(1, 1000)).SerializeToString()]
    usual = topic_of(3).SerializeToString()
    assert rows_together([usual, *values, usual])[1:-1] == [None] * len(values)
    check_together([usual, *values, usual])


numbers = st.sampled_from([0, 1, 127, 128, 2**31, 2**56, 2**63 - 1, 2**63, 2**64 - 1]).map(encode_varint)
tags = st.sampled_from([0x08, 0x10, 0x18, 0x20, 0x28, 0x50, 0x09, 0x0A, 0x2A, 0x32, 0x00, 0x0B, 0x88])
ledgers = st.lists(st.builds(lambda tag, number: bytes([tag]) + number, tags, numbers), max_size=5).map(b"".join)
whole_ledgers = st.builds(lambda ledger_id, more: b"\x08" + ledger_id + more, numbers, ledgers)
topic_fields = st.one_of(
    whole_ledgers.map(lambda inner: b"\x0a" + encode_varint(len(inner)) + inner),
    st.sampled_from([b"\x20\x05", b"\x22\x01a", b"\x12\x00", b"\x1a\x00", b"\x08\x01", b"\x0a\x02"]),
)


@settings(max_examples=500)
@given(st.lists(st.lists(topic_fields, max_size=4).map(b"".join), min_size=1, max_size=5))
def test_topics_of_any_fields_are_read_together_as_by_themselves(values: list[bytes]) -> None:
    check_together(values)


@settings(max_examples=300)
@given(st.sampled_from([*RECORDED, topic_of(5, 300, 2**40).SerializeToString()]), st.data())
def test_damaged_topics_are_read_together_as_by_themselves(value: bytes, data: st.DataObject) -> None:
    damaged = bytearray(value)
    for _ in range(data.draw(st.integers(1, 3)) if value else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    check_together([bytes(damaged), cut, value])


def test_a_piece_counts_the_nodes_that_were_read_together_and_has_no_rows_of_them() -> None:
    store = MemoryStore()
    for name, topic in {"usual": topic_of(1, 2), "ended": topic_of(3, terminatedPosition={"ledgerId": 3})}.items():
        store.create(f"/managed-ledgers/t/n/persistent/{name}", topic.SerializeToString(), make_parents=True)
    store.create("/managed-ledgers/t/n/persistent/usual/s", b"\x08\x07")
    references, piece = ReferencePieces({"zk:a": store}), ReferencePiece("zk:a", TOPICS, "t/n/persistent")
    alone, topics = references.read(piece), TopicRows("zk:a")
    together = references.read(piece, topics)
    assert together._replace(rows=[]) == alone._replace(rows=[])
    rows = [ListedReference(**row) for table in topics.tables for row in table.to_pylist()]
    assert [row.ledger_id for row in rows] == [1, 2]
    assert sorted(rows + together.rows) == sorted(alone.rows)
    assert [doubt.path for doubt in together.doubts] == ["/managed-ledgers/t/n/persistent/ended"]
