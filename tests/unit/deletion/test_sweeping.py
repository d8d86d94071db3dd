"""Phase two over the in-memory store: what is deleted, kept, journaled, sent on, and what an outage does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.deletion.journal.entries import JournalEntry
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.errors import NoBookieError, PulsarUnavailableError, StoreError, StoreUnavailableError
from bookwarden.ledgers.kinds import CursorHolder, Holder, LedgerComponent, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.metadata import Conditions, DeleteResult
from bookwarden.ledgers.names import decode_local_name
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.memory import MemoryStore
from servers.population import Population
from servers.recorded_entries import RecordedEntries, schema_entry
from servers.sweep_parts import sweep_with

# Stores stamp their nodes with the real time; the sweep of these tests runs a day later, however long all tests take.
NOW = float(int(time.time()) + 86_400)
POLICY = DeletionPolicy(retry_delay=600, max_retries=2, still_referenced_grace=600, unlisted_grace=60)
DATA = ManagedLedgerHolder("t/ns/persistent/orders")
CURSOR = CursorHolder(DATA.name, "sub%2F1")
SCHEMA = SchemaHolder("t/ns/orders")


class Faulty(MemoryStore):
    """The in-memory store behind a connection that can be made to fail or to change things under a reader."""

    def __init__(self) -> None:
        super().__init__()
        self.before_get: Callable[[], None] = lambda: None
        self.before_delete: Callable[[], None] = lambda: None

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        self.before_get()
        return super().get_many(paths)

    def delete_many(
        self,
        expected: Sequence[tuple[str, int]],
        *,
        created_ms: Sequence[int] | None = None,
        conditions: Sequence[Conditions] | None = None,
    ) -> list[DeleteResult]:
        self.before_delete()
        return super().delete_many(expected, created_ms=created_ms, conditions=conditions)


class Recorder:
    """The journal and the outbox of a test: keeps what it gets, and fails when told to."""

    def __init__(self) -> None:
        self.journaled: list[int] = []
        self.retried: list[tuple[int, str]] = []
        self.delayed: list[tuple[int, float, int]] = []
        self.waiting: list[tuple[int, str]] = []
        self.given_up: list[tuple[Outcome, str]] = []
        self.flushes = 0
        self.journal_error: Exception | None = None
        self.flush_error: Exception | None = None

    def append(self, entries: Sequence[JournalEntry]) -> None:
        if self.journal_error is not None:
            raise self.journal_error
        self.journaled += [entry.ledger_id for entry in entries]

    def retry(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        assert received.mark is not None
        assert delay_s == POLICY.retry_delay
        self.retried.append((received.mark.ledger_id, reason))

    def delay(self, received: ReceivedMark, delay_s: float, verified_ms: int, reason: str) -> None:
        assert received.mark is not None
        self.delayed.append((received.mark.ledger_id, delay_s, verified_ms))

    def wait(self, received: ReceivedMark, delay_s: float, reason: str) -> None:
        assert delay_s == POLICY.retry_delay
        self.waiting.append((received.mark.ledger_id if received.mark else -1, reason))

    def give_up(self, received: ReceivedMark, outcome: Outcome, reason: str) -> None:
        self.given_up.append((outcome, reason))

    def flush(self) -> None:
        self.flushes += 1
        if self.flush_error is not None:
            raise self.flush_error


class World:
    """A populated store with everything that sweeps it."""

    def __init__(
        self,
        *,
        step: int = 1000,
        max_unreachable: float = 0.0,
        dry_run: bool = False,
        policy: DeletionPolicy = POLICY,
        entries: DecodedEntries | None = None,
    ) -> None:
        self.store = Faulty()
        self.population = Population(self.store)
        self.recorder = Recorder()
        self.pauses: list[float] = []
        self.catalog = BookKeeperCatalog(self.store)
        self.references = MetadataReferences([self.store])
        self.swept_by = partial(
            sweep_with,
            *(self.catalog, self.references, self.recorder, self.recorder, policy, SweepLimits(step, max_unreachable)),
            entries=entries,
            dry_run=dry_run,
            pause=self.pauses.append,
            clock=lambda: NOW,
        )
        self.sweep_object = self.swept_by()

    def sweep(self, *marks: ReceivedMark) -> list[OutcomeRow]:
        return [row for rows in self.sweep_object.process(marks, "run/0") for row in rows]

    def outcomes(self, *marks: ReceivedMark) -> list[Outcome]:
        return [row.outcome for row in self.sweep(*marks)]


def mark(ledger_id: int, holder: Holder = DATA, *, attempts: int = 0, age: float = 3600) -> ReceivedMark:
    topic, component, cursor = "persistent://t/ns/orders", LedgerComponent.MANAGED_LEDGER, None
    if isinstance(holder, CursorHolder):
        component, cursor = LedgerComponent.MANAGED_CURSOR, decode_local_name(holder.cursor)
    elif isinstance(holder, SchemaHolder):
        component = LedgerComponent.SCHEMA_STORAGE
    else:
        topic = holder.name
    pending = PendingDeletion(topic, component, LedgerType.LEDGER, ledger_id, cursor_name=cursor)
    properties = {"bookwarden.first-read": str(int((NOW - age) * 1000))}
    if attempts:
        properties["RECONSUMETIMES"] = str(attempts)
    return ReceivedMark(
        "topic", f"1:{ledger_id}:0", str(holder), b"", properties, int((NOW - age) * 1000), mark=pending
    )


def verified(received: ReceivedMark, at_ms: int) -> ReceivedMark:
    return replace(received, properties={**received.properties, "bookwarden.verified-at": str(at_ms)})


@pytest.mark.parametrize("holder", [DATA, CURSOR, SCHEMA], ids=["data", "cursor", "schema"])
def test_what_its_holder_no_longer_names_goes_and_the_rest_stays(holder: Holder) -> None:
    world = World(entries=RecordedEntries({1: schema_entry(0, {})}))
    for ledger_id in (1, 2):
        world.population.ledger(ledger_id, holder)
    kept = world.population.names(holder, [2])
    assert world.outcomes(mark(1, holder), mark(2, holder)) == [Outcome.DELETED, Outcome.STILL_REFERENCED]
    assert world.store.get("/ledgers/00/0000/L0001") is None
    assert world.store.get("/ledgers/00/0000/L0002") is not None
    assert world.store.get(kept) is not None
    assert world.recorder.journaled == [1]
    assert world.recorder.flushes == 0


def test_a_mark_that_comes_before_the_update_is_retried_and_then_deleted() -> None:
    world = World()
    world.population.ledger(1, DATA)
    world.population.names(DATA, [1])
    assert world.outcomes(mark(1, age=5)) == [Outcome.RETRY]
    assert world.recorder.retried[0][0] == 1
    world.population.ledger(2, DATA)
    world.population.names(DATA, [2])
    assert world.outcomes(mark(1, attempts=1, age=605)) == [Outcome.DELETED]


def test_a_replayed_batch_finds_its_ledgers_gone() -> None:
    world = World()
    world.population.ledger(1, DATA)
    assert world.outcomes(mark(1)) == [Outcome.DELETED]
    assert world.outcomes(mark(1)) == [Outcome.ALREADY_GONE]


def test_the_same_mark_twice_in_one_batch_deletes_once() -> None:
    world = World()
    world.population.ledger(1, DATA)
    assert world.outcomes(mark(1), mark(1)) == [Outcome.DELETED, Outcome.ALREADY_GONE]
    assert world.recorder.journaled == [1]


def test_a_forged_mark_in_the_same_batch_neither_deletes_nor_protects() -> None:
    world = World()
    other = ManagedLedgerHolder("t/ns/persistent/other")
    world.population.ledger(1, DATA)
    assert world.outcomes(mark(1, other), mark(1)) == [Outcome.MISMATCH, Outcome.DELETED]


def test_what_cannot_be_decoded_goes_to_the_dlq_at_once_and_the_rest_goes_on() -> None:
    world = World()
    world.population.ledger(1, DATA)
    broken = replace(mark(1), mark=None, problem="ledgerId is missing")
    assert sorted(world.outcomes(broken, mark(1)), key=str) == sorted([Outcome.MALFORMED, Outcome.DELETED], key=str)
    assert world.recorder.given_up == [(Outcome.MALFORMED, "ledgerId is missing")]
    assert world.recorder.flushes == 1


@pytest.mark.parametrize(
    "given_up",
    [
        replace(mark(1), mark=None, problem="ledgerId is missing"),
        mark(2, attempts=POLICY.max_retries),
        mark(3, attempts=1),
        replace(mark(4), failure=ValueError("ours")),
    ],
    ids=["malformed", "gave up", "inside the list", "poisonous"],
)
def test_a_mark_whose_dead_letter_would_be_lost_waits_uncounted_and_the_others_go_on(given_up: ReceivedMark) -> None:
    world = World()
    why = ["the DLQ has no subscription"]
    world.sweep_object = world.swept_by(why_letters_are_lost=lambda: why[0] if why else None)
    world.population.ledger(9, CURSOR)
    path = world.population.ledger(2, DATA)
    world.store.put(path, b"no metadata", 0)
    world.population.ledger(3, DATA)
    world.population.names(DATA, [1, 5])
    rows = {row.message: row for row in world.sweep(given_up, mark(9, CURSOR))}
    assert rows[mark(9).message_id].outcome is Outcome.DELETED
    waiting = rows[given_up.message_id]
    assert waiting.outcome is Outcome.WAITING
    assert waiting.reason.startswith("it is not given up, since its dead letter would not be kept (the DLQ has no")
    assert (len(world.recorder.waiting), world.recorder.retried, world.recorder.given_up) == (1, [], [])
    # Once the DLQ keeps letters again, the mark is given up with its own reason.
    why.clear()
    world.sweep(given_up)
    ((_, reason),) = world.recorder.given_up
    assert waiting.reason.endswith(reason)


def test_the_dlq_is_asked_about_only_for_letters_and_its_silence_fails_the_batch() -> None:
    world = World()

    def silent() -> str | None:
        raise PulsarUnavailableError("no answer")

    world.sweep_object = world.swept_by(why_letters_are_lost=silent)
    world.population.ledger(1, DATA)
    assert world.outcomes(mark(1)) == [Outcome.DELETED]
    with pytest.raises(PulsarUnavailableError):
        world.sweep(replace(mark(1), mark=None, problem="ledgerId is missing"))
    assert world.recorder.given_up == []


def test_an_unparsable_reference_node_keeps_every_ledger_of_its_holder() -> None:
    world = World()
    world.population.ledger(1, DATA)
    path = world.population.names(DATA, [])
    found = world.store.get(path)
    assert found is not None
    world.store.put(path, b"\xff\xff\xff", found.version)
    assert world.outcomes(mark(1)) == [Outcome.RETRY]
    assert world.store.get("/ledgers/00/0000/L0001") is not None


def test_unreadable_metadata_is_retried_until_it_is_given_up() -> None:
    world = World()
    path = world.population.ledger(1, DATA)
    world.store.put(path, b"no metadata", 0)
    assert world.outcomes(mark(1), mark(1, attempts=2)) == [Outcome.RETRY, Outcome.GAVE_UP]
    assert world.recorder.given_up[0][0] is Outcome.GAVE_UP


def test_metadata_that_changes_between_check_and_delete_is_not_deleted() -> None:
    world = World()
    path = world.population.ledger(1, DATA)

    def change() -> None:
        found = world.store.get(path)
        assert found is not None
        world.store.put(path, found.value, found.version)

    world.store.before_delete = change
    assert world.outcomes(mark(1)) == [Outcome.RETRY]
    assert world.store.get(path) is not None


def test_an_outage_is_waited_for_and_what_was_read_before_it_is_read_again() -> None:
    world = World(max_unreachable=60)
    world.population.ledger(1, DATA)
    calls = 0

    def fail_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            # While the store was away, the ledger was listed again.
            world.population.names(DATA, [1])
            raise StoreUnavailableError("connection lost")

    world.store.before_delete = fail_once
    assert world.outcomes(mark(1)) == [Outcome.STILL_REFERENCED]
    assert len(world.pauses) == 1


def test_while_no_bookie_is_registered_no_mark_is_settled_and_no_retry_is_spent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The metadata may be a copy, in which what is newer is not there."""
    world = World(max_unreachable=1000)
    path = world.population.ledger(1, DATA)
    looks = iter([NoBookieError("no bookie is registered"), NoBookieError("no bookie is registered"), None])

    def require_bookies() -> None:
        error = next(looks, None)
        if error is not None:
            assert (world.recorder.journaled, world.recorder.retried, world.recorder.waiting) == ([], [], [])
            raise error

    world.sweep_object = world.swept_by(require_bookies=require_bookies)
    assert world.outcomes(mark(1), mark(2)) == [Outcome.DELETED, Outcome.ALREADY_GONE]
    assert len(world.pauses) == 2
    assert caplog.text.count("no bookie is registered") == 2
    assert world.store.get(path) is None
    # Where that lasts the batch is not done, and comes again.
    world = World(max_unreachable=0)
    world.population.ledger(1, DATA)
    looks = iter([NoBookieError("no bookie is registered")])
    world.sweep_object = world.swept_by(require_bookies=require_bookies)
    with pytest.raises(NoBookieError):
        world.outcomes(mark(1), mark(2))
    assert (world.recorder.journaled, world.recorder.retried, world.recorder.given_up) == ([], [], [])


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), StoreError("wrong root")])
def test_a_store_that_stays_away_fails_the_batch_and_sends_nothing_on(error: StoreError) -> None:
    world = World()
    world.population.ledger(1, DATA)

    def fail() -> None:
        raise error

    world.store.before_get = fail
    with pytest.raises(type(error)):
        world.sweep(mark(1))
    assert world.recorder.retried == []


