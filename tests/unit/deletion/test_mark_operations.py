"""Trimming and removal: what is marked, when the broker is asked, and what the store refuses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.deletion.node_check import NodeCheck
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.phase_one.removal import Removal
from bookwarden.deletion.phase_one.trimming import StoreTrim, consumed_ledgers
from bookwarden.deletion.phase_two.copy_deletion import copy_of
from bookwarden.errors import (
    LostRaceError,
    NotFoundError,
    OutcomeUnknownError,
    PulsarConflictError,
    RefusedError,
    StoreUnavailableError,
)
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.managed_ledger import LedgerInfo, Position, VersionedManagedLedger, as_uuid
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerReading, LedgerState, StoredLedger
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import managed_ledger_pb2, schema_locator_pb2
from servers.population import Population
from unit.deletion.test_mark import Sender

TOPIC = "persistent://t/n/a"
NODE = "/managed-ledgers/t/n/persistent/a"


def managed_ledger(ids: Sequence[int], **properties: str) -> managed_ledger_pb2.ManagedLedgerInfo:
    info = managed_ledger_pb2.ManagedLedgerInfo()
    for ledger_id in ids:
        info.ledgerInfo.add(ledgerId=ledger_id, entries=10, size=1000, timestamp=1000 + ledger_id)
    for key, value in properties.items():
        info.properties.add(key=key.replace("__", "."), value=value)
    return info


def offloaded(info: managed_ledger_pb2.ManagedLedgerInfo, index: int, *, only: bool) -> None:
    context = info.ledgerInfo[index].offloadContext
    context.uidMsb, context.uidLsb, context.complete, context.bookkeeperDeleted = 5, -6, True, int(only)
    context.driverMetadata.name = "aws-s3"
    context.driverMetadata.properties.add(key="bucket", value="b")


class Place:
    """A topic in a store in memory, no broker, and the parts of phase one over it."""

    def __init__(self, info: managed_ledger_pb2.ManagedLedgerInfo | None = None) -> None:
        self.store = MemoryStore()
        self.managed_ledgers = ManagedLedgers(self.store)
        self.sender = Sender()
        self.marker = Marker(self.sender)
        self.loaded_by: str | None = None
        Population(self.store)
        if info is not None:
            self.store.create(NODE, info.SerializeToString(), make_parents=True)

    def owner(self, topic: str) -> str | None:
        return self.loaded_by

    def cursor(self, name: str, position: tuple[int, int], ledger_id: int = -1) -> None:
        info = managed_ledger_pb2.ManagedCursorInfo(
            cursorsLedgerId=ledger_id, markDeleteLedgerId=position[0], markDeleteEntryId=position[1]
        )
        self.store.create(f"{NODE}/{name}", info.SerializeToString())

    def buckets(self, name: str, ids: Collection[int]) -> None:
        info = managed_ledger_pb2.ManagedCursorInfo(cursorsLedgerId=-1)
        for ledger_id in ids:
            key = f"#pulsar.internal.delayed.bucket_{ledger_id}_{ledger_id}"
            info.cursorProperties.add(name=key, value=str(ledger_id))
        self.store.create(f"{NODE}/{name}", info.SerializeToString())

    def compacted(self, ledger_id: int) -> None:
        info = managed_ledger_pb2.ManagedCursorInfo(cursorsLedgerId=-1)
        info.properties.add(name="CompactedTopicLedger", value=ledger_id)
        self.store.create(f"{NODE}/__compaction", info.SerializeToString())

    def listed(self) -> list[int]:
        read = self.managed_ledgers.read("t/n/persistent/a")
        assert read is not None
        return [ledger.ledger_id for ledger in read.info.ledgers]

    def trim(self) -> StoreTrim:
        catalog = BookKeeperCatalog(self.store)
        return StoreTrim(self.marker, self.managed_ledgers, self, catalog, NodeCheck(AsListed(self.store)))


class AsListed(BookKeeperCatalog):
    """Has every ledger, still open, of whatever list."""

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        metadata = LedgerMetadata(3, LedgerState.OPEN, 1, 1, 1, ())
        return [StoredLedger(one, "/", 0, 0, b"", metadata) for one in ledger_ids]


class Broker:
    """What a broker is asked for; `answer` is raised instead of doing it."""

    def __init__(self, sender: Sender, positions: Mapping[str, Position] | None = None) -> None:
        self.asked: list[str] = []
        self.marked_before: list[int] = []
        self.answer: Exception | None = None
        self.compacted: frozenset[int] = frozenset()
        self._sender = sender
        self._positions = positions or {}

    def partitions(self, topic: str) -> list[str]:
        return [topic]

    def mark_delete_positions(self, topic: str) -> Mapping[str, Position]:
        return self._positions

    def compacted_ledgers(self, topic: str) -> frozenset[int]:
        if self.answer is not None:
            raise self.answer
        return self.compacted

    def trim(self, topic: str) -> None:
        self._note(f"trim {topic}")

    def delete_topic(self, topic: str, *, force: bool) -> None:
        self._note(f"delete {topic} {force}")

    def delete_subscription(self, topic: str, subscription: str, *, force: bool) -> None:
        self._note(f"unsubscribe {topic} {subscription} {force}")

    def delete_schema(self, topic: str) -> None:
        self._note(f"delete schema of {topic}")

    def _note(self, what: str) -> None:
        self.marked_before = [mark.ledger_id for mark in self._sender.sent]
        if self.answer is not None:
            raise self.answer
        self.asked.append(what)


def kinds(marks: Sequence[PendingDeletion]) -> list[tuple[int, LedgerType]]:
    return [(mark.ledger_id, mark.ledger_type) for mark in marks]


def ledgers(*ids: int) -> list[LedgerInfo]:
    return [LedgerInfo(number, entries=10) for number in ids]


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([], [1, 2]),
        ([(2, 9)], [1, 2]),
        ([(2, 8)], [1]),
        ([(3, 9), (1, 4)], []),
        ([(1, -1)], []),
        ([(3, 9)], [1, 2]),
    ],
)
def test_consumed_are_those_behind_the_slowest_subscription_but_never_the_last(positions, expected):
    found = consumed_ledgers(ledgers(1, 2, 3), [Position(*position) for position in positions])
    assert [ledger.ledger_id for ledger in found] == expected


def test_store_trim_removes_the_confirmed_in_front_of_the_first_that_is_not():
    place = Place(managed_ledger([1, 2, 3, 4]))
    place.cursor("s", (4, 3))
    place.sender.refused = [2]
    result = place.trim().plan(TOPIC).carry_out()
    assert place.listed() == [2, 3, 4]
    assert result.removed == (1,)
    assert not result.done
    assert "ledger 2" in result.problem


def test_store_trim_takes_nothing_when_nothing_is_confirmed():
    place = Place(managed_ledger([1, 2]))
    place.sender.refused = [1]
    result = place.trim().plan(TOPIC).carry_out()
    assert place.listed() == [1, 2]
    assert (result.done, result.removed) == (False, ())


def test_store_trim_is_refused_while_a_broker_owns_the_topic():
    place = Place(managed_ledger([1, 2]))
    place.loaded_by = "pulsar://broker-1:6650"
    with pytest.raises(RefusedError, match="broker-1"):
        place.trim().plan(TOPIC)
    assert place.sender.sent == []


def test_store_trim_looks_again_for_an_owner_after_the_sends():
    place = Place(managed_ledger([1, 2]))

    class BrokerComes(Sender):
        def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
            place.loaded_by = "pulsar://late:6650"
            return super().send_all(marks)

    place.marker = Marker(BrokerComes())
    result = place.trim().plan(TOPIC).carry_out()
    assert place.listed() == [1, 2]
    assert not result.done
    assert "late" in result.problem


@pytest.mark.parametrize("force", [False, True])
def test_the_last_ledger_is_never_removed(force):
    place = Place(managed_ledger([1, 2]))
    with pytest.raises(RefusedError, match="ledger 2 is the last"):
        place.trim().plan(TOPIC, [1, 2], force=force)
    assert place.listed() == [1, 2]


def test_the_last_ledger_is_the_one_with_the_largest_id_wherever_an_offload_has_put_it():
    place = Place(managed_ledger([24, 22, 23]))
    with pytest.raises(RefusedError, match="ledger 24 is the last"):
        place.trim().plan(TOPIC, [24], force=True)
    assert place.trim().plan(TOPIC, force=True).carry_out().removed == (22, 23)
    assert place.listed() == [24]


def test_a_ledger_of_which_the_list_says_something_unknown_stays():
    place = Place(managed_ledger([2, 3, 4]))
    node = place.store.get(NODE)
    place.store.put(NODE, b"\x0a\x07\x08\x01\x7a\x03new" + node.value, node.version)
    with pytest.raises(RefusedError, match="something of ledger 1 that"):
        place.trim().plan(TOPIC, [1], force=True)
    # And so do those behind it, which would lie inside the list.
    assert place.trim().plan(TOPIC).carry_out().removed == ()
    assert place.listed() == [1, 2, 3, 4]


def test_a_ledger_that_a_subscription_needs_leaves_only_by_force():
    place = Place(managed_ledger([1, 2, 3]))
    place.cursor("s", (2, 4))
    with pytest.raises(RefusedError, match=r"ledger 2 .* has not acknowledged"):
        place.trim().plan(TOPIC, [1, 2])
    assert place.trim().plan(TOPIC, [1, 2], force=True).carry_out().removed == (1, 2)
    assert place.listed() == [3]


@pytest.mark.parametrize("force", [False, True])
def test_ledgers_leave_the_list_from_its_front_alone(force):
    place = Place(managed_ledger([1, 2, 3]))
    with pytest.raises(RefusedError, match=r"ledger 1 of .* is older than some of those, and stays"):
        place.trim().plan(TOPIC, [2], force=force)
    assert (place.sender.sent, place.listed()) == ([], [1, 2, 3])


def test_a_cursor_that_was_not_closed_cleanly_tells_nothing():
    place = Place(managed_ledger([1, 2, 3]))
    place.cursor("s%2Fx", (3, 4), ledger_id=77)
    with pytest.raises(RefusedError, match=r"'s/x' .* was not closed cleanly"):
        place.trim().plan(TOPIC)
    assert place.sender.sent == []


def test_only_ledgers_closed_before_the_moment_are_trimmed():
    place = Place(managed_ledger([1, 2, 3]))
    assert place.trim().plan(TOPIC, before_ms=1002).carry_out().removed == (1,)


def test_a_plan_sends_and_changes_nothing():
    place = Place(managed_ledger([1, 2]))
    plan = place.trim().plan(TOPIC)
    assert kinds(plan.marks) == [(1, LedgerType.LEDGER)]
    assert (place.listed(), place.sender.sent) == ([1, 2], [])


def test_both_copies_of_an_offloaded_ledger_are_marked_also_where_the_broker_says_that_one_was_deleted():
    info = managed_ledger([1, 2, 3])
    offloaded(info, 0, only=False)
    offloaded(info, 1, only=True)
    place = Place(info)
    result = place.trim().plan(TOPIC).carry_out()
    offload, ledger = LedgerType.OFFLOAD_LEDGER, LedgerType.LEDGER
    assert kinds(result.plan.marks) == [(1, ledger), (1, offload), (2, ledger), (2, offload)]
    context = result.plan.marks[1].offload_context
    assert context is not None
    assert (context.msb, context.lsb, context.driver_name, dict(context.metadata)) == (5, -6, "aws-s3", {"bucket": "b"})


def test_an_attempt_that_failed_and_legacy_segments_are_marked_too():
    info = managed_ledger([1, 2, 3])
    offloaded(info, 0, only=False)
    info.ledgerInfo[0].offloadContext.complete = False
    segment = info.ledgerInfo[1].offloadContext.offloadSegment.add(uidMsb=7, uidLsb=8, complete=True)
    segment.driverMetadata.name = "S3"
    result = Place(info).trim().plan(TOPIC).carry_out()
    offload, ledger = LedgerType.OFFLOAD_LEDGER, LedgerType.LEDGER
    assert kinds(result.plan.marks) == [(1, ledger), (1, offload), (2, ledger), (2, offload)]
    whole, part = copy_of(result.plan.marks[1]), copy_of(result.plan.marks[3])
    assert (whole.segment, whole.uuid) == (False, as_uuid(5, -6))
    assert (part.segment, part.uuid, part.location.driver) == (True, as_uuid(7, 8), "S3")


def test_a_shadow_topic_is_refused_in_both_modes():
    place = Place(managed_ledger([1, 2], PULSAR__SHADOW_SOURCE="persistent://t/n/source"))
    broker = Broker(place.sender)
    with pytest.raises(RefusedError, match="shadow of persistent://t/n/source"):
        place.trim().plan(TOPIC)
    with pytest.raises(RefusedError, match="shadow"):
        Removal(place.marker, place.managed_ledgers, broker).plan_trim(TOPIC)
    with pytest.raises(RefusedError, match="shadow"):
        Removal(place.marker, place.managed_ledgers, broker).plan_topic(TOPIC)
    assert (broker.asked, place.sender.sent) == ([], [])


def test_what_is_not_there_is_not_found():
    with pytest.raises(NotFoundError, match="-partition-N"):
        Place().trim().plan(TOPIC)
    with pytest.raises(NotFoundError, match="ledger 9"):
        Place(managed_ledger([1, 2])).trim().plan(TOPIC, [9])


def test_store_trim_without_two_phase_deletion_would_leak_and_is_refused():
    place = Place(managed_ledger([1, 2]))
    place.marker = Marker(place.sender, enabled=False)
    with pytest.raises(RefusedError, match="topic_two_phase_deletion_enabled"):
        place.trim().plan(TOPIC)


class FailingUpdate(ManagedLedgers):
    """Fails the update, before or after it reached the store."""

    def __init__(self, store: MemoryStore, error: Exception, *, applied: bool) -> None:
        super().__init__(store)
        self._error = error
        self._applied = applied

    def remove_ledgers(self, managed_ledger: VersionedManagedLedger, ids: Collection[int]) -> None:
        if self._applied:
            super().remove_ledgers(managed_ledger, ids)
        raise self._error


@pytest.mark.parametrize(
    ("error", "applied", "done"),
    [
        (LostRaceError("changed"), False, False),
        (StoreUnavailableError("gone"), False, False),
        (OutcomeUnknownError("broke"), False, False),
        (OutcomeUnknownError("broke"), True, True),
    ],
)
def test_an_update_that_fails_after_the_sends_is_told_and_loses_nothing(error, applied, done):
    place = Place(managed_ledger([1, 2]))
    place.managed_ledgers = FailingUpdate(place.store, error, applied=applied)
    result = place.trim().plan(TOPIC).carry_out()
    assert [mark.ledger_id for mark in place.sender.sent] == [1]
    assert result.done is done
    assert result.removed == ((1,) if done else ())
    assert place.listed() == ([2] if applied else [1, 2])


def test_the_broker_is_asked_only_after_the_marks():
    place = Place(managed_ledger([1, 2, 3]))
    broker = Broker(place.sender, {"s": Position(2, 3)})
    (plan,) = Removal(place.marker, place.managed_ledgers, broker).plan_trim(TOPIC)
    result = plan.carry_out()
    assert result.done
    assert broker.asked == [f"trim {TOPIC}"]
    assert broker.marked_before == [1]


def test_a_failed_mark_keeps_the_broker_from_being_asked():
    place = Place(managed_ledger([1, 2, 3]))
    place.sender.refused = [2]
    broker = Broker(place.sender)
    (plan,) = Removal(place.marker, place.managed_ledgers, broker).plan_trim(TOPIC)
    result = plan.carry_out()
    assert (result.done, broker.asked) == (False, [])
    assert "1 of 2 marks failed" in result.problem


def test_a_broker_that_refuses_is_told_by_the_result():
    place = Place(managed_ledger([1]))
    broker = Broker(place.sender)
    broker.answer = PulsarConflictError("Topic has active producers")
    result = Removal(place.marker, place.managed_ledgers, broker).plan_topic(TOPIC).carry_out()
    assert (result.done, result.problem) == (False, "Topic has active producers")
    assert kinds(place.sender.sent) == [(1, LedgerType.LEDGER)]


def test_without_two_phase_deletion_the_broker_does_it_alone():
    place = Place(managed_ledger([1]))
    broker = Broker(place.sender)
    result = Removal(Marker(place.sender, enabled=False), place.managed_ledgers, broker).plan_topic(TOPIC).carry_out()
    assert (result.done, broker.asked, place.sender.sent) == (True, [f"delete {TOPIC} False"], [])


def test_deleting_a_topic_marks_its_cursors_and_schema_too():
    place = Place(managed_ledger([1, 2]))
    place.cursor("s%2Fx", (1, 0), ledger_id=30)
    place.cursor("closed", (1, 0))
    locator = schema_locator_pb2.SchemaLocator()
    for version, ledger_id in enumerate((40, 41)):
        entry = locator.index.add(version=version, hash=b"")
        entry.position.ledgerId, entry.position.entryId = ledger_id, 0
        locator.info.CopyFrom(entry)
    place.store.create("/schemas/t/n/a", locator.SerializeToString(), make_parents=True)
    result = (
        Removal(place.marker, place.managed_ledgers, Broker(place.sender)).plan_topic(TOPIC, force=True).carry_out()
    )
    assert {(mark.component, mark.ledger_id, mark.cursor_name, mark.schema_id) for mark in result.plan.marks} == {
        (LedgerComponent.MANAGED_LEDGER, 1, None, None),
        (LedgerComponent.MANAGED_LEDGER, 2, None, None),
        (LedgerComponent.MANAGED_CURSOR, 30, "s/x", None),
        (LedgerComponent.SCHEMA_STORAGE, 40, None, "t/n/a"),
        (LedgerComponent.SCHEMA_STORAGE, 41, None, "t/n/a"),
    }


def test_deleting_a_subscription_marks_its_cursor_only():
    place = Place(managed_ledger([1, 2]))
    place.cursor("s", (1, 0), ledger_id=30)
    place.cursor("other", (1, 0), ledger_id=31)
    removal = Removal(place.marker, place.managed_ledgers, Broker(place.sender))
    assert [mark.ledger_id for mark in removal.plan_subscription(TOPIC, "s").marks] == [30]
    with pytest.raises(NotFoundError, match="'none'"):
        removal.plan_subscription(TOPIC, "none")
    with pytest.raises(NotFoundError, match="no schema"):
        removal.plan_schema(TOPIC)


def test_deleting_a_topic_marks_its_compacted_ledgers_and_its_buckets_too():
    place = Place(managed_ledger([1]))
    place.buckets("s%2Fx", {50, 51})
    place.compacted(60)
    broker = Broker(place.sender)
    broker.compacted = frozenset({61})
    result = Removal(place.marker, place.managed_ledgers, broker).plan_topic(TOPIC).carry_out()
    assert {(mark.component, mark.ledger_id, mark.cursor_name) for mark in result.plan.marks} == {
        (LedgerComponent.MANAGED_LEDGER, 1, None),
        (LedgerComponent.DELAYED_INDEX_BUCKET, 50, "s/x"),
        (LedgerComponent.DELAYED_INDEX_BUCKET, 51, "s/x"),
        (LedgerComponent.COMPACTED_LEDGER, 60, None),
        (LedgerComponent.COMPACTED_LEDGER, 61, None),
    }
    assert all(mark.holder() for mark in result.plan.marks)


def test_a_broker_that_does_not_name_the_compacted_ledger_leaves_the_nodes_word():
    place = Place(managed_ledger([1]))
    place.compacted(60)
    broker = Broker(place.sender)
    broker.answer = PulsarConflictError("cannot be loaded")
    plan = Removal(place.marker, place.managed_ledgers, broker).plan_topic(TOPIC)
    assert [mark.ledger_id for mark in plan.marks] == [1, 60]


def test_deleting_the_compaction_marks_the_compacted_ledger():
    place = Place(managed_ledger([1]))
    place.compacted(60)
    place.cursor("s", (1, 0), ledger_id=30)
    removal = Removal(place.marker, place.managed_ledgers, Broker(place.sender))
    assert [mark.ledger_id for mark in removal.plan_subscription(TOPIC, "__compaction").marks] == [60]
