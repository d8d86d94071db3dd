"""Offloaded copies in the sweep: only what nobody names and is proven to be the holder's goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.journal.entries import CopyEntry, JournalEntry, JournalRecord, decode_record
from bookwarden.deletion.phase_two.copy_deletion import copy_of
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.errors import StoreUnavailableError
from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.managed_ledger import as_uuid
from bookwarden.ledgers.offloaded_copies import (
    LEGACY_SEGMENT,
    AbsentCopy,
    CopyDeletion,
    CopyFate,
    CopyIndex,
    CopyReading,
    OffloadedCopy,
    PresentCopy,
    StoreLocation,
    UnreadableCopy,
)
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import managed_ledger_pb2
from servers.population import OLD_MS, Population
from servers.sweep_parts import sweep_with

NOW = 2_000_000_000.0
POLICY = DeletionPolicy(retry_delay=600, max_retries=3, still_referenced_grace=600)
HOLDER = ManagedLedgerHolder("t/ns/persistent/orders")
OTHER = ManagedLedgerHolder("t/ns/persistent/other")
METADATA = {"bucket": "offload", "region": "r", "serviceEndpoint": "http://s3", "managedLedgerOffloadDriver": "S3"}
CONTEXT = OffloadContext(-5, 6, "S3", METADATA)


class Stores:
    """A store of copies by UUID, each with the owner that it names."""

    def __init__(self) -> None:
        self.owners: dict[UUID, str | None] = {}
        self.looked: list[OffloadedCopy] = []
        self.deleted: list[OffloadedCopy] = []
        self.trouble = ""
        self.unreadable = ""
        self.fate = CopyFate.DELETED

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        self.looked += copies
        if self.trouble or self.unreadable:
            return [UnreadableCopy(self.trouble or self.unreadable) for _ in copies]
        return [PresentCopy(self.owners[c.uuid]) if c.uuid in self.owners else AbsentCopy() for c in copies]

    def examine_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        found = self.read_many(copies)
        return [
            replace(one, data_bytes=1000, index=CopyIndex()) if isinstance(one, PresentCopy) else one for one in found
        ]

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        self.deleted += copies
        if self.trouble:
            return [CopyDeletion(CopyFate.FAILED, self.trouble) for _ in copies]
        for copy in copies:
            self.owners.pop(copy.uuid, None)
        return [CopyDeletion(self.fate) for _ in copies]


class Recorder:
    """The journal and the outbox."""

    def __init__(self) -> None:
        self.records: list[JournalRecord] = []
        self.retried: list[str] = []
        self.delayed: list[float] = []
        self.given_up: list[str] = []
        self.journal_works = True

    def append(self, records: Sequence[JournalRecord]) -> None:
        if not self.journal_works:
            raise StoreUnavailableError("journal: no space")
        self.records += records

    def retry(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        self.retried.append(reason)

    def delay(self, received: ReceivedMark, delay_s: float, verified_ms: int, reason: str) -> None:
        self.delayed.append(delay_s)

    def wait(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        self.delayed.append(delay_s)

    def give_up(self, received: ReceivedMark, outcome: Outcome, reason: str) -> None:
        self.given_up.append(reason)

    def flush(self) -> None:
        pass


class World:
    def __init__(self, *, verify_owner: bool = True, dry_run: bool = False, policy: DeletionPolicy = POLICY) -> None:
        self.store = MemoryStore()
        self.population = Population(self.store)
        self.copies = Stores()
        self.copies.owners[CONTEXT.uuid] = HOLDER.name
        self.recorder = Recorder()
        self.sweep_object = sweep_with(
            BookKeeperCatalog(self.store),
            MetadataReferences([self.store]),
            self.recorder,
            self.recorder,
            policy,
            SweepLimits(1000, 0.0),
            copies=self.copies,
            verify_owner=verify_owner,
            dry_run=dry_run,
            clock=lambda: NOW,
        )

    def sweep(self, *marks: ReceivedMark) -> list[OutcomeRow]:
        return [row for rows in self.sweep_object.process(marks, "run/0") for row in rows]

    def outcomes(self, *marks: ReceivedMark) -> list[Outcome]:
        return [row.outcome for row in self.sweep(*marks)]

    def names(
        self, ledger_id: int, context: OffloadContext | None, *, complete: bool = True, only: bool = False
    ) -> None:
        """Let the holder list the ledger with an offloaded copy."""
        node = managed_ledger_pb2.ManagedLedgerInfo()
        ledger = node.ledgerInfo.add(ledgerId=ledger_id, entries=10, size=1000, timestamp=OLD_MS)
        if context is not None:
            ledger.offloadContext.uidMsb, ledger.offloadContext.uidLsb = context.msb, context.lsb
            ledger.offloadContext.complete, ledger.offloadContext.bookkeeperDeleted = complete, int(only)
        self.store.create(f"/managed-ledgers/{HOLDER.name}", node.SerializeToString(), make_parents=True)


def mark(
    ledger_id: int = 1,
    context: OffloadContext = CONTEXT,
    *,
    holder: ManagedLedgerHolder = HOLDER,
    kind: LedgerType = LedgerType.OFFLOAD_LEDGER,
    attempts: int = 0,
    age: float = 3600,
) -> ReceivedMark:
    offload = context if kind is LedgerType.OFFLOAD_LEDGER else None
    pending = PendingDeletion(holder.name, LedgerComponent.MANAGED_LEDGER, kind, ledger_id, offload_context=offload)
    published = int((NOW - age) * 1000)
    properties = {"bookwarden.first-read": str(published), **({"RECONSUMETIMES": str(attempts)} if attempts else {})}
    return ReceivedMark("topic", f"1:{ledger_id}:0", holder.name, b"", properties, published, mark=pending)


def test_both_copies_go_when_the_ledgers_metadata_and_the_copy_agree() -> None:
    world = World()
    world.population.ledger(1, HOLDER)
    assert world.outcomes(mark(kind=LedgerType.LEDGER), mark()) == [Outcome.DELETED, Outcome.DELETED]
    assert world.copies.owners == {}
    assert len(world.copies.looked) == 1
    assert world.store.get("/ledgers/00/0000/L0001") is None
    # The copy first: were the ledger's metadata to go first and the process to die, its proof would be gone.
    assert [type(record) for record in world.recorder.records] == [CopyEntry, JournalEntry]


def test_a_copy_that_names_another_is_kept_though_the_ledger_of_that_id_is_the_holders() -> None:
    # As of another cluster that offloads to the same bucket, and has a ledger of this id too.
    world = World()
    world.population.ledger(1, HOLDER)
    world.copies.owners[CONTEXT.uuid] = OTHER.name
    (row,) = world.sweep(mark())
    assert row.outcome is Outcome.MISMATCH
    assert OTHER.name in row.reason
    assert world.copies.deleted == []


def test_a_copy_that_names_nobody_goes_while_bookkeeper_tells_whose_the_ledger_is() -> None:
    world = World()
    world.population.ledger(1, HOLDER)
    world.copies.owners[CONTEXT.uuid] = None
    assert world.outcomes(mark()) == [Outcome.DELETED]


@pytest.mark.parametrize("verify", [True, False], ids=["verified", "the mark's word"])
@pytest.mark.parametrize("owner", [None, OTHER.name], ids=["nobody", "another"])
def test_a_segment_of_the_former_streaming_offload_stays_unless_it_names_the_holder_itself(
    owner: str | None, verify: bool
) -> None:
    world = World(verify_owner=verify)
    world.population.ledger(1, HOLDER)
    segment = replace(CONTEXT, metadata={**METADATA, LEGACY_SEGMENT: "true"})
    world.copies.owners[CONTEXT.uuid] = owner
    assert world.outcomes(mark(context=segment)) == [Outcome.MISMATCH]
    assert world.copies.deleted == []
    world.copies.owners[CONTEXT.uuid] = HOLDER.name
    assert world.outcomes(mark(context=segment)) == [Outcome.DELETED]


def test_what_may_be_left_of_a_segment_without_data_is_left_where_it_is() -> None:
    world = World()
    world.copies.owners.clear()
    assert world.outcomes(mark(context=replace(CONTEXT, metadata={LEGACY_SEGMENT: "true"}))) == [Outcome.ALREADY_GONE]
    assert world.copies.deleted == []


@pytest.mark.parametrize("complete", [True, False], ids=["finished", "unfinished"])
def test_of_a_ledger_that_is_listed_and_gone_from_bookkeeper_a_copy_goes_only_beside_another_finished_one(
    complete: bool,
) -> None:
    world = World()
    other = replace(CONTEXT, msb=1)
    world.copies.owners[other.uuid] = HOLDER.name
    world.names(1, other, complete=complete, only=complete)
    assert world.outcomes(mark()) == [Outcome.DELETED if complete else Outcome.RETRY]
    assert (CONTEXT.uuid in world.copies.owners) is not complete


def test_the_copy_of_a_ledger_that_a_list_of_before_its_offload_names_is_kept() -> None:
    # The node was put back from a backup: the list knows of no copy, and BookKeeper has the ledger no more.
    world = World(verify_owner=False)
    world.names(1, None)
    assert world.outcomes(mark()) == [Outcome.RETRY]
    assert "may be the only one" in world.recorder.retried[0]
    assert world.copies.deleted == []


def test_a_list_that_says_more_of_its_copies_than_is_known_keeps_all_copies_of_the_topic() -> None:
    world = World()
    node = managed_ledger_pb2.ManagedLedgerInfo()
    context = node.ledgerInfo.add(ledgerId=2, entries=10, size=1000).offloadContext
    context.uidMsb, context.uidLsb, context.complete, context.bookkeeperDeleted = 1, 2, True, 2
    world.store.create(f"/managed-ledgers/{HOLDER.name}", node.SerializeToString(), make_parents=True)
    assert world.outcomes(mark()) == [Outcome.RETRY]
    assert world.copies.deleted == []


def test_a_mark_of_the_copy_leaves_the_bookies_ledger_alone() -> None:
    world = World()
    world.population.ledger(1, HOLDER)
    assert world.outcomes(mark()) == [Outcome.DELETED]
    assert world.store.get("/ledgers/00/0000/L0001") is not None


def test_a_mark_of_the_bookies_ledger_leaves_the_copy_alone() -> None:
    world = World()
    world.population.ledger(1, HOLDER)
    assert world.outcomes(mark(kind=LedgerType.LEDGER)) == [Outcome.DELETED]
    assert world.copies.deleted == []


def test_the_only_copy_goes_when_it_names_the_holder_and_nothing_names_it() -> None:
    world = World()
    assert world.outcomes(mark()) == [Outcome.DELETED]
    assert len(world.copies.looked) == 1
    assert world.copies.owners == {}


@pytest.mark.parametrize("complete", [True, False], ids=["complete", "being written"])
@pytest.mark.parametrize("only", [True, False], ids=["only copy", "both copies"])
def test_a_copy_that_is_named_is_never_deleted(complete: bool, only: bool) -> None:
    world = World(verify_owner=False)
    world.names(1, CONTEXT, complete=complete, only=only)
    assert world.outcomes(mark(age=5)) == [Outcome.RETRY]
    assert world.outcomes(mark()) == [Outcome.STILL_REFERENCED]
    assert world.copies.deleted == []


def test_a_copy_that_another_ledger_of_the_holder_names_is_kept() -> None:
    world = World(verify_owner=False)
    world.names(2, CONTEXT)
    assert world.outcomes(mark(1)) == [Outcome.STILL_REFERENCED]


@pytest.mark.parametrize("context", [replace(CONTEXT, msb=1), None], ids=["offloaded anew", "not offloaded"])
def test_an_older_copy_of_a_ledger_that_is_still_listed_is_garbage(context: OffloadContext | None) -> None:
    world = World()
    world.population.ledger(1, HOLDER)
    world.names(1, context)
    if context is not None:
        assert world.outcomes(mark()) == [Outcome.RETRY]
        assert f"names the offloaded copy {context.uuid} of ledger 1" in world.recorder.retried[0]
        assert "which is not whole: the store has no data of it" in world.recorder.retried[0]
        world.copies.owners[context.uuid] = HOLDER.name
    assert world.outcomes(mark()) == [Outcome.DELETED]
    assert [copy.uuid for copy in world.copies.deleted] == [CONTEXT.uuid]


def test_a_legacy_segment_that_is_listed_is_kept() -> None:
    world = World(verify_owner=False)
    node = managed_ledger_pb2.ManagedLedgerInfo()
    segment = node.ledgerInfo.add(ledgerId=1).offloadContext.offloadSegment.add()
    segment.uidMsb, segment.uidLsb = CONTEXT.msb, CONTEXT.lsb
    world.store.create(f"/managed-ledgers/{HOLDER.name}", node.SerializeToString(), make_parents=True)
    assert world.outcomes(mark()) == [Outcome.STILL_REFERENCED]


def test_a_forged_mark_of_a_live_copy_under_another_holders_name_is_a_mismatch() -> None:
    world = World()
    world.names(1, CONTEXT, only=True)
    (row,) = world.sweep(mark(holder=OTHER))
    assert row.outcome is Outcome.MISMATCH
    assert HOLDER.name in row.reason
    assert OTHER.name in row.reason
    assert world.copies.deleted == []


def test_the_ledgers_own_metadata_outweighs_the_mark() -> None:
    world = World()
    world.population.ledger(1, HOLDER)
    assert world.outcomes(mark(holder=OTHER)) == [Outcome.MISMATCH]
    assert world.copies.looked == world.copies.deleted == []


def test_a_copy_that_names_nobody_is_kept_unless_the_settings_take_the_marks_word() -> None:
    for verify, outcome in ((True, Outcome.MISMATCH), (False, Outcome.DELETED)):
        world = World(verify_owner=verify)
        world.copies.owners[CONTEXT.uuid] = None
        assert world.outcomes(mark()) == [outcome]


def test_an_absent_copy_is_already_gone_and_its_remains_are_deleted() -> None:
    world = World()
    world.copies.owners.clear()
    assert world.outcomes(mark()) == [Outcome.ALREADY_GONE]
    assert len(world.copies.deleted) == 1


def test_a_copy_of_which_only_an_unfinished_upload_was_left_is_deleted() -> None:
    world = World()
    world.copies.owners.clear()
    world.copies.fate = CopyFate.ABORTED
    (row,) = world.sweep(mark())
    assert (row.outcome, "aborted" in row.reason) == (Outcome.DELETED, True)
    assert isinstance(world.recorder.records[0], CopyEntry)


def test_a_store_in_trouble_is_retried_and_given_up_with_its_own_words() -> None:
    for listed in (True, False):
        world = World()
        world.copies.trouble = "bucket 'offload': SlowDown: Please reduce your request rate."
        if listed:
            world.population.ledger(1, HOLDER)
        assert world.outcomes(mark(), mark(attempts=3)) == [Outcome.RETRY, Outcome.GAVE_UP]
        assert world.copies.trouble in world.recorder.retried[0]
        assert world.copies.trouble in world.recorder.given_up[0]
        assert CONTEXT.uuid in world.copies.owners


def test_a_copy_that_cannot_be_looked_at_is_kept() -> None:
    world = World()
    world.copies.unreadable = "403 Forbidden"
    assert world.outcomes(mark()) == [Outcome.RETRY]
    assert "403 Forbidden" in world.recorder.retried[0]
    assert world.copies.deleted == []


def test_an_unreadable_reference_or_ledger_keeps_the_copy() -> None:
    world = World(verify_owner=False)
    world.store.create(f"/managed-ledgers/{HOLDER.name}", b"\x0a\xff\xff", make_parents=True)
    assert world.outcomes(mark()) == [Outcome.RETRY]
    world = World(verify_owner=False)
    world.store.create("/ledgers/00/0000/L0001", b"damaged", make_parents=True)
    assert world.outcomes(mark()) == [Outcome.RETRY]
    assert world.copies.deleted == []


def test_the_same_copy_twice_in_a_step_is_already_gone_the_second_time() -> None:
    world = World()
    assert world.outcomes(mark(), mark()) == [Outcome.DELETED, Outcome.ALREADY_GONE]
    assert len(world.copies.deleted) == 1


def test_a_dry_run_looks_and_deletes_nothing() -> None:
    world = World(dry_run=True)
    gone = replace(CONTEXT, msb=99)
    assert world.outcomes(mark(), mark(2, gone)) == [Outcome.WOULD_DELETE, Outcome.ALREADY_GONE]
    assert world.copies.deleted == []
    assert world.recorder.records == []


def test_a_copy_waits_its_delay_as_a_ledger_does() -> None:
    world = World(policy=replace(POLICY, delete_delay=60))
    assert world.outcomes(mark()) == [Outcome.DELAYED]
    assert world.recorder.delayed == [60]
    assert world.copies.deleted == []


def test_a_copy_is_in_the_journal_before_it_is_deleted() -> None:
    world = World()
    world.sweep(mark())
    (record,) = world.recorder.records
    assert isinstance(record, CopyEntry)
    assert decode_record(record.encode()) == record
    assert (record.ledger_id, record.holder, record.uuid) == (1, HOLDER.name, str(CONTEXT.uuid))
    assert "http://s3" in record.location
    world.copies.owners[CONTEXT.uuid] = HOLDER.name
    world.recorder.journal_works = False
    with pytest.raises(StoreUnavailableError):
        world.sweep(mark())
    assert CONTEXT.uuid in world.copies.owners


def test_a_sweep_without_stores_keeps_copies_and_deletes_ledgers() -> None:
    world = World()
    world.population.ledger(1, HOLDER)
    sweep = sweep_with(
        BookKeeperCatalog(world.store),
        MetadataReferences([world.store]),
        world.recorder,
        world.recorder,
        POLICY,
        SweepLimits(),
        clock=lambda: NOW,
    )
    (rows,) = sweep.process([mark(), mark(2), mark(kind=LedgerType.LEDGER)], "run/0")
    assert [row.outcome for row in rows] == [Outcome.RETRY, Outcome.RETRY, Outcome.DELETED]
    assert all("offload.stores has no driver" in reason for reason in world.recorder.retried)


def test_where_a_copy_lies_is_what_the_broker_recorded() -> None:
    received = mark()
    assert received.mark is not None
    copy = copy_of(received.mark)
    assert copy == OffloadedCopy(1, HOLDER.name, as_uuid(-5, 6), StoreLocation("S3", "offload", "r", "http://s3"))
    assert str(copy.uuid) == "ffffffff-ffff-fffb-0000-000000000006"