def test_nothing_is_deleted_when_the_journal_cannot_be_written() -> None:
    world = World()
    world.population.ledger(1, DATA)
    world.recorder.journal_error = StoreUnavailableError("disk full")
    with pytest.raises(StoreUnavailableError, match="disk full"):
        world.sweep(mark(1))
    assert world.store.get("/ledgers/00/0000/L0001") is not None


def test_a_batch_is_not_done_when_a_retry_is_not_confirmed() -> None:
    world = World()
    world.population.ledger(1, DATA)
    world.population.names(DATA, [1])
    world.recorder.flush_error = PulsarUnavailableError("not confirmed")
    with pytest.raises(PulsarUnavailableError):
        world.sweep(mark(1, age=5))


def test_a_dry_run_changes_and_sends_nothing() -> None:
    world = World(dry_run=True)
    world.population.ledger(1, DATA)
    world.population.ledger(2, DATA)
    world.population.names(DATA, [2])
    broken = replace(mark(3), mark=None, problem="broken")
    outcomes = world.outcomes(mark(1), mark(2, age=5), broken)
    assert outcomes == [Outcome.WOULD_DELETE, Outcome.RETRY, Outcome.MALFORMED]
    assert world.store.get("/ledgers/00/0000/L0001") is not None
    assert (world.recorder.journaled, world.recorder.retried, world.recorder.given_up) == ([], [], [])


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_every_mark_has_one_outcome_whatever_the_step(step: int) -> None:
    world = World(step=step)
    holders = [ManagedLedgerHolder(f"t/ns/persistent/topic-{number}") for number in range(3)]
    marks = []
    for ledger_id in range(20):
        holder = holders[ledger_id % 3]
        world.population.ledger(ledger_id, holder)
        marks.append(mark(ledger_id, holder))
    rows = world.sweep(*marks)
    assert sorted(row.ledger_id for row in rows if row.ledger_id is not None) == list(range(20))
    assert {row.outcome for row in rows} == {Outcome.DELETED}


