"""What is left in the outbox of brokers that mark, forwarded without them; killed at each of its calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bookwarden.clusters.pulsar.broker_marks import MarkingBrokers, Outbox
from bookwarden.deletion.phase_one import outbox_drain
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.phase_one.outbox_drain import DrainReport, OutboxDrain
from bookwarden.errors import RefusedError
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    LedgerMetadata,
    LedgerReading,
    LedgerState,
    StoredLedger,
    UnreadableLedger,
)
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.ledgers.trash import TrashRecord
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.wrappers import ForwardingStore
from bookwarden.wire.broker_marks import MARKING_BROKERS, OUTBOX_ROOT
from bookwarden.wire.trash import TRASH_RECORDS, decode_records, encode_records

FOLDER = f"{OUTBOX_ROOT}/b1.example:8080-0123abcd"
OTHER = f"{OUTBOX_ROOT}/b2.example:8080-0123abce"
METADATA = LedgerMetadata(3, LedgerState.CLOSED, 1, 1, 1, ())


def node(*ids: int, copies: Sequence[int] = ()) -> bytes:
    """Return a node that drops data ledgers of one topic, and copies of some of its ledgers."""
    distances = [one - before for before, one in zip((0, *ids), ids, strict=False)]
    drop: dict[str, Any] = {"managedLedger": "t/n/persistent/a", "time": 5, "data": distances}
    drop["copies"] = [[one, f"00000000-0000-0001-0000-{one:012x}", 0] for one in copies]
    return json.dumps({"format": 1, "drops": [drop], "drivers": [{"name": "S3", "metadata": {}}]}).encode()


class Catalog:
    """Has the ledgers that are not ``gone``."""

    def __init__(self, gone: Sequence[int] = (), unknown: Sequence[int] = (), unfinished: Sequence[int] = ()) -> None:
        self._gone, self._unknown, self._unfinished = gone, unknown, unfinished

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        return [self._read(ledger_id) for ledger_id in ledger_ids]

    def _read(self, ledger_id: int) -> LedgerReading:
        if ledger_id in self._gone:
            return AbsentLedger(ledger_id)
        if ledger_id in self._unknown:
            return UnreadableLedger(ledger_id, "damaged")
        stored = StoredLedger(ledger_id, f"/ledgers/{ledger_id}", 0, 0, b"", METADATA)
        return AbsentLedger(ledger_id, (stored,)) if ledger_id in self._unfinished else stored

    def delete_many(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a drain deletes no ledger")


class Topic:
    """The deletion topic; ledgers in ``refused`` are not confirmed."""

    def __init__(self, refused: Sequence[int] = ()) -> None:
        self.refused = refused
        self.marks: list[PendingDeletion] = []

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        self.marks += [mark for mark in marks if mark.ledger_id not in self.refused]
        return ["Timeout" if mark.ledger_id in self.refused else None for mark in marks]

    def has(self) -> set[tuple[LedgerType, int]]:
        return {(mark.ledger_type, mark.ledger_id) for mark in self.marks}


def filled(store: MemoryStore) -> MemoryStore:
    store.create(f"{FOLDER}/0/0", node(1, 2), make_parents=True)
    store.create(f"{FOLDER}/0/7", node(3, copies=[3]))
    store.create(f"{FOLDER}/1/1000", node(4), make_parents=True)
    store.create(f"{OTHER}/0/0", node(5, 6), make_parents=True)
    store.create(MARKING_BROKERS, b"", make_parents=True)
    return store


def drain(store: Any, topic: Any, catalog: Any = None, *, execute: bool = True) -> DrainReport:
    marker = Marker(topic) if execute else None
    return OutboxDrain(MarkingBrokers(store), Outbox(store), catalog or Catalog(), marker).run()


def test_a_plan_says_what_would_be_sent_and_changes_nothing() -> None:
    store, topic = filled(MemoryStore()), Topic()
    report = drain(store, topic, Catalog(gone=[1, 3]), execute=False)
    assert (report.executed, report.nodes, report.gone, report.kept) == (False, 4, 2, [])
    assert report.marks == {LedgerType.LEDGER: 4, LedgerType.OFFLOAD_LEDGER: 1}
    assert topic.marks == []
    assert Outbox(store).size().nodes == 4


def test_what_is_not_gone_is_marked_and_the_folders_are_deleted() -> None:
    store, topic = filled(MemoryStore()), Topic()
    report = drain(store, topic, Catalog(gone=[1, 3], unknown=[2], unfinished=[4]))
    ledgers = {(LedgerType.LEDGER, one) for one in (2, 4, 5, 6)}
    assert topic.has() == {*ledgers, (LedgerType.OFFLOAD_LEDGER, 3)}
    assert {(mark.reason, mark.marked_at) for mark in topic.marks if mark.ledger_id < 5} == {
        ("dropped by broker b1.example", 5)
    }
    assert (report.nodes, report.gone, report.kept) == (4, 2, [])
    assert store.children_of(OUTBOX_ROOT) == []
    assert drain(store, topic).nodes == 0


def test_a_node_of_which_one_mark_is_not_confirmed_is_kept() -> None:
    store, topic = filled(MemoryStore()), Topic(refused=[2])
    report = drain(store, topic)
    assert [(kept.path, kept.reason) for kept in report.kept] == [
        (f"{FOLDER}/0/0", "1 of its 2 marks were not confirmed: Timeout")
    ]
    assert report.marks == {LedgerType.LEDGER: 4, LedgerType.OFFLOAD_LEDGER: 1}
    assert Outbox(store).size().nodes == 1
    topic.refused = ()
    assert drain(store, topic).nodes == 1
    assert store.children_of(OUTBOX_ROOT) == []


def test_a_node_of_another_format_is_kept_and_the_others_are_forwarded() -> None:
    store = filled(MemoryStore())
    store.create(f"{FOLDER}/0/8", b'{"format":2}')
    report = drain(store, Topic())
    assert [kept.path for kept in report.kept] == [f"{FOLDER}/0/8"]
    assert "format 2" in report.kept[0].reason
    assert report.nodes == 4
    assert store.get(f"{FOLDER}/0/8") is not None


@pytest.mark.parametrize("execute", [False, True])
def test_it_is_refused_while_a_broker_with_the_line_lives(execute: bool) -> None:
    store, topic = filled(MemoryStore()), Topic()
    store.create(f"{MARKING_BROKERS}/b1.example:8080-ffff", b"{}")
    with pytest.raises(RefusedError, match=r"b1\.example:8080-ffff"):
        drain(store, topic, execute=execute)
    assert (topic.marks, Outbox(store).size().nodes) == ([], 4)


def test_it_ends_when_a_broker_comes_back_meanwhile() -> None:
    store = filled(MemoryStore())

    class Returning(Topic):
        def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
            store.create(f"{MARKING_BROKERS}/b1.example:8080-ffff", b"{}")
            return super().send_all(marks)

    topic = Returning()
    with pytest.raises(RefusedError, match="lives"):
        drain(store, topic)
    # What was confirmed is done, the rest is the broker's.
    assert {ledger_id for _, ledger_id in topic.has()} == {1, 2, 3}
    assert Outbox(store).size().nodes == 2


def test_marking_turned_off_deletes_nothing() -> None:
    store = filled(MemoryStore())
    off = OutboxDrain(MarkingBrokers(store), Outbox(store), Catalog(), Marker(Topic(), enabled=False))
    with pytest.raises(RefusedError, match="topic_two_phase_deletion_enabled"):
        off.run()
    assert Outbox(store).size().nodes == 4


def test_large_nodes_are_sent_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_drain, "_MARKS_AT_ONCE", 2)
    store, sizes = MemoryStore(), []
    for number in range(5):
        store.create(f"{FOLDER}/0/{number}", node(10 + number), make_parents=True)

    class Sized(Topic):
        def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
            sizes.append(len(marks))
            return super().send_all(marks)

    assert drain(store, Sized()).nodes == 5
    assert sizes == [2, 2, 1]


class Killed(BaseException):
    """The process is gone."""


class Life:
    """Calls until one at which everything stops, before it or after it."""

    def __init__(self, kill_at: int, *, before: bool) -> None:
        self.left = kill_at
        self._before = before

    def call(self, act: Callable[[], Any]) -> Any:
        if self.left < 0:
            raise Killed
        self.left -= 1
        if self.left < 0:
            if not self._before:
                act()
            raise Killed
        return act()


class MortalStore(ForwardingStore):
    """Counts each call, of reads too; what is deleted must have been sent."""

    def __init__(self, inner: MemoryStore, life: Life, topic: Topic) -> None:
        super().__init__(inner)
        self._life, self._topic = life, topic

    def get_many(self, paths: Sequence[str]) -> Any:
        return self._life.call(lambda: self._store.get_many(paths))

    def list_children(self, path: str) -> Any:
        return self._life.call(lambda: self._store.list_children(path))

    def list_many(self, paths: Sequence[str]) -> Any:
        return self._life.call(lambda: self._store.list_many(paths))

    def sync(self) -> None:
        self._life.call(self._store.sync)

    def delete_many(self, expected: Sequence[tuple[str, int]], **options: Any) -> Any:
        for path, _ in expected:
            left = outbox_drain.decode_outbox_node(self._store.get(path).value, "") if path.count("/") == 5 else ()
            assert {(mark.ledger_type, mark.ledger_id) for mark in left} <= self._topic.has()
        return self._life.call(lambda: self._store.delete_many(expected, **options))


class MortalTopic(Topic):
    def __init__(self, life: Life, inner: Topic) -> None:
        super().__init__()
        self._life, self._inner = life, inner

    def send_all(self, marks: Sequence[PendingDeletion]) -> Any:
        # Killed in its midst, a part has arrived.
        self._inner.send_all(marks[: len(marks) // 2])
        return self._life.call(lambda: self._inner.send_all(marks))


@pytest.mark.parametrize("before", [False, True])
def test_killed_at_each_call_the_next_one_does_the_rest(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_drain, "_MARKS_AT_ONCE", 3)
    wanted = {(LedgerType.LEDGER, one) for one in range(1, 7)} | {(LedgerType.OFFLOAD_LEDGER, 3)}
    kills = 0
    while True:
        store, topic = filled(MemoryStore()), Topic()
        life = Life(kills, before=before)
        try:
            drain(MortalStore(store, life, topic), MortalTopic(life, topic))
        except Killed:
            kills += 1
        else:
            assert topic.has() == wanted
            break
        # Whatever is not in the outbox any more was sent.
        named = {
            (mark.ledger_type, mark.ledger_id)
            for folder in Outbox(store).folders()
            for nodes in Outbox(store).read(folder)
            for found in nodes
            for mark in outbox_drain.decode_outbox_node(found.node.value, "")
        }
        assert named | topic.has() == wanted
        report = drain(store, topic)
        assert (report.kept, topic.has(), store.children_of(OUTBOX_ROOT)) == ([], wanted, [])
    assert kills > 25


class TrashingStore(MortalStore):
    """What is to be kept must be in the trash before it leaves the outbox."""

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        self._life.call(lambda: self._store.create(path, value, make_parents=make_parents))

    def delete_many(self, expected: Sequence[tuple[str, int]], **options: Any) -> Any:
        if any(path == f"{FOLDER}/0/9" for path, _ in expected):
            assert trashed(self._store) == {8}
        return self._life.call(lambda: self._store.delete_many(expected, **options))


def trashed(store: Any) -> set[int]:
    found = [
        decode_records(each.node.value)
        for folder in store.children_of(TRASH_RECORDS)
        for nodes in Outbox(store, TRASH_RECORDS).read(folder)
        for each in nodes
    ]
    return {one for records in found for record in records for one in record.ledger_ids}


@pytest.mark.parametrize("before", [False, True])
def test_what_is_kept_goes_into_the_trash_and_is_not_marked(before: bool) -> None:
    kept = encode_records([TrashRecord("t/n/persistent/a", 5, 1, data=(8,))])
    kills = 0
    while True:
        store, topic = filled(MemoryStore()), Topic()
        store.create(f"{FOLDER}/0/9", kept)
        assert drain(store, topic, execute=False).trashed == 1
        assert trashed(store) == set()
        life = Life(kills, before=before)
        try:
            report = drain(TrashingStore(store, life, topic), topic)
        except Killed:
            kills += 1
        else:
            assert (report.trashed, report.kept) == (1, [])
            break
        assert drain(store, topic).kept == []
        assert trashed(store) == {8}
        assert (LedgerType.LEDGER, 8) not in topic.has()
        assert store.children_of(OUTBOX_ROOT) == []
    assert kills > 25
