"""The sweep, its dry run and `ledger explain` ask the same guards in the same order, and say the same of any mark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.bookie_clusters.promoted import Promotion, Promotions, find_promotion, keep_promotion
from bookwarden.bookie_clusters.registry import Directive
from bookwarden.clusters.bookkeeper.undone import UndoneLedger, UndoneLedgers
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.config import Settings, load_settings
from bookwarden.deletion import phase_two
from bookwarden.deletion.explaining import _VERDICTS, explain_ledger
from bookwarden.deletion.phase_two.copy_deletion import CopyOwnerGuard
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.phase_two.guards import Guard, LeftBehindGuard, NodeGuard, ReusedIdGuard, UndoneGuard
from bookwarden.deletion.phase_two.superseded import SupersededGuard
from bookwarden.deletion.phase_two.sweeping import Sweep, SweepLimits
from bookwarden.errors import BookieError
from bookwarden.ledgers.kinds import Holder, LedgerComponent
from bookwarden.ledgers.managed_ledger import as_uuid
from bookwarden.ledgers.metadata import LedgerState, StoredLedger
from bookwarden.ledgers.offloaded_copies import (
    AbsentCopy,
    CopyDeletion,
    CopyFate,
    CopyIndex,
    CopyReading,
    OffloadedCopy,
    PresentCopy,
    UnreadableCopy,
)
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.ledgers.pending_deletion import (
    LedgerType,
    OffloadContext,
    PendingDeletion,
    Waiver,
    mark_of_holder,
)
from bookwarden.ledgers.received import ReceivedMark, waiving
from bookwarden.ledgers.shared_doubts import DoubtCause, SharedDoubt
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import managed_ledger_pb2
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import sweep_of, verifier_of
from servers.population import OLD_MS, Population
from servers.recorded_entries import RecordedEntries, schema_entry
from servers.sweep_parts import sweep_with, verifier_with
from unit.deletion.test_sweeping import CURSOR, DATA, NOW, POLICY, SCHEMA, Recorder
from unit.switching.two_bookie_clusters import COPY, REGISTRY, TwoBookieClusters

ORDER = [NodeGuard, CopyOwnerGuard, LeftBehindGuard, SupersededGuard, UndoneGuard, ReusedIdGuard]
# Once more right before a delete.
AGAIN = [UndoneGuard, ReusedIdGuard]
LEDGERS = range(1, 6)
OTHER = replace(DATA, name="t/ns/persistent/other")
WHERE = {"bucket": "offload", "region": "r", "serviceEndpoint": "http://s3"}
DELETES = {Outcome.WOULD_DELETE: Outcome.DELETED}


@pytest.fixture
def configured(tmp_path: Path) -> Settings:
    stores = {"metadata_store.urls": "['memory:one']", "sweep.journal": str(tmp_path / "journal")}
    return load_settings(overrides=stores)


def test_all_three_ask_the_same_guards_in_this_order_and_a_dry_run_can_do_nothing(configured: Settings) -> None:
    dry = configured.model_copy(update={"sweep": configured.sweep.model_copy(update={"dry_run": True})})
    with Cluster(configured) as first, Cluster(dry) as second, Cluster(configured) as third:
        sweeps, looks = sweep_of(first), sweep_of(second)
        found = [sweeps._verifier, looks._verifier, verifier_of(third)]
        assert [[type(guard) for guard in one._guards] for one in found] == [ORDER] * 3
        assert len({type(one._catalog) for one in found}) == 1
        assert all(one._catalog._for_deletion for one in found)  # type: ignore[attr-defined]  # of MultiClusterCatalog
        assert (sweeps._acts is None, looks._acts) == (False, None)
        assert [type(guard) for guard in sweeps._acts.ledgers._again] == AGAIN  # type: ignore[union-attr]
    assert [type(guard) for guard in Site(Ground()).verifier._guards] == ORDER


def test_every_guard_is_asked() -> None:
    for module in iter_modules(phase_two.__path__, f"{phase_two.__name__}."):
        import_module(module.name)
    assert {guard for guard in Guard.__subclasses__() if guard.__module__.startswith(phase_two.__name__)} == set(ORDER)


def test_every_outcome_of_a_mark_is_explained() -> None:
    of_messages = {Outcome.MALFORMED, Outcome.POISONOUS, Outcome.WOULD_DELETE, Outcome.DIRECTIVE}
    assert set(Outcome) - set(_VERDICTS) == of_messages


class Copies:
    """The store of offloaded copies."""

    def __init__(self, readings: dict[UUID, CopyReading]) -> None:
        self.readings = readings
        self.deleted: list[OffloadedCopy] = []

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        return [self.readings.get(copy.uuid, AbsentCopy()) for copy in copies]

    examine_many = read_many

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        self.deleted += copies
        return [CopyDeletion(CopyFate.DELETED) for _ in copies]


@dataclass(frozen=True)
class Kept:
    """What the metadata has of a ledger."""

    holder: Holder | None = DATA
    cluster: str = "a"  #: "ab" for a whole copy on b, "ab?" for an unfinished one, "?" for that alone.
    state: LedgerState = LedgerState.CLOSED
    last: int = 9
    new: bool = False


@dataclass(frozen=True)
class Ground:
    """The state of a cluster; it can be made any number of times."""

    ledgers: tuple[Kept | None, ...] = (None,) * len(LEDGERS)
    listed: tuple[int, ...] | None = None  #: None without a node; -1 in it stands for bytes that are none.
    offloaded: frozenset[int] = frozenset()
    emptied: frozenset[int] = frozenset()  #: Of these, what the topic says is gone from BookKeeper.
    cursor: int = -1
    schema: tuple[int, ...] = ()
    registered: bool = False
    promoted: bool = False
    undone: frozenset[int] = frozenset()
    ids: bool = False
    silent: frozenset[int] = frozenset()  #: Ledgers of which the bookies do not say what they have.
    copies: tuple[CopyReading, ...] = (AbsentCopy(),) * len(LEDGERS)
    policy: DeletionPolicy = POLICY


class Site(TwoBookieClusters):
    """A cluster, and what sweeps and explains it."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(MemoryStore(lambda: OLD_MS / 1000))
        population = Population(self.store)
        for ledger_id, kept in zip(LEDGERS, ground.ledgers, strict=True):
            if kept is not None:
                self._make(ledger_id, kept)
        self._list(ground)
        if ground.cursor >= 0:
            population.names(CURSOR, [ground.cursor])
        if ground.schema:
            population.names(SCHEMA, list(ground.schema))
        if ground.registered:
            self.register(replace(REGISTRY, active="b", directive=Directive("a", "b", "test", 3, 0)))
        if ground.promoted:
            promotion = Promotion("b", 3, int(NOW * 1000), frozenset())
            keep_promotion(self.store, promotion, find_promotion(self.store)[1])
        undone = UndoneLedgers(self.store)
        undone.note_many([UndoneLedger(ledger_id, "undo-1", 1, None) for ledger_id in ground.undone])
        self.copies = Copies({uuid_of(number): one for number, one in zip(LEDGERS, ground.copies, strict=True)})
        self._silent, self._ids = ground.silent, ground.ids
        self.recorder = Recorder()
        silence: dict[int, bytes | Exception] = {one: BookieError("no answer") for one in ground.silent}
        found: dict[int, bytes | Exception] = {one: schema_entry(0, {}) for one in LEDGERS if one % 2} | silence
        parts: dict[str, Any] = {
            "copies": self.copies,
            "entries": RecordedEntries(found),
            "undone": undone,
            "ids": self,
            "clusters": self.clusters,
            "proof": self,
            "promotions": Promotions(self.store, ""),
            "clock": lambda: NOW,
        }
        reads = self.catalog, MetadataReferences([self.store])
        self.verifier = verifier_with(*reads, ground.policy, **parts)
        self.sweep_of = partial(
            sweep_with, *reads, self.recorder, self.recorder, ground.policy, SweepLimits(max_unreachable=0), **parts
        )

    def _make(self, ledger_id: int, kept: Kept) -> None:
        closed = kept.state is LedgerState.CLOSED
        has = {"last": kept.last, "length": 100 * (kept.last + 1)} if closed else {"last": None, "length": 0}
        made: dict[str, Any] = {"holder": kept.holder, "ctime_ms": int(NOW * 1000) if kept.new else OLD_MS}
        if "a" in kept.cluster:
            self.ledger("a", ledger_id, state=kept.state, **has, **made)
        if "b" in kept.cluster or "?" in kept.cluster:
            ends = {"last": 8, "length": 900} if "?" in kept.cluster else {}
            self.ledger("b", ledger_id, **ends, **made, **(COPY if kept.cluster != "b" else {}))

    def _list(self, ground: Ground) -> None:
        if ground.listed is None:
            return
        node = managed_ledger_pb2.ManagedLedgerInfo()
        for ledger_id in ground.listed:
            ledger = node.ledgerInfo.add(ledgerId=ledger_id, entries=10, size=1000, timestamp=OLD_MS)
            if ledger_id in ground.offloaded:
                context = ledger.offloadContext
                context.uidMsb, context.uidLsb, context.complete = -5, ledger_id, True
                if ledger_id in ground.emptied:
                    context.bookkeeperDeleted = 1
                context.driverMetadata.name = "S3"
                for key, value in WHERE.items():
                    context.driverMetadata.properties.add(key=key, value=value)
        value = b"\xff" if -1 in ground.listed else node.SerializeToString()
        self.store.create(f"/managed-ledgers/{DATA.name}", value, make_parents=True)

    def doubt(self) -> SharedDoubt | None:
        return SharedDoubt(DoubtCause.RETURNING_IDS, "/counter", "ids return") if self._ids else None

    def problem_of(self, ledger: StoredLedger) -> str | None:
        return "no answer" if ledger.ledger_id in self._silent else None

    def state(self) -> object:
        """Everything that an act would change."""
        sent = self.recorder.retried, self.recorder.delayed, self.recorder.waiting, self.recorder.given_up
        return (
            dict(self.store._nodes),
            list(self.copies.deleted),
            [list(each) for each in sent],
            self.recorder.journaled,
        )

    def rows(self, sweep: Sweep, *marks: ReceivedMark) -> dict[str, OutcomeRow]:
        return {row.message: row for rows in sweep.process(marks, "run/0") for row in rows}