def test_a_row_tells_ledger_times_and_size() -> None:
    world = World()
    world.population.ledger(1, DATA, ctime_ms=1_600_000_000_000)
    (row,) = world.sweep(mark(1, attempts=1))
    assert (row.ledger_id, row.holder, row.attempts) == (1, str(DATA), 1)
    assert (row.ledger_created_at, row.ledger_bytes) == (1_600_000_000_000, 1000)
    assert (row.decided_at, row.published_at) == (int(NOW * 1000), int((NOW - 3600) * 1000))
    assert row.message == "1:1:0"


def test_with_a_delay_a_ledger_is_sent_on_with_the_time_of_its_first_verification_and_deleted_later() -> None:
    world = World(policy=replace(POLICY, delete_delay=7200))
    world.population.ledger(1, DATA)
    first = int((NOW - 60) * 1000)
    again = verified(mark(1), first)
    assert world.outcomes(mark(1), again) == [Outcome.DELAYED, Outcome.DELAYED]
    assert world.recorder.delayed == [(1, 900.0, int(NOW * 1000)), (1, 900.0, first)]
    assert (world.recorder.flushes, world.recorder.journaled, world.recorder.retried) == (1, [], [])
    assert world.store.get("/ledgers/00/0000/L0001") is not None
    long_ago = verified(mark(1, age=8000), int((NOW - 7200) * 1000))
    assert world.outcomes(long_ago) == [Outcome.DELETED]


def test_a_dry_run_sends_no_delayed_mark_on() -> None:
    world = World(policy=replace(POLICY, delete_delay=7200), dry_run=True)
    world.population.ledger(1, DATA)
    assert world.outcomes(mark(1)) == [Outcome.DELAYED]
    assert world.recorder.delayed == []


def test_each_batch_looks_where_ledgers_may_be_once_before_it_reads() -> None:
    world = World(step=1)
    for ledger_id in (1, 2, 3):
        world.population.ledger(ledger_id, DATA)
    told: list[str] = []
    world.store.before_get = lambda: told.append("read")

    class Clusters:
        def invalidate(self) -> None:
            told.append("look")

    world.sweep_object = sweep_with(
        world.catalog, world.references, world.recorder, world.recorder, POLICY, SweepLimits(1), clusters=Clusters()
    )
    for _ in range(2):
        world.sweep(mark(1), mark(2), mark(3))
    assert [index for index, what in enumerate(told) if what == "look"] == [0, told.index("look", 1)]
    assert told.count("look") == 2
