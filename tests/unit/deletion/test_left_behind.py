"""Ledgers that their topic says BookKeeper has no more: deleted only when the offloaded copy is proven to be whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bookwarden.cli.ledger import reference_data, reference_pairs
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.explaining import Explanation
from bookwarden.deletion.journal.entries import JournalEntry, JournalRecord
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.managed_ledger import as_uuid
from bookwarden.ledgers.offloaded_copies import (
    AbsentCopy,
    CopyDeletion,
    CopyIndex,
    CopyReading,
    DamagedIndex,
    OffloadedCopy,
    PresentCopy,
    StoreLocation,
    UnreadableCopy,
)
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import managed_ledger_pb2
from servers.population import OLD_MS, Population
from servers.sweep_parts import explain_with, sweep_with

NOW = 2_000_000_000.0
POLICY = DeletionPolicy(retry_delay=600, max_retries=3, still_referenced_grace=600)
HOLDER = ManagedLedgerHolder("t/ns/persistent/orders")
SHADOW = ManagedLedgerHolder("t/ns/persistent/shadow")
UUID = as_uuid(-5, 6)
LOCATION = StoreLocation("S3", "offload", "r", "http://s3")
LENGTH = 1000
INDEX = CopyIndex(LENGTH, 9, LENGTH)
WHOLE = PresentCopy(HOLDER.name, LENGTH, INDEX)


class Copies:
    """The store: what it says of the one copy, and what happens while it is asked."""

    def __init__(self) -> None:
        self.reading: CopyReading = WHOLE
        self.asked: list[OffloadedCopy] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        return [UnreadableCopy("only the data was asked for") for _ in copies]

    def examine_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        self.asked += copies
        self.meanwhile()
        return [self.reading for _ in copies]

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        raise AssertionError("no copy is to be deleted")


class Recorder:
    """The journal and the outbox."""

    def __init__(self) -> None:
        self.records: list[JournalRecord] = []
        self.reasons: list[str] = []

    def append(self, records: Sequence[JournalRecord]) -> None:
        self.records += records

    def retry(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        self.reasons.append(reason)

    def delay(self, received: ReceivedMark, delay_s: float, verified_ms: int, reason: str) -> None:
        self.reasons.append(reason)

    def wait(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        self.reasons.append(reason)

    def give_up(self, received: ReceivedMark, outcome: Outcome, reason: str) -> None:
        self.reasons.append(reason)

    def flush(self) -> None:
        pass


class World:
    """Ledger 1, of ten entries, is in BookKeeper, and its topic says that only the offloaded copy is left."""

    def __init__(self, *, dry_run: bool = False, policy: DeletionPolicy = POLICY, shadows: bool = False) -> None:
        self.store = MemoryStore()
        self.population = Population(self.store)
        self.population.ledger(1, HOLDER)
        self.copies = Copies()
        self.recorder = Recorder()
        self.sweep_object = sweep_with(
            BookKeeperCatalog(self.store),
            MetadataReferences([self.store], shadow_refresh=1.0 if shadows else 0.0),
            self.recorder,
            self.recorder,
            policy,
            SweepLimits(1000, 0.0),
            copies=self.copies,
            dry_run=dry_run,
            clock=lambda: NOW,
        )

    def lists(
        self, holder: ManagedLedgerHolder = HOLDER, *, source: str = "", entries: int = 10, **changed: Any
    ) -> None:
        """Let the topic list the ledger; ``changed`` are fields of its offloadContext that are not as usual."""
        node = managed_ledger_pb2.ManagedLedgerInfo()
        ledger = node.ledgerInfo.add(ledgerId=1, entries=entries, size=LENGTH, timestamp=OLD_MS)
        fields = {"uidMsb": -5, "uidLsb": 6, "complete": True, "bookkeeperDeleted": 1} | changed
        for name, value in fields.items():
            setattr(ledger.offloadContext, name, value)
        driver = ledger.offloadContext.driverMetadata
        driver.name = "S3"
        for key, value in (("bucket", "offload"), ("region", "r"), ("serviceEndpoint", "http://s3")):
            driver.properties.add(key=key, value=value)
        if source:
            node.properties.add(key="PULSAR.SHADOW_SOURCE", value=source)
        self.write(node.SerializeToString(), holder)

    def write(self, value: bytes, holder: ManagedLedgerHolder = HOLDER) -> None:
        path = f"/managed-ledgers/{holder.name}"
        found = self.store.get(path)
        if found is None:
            self.store.create(path, value, make_parents=True)
        else:
            self.store.put(path, value, found.version)

    def outcome(self, *, attempts: int = 0, age: float = 3600) -> Outcome:
        pending = PendingDeletion(HOLDER.name, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, 1)
        published = int((NOW - age) * 1000)
        properties = {"bookwarden.first-read": str(published)}
        if attempts:
            properties["RECONSUMETIMES"] = str(attempts)
        received = ReceivedMark("topic", "1:1:0", HOLDER.name, b"", properties, published, mark=pending)
        ((row,),) = self.sweep_object.process([received], "run/0")
        return row.outcome

    def explained(self) -> Explanation:
        references = MetadataReferences([self.store])
        now_ms = int(NOW * 1000)
        return explain_with(1, BookKeeperCatalog(self.store), references, POLICY, now_ms, copies=self.copies)

    @property
    def kept(self) -> bool:
        return self.store.get("/ledgers/00/0000/L0001") is not None


def test_a_ledger_whose_offloaded_copy_is_whole_goes_with_its_metadata_in_the_journal() -> None:
    world = World()
    world.lists()
    assert world.outcome(age=1) is Outcome.DELETED
    assert not world.kept
    assert world.copies.asked == [OffloadedCopy(1, HOLDER.name, UUID, LOCATION)]
    (record,) = world.recorder.records
    assert isinstance(record, JournalEntry)
    assert record.ledger_id == 1


@pytest.mark.parametrize(
    ("reading", "told"),
    [
        (replace(WHOLE, index=None), "no index"),
        (replace(WHOLE, index=DamagedIndex("it is empty")), "index is damaged: it is empty"),
        (replace(WHOLE, index=replace(INDEX, data_bytes=LENGTH + 1)), "of 1,001 bytes of data, and its data has 1,000"),
        (replace(WHOLE, index=replace(INDEX, length=LENGTH - 1)), "of a ledger of 999 bytes"),
        (replace(WHOLE, index=replace(INDEX, last_entry_id=8)), "ends with entry 8, and the ledger with 9"),
        (replace(WHOLE, data_bytes=LENGTH - 1), "999 bytes, and the ledger 1,000"),
        (replace(WHOLE, owner="t/ns/persistent/other"), "names t/ns/persistent/other"),
        (AbsentCopy(), "no data"),
        (UnreadableCopy("403 Forbidden"), "403 Forbidden"),
    ],
    ids=[
        "no index",
        "empty index",
        "of other data",
        "of less",
        "without its end",
        "short data",
        "another's",
        "absent",
        "unreadable",
    ],
)
def test_without_a_whole_copy_the_ledger_is_kept_and_the_reason_told(reading: CopyReading, told: str) -> None:
    world = World()
    world.lists()
    world.copies.reading = reading
    assert world.outcome() is Outcome.RETRY
    assert world.outcome(attempts=3) is Outcome.GAVE_UP
    assert world.kept
    assert world.recorder.records == []
    assert all(told in reason for reason in world.recorder.reasons)


@pytest.mark.parametrize(
    "changed",
    [
        {"complete": False},
        {"bookkeeperDeleted": 2},
        {"uidMsb": 0, "uidLsb": 0},
        {"entries": 9},
    ],
    ids=["not complete", "a state that is not known", "no UUID", "fewer entries"],
)
def test_a_list_that_does_not_tell_of_a_whole_copy_keeps_the_ledger_as_any_other(changed: dict[str, Any]) -> None:
    world = World()
    world.lists(**changed)
    assert world.outcome() is Outcome.STILL_REFERENCED
    assert world.kept
    assert world.copies.asked == []


def test_fields_that_are_not_known_keep_the_ledger() -> None:
    world = World()
    world.lists()
    found = world.store.get(f"/managed-ledgers/{HOLDER.name}")
    assert found is not None
    node = managed_ledger_pb2.ManagedLedgerInfo.FromString(found.value)
    # Field 9 of the context, a number.
    node.ledgerInfo[0].offloadContext.MergeFromString(b"\x48\x01")
    world.write(node.SerializeToString())
    assert world.outcome() is not Outcome.DELETED
    assert world.kept


def test_segments_of_the_former_streaming_offload_keep_the_ledger() -> None:
    world = World()
    world.lists()
    found = world.store.get(f"/managed-ledgers/{HOLDER.name}")
    assert found is not None
    node = managed_ledger_pb2.ManagedLedgerInfo.FromString(found.value)
    node.ledgerInfo[0].offloadContext.offloadSegment.add(uidMsb=1, uidLsb=2, complete=True)
    world.write(node.SerializeToString())
    assert world.outcome() is Outcome.STILL_REFERENCED
    assert world.kept


@pytest.mark.parametrize("change", [{"uidMsb": 7}, {"bookkeeperDeleted": 0}, {"complete": False}])
def test_a_list_that_changes_while_the_copy_is_looked_at_keeps_the_ledger(change: dict[str, Any]) -> None:
    world = World()
    world.lists()
    world.copies.meanwhile = lambda: world.lists(**change)
    assert world.outcome() is Outcome.RETRY
    assert "changed" in world.recorder.reasons[0]
    assert world.kept


def test_a_list_that_cannot_be_read_again_keeps_the_ledger() -> None:
    world = World()
    world.lists()
    world.copies.meanwhile = lambda: world.write(b"\x0a\xff\xff")
    assert world.outcome() is Outcome.RETRY
    assert world.kept


def test_a_shadow_topic_that_lists_the_ledger_otherwise_keeps_it() -> None:
    for changed, expected in (({"bookkeeperDeleted": 0}, Outcome.STILL_REFERENCED), ({}, Outcome.DELETED)):
        world = World(shadows=True)
        world.lists()
        world.lists(SHADOW, source="persistent://t/ns/orders", **changed)
        assert world.outcome() is expected
        assert world.kept is (expected is Outcome.STILL_REFERENCED)


def test_explain_looks_at_the_copy_and_tells_what_the_sweep_would_do() -> None:
    world = World()
    world.lists()
    found = world.explained()
    assert (found.outcome, found.reason) == (Outcome.DELETED, "its offloaded copy is there and whole")
    assert "left it behind" in found.verdict
    assert dict(reference_pairs(found))["names it"] == "yes, as offloaded and deleted from BookKeeper"
    assert reference_data(found)["left_behind"] is True
    world.copies.reading = replace(WHOLE, index=None)
    assert (world.explained().outcome, "no index" in world.explained().reason) == (Outcome.RETRY, True)
    world.lists(complete=False)
    found = world.explained()
    assert (found.outcome, "complete" in found.reason) == (Outcome.STILL_REFERENCED, True)
    assert world.kept


def test_a_dry_run_proves_and_deletes_nothing() -> None:
    world = World(dry_run=True)
    world.lists()
    assert world.outcome() is Outcome.WOULD_DELETE
    world.copies.reading = AbsentCopy()
    assert world.outcome() is Outcome.RETRY
    assert world.kept
    assert world.recorder.records == []


def test_the_ledger_waits_its_delay_before_the_copy_is_looked_at() -> None:
    world = World(policy=replace(POLICY, delete_delay=60))
    world.lists()
    assert world.outcome() is Outcome.DELAYED
    assert world.copies.asked == []
