"""The move of all ledgers to another bookie cluster for brokers without the jar, which have to be stopped for it.

Each step may be repeated, and both clusters and the live brokers show what is left to do, not the record: so the
same command carries on wherever it was killed. Until it is DONE nothing that brokers use is changed: they may be
started on the source again at any moment.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from bookwarden.bookie_clusters.brokers import read_brokers
from bookwarden.bookie_clusters.moving.copiers import OfflineCopiers
from bookwarden.bookie_clusters.moving.former import in_parts
from bookwarden.bookie_clusters.offline.checking import (
    MoveChecks,
    Sides,
    TargetUri,
    find_sides,
    refused,
    require_no_foreign,
)
from bookwarden.bookie_clusters.offline.ledgers import (
    CopyStatus,
    LedgerComparison,
    NamedLedgers,
    compare,
    read_named,
)
from bookwarden.bookie_clusters.offline.record import MoveNode, MovePhase, MoveRecord, next_record
from bookwarden.bookie_clusters.offline.saved_nodes import changed_since, save_nodes
from bookwarden.bookie_clusters.registry_node import ClusterRegistry
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.errors import BookieError, FormatError, NotFoundError, StoreError
from bookwarden.findings import Finding, failing, fails, some, warns
from bookwarden.ledgers.outcomes import CopyOutcome

#: So far beyond the source's next id the target's is raised while brokers still take some.
IDS_AHEAD: Final = 1_000
_ROUNDS: Final = 5
# What brokers have closed meanwhile goes with the rest.
_LITTLE: Final = 10
# The rest, from the beginning.
_RESTS: Final = 3
_LOOK_EVERY_S: Final = 1.0
_SHOWN: Final = 20


class CopyTally(NamedTuple):
    """The ledgers that are named, by how far they are."""

    counts: Counter[CopyStatus]
    different: tuple[LedgerComparison, ...]  #: The first few.
    missing: tuple[int, ...]  #: The first few that brokers want to find, and that neither cluster has.
    missed: int = 0  #: How many these are.
    bookies: frozenset[str] = frozenset()  #: Those that have what is the same already, by the target's metadata.

    @property
    def total(self) -> int:
        """How many there are."""
        return self.counts.total()


@dataclass(frozen=True, slots=True)
class MovePlan:
    """All that was looked at before anything is done."""

    sides: Sides  #: Both clusters.
    record: MoveRecord  #: As it would be written.
    brokers: tuple[str, ...]  #: That live.
    findings: tuple[Finding, ...]  #: Of all checks.
    tally: CopyTally  #: Of what is named.
    next_id: int  #: Of the target.
    free_id: int  #: Above every id of the source.
    may_miss: int = 0  #: Maximum number of ledgers that neither cluster has.

    @property
    def failing(self) -> list[Finding]:
        """The checks that block the move."""
        return failing(self.findings)


@dataclass(frozen=True, slots=True)
class MoveResult:
    """The result of a command."""

    record: MoveRecord  #: As it is now.
    copied: int  #: Ledgers, by this command.
    recovered: int  #: Likewise, that were open.
    tally: CopyTally  #: Of what is named.
    next_id: int  #: Of the target.
    errors: tuple[str, ...] = ()  #: Why ledgers were not copied ahead.


@dataclass
class _Work:
    """One run of the command."""

    plan: MovePlan  #: That it carries out.
    say: Callable[[str], object]  #: Is called with each step.
    progress: Callable[[int], object]  #: Is called with the ledgers copied so far.
    copied: int = 0  #: Ledgers.
    recovered: int = 0  #: Likewise.
    errors: dict[int, str] = field(default_factory=dict)  #: Why ledgers were not copied.


class _Rest(NamedTuple):
    """The work that was done once brokers were stopped."""

    saved: Path  #: The nodes as they were before.
    tally: CopyTally  #: Of what is named afterwards.
    next_id: int  #: Of the target.
    changed: str | None  #: What is not as it was before; None if all is.


@dataclass(frozen=True)
class OfflineMove:
    """Moves everything that metadata names from the source, which the settings name, to a target."""

    source: LedgersRoot  #: By the settings.
    references: ReferencePieces  #: Reads all metadata that names ledgers.
    copiers: OfflineCopiers  #: Copies and recovers ledgers.
    checks: MoveChecks  #: Before anything is done.
    ids_ahead: int = IDS_AHEAD  #: So far beyond the source's the target's next id is raised at first.
    sleep: Callable[[float], object] = time.sleep  #: Waits for some seconds.

    @property
    def registry(self) -> ClusterRegistry:
        """The registry, which there must not be, with Pulsar's own store and those of both clusters."""
        return self.checks.observer.registry

    @property
    def node(self) -> MoveNode:
        """The record's node."""
        return MoveNode(self.registry.store)

    def plan(self, target: TargetUri, folder: Path, *, may_miss: int = 0) -> MovePlan:
        """Look at everything, change nothing; RefusedError, with all reasons, where it is no move that can be made.

        ``may_miss`` is the maximum number of ledgers that brokers want to find, and that neither cluster has.
        """
        self.checks.require_no_registry()
        sides = find_sides(self.registry, self.source, target)
        record = next_record(self.node.read(), sides, str(folder))
        if sides.target.instance not in record.former:
            require_no_foreign(sides.target, record.owner)
        named = read_named(self.references)
        tally = self._tally(sides, record.owner, named)
        if tally.different:
            raise _different(tally, {})
        findings = (*judge_ledgers(tally, sides, may_miss), *self.checks.judge(sides, named.in_logs))
        free = self._free_id(sides, named)
        next_id = self.registry.stores.ids_at(sides.target.place).next_id()
        return MovePlan(sides, record, tuple(self.live_brokers()), findings, tally, next_id, free, may_miss)

    def live_brokers(self) -> list[str]:
        """List the brokers that live, by name."""
        return [broker.name for broker in read_brokers(self.registry.store)]

    def carry_out(
        self,
        plan: MovePlan,
        *,
        ahead_only: bool = False,
        wait_s: float | None = None,
        say: Callable[[str], object] = lambda _: None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> MoveResult:
        """Carry the move out from wherever it is; wait up to ``wait_s`` seconds for brokers to be stopped.

        ``say`` is called with each step, ``progress`` with the ledgers copied so far. Raises RefusedError where
        brokers live too long, appear again, or anything is not the same; nothing that they use was changed then.
        """
        if plan.failing:
            raise refused(f"{plan.failing[0].seen}: {plan.failing[0].advice}")
        work = _Work(plan, say, progress)
        self.node.write(plan.record)
        with self.node.held():
            return self._carried_out(work, ahead_only=ahead_only, wait_s=wait_s)

    def under_way(self) -> MoveRecord:
        """Return the move that is not over; RefusedError if there is none."""
        found = self.node.read()
        if found is None or found.record.phase in (MovePhase.DONE, MovePhase.ABANDONED):
            raise refused("no move is under way")
        return found.record

    def abandon(self) -> MoveRecord:
        """Abandon a move that is not DONE: brokers go on with the source. What was copied stays on the target."""
        record = self.under_way()
        with self.node.held():
            given_up = replace(record, phase=MovePhase.ABANDONED)
            self.node.write(given_up)
        return given_up

    def _carried_out(self, work: _Work, *, ahead_only: bool, wait_s: float | None) -> MoveResult:
        sides = work.plan.sides
        if not work.plan.record.saved:
            saved = save_nodes(self.registry.store, self.registry.url, Path(work.plan.record.folder), "before")
            work.say(f"Saved the nodes of all topics, cursors and schemas in {saved}")
            self._advance(work, MovePhase.AHEAD, str(saved))
        self._raise_ids(work, self.ids_ahead)
        if ahead_only or self.live_brokers():
            self._copy_ahead(work)
        if ahead_only:
            return self._moved(work, self._tally(sides, work.plan.record.owner, read_named(self.references)))
        self._wait_for_stop(work, wait_s)
        for left in reversed(range(_RESTS)):
            rest = self._move_rest(work)
            self._require_no_broker()
            if rest.changed is None:
                break
            changed = f"{rest.changed} changed since brokers were stopped: a broker was started meanwhile, and is gone"
            if not left:
                raise refused(
                    f"{changed}. Nothing that brokers use was changed. See that nothing starts a broker, and that no "
                    "other process writes there; then repeat the command"
                )
            work.say(f"{changed}. The rest begins again")
        _require_same(rest.tally, work.errors, work.plan.may_miss)
        self._advance(work, MovePhase.DONE, str(rest.saved))
        return replace(self._moved(work, rest.tally), next_id=rest.next_id)

    def _move_rest(self, work: _Work) -> _Rest:
        """Recover and copy what is left, and compare all of it, and what names it, with what it was at the stop."""
        sides = work.plan.sides
        saved = save_nodes(self.registry.store, self.registry.url, Path(work.plan.record.folder), "stopped")
        source_id = self.registry.stores.ids_at(sides.source.place).next_id()
        named = self._recover_open(work)
        work.say(f"Copying what is left of {len(named.all):,} ledgers")
        self._copy(work, named, guarded=True)
        next_id = self._raise_ids(work, 0)
        named = read_named(self.references)
        named.require_whole()
        tally = self._tally(sides, work.plan.record.owner, named)
        changed = changed_since(self.registry.store, saved, self.registry.url)
        # Last of all: a broker that loads a topic takes an id, whatever it writes.
        now_id = self.registry.stores.ids_at(sides.source.place).next_id()
        if changed is None and now_id != source_id:
            changed = f"the next ledger id below {sides.source.place.ledgers_root} ({source_id}, now {now_id})"
        return _Rest(saved, tally, next_id, changed)

    def _moved(self, work: _Work, tally: CopyTally) -> MoveResult:
        found = self.node.read()
        record = work.plan.record if found is None else found.record
        next_id = self.registry.stores.ids_at(work.plan.sides.target.place).next_id()
        errors = tuple(f"ledger {ledger_id}: {why}" for ledger_id, why in sorted(work.errors.items())[:_SHOWN])
        return MoveResult(record, work.copied, work.recovered, tally, next_id, errors)

    def _advance(self, work: _Work, phase: MovePhase, saved: str = "") -> None:
        found = self.node.read()
        record = work.plan.record if found is None else found.record
        self.node.write(replace(record, phase=phase, saved=saved or record.saved))

    def _copy_ahead(self, work: _Work) -> None:
        self._advance(work, MovePhase.AHEAD)
        for number in range(1, _ROUNDS + 1):
            named = read_named(self.references)
            if number == 1 and named.doubts:
                work.say(f"Not read, and tried again when brokers are stopped: {some(list(named.doubts))}")
            work.say(f"Copying ahead what is closed of {len(named.all):,} ledgers, round {number}")
            before = work.copied
            self._copy(work, named, guarded=False)
            if work.copied - before <= max(_LITTLE, len(named.all) // 100):
                return

    def _wait_for_stop(self, work: _Work, wait_s: float | None) -> None:
        """Wait until no broker lives; RefusedError when the time is over."""
        self._advance(work, MovePhase.STOPPING)
        shown: list[str] = []
        waited = 0.0
        while live := self.live_brokers():
            if live != shown:
                work.say(f"Stop all brokers now; still there: {some(live)}")
                shown = live
            if wait_s is not None and waited >= wait_s:
                raise refused(f"brokers live, such as {live[0]}: stop all of them, then repeat the command")
            self.sleep(_LOOK_EVERY_S)
            waited += _LOOK_EVERY_S
        work.say("No broker lives")
        self._advance(work, MovePhase.REST)

    def _require_no_broker(self) -> None:
        live = self.live_brokers()
        if live:
            raise refused(
                f"broker {live[0]} was started meanwhile. Nothing that brokers use was changed: as long as it is on "
                "the source nothing is lost. Stop it, and repeat the command"
            )

    def _recover_open(self, work: _Work) -> NamedLedgers:
        """Recover every ledger that is open; return all that are named, by what is readable only then."""
        named = read_named(self.references)
        sides, owner = work.plan.sides, work.plan.record.owner
        left = [one.ledger_id for one in self._compared(sides, owner, named) if one.status is CopyStatus.OPEN]
        if left:
            work.say(f"Recovering {len(left):,} ledgers that were not closed, such as {left[0]}")
        with self.copiers.recovery(sides.source.place) as recovery:
            for ledger_id in left:
                # Recovery fences: a broker that lives would lose the ledger under its hands.
                self._require_no_broker()
                try:
                    recovery.recover(ledger_id)
                except (BookieError, FormatError, NotFoundError) as error:
                    raise refused(f"ledger {ledger_id} of the source could not be closed: {error}") from error
                work.recovered += 1
        # What a cursor's ledger says last can be read once it is closed.
        named = read_named(self.references)
        named.require_whole()
        return named

    def _copy(self, work: _Work, named: NamedLedgers, *, guarded: bool) -> None:
        """Copy what the target does not have yet; with ``guarded`` only while no broker lives."""
        sides, owner = work.plan.sides, work.plan.record.owner
        looked = time.monotonic()

        def guard() -> None:
            nonlocal looked
            if guarded and time.monotonic() >= looked + _LOOK_EVERY_S:
                self._require_no_broker()
                looked = time.monotonic()

        def wanted() -> Iterator[int]:
            for one in self._compared(sides, owner, named):
                guard()
                if one.status is CopyStatus.DIFFERENT:
                    raise _different(CopyTally(Counter({one.status: 1}), (one,), ()), {})
                if one.status is CopyStatus.TO_COPY:
                    yield one.ledger_id

        if guarded:
            self._require_no_broker()
        in_use = frozenset(named.all) if guarded else None
        with self.copiers.copier(sides.source.place, sides.target.place, owner, in_use) as copier:
            for result in copier.copy(wanted()):
                guard()
                work.errors.pop(result.ledger_id, None)
                if result.outcome in (CopyOutcome.COPIED, CopyOutcome.COMPLETE):
                    work.copied += result.outcome is CopyOutcome.COPIED
                    work.progress(work.copied)
                elif result.outcome not in (CopyOutcome.GONE, CopyOutcome.OPEN):
                    work.errors[result.ledger_id] = result.reason or result.outcome.value

    def _compared(self, sides: Sides, owner: str, named: NamedLedgers) -> Iterator[LedgerComparison]:
        """Compare everything that is named, as it is now."""
        for ids in in_parts(named.all):
            here, there = sides.source.metadata.read_many(ids), sides.target.metadata.read_many(ids)
            for source, target in zip(here, there, strict=True):
                yield compare(source, target, owner)

    def _tally(self, sides: Sides, owner: str, named: NamedLedgers) -> CopyTally:
        counts = Counter[CopyStatus]()
        different: list[LedgerComparison] = []
        missing: list[int] = []
        missed = 0
        bookies = set[str]()
        for one in self._compared(sides, owner, named):
            counts[one.status] += 1
            bookies |= one.bookies
            if one.status is CopyStatus.DIFFERENT and len(different) < _SHOWN:
                different.append(one)
            if one.status is CopyStatus.MISSING and one.ledger_id in named.needed:
                missed += 1
                if len(missing) < _SHOWN:
                    missing.append(one.ledger_id)
        return CopyTally(counts, tuple(different), tuple(missing), missed, frozenset(bookies))

    def _free_id(self, sides: Sides, named: NamedLedgers) -> int:
        return max(sides.source.metadata.first_free_id(), max(named.all, default=-1) + 1)

    def _raise_ids(self, work: _Work, ahead: int) -> int:
        """Raise the target's next id above all of the source, by ``ahead`` more; return it."""
        sides = work.plan.sides
        generator = self.registry.stores.ids_at(sides.target.place)
        free = self._free_id(sides, read_named(self.references))
        if generator.next_id() < free + ahead // 2 or generator.next_id() < free:
            work.say(f"Raising the next ledger id of the target from {generator.next_id()} beyond {free + ahead}")
            generator.raise_to(free + ahead)
        next_id = generator.next_id()
        if next_id < free:
            raise StoreError(f"the next ledger id of the target is {next_id}, and the source has some up to {free - 1}")
        return next_id


def judge_ledgers(tally: CopyTally, sides: Sides, may_miss: int) -> Iterator[Finding]:
    """Judge what is missing, and the bookies of what the target has already."""
    if tally.missed:
        seen = f"{_missed(tally)} in neither cluster"
        advice = (
            "see that metadata_store.bookkeeper_url and ledgers_root name the cluster that brokers use; if these were "
            f"lost before, --may-miss {tally.missed}: they stay missing"
        )
        yield Finding("ledgers", *(fails if tally.missed > may_miss else warns)(seen, advice))
    running = {bookie.name for bookie in sides.target.metadata.look().live} if tally.bookies else frozenset[str]()
    gone = sorted(tally.bookies - running)
    if gone:
        yield Finding(
            "ledgers",
            *warns(
                f"{some(gone)} of the target does not run, and has ledgers that are there already",
                "start it, or see that the other bookies have them whole",
            ),
        )


def _missed(tally: CopyTally) -> str:
    return f"{tally.missed:,} ledgers that brokers want to find, such as {tally.missing[0]}, are"


def _require_same(tally: CopyTally, errors: dict[int, str], may_miss: int) -> None:
    """Raise RefusedError unless both clusters have the same, apart from ``may_miss`` that neither has."""
    if tally.missed > may_miss:
        raise refused(f"{_missed(tally)} in neither cluster, and {may_miss:,} may be: nothing was changed for brokers")
    if tally.total != tally.counts[CopyStatus.SAME] + tally.counts[CopyStatus.MISSING]:
        raise _different(tally, errors)


def _different(tally: CopyTally, errors: dict[int, str]) -> Exception:
    shown = [f"ledger {one.ledger_id}: {one.reason}" for one in tally.different]
    shown += [f"ledger {ledger_id}: {why}" for ledger_id, why in sorted(errors.items())]
    count = tally.total - tally.counts[CopyStatus.SAME] - tally.counts[CopyStatus.MISSING]
    return refused(
        f"{count:,} of {tally.total:,} ledgers that are named are not the same on the target: "
        f"{some(shown) or 'they are not there, or not closed'}. Start no broker there; on the source nothing was "
        "changed, so brokers may be started there. Then repeat the command"
    )
