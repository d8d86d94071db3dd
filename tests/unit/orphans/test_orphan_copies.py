"""Offloaded copies in their classes: doubt makes no orphan, and a copy is marked as phase two takes it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.deletion.node_check import NodeDoubt, Suspect
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.phase_two.copy_deletion import copy_of
from bookwarden.errors import FormatError, RefusedError
from bookwarden.ledgers.kinds import CursorHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading
from bookwarden.ledgers.offloaded_copies import (
    AbsentCopy,
    CopyReading,
    OffloadedCopy,
    PresentCopy,
    StoreLocation,
    UnreadableCopy,
)
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.ledgers.references import Doubt, HoldersBelow
from bookwarden.orphans.apply import ApplyCopies
from bookwarden.orphans.classify import Knowledge
from bookwarden.orphans.copies import (
    ClassifiedCopy,
    CopyCause,
    CopyClass,
    FoundCopy,
    class_by_name,
    class_by_owner,
    doubt_about_copies,
    kept_in_shared_stores,
)
from bookwarden.orphans.copy_plan import COPIES, CopyCandidate, StoreCopies, numbered
from bookwarden.orphans.guards import GuardLimits
from bookwarden.orphans.plan import FileDigest, PlanCounts, PlanManifest, ScannedCluster
from bookwarden.orphans.progress import ApplyProgress

DAY_MS = 86_400_000
BEGUN_MS = 1_000 * DAY_MS
CUTOFF_MS = BEGUN_MS - 3 * DAY_MS
UUID_1 = UUID(int=1)
TOPIC = "t/n/persistent/a"
KNOWN = Knowledge(CUTOFF_MS, frozenset({"t"}), frozenset({"t/n"}), frozenset({TOPIC}))
CLUSTER = ScannedCluster.of("0f1e", "zk:a", "/ledgers", ["zk:a"])
OLD = FoundCopy("s", UUID_1, 7, f"{UUID_1}-ledger-7", 2, 0, 100, CUTOFF_MS, False)
UNREAD = Doubt("/managed-ledgers/t/n", "zk:a", "damaged")


def classified(copy: FoundCopy, reading: CopyReading, known: Knowledge = KNOWN) -> ClassifiedCopy:
    return class_by_name(copy, known, doubt_about_copies(known.doubts)) or class_by_owner(copy, reading, known)


def test_an_old_copy_that_nothing_names_is_an_orphan_whose_cause_is_read_off_its_owner() -> None:
    mine = PresentCopy(TOPIC)
    assert classified(OLD, mine) == ClassifiedCopy(CopyClass.ORPHAN, CopyCause.TRIM, TOPIC)
    assert classified(OLD._replace(ledger_named=True), mine).cause is CopyCause.FAILED
    assert classified(OLD, PresentCopy("t/n/persistent/b")).cause is CopyCause.TOPIC_DELETED
    assert classified(OLD, PresentCopy("t/gone/persistent/b")).cause is CopyCause.NAMESPACE_DELETED


def test_an_upload_without_data_is_its_ledgers_owners_as_long_as_there_is_the_ledger() -> None:
    upload = OLD._replace(objects=0, uploads=1)
    assert classified(upload, AbsentCopy()).copy_class is CopyClass.UNKNOWN_OWNER
    found = classified(upload._replace(kind="MANAGED_LEDGER", holder=TOPIC), AbsentCopy())
    assert found == ClassifiedCopy(CopyClass.ORPHAN, CopyCause.FAILED, TOPIC)


@pytest.mark.parametrize(
    ("first", "ledger_named", "expected"),
    [
        ({TOPIC: 6}, False, CopyClass.INSIDE_LIST),
        ({TOPIC: -1}, False, CopyClass.INSIDE_LIST),
        ({TOPIC: 8}, False, CopyClass.ORPHAN),
        ({TOPIC: 6}, True, CopyClass.ORPHAN),
        ({}, False, CopyClass.ORPHAN),
    ],
)
def test_the_copy_of_a_ledger_that_its_topics_list_lost_is_kept(
    first: dict[str, int], ledger_named: bool, expected: CopyClass
) -> None:
    found = classified(OLD._replace(ledger_named=ledger_named), PresentCopy(TOPIC), replace(KNOWN, first_listed=first))
    assert found.copy_class is expected


@pytest.mark.parametrize(
    ("copy", "reading", "expected"),
    [
        (OLD._replace(uuid=None), PresentCopy(TOPIC), CopyClass.UNKNOWN_NAME),
        (OLD._replace(referenced=True), PresentCopy(TOPIC), CopyClass.REFERENCED),
        (OLD._replace(modified_ms=CUTOFF_MS + 1), PresentCopy(TOPIC), CopyClass.TOO_YOUNG),
        (OLD._replace(modified_ms=0), PresentCopy(TOPIC), CopyClass.TOO_YOUNG),
        (OLD._replace(ledger_id=None), PresentCopy(TOPIC), CopyClass.UNKNOWN_OWNER),
        (OLD, PresentCopy(None), CopyClass.UNKNOWN_OWNER),
        (OLD, PresentCopy("no topic"), CopyClass.UNKNOWN_OWNER),
        (OLD, UnreadableCopy("403"), CopyClass.UNKNOWN_OWNER),
        (OLD, AbsentCopy(), CopyClass.GONE),
        (OLD, PresentCopy("other/n/persistent/a"), CopyClass.FOREIGN),
        (OLD._replace(kind="MANAGED_LEDGER", holder="t/n/persistent/b"), PresentCopy(TOPIC), CopyClass.UNKNOWN_OWNER),
        (OLD._replace(kind="MANAGED_CURSOR", holder=f"{TOPIC}/s"), PresentCopy(TOPIC), CopyClass.UNKNOWN_OWNER),
    ],
)
def test_what_keeps_a_copy(copy: FoundCopy, reading: CopyReading, expected: CopyClass) -> None:
    assert classified(copy, reading).copy_class is expected


@pytest.mark.parametrize(
    ("about", "concerned"),
    [
        ((), True),
        ((ManagedLedgerHolder("x/y/persistent/z"),), True),
        ((ManagedLedgerHolder,), True),
        ((HoldersBelow("x", (ManagedLedgerHolder, CursorHolder)),), True),
        ((CursorHolder("x/y/persistent/z", "s"), SchemaHolder("x/y/z")), False),
        ((HoldersBelow("x", (CursorHolder,)), SchemaHolder), False),
    ],
)
def test_any_managed_ledger_that_could_not_be_read_may_name_any_copy(about: Any, concerned: bool) -> None:
    known = replace(KNOWN, doubts=(UNREAD._replace(about=about),))
    expected = CopyClass.UNKNOWN_REFERENCES if concerned else CopyClass.ORPHAN
    assert classified(OLD, PresentCopy(TOPIC), known).copy_class is expected


OWNERS = st.sampled_from([None, TOPIC, "t/n/persistent/b", "other/n/persistent/a", "?"])
FOUND = st.builds(
    FoundCopy,
    st.just("s"),
    st.sampled_from([None, UUID_1]),
    st.sampled_from([None, 7]),
    st.sampled_from(["k", "k-index"]),
    st.integers(0, 2),
    st.integers(0, 1),
    st.integers(0, 9),
    st.sampled_from([0, CUTOFF_MS, CUTOFF_MS + 1]),
    st.booleans(),
    st.sampled_from([None, "MANAGED_LEDGER", "SCHEMA_STORAGE"]),
    OWNERS,
    st.booleans(),
)
READINGS = st.one_of(st.builds(PresentCopy, OWNERS), st.just(AbsentCopy()), st.just(UnreadableCopy("?")))


@given(FOUND, READINGS, st.booleans(), st.booleans())
def test_an_orphan_is_named_by_nothing_old_surely_read_and_its_owners(
    copy: FoundCopy, reading: CopyReading, doubted: bool, alive: bool
) -> None:
    known = replace(KNOWN, doubts=(UNREAD,) * doubted, alive=frozenset({"t/n"} if alive else ()))
    found = classified(copy, reading, known)
    if found.copy_class is CopyClass.ORPHAN:
        assert copy.uuid is not None
        assert copy.ledger_id is not None
        assert not copy.referenced
        assert not doubted
        assert not alive
        assert 0 < copy.modified_ms <= CUTOFF_MS
        assert found.owner is not None
        assert found.owner.startswith("t/n/")
        assert found.cause is not None
        told = {reading.owner if isinstance(reading, PresentCopy) else None, copy.holder} - {None}
        assert told == {found.owner}
    else:
        assert found.owner is None


def test_a_store_that_another_cluster_writes_to_has_no_orphans() -> None:
    orphan = classified(OLD, PresentCopy(TOPIC))
    conflict = classified(OLD._replace(kind="MANAGED_LEDGER", holder="t/n/persistent/b"), PresentCopy(TOPIC))
    elsewhere = OLD._replace(store="other")
    kept = kept_in_shared_stores([(OLD, orphan), (OLD, conflict), (elsewhere, orphan)])
    assert [found.copy_class for _, found in kept] == [CopyClass.FOREIGN, CopyClass.UNKNOWN_OWNER, CopyClass.ORPHAN]


def candidate(number: int, **fields: Any) -> CopyCandidate:
    made = CopyCandidate(
        number, "S3", "b", "r", "http://e", UUID(int=(2**127) + number), 70 + number, TOPIC, "?", 2, 0, 10, CUTOFF_MS,
        BEGUN_MS - 2 * DAY_MS,
    )  # fmt: skip
    return made._replace(**fields)


def test_a_copy_keeps_the_time_when_it_was_first_seen_until_it_is_written_again() -> None:
    earlier = [candidate(0, first_seen_ms=5), candidate(1, first_seen_ms=6), candidate(2, first_seen_ms=10**15)]
    now = [candidate(2), candidate(1, modified_ms=3), candidate(0), candidate(3)]
    result = list(numbered(now, earlier, 900))
    assert [(one.ledger_id, one.number, one.first_seen_ms) for one in result] == [
        (70, 0, 5),
        (71, 1, 900),
        (72, 2, 900),
        (73, 3, 900),
    ]


def test_a_mark_names_the_very_copy_that_the_plan_has() -> None:
    mark = candidate(0).mark("orphan scan p")
    mark.validate()
    location = StoreLocation("S3", "b", "r", "http://e")
    assert copy_of(mark) == OffloadedCopy(70, TOPIC, UUID(int=2**127), location)


class World:
    """The ports of ApplyCopies in memory."""

    def __init__(self, planned: Sequence[CopyCandidate], /, **plan: Any) -> None:
        self.all = tuple(planned)
        made = PlanManifest(
            plan_id="p",
            scan_id="s",
            tool_version="1",
            begun_ms=BEGUN_MS,
            created_ms=BEGUN_MS,
            cutoff_ms=CUTOFF_MS,
            cluster=CLUSTER,
            counts=PlanCounts(100, 1_000, 90, 0, 0),
            candidates=(),
            files=(FileDigest(COPIES, "", len(planned)),),
            copies=(StoreCopies("s", 100, len(planned), 10),),
        )
        self.plan = replace(made, **plan)
        self.kept: ApplyProgress | None = None
        self.sent: list[PendingDeletion] = []
        self.refused: set[int] = set()
        self.doubted: set[int] = set()
        self.left_to_send = 10**9

    def run(self, *, execute: bool = True, batch: int = 2, limits: GuardLimits | None = None) -> Any:
        now_s = (BEGUN_MS + 60_000) / 1000
        marker = Marker(self, clock=lambda: now_s)
        applying = ApplyCopies(
            self, marker, self, self, limits or GuardLimits(), doubts=self.doubts, batch=batch, clock=lambda: now_s
        )
        return applying.run("p", execute=execute)

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        return [AbsentLedger(ledger_id) for ledger_id in ledger_ids]

    def doubts(self, suspects: Sequence[Suspect]) -> list[NodeDoubt | None]:
        assert all(one.is_copy for one in suspects)
        return [NodeDoubt("/m", "odd") if one.reading.ledger_id in self.doubted else None for one in suspects]

    def manifest(self, plan_id: str) -> PlanManifest:
        return PlanManifest.decode(self.plan.encode())

    def verify(self, manifest: PlanManifest) -> None:
        pass

    def copies(self, manifest: PlanManifest, size: int) -> Iterator[Sequence[CopyCandidate]]:
        rest = iter(self.all)
        while batch := list(itertools.islice(rest, size)):
            yield batch

    def copy_progress(self, manifest: PlanManifest) -> ApplyProgress:
        return self.kept or ApplyProgress("p")

    def record_copies(self, manifest: PlanManifest, progress: ApplyProgress) -> None:
        self.kept = progress

    def identity(self) -> ScannedCluster:
        return CLUSTER

    def prove_roots(self) -> None:
        pass

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        self.left_to_send -= len(marks)
        if self.left_to_send < 0:
            raise KeyboardInterrupt
        self.sent += marks
        return ["refused" if mark.ledger_id in self.refused else None for mark in marks]


def test_a_plans_copies_are_marked_once_and_a_killed_run_goes_on() -> None:
    world = World([candidate(number) for number in range(5)])
    assert world.run(execute=False).marked == 5
    assert world.sent == []
    world.left_to_send = 2
    with pytest.raises(KeyboardInterrupt):
        world.run()
    world.left_to_send = 10**9
    world.refused = {73}
    result = world.run()
    assert (result.earlier, result.marked, len(result.failed), result.done) == (2, 2, 1, False)
    world.refused = set()
    assert world.run().done
    assert sorted(mark.ledger_id for mark in world.sent) == [70, 71, 72, 73, 73, 74]


def test_copies_that_a_damaged_node_may_have_named_are_dropped() -> None:
    world = World([candidate(number) for number in range(3)])
    world.doubted = {71}
    result = world.run()
    assert (result.marked, [one.reason for one in result.dropped]) == (2, ["the node /m may be damaged: odd"])
    assert [one.ledger_id for one in world.sent] == [70, 72]


def test_copies_that_were_not_orphans_in_two_scans_apart_are_held_back() -> None:
    world = World([candidate(0), candidate(1, first_seen_ms=BEGUN_MS), candidate(2, modified_ms=CUTOFF_MS + 1)])
    result = world.run()
    assert (result.marked, result.held_back_total) == (1, 2)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"copies": (StoreCopies("s", 100, 0, 0), StoreCopies("few", 9, 2, 1))}, "22.2%"),
        ({"begun_ms": BEGUN_MS - 2 * DAY_MS, "cutoff_ms": CUTOFF_MS - 2 * DAY_MS}, "max_plan_age_hours"),
        ({"cluster": replace(CLUSTER, instance_id="other")}, "INSTANCEID"),
    ],
)
def test_the_guards_of_a_plan_hold_for_its_copies_too(fields: dict[str, Any], said: str) -> None:
    world = World([candidate(0), candidate(1)], **fields)
    with pytest.raises(RefusedError, match=said):
        world.run()
    assert world.sent == []


def test_a_plan_whose_copies_do_not_add_up_is_none() -> None:
    world = World([candidate(0)], copies=(StoreCopies("s", 10, 2, 10),))
    with pytest.raises(FormatError, match="counts 2 offloaded copies"):
        world.run()
