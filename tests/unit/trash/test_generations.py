"""Records of the trash by the life of the topic that they are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.errors import FormatError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.trash import ClearedCursor, FormerNode, FormerPolicies, Generation, TrashRecord
from bookwarden.trash.generations import (
    PAUSE_MS,
    REPEATED_MS,
    UNKNOWN_LIFE,
    FoundRecord,
    TrashedGeneration,
    generations,
    partitioned_node,
)

TOPIC = "t/n/persistent/a"
PATH = "/bookwarden/trash/records/b1.example:8080-0123abcd/0/0"


def node(created: int, part: int = 1, parts: int = 1, value: bytes = b"x") -> FormerNode:
    return FormerNode(value, 0, created, created, part, parts)


def topic(created: int, deleted: int, name: str = TOPIC, data: Sequence[int] = ()) -> TrashRecord:
    return TrashRecord(name, deleted, created, data=tuple(data), node=node(created))


def trim(created: int, time: int, *ids: int) -> TrashRecord:
    return TrashRecord(TOPIC, time, created, data=ids, entries=tuple(str(one).encode() for one in ids))


def cursor(name: str, created: int, deleted: int) -> TrashRecord:
    return TrashRecord(TOPIC, deleted, created, name, node=node(created))


def schema(deleted: int, name: str = TOPIC, created: int = 1) -> TrashRecord:
    return TrashRecord(name, deleted, created, None, "t/n/a", schemas=(50,), node=node(created))


def found(*records: TrashRecord, live: dict[str, int] | None = None) -> list[TrashedGeneration]:
    return generations([FoundRecord(record, PATH) for record in records], live or {})


def test_each_life_has_what_was_dropped_in_it() -> None:
    day = 86_400_000
    first, second = 1000, day
    records = [
        *(trim(first, 2000, 5, 6), cursor("s", 1100, 3 * 3600_000 - 1), topic(first, 3 * 3600_000)),
        *(cursor("s", second + 1, 2 * day - 1), topic(second, 2 * day, data=[9]), schema(2 * day - 2)),
    ]
    newer, older = found(*records)
    assert (newer.generation, older.generation) == (Generation(TOPIC, second), Generation(TOPIC, first))
    assert (list(newer.cursors), newer.schema, newer.trims, newer.ledger_ids) == (["s"], records[-1], (), {9, 50})
    assert (list(older.cursors), older.schema, older.ledger_ids) == (["s"], None, {5, 6})
    assert older.trims == (records[0],)
    assert (newer.dropped_ms, newer.brokers) == (2 * day, ("b1.example:8080",))


def test_a_schema_is_of_the_first_end_after_it_and_of_each_partition() -> None:
    names = [f"{TOPIC}-partition-{number}" for number in range(3)]
    later = 10 * PAUSE_MS
    ends = [topic(10, 1000 + number, name) for number, name in enumerate(names)]
    again = [topic(later, later + 1000 + number, name) for number, name in enumerate(names)]
    first, second = schema(990), schema(later + 990, created=later)
    for one in found(*ends, *again, first, second):
        assert one.schema == (first if one.generation.created_ms == 10 else second)
    assert found(first)[0].generation == Generation(TOPIC, UNKNOWN_LIFE)


def test_where_a_cursor_was_is_known_of_the_delete_after_it_alone() -> None:
    end = 10 * REPEATED_MS
    moved = [replace(cursor("s", 10, end - ago), position=Position(5, ago)) for ago in (REPEATED_MS + 1, 90_000, 9)]
    others = replace(cursor("s", 11, end - 90_001), position=Position(4, 0)), replace(moved[1], cursor="other")
    gone = cursor("s", 10, end)
    replaced = replace(gone, node=node(10, value=b"y"))
    for deleted, before in ((gone, None), (replaced, b"x")):
        (one,) = found(*moved, *others, deleted, topic(9, end + 1))
        # The delete was repeated, which found it at the end.
        assert one.cursors == {"s": replace(deleted, cleared=ClearedCursor(Position(5, 90_000), before))}
        assert (one.removed, len(one.found)) == ({}, 7)
    assert found(*moved, live={TOPIC: 9}) == []
    (one,) = found(*moved[:1], gone, live={TOPIC: 9})
    assert one.removed == {"s": gone}


def test_a_subscription_that_was_removed_before_is_none_that_went_with_the_topic() -> None:
    end = 10 * PAUSE_MS
    chain = [cursor(f"c{number}", 10, end - number * PAUSE_MS) for number in range(3)]
    before = [cursor("removed", 10, end - 4 * PAUSE_MS), cursor("c1", 10, 20), cursor("removed", 10, 30)]
    (one,) = found(topic(5, end), *chain, *before)
    assert set(one.cursors) == {"c0", "c1", "c2"}
    assert one.removed == {"removed": before[0]}


def test_what_a_live_topic_dropped_is_of_its_life() -> None:
    records = [cursor("s", 2500, 2600), topic(1000, 2000), trim(2400, 2700, 8)]
    newer, older = found(*records, live={TOPIC: 2400})
    assert newer.generation == Generation(TOPIC, 2400)
    assert (newer.topic, newer.trims, list(newer.removed)) == (None, (records[2],), ["s"])
    assert older.topic == records[1]
    # Without it nothing says whose the cursor is; one that is older than all lives is of none.
    (none,) = found(cursor("s", 2500, 2600))
    assert none.generation == Generation(TOPIC, UNKNOWN_LIFE)


def test_a_cursor_that_a_restore_made_right_before_its_topic_is_of_that_life() -> None:
    restored = [cursor("s", 5000, 9000), topic(5003, 9001)]
    for earlier in ((), (topic(1000, 2000),)):
        newer, *_ = found(*restored, *earlier)
        assert (newer.generation.created_ms, set(newer.cursors)) == (5003, {"s"})
    # One that was gone before that life began is not of it, nor one of a life that had not ended.
    newer, older = found(cursor("s", 500, 900), topic(1000, 2000))
    assert (newer.cursors, newer.removed, older.generation.created_ms) == ({}, {}, UNKNOWN_LIFE)
    newer, older = found(cursor("s", 1500, 2500), topic(1000, 2000), topic(2100, 3000))
    assert (set(newer.cursors), set(older.cursors)) == (set(), {"s"})
    # Another partition that began at the same time has an end of its own.
    parts = [f"{TOPIC}-partition-{number}" for number in range(2)]
    own = replace(cursor("s", 5000, 9000), managed_ledger=parts[0])
    ended = [topic(1000, 9001, parts[0]), topic(5003, 9500, parts[0]), topic(1000, 2000, parts[1])]
    lives = {one.generation.created_ms: one for one in found(own, *ended) if one.managed_ledger == parts[0]}
    assert (set(lives[1000].cursors), set(lives[5003].cursors)) == ({"s"}, set())


def test_a_divided_node_is_put_together_and_one_that_lacks_a_part_is_named() -> None:
    parts = [TrashRecord(TOPIC, 9, 5, data=(number,), node=node(5, number, 2, bytes([number]))) for number in (1, 2)]
    (whole,) = found(*parts)
    assert whole.topic is not None
    assert whole.topic.node is not None
    assert (whole.topic.node.value, whole.topic.data, len(whole.found)) == (b"\1\2", (1, 2), 2)
    (broken,) = found(parts[1])
    assert (broken.topic, broken.broken, len(broken.found)) == (None, (parts[1],), 1)


_names = st.sampled_from([TOPIC, f"{TOPIC}-partition-0", "t/n/persistent/b"])
_times = st.integers(1, 10 * PAUSE_MS)
_records = st.one_of(
    st.builds(topic, _times, _times, _names),
    st.builds(trim, _times, _times, st.integers(1, 99)),
    st.builds(cursor, st.sampled_from("xyz"), _times, _times),
    # Of an unloaded topic brokers remove ledgers before their nodes.
    st.builds(lambda time, created: TrashRecord(TOPIC, time, created, data=(3,)), _times, _times),
    st.builds(lambda time, created: TrashRecord(TOPIC, time, created, "x", cursors=(4,)), _times, _times),
    st.builds(schema, _times, st.just(TOPIC)),
)


@given(st.lists(_records, max_size=12), st.dictionaries(_names, _times))
def test_every_record_is_somewhere_and_copies_change_nothing(records: list[TrashRecord], live: dict[str, int]) -> None:
    made = found(*records, live=live)
    assert {one.record for trashed in made for one in trashed.found} == set(records)
    assert len({trashed.generation for trashed in made}) == len(made)
    twice = found(*records, *reversed(records), live=live)
    strip = [(one.generation, one.topic, one.trims, dict(one.cursors), dict(one.removed), one.schema) for one in made]
    assert strip == [
        (one.generation, one.topic, one.trims, dict(one.cursors), dict(one.removed), one.schema) for one in twice
    ]
    for trashed in made:
        assert not set(trashed.cursors) & set(trashed.removed)
        of_topics = [one.record for one in trashed.found if one.record.generation is not None]
        assert all(record.generation == trashed.generation for record in of_topics)


def test_a_partitioned_topic_is_as_before_its_delete() -> None:
    first, second = (topic(5, 90 + one, f"{TOPIC}-partition-{one}") for one in range(2))
    # A separate configuration store has its node elsewhere.
    assert partitioned_node(found(first, second)) == b'{"partitions":2}'
    node = b'{"partitions":3,"deleted":true,"properties":{"a":"b"}}'
    kept = found(replace(first, partitioned=b'{"partitions":9}'), replace(second, partitioned=node))
    assert partitioned_node(kept) == b'{"partitions":3,"deleted":false,"properties":{"a":"b"}}'
    assert partitioned_node(found(topic(5, 90))) is None
    assert partitioned_node([]) is None
    with pytest.raises(FormatError, match="partitioned topic"):
        partitioned_node(found(replace(first, partitioned=b"5")))


def test_a_record_that_is_there_twice_has_what_was_added_to_one_of_them() -> None:
    policies = FormerPolicies({"persistent://t/n/a": {"r": ("consume",)}})
    for records in ([topic(5, 90), replace(topic(5, 90), policies=policies)],) * 2:
        records.reverse()
        (one,) = found(*records)
        assert one.topic is not None
        assert one.topic.policies == policies
    whole = replace(topic(5, 90), node=node(5, 1, 2, b"a"), policies=policies, partitioned=b"{}")
    (one,) = found(whole, replace(topic(5, 90), node=node(5, 2, 2, b"b")))
    assert one.topic is not None
    assert (one.topic.policies, one.topic.partitioned) == (policies, b"{}")
