"""Nodes of the trash, as the jar and the sweep write them: broker/'s OutboxFormatTest has the same text."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.errors import FormatError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.trash import (
    FormerNode,
    Generation,
    KeepRule,
    TrashLease,
    TrashRecord,
    joined,
    namespace_of,
)
from bookwarden.wire.broker_marks import decode_outbox_node
from bookwarden.wire.trash import (
    decode_lease,
    decode_records,
    encode_lease,
    encode_records,
    has_records,
    restore_node,
    without_records,
)

NODE = (
    '{"format":2,"drops":['
    '{"managedLedger":"x/y/persistent/t","time":1700000000000,"created":1600000000000,'
    '"data":[5,2,993],"entries":["CAU=","CAc=","COgH"]},'
    '{"managedLedger":"x/y/persistent/t","cursor":"a%2Fb","time":1700000000001,"created":1600000000001,'
    '"cursors":[9],"buckets":[30,1],"node":{"value":"AAEC","version":3,"created":1600000000001,'
    '"modified":1650000000000}},'
    '{"managedLedger":"x/y/persistent/t","time":1700000000002,"created":1600000000000,'
    '"compacted":[40]},'
    '{"managedLedger":"x/y/persistent/t","time":1700000000003,"created":1600000000002,'
    '"schemas":[50],"schema":{"id":"x/y/t","value":"AA==","version":0,"created":1600000000002,'
    '"modified":1600000000002}},'
    '{"managedLedger":"x/y/persistent/t","cursor":"b","time":1700000000004,"created":1600000000000,'
    '"node":{"value":"AQ==","version":4,"created":1600000000000,"modified":1600000000000},'
    '"position":[5,-1]}],"drivers":[]}'
)
TOPIC = "x/y/persistent/t"
RECORDS = [
    TrashRecord(
        TOPIC, 1700000000000, 1600000000000, data=(5, 7, 1000), entries=(b"\x08\x05", b"\x08\x07", b"\x08\xe8\x07")
    ),
    TrashRecord(
        *(TOPIC, 1700000000001, 1600000000001, "a%2Fb"),
        cursors=(9,),
        buckets=(30, 31),
        node=FormerNode(b"\0\1\2", 3, 1600000000001, 1650000000000),
    ),
    TrashRecord(TOPIC, 1700000000002, 1600000000000, compacted=(40,)),
    TrashRecord(
        *(TOPIC, 1700000000003, 1600000000002, None, "x/y/t"),
        schemas=(50,),
        node=FormerNode(b"\0", 0, 1600000000002, 1600000000002),
    ),
    TrashRecord(
        *(TOPIC, 1700000000004, 1600000000000, "b"),
        node=FormerNode(b"\1", 4, 1600000000000, 1600000000000),
        position=Position(5, -1),
    ),
]
#: The first half of a topic's node.
HALF = replace(RECORDS[2], node=FormerNode(b"\0\1", 7, 1600000000000, 1650000000000, 1, 2))
_times = st.integers(0, 2**53)
_ids = st.lists(st.integers(0, 2**62), unique=True, max_size=5).map(lambda ids: tuple(sorted(ids)))
_nodes = st.builds(FormerNode, st.binary(max_size=50), _times, _times, _times)
_records = st.builds(
    TrashRecord,
    *(st.text(), _times, _times, st.none() | st.text()),
    data=_ids,
    cursors=_ids,
    buckets=_ids,
    compacted=_ids,
    entries=st.lists(st.binary(min_size=1, max_size=20), max_size=3).map(tuple),
    node=st.none() | _nodes,
)


def test_records_are_read_as_the_jar_writes_them() -> None:
    assert decode_records(NODE.encode()) == RECORDS
    assert encode_records(RECORDS).decode() == NODE


@given(st.lists(_records, max_size=5))
def test_records_are_read_as_they_were_written(records: list[TrashRecord]) -> None:
    assert decode_records(encode_records(records)) == records


def test_each_ledger_of_a_record_is_a_mark() -> None:
    marks = [mark for record in RECORDS for mark in record.marks("dropped")]
    assert [(str(mark.holder()), mark.ledger_id, mark.marked_at) for mark in marks] == [
        ("x/y/persistent/t", 5, 1700000000000),
        ("x/y/persistent/t", 7, 1700000000000),
        ("x/y/persistent/t", 1000, 1700000000000),
        ("x/y/persistent/t/a%2Fb", 9, 1700000000001),
        ("buckets:x/y/persistent/t/a%2Fb", 30, 1700000000001),
        ("buckets:x/y/persistent/t/a%2Fb", 31, 1700000000001),
        ("compacted:x/y/persistent/t", 40, 1700000000002),
        ("schema:x/y/t", 50, 1700000000003),
    ]
    compaction = TrashRecord(TOPIC, 5, 1, "__compaction", cursors=(9,), buckets=(30,))
    assert [str(mark.holder()) for mark in compaction.marks("")] == [
        "x/y/persistent/t/__compaction",
        "buckets:x/y/persistent/t/__compaction",
    ]
    assert frozenset().union(*(record.ledger_ids for record in RECORDS)) == {mark.ledger_id for mark in marks}


def test_a_generation_ends_with_its_topics_node() -> None:
    assert [record.deletes_topic for record in (*RECORDS, HALF)] == [False] * 5 + [True]
    generation = Generation(TOPIC, 1600000000000)
    assert [record.generation for record in RECORDS] == [generation, None, generation, None, None]
    part = '"node":{"value":"AAE=","version":7,"created":1600000000000,"modified":1650000000000,"part":[1,2]}'
    assert part in encode_records([HALF]).decode()
    assert decode_records(encode_records([HALF])) == [HALF]


def test_some_records_leave_a_node_and_the_others_stay_as_they_are() -> None:
    fields = json.loads(NODE)
    fields["drops"][1]["new"] = {"in": "a later format"}
    rest = without_records(json.dumps(fields).encode(), {RECORDS[0], *RECORDS[3:]})
    assert rest is not None
    assert json.loads(rest)["drops"] == fields["drops"][1:3]
    assert without_records(rest, set(RECORDS)) is None


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "[]",
        "{}",
        NODE.replace('"format":2', '"format":1'),
        NODE.replace('"created"', '"made"'),
        NODE.replace("AAEC", "A"),
    ],
)
def test_anything_else_is_an_error(broken: str) -> None:
    with pytest.raises(FormatError, match="trash"):
        decode_records(broken.encode())
    with pytest.raises(FormatError, match="trash"):
        without_records(broken.encode(), set())


def test_marks_are_not_sent_of_what_is_kept() -> None:
    """A node of the outbox of the trash's format is not one of marks."""
    with pytest.raises(FormatError, match="format 2 is not 1"):
        decode_outbox_node(NODE.encode(), "")
    assert has_records(NODE.encode())
    assert not has_records(NODE.replace('"format":2', '"format":1').encode())