def uuid_of(number: int) -> UUID:
    return as_uuid(-5, number)


# What is made of a seed is spread evenly, as what hypothesis makes of many small strategies is not.
SEEDS = st.integers(0, 2**32)
WHOLE = PresentCopy(DATA.name, 1000, CopyIndex(1000, 9, 1000))
UNREAD = UnreadableCopy("no answer")
COPIES = (*[WHOLE] * 5, AbsentCopy(), UNREAD, replace(WHOLE, data_bytes=7), replace(WHOLE, owner="t/x"))


def ground_of(rng: Random) -> Ground:
    """Make any ground, mostly one in which much is in order."""

    def some(ids: Sequence[int], share: float) -> frozenset[int]:
        return frozenset(one for one in ids if rng.random() < share)

    listed = tuple(sorted(some([*LEDGERS, 8, 9], 0.4)))
    registered = rng.random() < 0.5
    return Ground(
        tuple(_kept(rng, registered) if rng.random() < 0.9 else None for _ in LEDGERS),
        rng.choice([*[listed] * 8, None, (-1,)]),
        some(LEDGERS, 0.5),
        some(LEDGERS, 0.7),
        rng.choice([-1, -1, *LEDGERS]),
        tuple(sorted(some(LEDGERS, 0.3))),
        registered,
        rng.random() < 0.8,
        some(LEDGERS, 0.1),
        rng.random() < 0.1,
        some(LEDGERS, 0.1),
        tuple(rng.choice(COPIES) for _ in LEDGERS),
        replace(POLICY, delete_delay=rng.choice([0.0] * 9 + [7200.0]), max_retries=rng.randrange(5)),
    )


