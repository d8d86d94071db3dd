"""The sweep's part in the trash, on a store in memory: what leaves it, when, and who may put more into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.disk_space import DiskSpace
from bookwarden.errors import LostRaceError, PulsarError, RefusedError, StoreError
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.ledgers.received import DELAY_TIME, ReceivedMark
from bookwarden.ledgers.trash import FormerNode, KeepRule, TrashLease, TrashRecord
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.wrappers import ForwardingStore
from bookwarden.trash.keeper import LEASE_S, SPACE_WAIT_S, LeaseWatch, TrashKeeper
from bookwarden.trash.lease import LeaseConditions, judge_backlog, judge_disks
from bookwarden.wire.broker_marks import DELETION_TOPIC_NODE, MARKING_BROKERS, encode_deletion_topic
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wire.trash import TRASH_LEASE, TRASH_RECORDS, decode_lease, decode_records, encode_records, restore_node

FOLDER = f"{TRASH_RECORDS}/b1:8080-0123abcd"
TOPIC = "persistent://t/n/deletion"
RULES = (KeepRule("t/*", 3600, 0),)


class Topic:
    """The deletion topic; ledgers in ``refused`` are not confirmed."""

    def __init__(self) -> None:
        self.refused: set[int] = set()
        self.ids: list[int] = []
        self.down = False

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        if self.down:
            raise PulsarError("no broker")
        self.ids += [mark.ledger_id for mark in marks]
        return ["refused" if mark.ledger_id in self.refused else None for mark in marks]


class World:
    """A keeper with a clock of its own, at second 10,000."""

    def __init__(self, store: Any = None, rules: Sequence[KeepRule] = RULES, max_bytes: int = 10**9) -> None:
        self.memory = MemoryStore()
        node = encode_deletion_topic(TOPIC, 0, "{}", "s", retry_topic="r", dlq_topic="d")
        self.memory.create(DELETION_TOPIC_NODE, node, make_parents=True)
        self.store = store(self.memory) if store else self.memory
        self.topic = Topic()
        self.now_s = 10_000.0
        self.well = True
        self.conditions = LeaseConditions()
        self.keeper = TrashKeeper(
            *(self.store, Marker(self.topic), TOPIC, rules, max_bytes, "me@here"),
            conditions=lambda: self.conditions if self.well else LeaseConditions("it is behind"),
            clock=lambda: self.now_s,
        )

    def put(self, number: int, *records: TrashRecord, folder: str = FOLDER) -> None:
        path = f"{folder}/{number // 1000}/{number}"
        node = self.memory.get(path)
        if node is None:
            self.memory.create(path, encode_records(records), make_parents=True)
        else:
            self.memory.put(path, encode_records([*decode_records(node.value), *records]), node.version)

    def lease(self) -> TrashLease | None:
        node = self.memory.get(TRASH_LEASE)
        return None if node is None else decode_lease(node.value)

    def left(self) -> list[int]:
        found: list[int] = []
        for folder in self.memory.children_of(TRASH_RECORDS):
            for block in self.memory.children_of(f"{TRASH_RECORDS}/{folder}"):
                for name in self.memory.children_of(f"{TRASH_RECORDS}/{folder}/{block}"):
                    node = self.memory.get(f"{TRASH_RECORDS}/{folder}/{block}/{name}")
                    assert node is not None
                    found += [one for each in decode_records(node.value) for one in each.ledger_ids]
        return sorted(found)


def entry(ledger_id: int, size: int = 100) -> bytes:
    return pb.ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_id, entries=1, size=size, timestamp=5).SerializeToString()


def trim(at_s: int, *ids: int, topic: str = "a", made: int = 1, size: int = 100) -> TrashRecord:
    entries = tuple(entry(one, size) for one in ids)
    return TrashRecord(f"t/n/persistent/{topic}", at_s * 1000, made, data=ids, entries=entries)


def deleted(at_s: int, *ids: int, topic: str = "a", made: int = 1, cursor: str | None = None) -> TrashRecord:
    node = FormerNode(b"value", 3, made, made)
    if cursor is not None:
        return TrashRecord(f"t/n/persistent/{topic}", at_s * 1000, made, cursor, cursors=ids, node=node)
    return TrashRecord(f"t/n/persistent/{topic}", at_s * 1000, made, data=ids, node=node)


def test_what_is_due_is_marked_and_then_taken_out() -> None:
    world = World()
    world.put(0, trim(9_300, 1, 2), deleted(9_900, 5, cursor="sub"), trim(9_500, 3))
    world.put(1, deleted(6_000, 7, topic="b"))
    state = world.keeper.run()
    assert world.topic.ids == [7, 1, 2]
    assert world.left() == [3, 5]
    assert (state.records, state.released, state.size, state.oldest_ms) == (2, 2, 100, 9_500_000)
    assert state.oldest_s(world.now_s) == 500
    assert world.memory.get(f"{FOLDER}/0/1") is None
    world.now_s = 14_000
    assert world.keeper.run().records == 0
    assert sorted(world.topic.ids[3:]) == [3, 5]
    assert world.memory.children_of(TRASH_RECORDS) == []


def test_the_schema_of_partitions_that_are_being_put_back_stays_too() -> None:
    world = World()
    world.put(
        0, TrashRecord("t/n/persistent/a", 6_000_000, 5, None, "t/n/a", schemas=(9,)), deleted(6_000, 7, topic="b")
    )
    world.memory.create(restore_node("t/n/persistent/a-partition-1"), b"{}", make_parents=True)
    world.keeper.run()
    assert (world.left(), world.topic.ids) == ([9], [7])


def test_what_is_being_put_back_stays_beyond_its_time_and_keeps_no_lease_back() -> None:
    world = World()
    world.put(0, deleted(6_000, 5, cursor="sub"), deleted(6_000, 7), trim(6_000, 3, topic="b"))
    world.memory.create(restore_node("t/n/persistent/a"), b"{}", make_parents=True)
    assert world.keeper.run().released == 1
    assert (world.left(), world.topic.ids) == ([5, 7], [3])
    assert world.lease() is not None
    world.memory.delete_many([(restore_node("t/n/persistent/a"), 0)])
    assert world.keeper.run().released == 2
    assert world.left() == []


def test_a_trim_is_kept_as_long_as_its_topic_that_was_deleted_after_it() -> None:
    world = World()
    world.put(0, trim(9_500, 1), trim(9_500, 2, made=2))
    assert world.keeper.run().released == 0
    world.now_s = 10_050
    world.put(1, deleted(9_990, 3))
    assert world.keeper.run().released == 0
    world.now_s = 10_200
    world.keeper.run()
    assert world.topic.ids == [2]
    world.now_s = 9_500 + 3_600
    world.keeper.run()
    assert world.topic.ids == [2, 1]


def test_a_topic_that_is_deleted_may_end_the_time_of_its_trims() -> None:
    world = World(rules=(KeepRule("t/n", 60, 3600),))
    world.put(0, trim(9_000, 1))
    assert world.keeper.run().released == 0
    world.put(1, deleted(9_990, 2))
    assert world.keeper.run().released == 1
    assert world.topic.ids == [1]


def test_what_is_not_confirmed_stays_and_no_lease_is_renewed_meanwhile() -> None:
    world = World()
    world.put(0, trim(5_000, 1, 2), trim(5_000, 3, topic="b"))
    world.topic.refused = {2}
    world.keeper.run()
    assert world.left() == [1, 2]
    assert world.lease() is None
    world.topic.refused = set()
    assert world.keeper.run().lease_until_ms == int((world.now_s + LEASE_S) * 1000)
    assert world.left() == []
    world.put(5, trim(5_000, 4))
    world.topic.down = True
    with pytest.raises(PulsarError):
        world.keeper.run()
    assert world.left() == [4]


def test_nothing_may_be_marked_so_nothing_leaves() -> None:
    world = World()
    world.keeper.marker = Marker(world.topic, enabled=False)
    world.put(0, trim(5_000, 1))
    with pytest.raises(RefusedError, match="topic_two_phase_deletion_enabled"):
        world.keeper.run()
    assert world.left() == [1]
    assert world.lease() is None


def test_the_lease_is_renewed_while_the_sweep_keeps_up_and_written_seldom() -> None:
    world = World(max_bytes=7)
    world.well = False
    assert world.keeper.run().lease_until_ms == 0
    world.well = True
    world.keeper.run()
    first = TrashLease(10_900_000, "me@here", 7, RULES)
    assert world.lease() == first
    world.now_s += 59
    assert world.keeper.run().lease_until_ms == 10_900_000
    world.now_s += 1
    world.keeper.run()
    assert world.lease() == TrashLease(10_960_000, "me@here", 7, RULES)
    world.well = False
    world.now_s += 500
    assert world.keeper.run().lease_until_ms == 10_960_000
    # Other rules hold at once.
    world.well = True
    world.keeper.rules = (KeepRule("t/*", 60, 60),)
    world.keeper.run()
    lease = world.lease()
    assert lease is not None
    assert lease.keep == world.keeper.rules


def test_without_rules_no_lease_is_written_and_what_is_there_goes_by_those_that_were() -> None:
    world = World(rules=())
    world.put(0, deleted(9_999, 1))
    world.keeper.run()
    assert world.topic.ids == [1]
    assert world.lease() is None
    world = World()
    world.keeper.run()
    lease = world.lease()
    world.keeper.rules = ()
    world.put(0, deleted(9_999, 1))
    world.now_s = 13_000
    assert world.keeper.run().released == 0
    world.now_s = 13_599
    assert world.keeper.run().released == 1
    assert world.lease() == lease


def test_a_shorter_time_holds_for_what_is_there() -> None:
    world = World()
    world.put(0, deleted(9_900, 1))
    assert world.keeper.run().released == 0
    world.keeper.rules = (KeepRule("t/*", 60),)
    assert world.keeper.run().released == 1


@pytest.mark.parametrize("value", [None, b"{}", b'{"format":1,"topic":"persistent://t/n/other"}'])
def test_the_sweep_of_another_topic_than_the_brokers_leaves_the_trash_alone(value: bytes | None) -> None:
    world = World()
    node = world.memory.get(DELETION_TOPIC_NODE)
    assert node is not None
    if value is None:
        world.memory.delete_many([(DELETION_TOPIC_NODE, node.version)])
    else:
        world.memory.put(DELETION_TOPIC_NODE, value, node.version)
    world.put(0, trim(5_000, 1))
    world.keeper.run()
    assert (world.left(), world.lease()) == ([1], None)


def test_beyond_the_size_the_oldest_goes_first() -> None:
    world = World(max_bytes=250)
    world.put(0, trim(9_700, 1), trim(9_900, 2))
    world.put(1, trim(9_600, 3), trim(9_950, 4))
    state = world.keeper.run()
    assert world.topic.ids == [3, 1]
    assert (world.left(), state.size) == ([2, 4], 200)


def test_for_want_of_space_on_bookies_the_oldest_goes_and_nothing_more_is_kept() -> None:
    world = World()
    world.put(0, trim(9_700, 1), trim(9_900, 2))
    world.put(1, trim(9_600, 3), trim(9_950, 4))
    world.conditions = LeaseConditions("a bookie is full", missing_bytes=150)
    state = world.keeper.run()
    assert world.topic.ids == [3, 1]
    assert (state.lease_until_ms, state.conditions) == (0, world.conditions)
    # The space comes back when bookies have collected garbage: until then no more goes.
    world.conditions = LeaseConditions("a bookie is full", missing_bytes=10**9)
    world.now_s += SPACE_WAIT_S - 3_200
    assert world.keeper.run().released == 0
    world.keeper.rules = (KeepRule("t/*", 10**6, 10**6),)
    world.now_s += 3_199
    assert world.keeper.run().released == 0
    world.now_s += 1
    assert world.keeper.run().released == 2
    assert world.lease() is None
    world.conditions = LeaseConditions()
    assert world.keeper.run().lease_until_ms > 0


def test_the_watch_asks_once_a_minute_and_an_error_is_a_reason() -> None:
    asked: list[float] = []
    errors: list[Exception] = []
    behind, now = "", 10_000.0

    def firsts() -> list[ReceivedMark]:
        asked.append(now)
        for error in errors:
            if isinstance(error, PulsarError):
                raise error
        return [mark(now - 20)]

    def disks() -> dict[str, DiskSpace]:
        for error in errors:
            if isinstance(error, StoreError):
                raise error
        return {"b1": DiskSpace(1000, 100)}

    watch = LeaseWatch(3600, 0.15, lambda: behind, firsts, disks, lambda: now)
    full = watch.observe()
    assert (full.missing_bytes, full.overdue_s, full.why_not[:3]) == (50, 20, "b1 ")
    behind, now = "batches fail", now + 59
    assert watch.observe().why_not == "batches fail"
    assert asked == [10_000]
    behind, now = "", now + 1
    errors[:] = [PulsarError("no broker"), StoreError("no store")]
    unknown = watch.observe()
    assert (unknown.missing_bytes, unknown.overdue_s) == (0, 20)
    assert "no broker" in unknown.why_not
    assert "no store" in unknown.why_not
    watch = LeaseWatch(3600, 0, lambda: "", list, disks, lambda: now)
    assert watch.observe() == LeaseConditions()


def mark(published_s: float, delay_s: float = 0) -> ReceivedMark:
    delay = {DELAY_TIME: str(int(delay_s * 1000))}
    return ReceivedMark("t", "1:0:0", None, b"", delay, published_at=int(published_s * 1000))


@pytest.mark.parametrize(
    ("firsts", "overdue_s", "keeps_up"),
    [
        ([], 0, True),
        ([mark(900)], 100, True),
        ([mark(900), mark(899)], 101, False),
        ([mark(500, delay_s=450), mark(900, delay_s=10**6)], 50, True),
        ([mark(2_000)], 0, True),
    ],
)
def test_a_mark_that_is_due_too_long_says_that_the_sweep_is_behind(
    firsts: list[ReceivedMark], overdue_s: float, keeps_up: bool
) -> None:
    found = judge_backlog(firsts, 1_000, 100)
    assert (found.overdue_s, found.why_not == "", found.missing_bytes) == (overdue_s, keeps_up, 0)


@pytest.mark.parametrize(
    ("disks", "missing", "why"),
    [
        ({"a": DiskSpace(1000, 200), "b": DiskSpace(1000, 150)}, 0, ""),
        ({"a": DiskSpace(1000, 149), "b": DiskSpace(2000, 100), "c": DiskSpace(10, 10)}, 201, "b has 5.0%"),
        # One that does not answer is left out while another does.
        ({"a": DiskSpace(1000, 500), "b": DiskSpace(error="no route")}, 0, ""),
        ({"b": DiskSpace(error="no route")}, 0, "no bookie tells its free space (b: no route)"),
        ({}, 0, "none is registered"),
    ],
)
def test_the_bookie_with_the_least_space_decides(disks: dict[str, DiskSpace], missing: int, why: str) -> None:
    found = judge_disks(disks, 0.15)
    assert found.missing_bytes == missing
    assert why in found.why_not
    assert bool(found.why_not) is bool(why)


def test_bookies_are_asked_only_where_there_is_a_trash() -> None:
    asked: list[int] = []
    world = World(rules=())
    world.keeper.conditions = lambda: asked.append(1) or LeaseConditions()  # type: ignore[func-returns-value]
    world.keeper.run()
    assert asked == []
    world.put(0, deleted(9_999, 1))
    world.keeper.run()
    assert asked == [1]


def test_a_node_that_its_broker_adds_to_meanwhile_loses_nothing() -> None:
    class Racing(ForwardingStore):
        raced = False

        def put(self, path: str, value: bytes, version: int) -> int:
            if path.startswith(TRASH_RECORDS) and not self.raced:
                self.raced = True
                world.put(0, trim(9_999, 9))
                raise LostRaceError("another version")
            return self._store.put(path, value, version)

    world = World(Racing)
    world.put(0, trim(5_000, 1), trim(9_999, 2))
    world.keeper.run()
    assert world.left() == [2, 9]


def test_a_node_that_cannot_be_read_is_kept_and_holds_up_no_other() -> None:
    world = World()
    world.memory.create(f"{FOLDER}/0/0", b'{"format":3}', make_parents=True)
    world.put(1, trim(5_000, 1))
    assert world.keeper.run().released == 1
    node = world.memory.get(f"{FOLDER}/0/0")
    assert node is not None
    assert node.value == b'{"format":3}'


def test_the_folder_of_a_live_broker_stays() -> None:
    world = World()
    world.memory.create(f"{MARKING_BROKERS}/b1:8080-0123abcd", b"", make_parents=True)
    world.put(0, trim(5_000, 1))
    world.put(0, trim(5_000, 2), folder=f"{TRASH_RECORDS}/b2:8080-0123abce")
    world.keeper.run()
    assert world.memory.children_of(TRASH_RECORDS) == ["b1:8080-0123abcd"]


def test_only_nodes_that_may_have_changed_are_read_again() -> None:
    class Watched(ForwardingStore):
        def get_many(self, paths: Sequence[str]) -> Any:
            read.extend(path.rpartition("/")[2] for path in paths if path.startswith(TRASH_RECORDS))
            return self._store.get_many(paths)

    read: list[str] = []
    world = World(Watched)
    for number in range(3):
        world.put(number, trim(9_999, number))
    world.keeper.run()
    assert read == ["0", "1", "2"]
    world.put(2, trim(9_999, 8))
    world.put(3, trim(9_999, 9))
    read.clear()
    assert world.keeper.run().records == 5
    assert read == ["2", "3"]
    read.clear()
    world.keeper.run()
    assert read == ["3"]


_RECORDS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 8), st.integers(1, 2), st.sampled_from(["trim", "topic", "sub"])),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(_RECORDS, min_size=1, max_size=4),
    st.lists(st.integers(0, 900), min_size=1, max_size=5),
    st.sets(st.integers(0, 40)),
    st.integers(0, 2_000),
    st.sampled_from([0, 60, 900, 7200]),
    st.sampled_from([0, 60, 7200]),
)
def test_each_ledger_is_marked_once_due_and_never_lost(
    rounds: list[list[tuple[int, int, int, str]]],
    pauses: list[int],
    refused: set[int],
    max_bytes: int,
    deleted_s: int,
    trimmed_s: int,
) -> None:
    """Whatever comes in which order: what left the trash is marked, and what is due leaves it in time."""
    world = World(rules=(KeepRule("t/*", deleted_s, trimmed_s),), max_bytes=max_bytes)
    ids = last = 0
    put: dict[int, TrashRecord] = {}
    for records in rounds:
        for node, ago, life, kind in records:
            ids += 1
            at = int(world.now_s) - 100 * ago
            if kind == "trim":
                record = trim(at, ids, made=life)
            else:
                record = deleted(at, ids, made=life, cursor="sub" if kind == "sub" else None)
            put[ids] = record
            # A broker adds to its last node, or begins another.
            last += node == 3
            world.put(last, record)
        world.topic.refused = refused
        for pause in pauses:
            before = set(world.left())
            state = world.keeper.run()
            left = set(world.left())
            assert before - left <= set(world.topic.ids)
            assert state.records == len(left)
            if not refused:
                assert state.size <= max_bytes
            world.now_s += pause
    assert set(world.topic.ids) | set(world.left()) == set(put)
    for one in world.left():
        assert one in refused or put[one].time_ms + 1000 * max(deleted_s, trimmed_s, 600) > 1000 * (world.now_s - 901)
    world.topic.refused = set()
    world.now_s += 8_000
    world.keeper.run()
    assert world.left() == []
    assert set(world.topic.ids) == set(put)