def test_a_divided_node_is_put_together_once() -> None:
    whole = HALF
    first = replace(whole, node=FormerNode(b"ab", 7, 1, 2, 1, 2), data=(1, 2))
    second = replace(whole, compacted=(), node=FormerNode(b"c", 7, 1, 2, 2, 2), data=())
    more_ids = replace(whole, compacted=(), node=None, data=(3,))
    trim = RECORDS[0]
    found, broken = joined([second, trim, first, more_ids, trim, first])
    assert broken == []
    assert found == [trim, replace(whole, node=FormerNode(b"abc", 7, 1, 2), data=(1, 2, 3))]
    found, broken = joined([first, more_ids, trim])
    assert found == [trim]
    assert set(broken) == {first, more_ids}


LEASE = (
    '{"format":1,"deferUntil":1700000900000,"renewedBy":"me@here","maxBytes":1000,'
    '"keep":[{"namespaces":"x/y*","deletedSeconds":3600,"trimmedSeconds":0},'
    '{"namespaces":"*/*","deletedSeconds":0,"trimmedSeconds":0}]}'
)


def test_the_lease_is_read_as_it_was_written() -> None:
    lease = TrashLease(1700000900000, "me@here", 1000, (KeepRule("x/y*", 3600, 0), KeepRule("*/*", 0, 0)))
    assert encode_lease(lease).decode() == LEASE
    assert decode_lease(LEASE.encode()) == lease


@pytest.mark.parametrize(
    "broken", ["", "[]", "{}", LEASE.replace('"format":1', '"format":2'), LEASE.replace("3600", '"x"')]
)
def test_another_lease_is_an_error(broken: str) -> None:
    with pytest.raises(FormatError, match="lease"):
        decode_lease(broken.encode())


def test_the_first_rule_that_matches_holds_until_the_lease_ends() -> None:
    rules = (KeepRule("x/off", 0, 0), KeepRule("x/*", 60, 5), KeepRule("x/y", 7, 7))
    lease = TrashLease(1000, "", 1, rules)
    assert lease.rule_of(namespace_of("x/y/persistent/a%2Fpersistent%2Fb")) == rules[1]
    assert lease.rule_of("x/off") is None
    assert lease.rule_of("z/y") is None
    assert lease.is_valid(999)
    assert not lease.is_valid(1000)


def test_a_restore_has_one_node() -> None:
    assert restore_node("x/y/persistent/a%2Fb") == "/bookwarden/trash/restores/x%2Fy%2Fpersistent%2Fa%252Fb"