def _kept(rng: Random, registered: bool) -> Kept:
    return Kept(
        rng.choice([*[DATA] * 8, OTHER, CURSOR, SCHEMA, None]),
        rng.choice(["a", "ab", "ab", "ab?", "?", "b"] if registered else ["a"]),
        rng.choice([*[LedgerState.CLOSED] * 4, LedgerState.OPEN]),
        rng.choice([9, 9, -1]),
        rng.random() < 0.1,
    )


def received(
    pending: PendingDeletion, number: int, attempts: int, age: float, waives: frozenset[Waiver]
) -> ReceivedMark:
    first = int(NOW * 1000) - int(age * 1000)
    properties = {"bookwarden.first-read": str(first), "RECONSUMETIMES": str(attempts), **waiving(waives)}
    return ReceivedMark("topic", f"1:{number}:0", str(pending.holder()), b"", properties, first, mark=pending)


def marks_of(rng: Random, ground: Ground) -> list[ReceivedMark]:
    """Make marks of any kind, mostly of the right holder; of a ledger and of its copy one at most."""
    made: list[ReceivedMark] = []
    for ledger_id in rng.sample([*LEDGERS, 7], rng.randrange(1, 5)):
        kept = ground.ledgers[ledger_id - 1] if ledger_id in LEDGERS else None
        holder = rng.choice([DATA if kept is None else kept.holder or DATA] * 9 + [DATA, OTHER, CURSOR])
        waives = frozenset(one for one in Waiver if rng.random() < (0.4 if ground.registered else 0.1))
        is_superseded = Waiver.SUPERSEDED in waives
        cluster = rng.choice(["a"] * 9 + ["b"] if is_superseded else [*[""] * 7, *"abc"])
        attempts, age = rng.randrange(4), rng.choice([0.0, 3600.0, 86_400.0])
        pending = replace(mark_of_holder(ledger_id, holder, ""), bookie_cluster=cluster)
        made.append(received(pending, len(made), attempts, age, waives))
        if pending.component is LedgerComponent.MANAGED_LEDGER and rng.random() < 0.5:
            context = OffloadContext(-5, ledger_id, "S3", {**WHERE, "managedLedgerOffloadDriver": "S3"})
            copy = replace(pending, ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context, bookie_cluster="")
            made.append(received(copy, len(made), attempts, age, waives - {Waiver.SUPERSEDED}))
    return made


