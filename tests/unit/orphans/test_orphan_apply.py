"""Applying a plan: what is marked, what is dropped or held back, and a run that is killed at any step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.deletion.node_check import NodeDoubt, Suspect
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.errors import FormatError, NotFoundError, PulsarUnavailableError, RefusedError, StoreUnavailableError
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import CursorHolder, Holder, LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    LedgerMetadata,
    LedgerReading,
    LedgerState,
    StoredLedger,
    UnreadableLedger,
)
from bookwarden.ledgers.pending_deletion import PendingDeletion, Request, Waiver, mark_of_holder
from bookwarden.orphans import applying
from bookwarden.orphans.apply import Apply, difference
from bookwarden.orphans.applying import ApplyResult
from bookwarden.orphans.guards import GuardLimits
from bookwarden.orphans.plan import Candidate, EmptiedScope, FileDigest, PlanCounts, PlanManifest, ScannedCluster
from bookwarden.orphans.progress import ApplyProgress

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BEGUN_MS = 1_000 * DAY_MS
NOW_S = (BEGUN_MS + HOUR_MS) / 1000
LIMITS = GuardLimits()
CLUSTER = ScannedCluster.of("0f1e", "zk:a", "/ledgers", ["zk:a"])
HOLDER = ManagedLedgerHolder("t/n/persistent/a")
CURSOR = CursorHolder("t/n/persistent/a", "s")


def candidate(ledger_id: int, holder: Holder = HOLDER, **fields: Any) -> Candidate:
    kind = LedgerComponent.MANAGED_CURSOR if isinstance(holder, CursorHolder) else LedgerComponent.MANAGED_LEDGER
    path, seen = f"/ledgers/{ledger_id}", BEGUN_MS - 2 * DAY_MS
    made = Candidate(ledger_id, kind.name, str(holder), "?", path, 3, 5, 6, 10, "CLOSED", seen)
    return made._replace(**fields)


def stored(ledger_id: int, holder: Holder = HOLDER, **fields: Any) -> StoredLedger:
    custom = {name: value.encode() for name, value in expected_custom_metadata(holder).items()}
    metadata = LedgerMetadata(3, LedgerState.CLOSED, 1, 1, 1, (), 10, 0, "CRC32C", 6, custom)
    return StoredLedger(ledger_id, f"/ledgers/{ledger_id}", 3, 5, b"", metadata)._replace(**fields)


def plan_of(candidates: Sequence[Candidate], **fields: Any) -> PlanManifest:
    made = PlanManifest(
        plan_id="p",
        scan_id="s",
        tool_version="1",
        begun_ms=BEGUN_MS,
        created_ms=BEGUN_MS,
        cutoff_ms=BEGUN_MS - 3 * DAY_MS,
        cluster=CLUSTER,
        counts=PlanCounts(1_000, 10_000, 900, len(candidates), 10 * len(candidates)),
        candidates=(FileDigest("c", "", len(candidates)),),
    )
    return replace(made, **fields)


class Killed(BaseException):
    """The process ends here."""


class World:
    """All ports of Apply in memory; each call is a step, at which the process can be killed before or after it."""

    def __init__(self, candidates: Sequence[Candidate], **plan: Any) -> None:
        self.all = tuple(candidates)
        self.plan = plan_of(candidates, **plan)
        self.ledgers = {one.ledger_id: stored(one.ledger_id) for one in candidates}
        self.kept: bytes | None = None
        self.sent: list[PendingDeletion] = []
        self.refused_marks: set[int] = set()
        self.doubted: set[int] = set()
        self.identities = itertools.repeat(CLUSTER)
        self.steps = 0
        self.kill_at: int | None = None
        self.shared_by = ""
        self.now_s = NOW_S
        self.batches: list[ApplyResult] = []
        self.in_flight: Callable[[], Collection[Request]] = tuple
        self.tick: Callable[[], None] = lambda: None

    def apply(self, batch: int = 2, *, enabled: bool = True, limits: GuardLimits = LIMITS) -> Apply:
        marker = Marker(self, enabled=enabled, clock=lambda: self.now_s)
        clock = lambda: self.now_s  # noqa: E731
        return Apply(
            self,
            marker,
            self,
            self,
            limits,
            doubts=self.doubts,
            batch=batch,
            clock=clock,
            on_batch=self.batches.append,
            in_flight=lambda: self.in_flight(),
        )

    def doubts(self, suspects: Sequence[Suspect]) -> list[NodeDoubt | None]:
        return [NodeDoubt("/m", "odd") if one.reading.ledger_id in self.doubted else None for one in suspects]

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.kill_at:
            raise Killed

    def manifest(self, plan_id: str) -> PlanManifest:
        self.step()
        assert plan_id == self.plan.plan_id
        return self.plan

    def verify(self, manifest: PlanManifest) -> None:
        self.step()

    def candidates(self, manifest: PlanManifest, size: int) -> Iterator[Sequence[Candidate]]:
        rest = iter(self.all)
        while batch := list(itertools.islice(rest, size)):
            self.step()
            yield batch

    def progress(self, manifest: PlanManifest) -> ApplyProgress:
        self.step()
        return ApplyProgress(manifest.plan_id) if self.kept is None else ApplyProgress.decode(self.kept, "p")

    def record(self, manifest: PlanManifest, progress: ApplyProgress) -> None:
        self.step()
        self.kept = progress.encode()
        self.step()

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        self.step()
        return [self.ledgers.get(ledger_id) or AbsentLedger(ledger_id) for ledger_id in ledger_ids]

    def identity(self) -> ScannedCluster:
        self.step()
        return next(self.identities)

    def prove_roots(self) -> None:
        self.step()
        if self.shared_by:
            raise RefusedError(f"{self.shared_by} shares this BookKeeper")

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        self.step()
        answers: list[str | None] = []
        for mark in marks:
            # A send that is not confirmed may have arrived all the same.
            self.sent.append(mark)
            self.step()
            answers.append("Timeout" if mark.ledger_id in self.refused_marks else None)
        self.tick()
        return answers

    @property
    def sent_ids(self) -> list[int]:
        return [mark.ledger_id for mark in self.sent]


def counted(result: ApplyResult) -> tuple[int, ...]:
    """The counts of a result: earlier, marked, failed, dropped, held back, left."""
    failed = len(result.failed)
    return result.earlier, result.marked, failed, result.dropped_total, result.held_back_total, result.left


def test_every_candidate_is_marked_once_with_the_name_of_the_plan() -> None:
    world = World([candidate(number) for number in range(5)])
    result = world.apply().run("p", execute=True)
    assert counted(result) == (0, 5, 0, 0, 0, 0)
    assert (result.done, result.marked_bytes, result.executed) == (True, 50, True)
    assert world.sent_ids == [0, 1, 2, 3, 4]
    assert {mark.reason for mark in world.sent} == {"orphan scan p"}
    assert all(mark.holder() == HOLDER for mark in world.sent)
    assert [batch.marked for batch in world.batches] == [2, 4, 5]


def test_without_asking_for_it_nothing_is_marked_or_kept() -> None:
    world = World([candidate(number) for number in range(5)])
    del world.ledgers[3]
    result = world.apply().run("p")
    assert counted(result) == (0, 4, 0, 1, 0, 0)
    assert not result.executed
    assert (world.sent, world.kept) == ([], None)


def test_a_plan_that_was_applied_marks_nothing_again() -> None:
    world = World([candidate(number) for number in range(5)])
    world.apply().run("p", execute=True)
    result = world.apply(batch=3).run("p", execute=True)
    assert counted(result) == (5, 0, 0, 0, 0, 0)
    assert len(world.sent) == 5


def test_a_mark_that_was_not_confirmed_is_reported_and_sent_again_by_the_next_run() -> None:
    world = World([candidate(number) for number in range(5)])
    world.refused_marks = {1, 4}
    first = world.apply().run("p", execute=True)
    assert counted(first) == (0, 3, 2, 0, 0, 0)
    assert [(one.ledger_id, one.reason) for one in first.failed] == [(1, "Timeout"), (4, "Timeout")]
    assert not first.done
    world.refused_marks = set()
    second = world.apply().run("p", execute=True)
    assert counted(second) == (3, 2, 0, 0, 0, 0)
    assert Counter(world.sent_ids) == {0: 1, 1: 2, 2: 1, 3: 1, 4: 2}
    assert counted(world.apply().run("p", execute=True)) == (5, 0, 0, 0, 0, 0)


def test_a_broker_that_takes_no_marks_ends_the_run_and_loses_none() -> None:
    world = World([candidate(number) for number in range(20)])
    world.refused_marks = set(range(20))
    result = world.apply().run("p", execute=True)
    assert counted(result) == (0, 0, 6, 0, 0, 14)
    assert "nothing was confirmed of 3 batches in a row, the last time because: Timeout" in result.stopped
    world.refused_marks = set()
    assert counted(world.apply().run("p", execute=True)) == (0, 20, 0, 0, 0, 0)


def test_a_few_batches_that_fail_do_not_end_the_run() -> None:
    world = World([candidate(number) for number in range(10)])
    world.refused_marks = {0, 1, 2, 3, 6, 7, 8, 9}
    result = world.apply().run("p", execute=True)
    assert (counted(result), result.stopped) == ((0, 2, 8, 0, 0, 0), "")


def test_a_mark_that_was_not_confirmed_and_arrived_is_not_sent_for_ever() -> None:
    world = World([candidate(number) for number in range(3)])
    world.refused_marks = {1}
    world.apply().run("p", execute=True)
    del world.ledgers[1]
    assert counted(world.apply().run("p", execute=True)) == (2, 0, 0, 1, 0, 0)
    assert counted(world.apply().run("p", execute=True)) == (3, 0, 0, 0, 0, 0)


CHANGED: list[tuple[LedgerReading, str]] = [
    (AbsentLedger(1), "has no metadata of it any more"),
    (UnreadableLedger(1, "cut off"), "cannot be read: cut off"),
    (stored(1, path="/elsewhere"), "its path is /elsewhere, in the plan /ledgers/1"),
    (stored(1, version=4), "its version is 4, in the plan 3"),
    (stored(1, created_ms=6), "its creation time is 6, in the plan 5"),
    (stored(1, metadata=stored(1).metadata._replace(ctime_ms=None)), "its creator's time is None"),
    (stored(1, ManagedLedgerHolder("t/n/persistent/b")), "in the plan it is a MANAGED_LEDGER of t/n/persistent/a"),
    (stored(1, CursorHolder("t/n/persistent/a", "c")), "pulsar/cursor=c"),
    (stored(1, metadata=stored(1).metadata._replace(custom={})), "nothing (no custom metadata)"),
]


@pytest.mark.parametrize(("reading", "says"), CHANGED)
def test_a_ledger_that_is_not_as_planned_is_dropped_and_reported(reading: LedgerReading, says: str) -> None:
    world = World([candidate(number) for number in range(3)])
    world.ledgers[1] = reading
    result = world.apply().run("p", execute=True)
    assert counted(result) == (0, 2, 0, 1, 0, 0)
    assert result.dropped[0].ledger_id == 1
    assert says in result.dropped[0].reason
    assert world.sent_ids == [0, 2]
    world.ledgers[1] = stored(1)
    # It was not an orphan without a break: only another plan can have it again.
    assert counted(world.apply().run("p", execute=True)) == (3, 0, 0, 0, 0, 0)
    assert difference(candidate(1), stored(1)) is None


def test_a_ledger_that_a_damaged_node_may_have_named_is_dropped_and_reported() -> None:
    world = World([candidate(number) for number in range(3)])
    world.doubted = {world.all[1].ledger_id}
    result = world.apply().run("p", execute=True)
    assert (result.marked, [one.reason for one in result.dropped]) == (2, ["the node /m may be damaged: odd"])
    assert world.all[1].ledger_id not in {one.ledger_id for one in world.sent}


def test_a_candidate_of_no_possible_holder_is_dropped() -> None:
    assert "in the plan it is a MANAGED_CURSOR of t" in str(
        difference(candidate(1, kind="MANAGED_CURSOR", holder="t"), stored(1))
    )


def test_candidates_that_wait_are_held_back_and_named_and_the_others_are_applied() -> None:
    young = {"created_ms": BEGUN_MS - DAY_MS}
    world = World([candidate(0), candidate(1, first_seen_ms=BEGUN_MS), candidate(2, **young), candidate(3)])
    result = world.apply().run("p", execute=True)
    assert counted(result) == (0, 2, 0, 0, 2, 0)
    assert [one.ledger_id for one in result.held_back] == [1, 2]
    assert sorted(result.held_back_by.values()) == [1, 1]
    assert (result.done, world.sent_ids) == (True, [0, 3])
    assert counted(world.apply().run("p", execute=True)) == (2, 0, 0, 0, 2, 0)


def test_with_another_limit_what_was_held_back_is_looked_at_again() -> None:
    world = World([candidate(0), candidate(1, first_seen_ms=BEGUN_MS), candidate(2)])
    world.apply().run("p", execute=True)
    del world.ledgers[0]
    result = world.apply(limits=replace(LIMITS, seen_apart_ms=0)).run("p", execute=True)
    assert counted(result) == (0, 2, 0, 1, 0, 0)
    assert world.sent_ids == [0, 2, 1, 2]


REFUSED_PLANS: list[dict[str, Any]] = [
    {"begun_ms": BEGUN_MS - DAY_MS},
    {"begun_ms": BEGUN_MS + DAY_MS, "created_ms": BEGUN_MS + DAY_MS},
    {"cutoff_ms": BEGUN_MS},
    {"cluster": replace(CLUSTER, instance_id="another")},
    {"counts": PlanCounts(10, 100, 9, 3, 30)},
    {"counts": PlanCounts(1_000, 100, 0, 3, 30)},
    {"emptied": tuple(EmptiedScope("topic", f"t/n/persistent/{number}", 3) for number in range(11))},
]


@pytest.mark.parametrize("changes", REFUSED_PLANS)
@pytest.mark.parametrize("execute", [False, True])
def test_a_plan_that_a_guard_refuses_is_not_applied(changes: dict[str, Any], execute: bool) -> None:
    world = World([candidate(number) for number in range(3)], **changes)
    assert world.apply().examine("p").refusals
    with pytest.raises(RefusedError, match="plan p is not applied"):
        world.apply().run("p", execute=execute)
    assert (world.sent, world.kept) == ([], None)


def test_a_plan_is_refused_before_it_is_asked_what_is_due() -> None:
    world = World([candidate(0, first_seen_ms=BEGUN_MS)], cluster=replace(CLUSTER, instance_id="another"))
    with pytest.raises(RefusedError, match="'another'"):
        world.apply().run("p")


@pytest.mark.parametrize("execute", [False, True])
def test_nothing_is_marked_while_another_cluster_shares_the_bookkeeper(execute: bool) -> None:
    world = World([candidate(0)])
    world.shared_by = "zk:host/green"
    with pytest.raises(RefusedError, match="zk:host/green shares"):
        world.apply().run("p", execute=execute)
    assert (world.sent, world.kept) == ([], None)


def test_what_may_be_emptied_is_given_by_name() -> None:
    world = World([candidate(0)], emptied=(EmptiedScope("topic", "t/n/persistent/a", 1),))
    assert world.apply().run("p", execute=True, allow_emptied=["persistent://t/n/a"]).marked == 1
    # So that the sweep, which has the same guard, deletes it.
    assert [mark.waives for mark in world.sent] == [{Waiver.EMPTIED}]


def test_a_topic_that_would_be_emptied_is_held_back_and_the_others_are_marked() -> None:
    other = ManagedLedgerHolder("t/n/persistent/recreated")
    world = World([candidate(0), candidate(1, other), candidate(2)], emptied=(EmptiedScope("topic", other.name, 1),))
    world.ledgers[1] = stored(1, other)
    result = world.apply().run("p", execute=True)
    assert counted(result) == (0, 2, 0, 0, 1, 0)
    assert "recreated would be left with no ledger" in result.held_back[0].reason
    assert (world.sent_ids, result.done) == ([0, 2], True)
    # Allowed later, it is applied by the same plan.
    world.apply().run("p", execute=True, allow_emptied=[other.name])
    assert world.sent_ids == [0, 2, 0, 1, 2]
    assert [mark.ledger_id for mark in world.sent if Waiver.EMPTIED in mark.waives] == [1]


@pytest.mark.parametrize("execute", [False, True])
def test_what_has_a_mark_in_flight_is_held_back(execute: bool) -> None:
    world = World([candidate(number) for number in range(4)])
    waiting = [
        replace(mark_of_holder(1, HOLDER, "follow"), marked_at=5),
        mark_of_holder(2, CURSOR, "of another holder"),
    ]
    world.in_flight = lambda: {mark.request for mark in waiting}
    result = world.apply().run("p", execute=execute)
    assert counted(result) == (0, 3, 0, 0, 1, 0)
    assert "in flight" in result.held_back[0].reason
    assert (result.held_back[0].ledger_id, result.not_compared) == (1, "")
    assert world.sent_ids == ([0, 2, 3] if execute else [])


def test_what_a_killed_run_marked_and_did_not_record_is_not_marked_again() -> None:
    world = World([candidate(number) for number in range(4)])
    world.refused_marks = {1}
    world.apply(batch=4).run("p", execute=True)
    world.in_flight = lambda: {mark.request for mark in world.sent}
    # The answer to one mark was lost; it had arrived.
    result = world.apply(batch=4).run("p", execute=True)
    assert (counted(result), world.sent_ids) == ((3, 0, 0, 0, 1, 0), [0, 1, 2, 3])
    assert world.apply(batch=4).run("p", execute=True).done
    assert ApplyProgress.decode(world.kept or b"", "p").failed == ()


@pytest.mark.parametrize("error", [PulsarUnavailableError("no broker"), NotFoundError("no retry topic")])
def test_marks_in_flight_that_cannot_be_read_are_told_and_all_is_marked(error: Exception) -> None:
    def fail() -> Collection[Request]:
        raise error

    world = World([candidate(0)])
    world.in_flight = fail
    result = world.apply().run("p", execute=True)
    assert (result.marked, result.not_compared) == (1, str(error))


def test_marks_that_are_turned_off_are_no_confirmation() -> None:
    world = World([candidate(0)])
    with pytest.raises(RefusedError, match="topic_two_phase_deletion_enabled"):
        world.apply(enabled=False).run("p", execute=True)
    assert world.kept is None
    assert world.apply(enabled=False).run("p").marked == 1


def test_a_run_does_not_outlive_its_plan() -> None:
    world = World([candidate(number) for number in range(6)])

    def day_passes() -> None:
        world.now_s += 86_400

    world.tick = day_passes
    with pytest.raises(RefusedError, match="max_plan_age_hours"):
        world.apply().run("p", execute=True)
    assert world.sent_ids == [0, 1]
    assert ApplyProgress.decode(world.kept or b"", "p").done_through == 1


@pytest.mark.parametrize("error", [StoreUnavailableError("gone"), PulsarUnavailableError("gone"), KeyboardInterrupt()])
def test_a_failure_in_between_leaves_the_rest_to_the_next_run(error: BaseException) -> None:
    world = World([candidate(number) for number in range(6)])

    def fail() -> None:
        if len(world.sent) > 2:
            world.tick = lambda: None
            raise error

    world.tick = fail
    with pytest.raises(type(error)):
        world.apply().run("p", execute=True)
    result = world.apply().run("p", execute=True)
    assert counted(result) == (2, 4, 0, 0, 0, 0)
    assert Counter(world.sent_ids) == {0: 1, 1: 1, 2: 2, 3: 2, 4: 1, 5: 1}


def test_progress_that_is_damaged_stops_the_run() -> None:
    world = World([candidate(0)])
    world.kept = ApplyProgress("p").encode()[:-1]
    with pytest.raises(FormatError, match="delete the file"):
        world.apply().run("p", execute=True)
    assert world.sent == []


def test_the_named_are_capped_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "SHOWN", 1)
    world = World([candidate(number, first_seen_ms=BEGUN_MS if number < 3 else 0) for number in range(6)])
    world.ledgers.clear()
    result = world.apply().run("p")
    assert (len(result.held_back), result.held_back_total) == (1, 3)
    assert (len(result.dropped), result.dropped_total) == (1, 3)


def killed_world(kinds: Sequence[str]) -> World:
    """Make a world of candidates that are sound, held back, changed since, or not confirmed."""
    world = World(
        [candidate(number, first_seen_ms=BEGUN_MS if kind == "held" else 0) for number, kind in enumerate(kinds)]
    )
    for number, kind in enumerate(kinds):
        if kind == "changed":
            world.ledgers[number] = stored(number, version=99)
    world.refused_marks = {number for number, kind in enumerate(kinds) if kind == "unconfirmed"}
    return world


KINDS = ("sound", "held", "sound", "changed", "unconfirmed", "sound", "sound")


def steps_of_a_whole_run(kinds: Sequence[str]) -> int:
    world = killed_world(kinds)
    world.apply().run("p", execute=True)
    return world.steps


@pytest.mark.parametrize("step", range(1, steps_of_a_whole_run(KINDS) + 1))
def test_a_run_that_is_killed_at_any_step_goes_on_and_loses_nothing(step: int) -> None:
    world = killed_world(KINDS)
    world.kill_at = step
    with pytest.raises(Killed):
        world.apply().run("p", execute=True)
    before = len(world.sent)
    world.kill_at = None
    world.apply().run("p", execute=True)
    sent = Counter(world.sent_ids)
    assert {number for number, kind in enumerate(KINDS) if kind in ("sound", "unconfirmed")} == set(sent)
    # Only what one batch had, the one that was under way, is sent twice; what was not confirmed as well.
    again = [number for number, times in sent.items() if times > 1 and KINDS[number] == "sound"]
    assert len(again) <= 2
    assert before <= len(world.sent)
    world.refused_marks = set()
    last = world.apply().run("p", execute=True)
    assert last.done
    assert counted(last)[1:] == (1, 0, 0, 1, 0)


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(["sound", "held", "changed", "unconfirmed"]), min_size=1, max_size=12),
    st.lists(st.integers(1, 40), max_size=4),
    st.integers(1, 5),
)
def test_however_often_it_is_killed_each_sound_candidate_is_marked_and_no_other(
    kinds: list[str], kills: list[int], batch: int
) -> None:
    world = killed_world(kinds)
    for kill in kills:
        world.steps, world.kill_at = 0, kill
        try:
            world.apply(batch).run("p", execute=True)
        except Killed:
            continue
    world.kill_at, world.refused_marks = None, set()
    assert world.apply(batch).run("p", execute=True).done
    assert set(world.sent_ids) == {number for number, kind in enumerate(kinds) if kind in ("sound", "unconfirmed")}
    final = world.apply(batch).run("p", execute=True)
    assert final.earlier + final.held_back_total == len(kinds)