@settings(max_examples=400, deadline=None)
@given(SEEDS)
def test_a_dry_run_says_what_the_sweep_then_does_and_changes_nothing(seed: int) -> None:
    ground = ground_of(rng := Random(seed))
    site, some = Site(ground), marks_of(rng, ground)
    before = site.state()
    looked = site.rows(site.sweep_of(dry_run=True), *some)
    assert site.state() == before
    swept = site.rows(site.sweep_of(), *some)
    assert Outcome.DELETED not in {row.outcome for row in looked.values()}
    would = {name: DELETES.get(row.outcome, row.outcome) for name, row in looked.items()}
    assert would == {name: row.outcome for name, row in swept.items()}
    kept = [name for name, row in looked.items() if row.outcome is not Outcome.WOULD_DELETE]
    assert [looked[name].reason for name in kept] == [swept[name].reason for name in kept]
    # Also not together with the ledger that it stands for.
    named = map(uuid_of, ground.offloaded & frozenset(ground.listed or ()))
    assert {copy.uuid for copy in site.copies.deleted if copy.managed_ledger == DATA.name}.isdisjoint(named)


@settings(max_examples=400, deadline=None)
@given(SEEDS)
def test_explain_says_what_the_sweep_does_and_changes_nothing(seed: int) -> None:
    ground = ground_of(rng := Random(seed))
    site, ledger_id = Site(ground), rng.choice(LEDGERS)
    before = site.state()
    found = explain_ledger(ledger_id, site.verifier)
    assert site.state() == before
    pending = mark_of_holder(ledger_id, found.holder or DATA, "")
    mark = received(pending, 0, 1, ground.policy.still_referenced_grace, frozenset())
    (looked,) = site.rows(site.sweep_of(dry_run=True), mark).values()
    assert site.state() == before
    (row,) = site.rows(site.sweep_of(), mark).values()
    said = found.outcome
    if said is None:
        # Of no mark: absent or unreadable, or of no holder, whatever a mark of it says.
        assert row.outcome in (Outcome.ALREADY_GONE, Outcome.RETRY, Outcome.GAVE_UP, Outcome.MISMATCH)
        assert (row.outcome is Outcome.ALREADY_GONE) is ("gone already" in found.verdict)
        return
    assert [DELETES.get(looked.outcome, looked.outcome), row.outcome] == [said, said]
    own = ("a ledger that is referenced is never deleted", "the holder does not exist any more")
    assert found.reason in (row.reason, *own) or said is Outcome.DELETED
