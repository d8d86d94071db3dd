"""A doubt about very many marks: how many go round, what is carried out meanwhile, how the batch goes on or ends."""

from __future__ import annotations

import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import pytest

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.clusters.pulsar.references.no_shadow import NodeContent, NoShadow, NoShadowRecords
from bookwarden.deletion.journal.entries import JournalEntry
from bookwarden.deletion.phase_two.held_marks import HeldMarks, RetryTopicRoom
from bookwarden.deletion.phase_two.sent_on import SentOn
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.errors import SharedDoubtError
from bookwarden.ledgers.kinds import CursorHolder, Holder, ManagedLedgerHolder
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.ledgers.received import FIRST_READ, ReceivedMark
from bookwarden.ledgers.shared_doubts import DoubtCause, SharedDoubt
from bookwarden.metastore.memory import MemoryStore
from bookwarden.signs_of_life import SIGNS_OF_LIFE
from servers.population import Population
from servers.sweep_parts import sweep_with
from servers.swept_store import SweptStore

DATA = ManagedLedgerHolder("t/ns/persistent/orders")
CURSOR = CursorHolder(DATA.name, "billing")
BROKEN = ManagedLedgerHolder("t/ns/persistent/broken")
BROKEN_PATH = f"/managed-ledgers/{BROKEN.name}"
RETURNING = SharedDoubt(DoubtCause.RETURNING_IDS, "/ledgers", "ids come again: run `metadata-migration counters`")


class Killed(BaseException):
    """Ends the process in the middle of its wait."""


class Ids:
    """Ids that come again, until they do not."""

    def __init__(self) -> None:
        self.found: SharedDoubt | None = None

    def doubt(self) -> SharedDoubt | None:
        return self.found


class Sent:
    """The records of what was sent on, which outlive a process."""

    def __init__(self) -> None:
        self.records: defaultdict[str, list[SentOn]] = defaultdict(list)

    def read(self, run: str) -> Iterable[SentOn]:
        return self.records[run]

    def add(self, run: str, sent: Sequence[SentOn]) -> None:
        self.records[run] += sent


class World(SweptStore):
    """A store with a topic's node that cannot be read, and a retry topic with a limit; its clock goes by pauses."""

    def __init__(self, limit: int, *, step: int = 1000, once: bool = False) -> None:
        self.now = 0.0
        self.pauses = 0
        self.while_waiting: Callable[[int], None] = lambda _: None
        self.counted = 0
        self.step = step
        super().__init__(MemoryStore())
        self.write(BROKEN_PATH, b"\x47\x78broken")
        self.limit = limit
        self.once = once
        self.ids = Ids()
        self.records = Sent()
        self.start()

    def start(self) -> None:
        """Start the process that sweeps."""
        self.references = MetadataReferences([self.store], shadow_refresh=600, steady=lambda: self.now)
        self.swept = sweep_with(
            *(BookKeeperCatalog(self.store), self.references, self, self, self.policy, SweepLimits(self.step)),
            ids=self.ids,
            sent=self.records,
            held=HeldMarks(RetryTopicRoom(self.limit, self.on_retry_topic, lambda: self.now), once=self.once),
            pause=self._pause,
            clock=self.clock,
        )

    def on_retry_topic(self) -> int:
        self.counted += 1
        return len(self.sent)

    def _pause(self, seconds: float) -> None:
        self.now += seconds
        self.pauses += 1
        self.while_waiting(self.pauses)

    def batch(self, *marks: ReceivedMark, run: str = "run/0") -> list[OutcomeRow]:
        return [row for rows in self.swept.process(marks, run) for row in rows]

    def mend(self) -> None:
        self.population.names(BROKEN, [999_999])

    def waiting(self) -> list[int]:
        return [ledger_id for what, ledger_id, _ in self.sent if what == "wait"]


def mark(ledger_id: int, holder: Holder = DATA) -> ReceivedMark:
    pending = mark_of_holder(ledger_id, holder, "")
    return ReceivedMark("topic", f"1:{ledger_id}:0", str(holder), b"", {FIRST_READ: "1"}, 1, mark=pending)


def outcomes(rows: Iterable[OutcomeRow]) -> Counter[Outcome]:
    return Counter(row.outcome for row in rows)


def test_a_backlog_of_100_steps_goes_round_up_to_the_limit_and_all_else_is_carried_out() -> None:
    world = World(2_000, step=200)
    # Each tenth mark is one that the doubt does not concern; they lie in all steps of the batch.
    cursors = range(0, 20_000, 10)
    for ledger_id in range(20_000):
        world.population.ledger(ledger_id, CURSOR if ledger_id % 10 == 0 else holder_of(ledger_id))
    seen = []

    def look(pauses: int) -> None:
        seen.append(len(world.sent))
        if pauses == 1:
            assert world.left(*cursors) == set()
        if pauses == 100:
            world.mend()

    world.while_waiting = look
    rows = world.batch(*(mark(n, CURSOR if n % 10 == 0 else holder_of(n)) for n in range(20_000)))
    assert set(seen) == {2_000}
    assert world.now < 100 + 60
    assert outcomes(rows) == {Outcome.WAITING: 2_000, Outcome.DELETED: 18_000}
    went_round = world.waiting()
    assert outcomes(world.batch(*(mark(n, holder_of(n)) for n in went_round), run="run/1")) == {Outcome.DELETED: 2_000}


def holder_of(ledger_id: int) -> Holder:
    return ManagedLedgerHolder(f"t/ns/persistent/topic-{ledger_id % 1000}")


def test_marks_that_came_from_the_retry_topic_are_not_sent_round_again_while_it_is_full() -> None:
    world = World(5)
    world.ledgers(DATA, *range(8))
    with pytest.raises(Killed):
        stopped_at(world, 1, range(8))
    # The five are due, and in the backlog until their batch is done; the cure ends that all the same.
    due = world.waiting()
    assert len(due) == 5
    world.while_waiting = lambda pauses: world.mend() if pauses == 50 else None
    assert outcomes(world.batch(*map(mark, due), run="run/1")) == {Outcome.DELETED: 5}
    assert len(world.sent) == 5


def stopped_at(world: World, pauses: int, ledger_ids: Iterable[int]) -> None:
    """Sweep these until the process is killed at this pause."""

    def kill(number: int) -> None:
        if number == pauses:
            raise Killed

    world.while_waiting = kill
    world.batch(*map(mark, ledger_ids))


def test_a_process_killed_while_it_waits_leaves_a_batch_that_is_carried_out_whole() -> None:
    world = World(5)
    world.ledgers(DATA, *range(20))
    world.ledgers(CURSOR, 100)
    for _ in range(2):
        with pytest.raises(Killed):
            stopped_at(world, world.pauses + 25, range(20))
        world.start()
    assert len(world.sent) == 5, "a replay sent the same marks again"
    world.while_waiting = lambda _: world.mend()
    rows = world.batch(*map(mark, range(20)), mark(100, CURSOR))
    assert outcomes(rows) == {Outcome.WAITING: 5, Outcome.DELETED: 16}
    assert world.left(*range(20)) == set(world.waiting())


def test_the_batch_goes_on_within_a_minute_of_the_cure_and_gives_signs_of_life_until_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(0)
    world.ledgers(DATA, *range(5))
    signs: list[int] = []

    def look(pauses: int) -> None:
        signs.append(SIGNS_OF_LIFE.count)
        if pauses == 1000:
            world.mend()

    world.while_waiting = look
    with caplog.at_level(logging.INFO):
        assert outcomes(world.batch(*map(mark, range(5)))) == {Outcome.DELETED: 5}
    assert world.now < 1000 + 60
    assert world.counted == 1, "the broker is asked while nothing is sent"
    assert all(later > earlier for earlier, later in itertools.pairwise(signs))
    logged = [record for record in caplog.records if "held_marks" in record.name]
    assert [record.levelname for record in logged] == ["WARNING", "INFO"]
    assert BROKEN_PATH in logged[0].getMessage()
    assert "5 marks" in logged[0].getMessage()


def test_once_ends_with_an_error_that_names_the_node_and_the_command() -> None:
    world = World(5, once=True)
    world.ledgers(DATA, *range(9))
    world.ledgers(CURSOR, 100)
    with pytest.raises(SharedDoubtError, match=rf"4 marks, .*{BROKEN_PATH}.*`bookwarden no-shadow`") as caught:
        world.batch(*map(mark, range(9)), mark(100, CURSOR))
    assert caught.value.exit_code == 16
    assert world.left(100) == set()
    assert (len(world.sent), world.pauses) == (5, 0)


def test_ids_that_come_again_are_waited_for_in_the_same_way() -> None:
    world = World(2)
    world.mend()
    world.ids.found = RETURNING
    world.ledgers(DATA, 1, 2, 3)
    world.ledgers(CURSOR, 4)

    def end(pauses: int) -> None:
        assert world.journaled == []
        if pauses == 20:
            world.ids.found = None

    world.while_waiting = end
    rows = world.batch(*map(mark, (1, 2, 3)), mark(4, CURSOR), mark(5))
    assert outcomes(rows) == {Outcome.ALREADY_GONE: 1, Outcome.WAITING: 2, Outcome.DELETED: 2}
    assert world.now < 20 + 60


def test_ids_that_come_again_while_the_journal_is_written_keep_what_is_in_it() -> None:
    class Slow(World):
        def append(self, entries: Sequence[JournalEntry]) -> None:
            super().append(entries)
            self.ids.found = RETURNING

    world = Slow(1)
    world.mend()
    world.ledgers(DATA, 1)
    assert outcomes(world.batch(mark(1))) == {Outcome.WAITING: 1}
    assert (world.journaled, world.left(1)) == ([1], {1})


def test_the_end_of_one_doubt_frees_its_marks_while_another_lasts() -> None:
    world = World(0, step=2)
    world.ids.found = RETURNING
    world.ledgers(DATA, 1, 2, 3)
    world.ledgers(CURSOR, 4, 5, 6)
    left: list[int] = []

    def end(pauses: int) -> None:
        if pauses == 15:
            world.ids.found = None
        if pauses == 40:
            left.extend(world.left(*range(7)))
            world.mend()

    world.while_waiting = end
    rows = world.batch(*map(mark, (1, 2, 3)), *(mark(n, CURSOR) for n in (4, 5, 6)))
    assert left == [1, 2, 3]
    assert outcomes(rows) == {Outcome.DELETED: 6}


def test_a_mark_that_leaves_one_doubt_for_another_is_carried_out_once() -> None:
    world = World(0)
    world.ledgers(DATA, 1, 2)
    world.ids.found = RETURNING

    def end(pauses: int) -> None:
        if pauses == 10:
            world.mend()
        if pauses == 40:
            world.ids.found = None

    world.while_waiting = end
    assert outcomes(world.batch(mark(1), mark(2))) == {Outcome.DELETED: 2}
    assert 40 <= world.now < 100


def test_marks_of_the_unreadable_topic_itself_are_retried_and_hold_nothing_up() -> None:
    world = World(0)
    world.ledgers(BROKEN, 1)
    assert outcomes(world.batch(mark(1, BROKEN))) == {Outcome.RETRY: 1}
    assert world.pauses == 0


def test_a_node_taken_as_no_shadow_frees_all_but_its_own_marks_until_it_changes() -> None:
    world = World(0)
    world.ledgers(DATA, 1, 2)
    world.ledgers(BROKEN, 3)

    def take(pauses: int) -> None:
        if pauses == 12:
            take_as_no_shadow(world.store)

    world.while_waiting = take
    rows = world.batch(mark(1), mark(3, BROKEN))
    assert outcomes(rows) == {Outcome.DELETED: 1, Outcome.RETRY: 1}
    # The record is of the node as it was: no person has seen what is there now.
    world.write(BROKEN_PATH, b"\x47\x78other")
    with pytest.raises(Killed):
        stopped_at(world, world.pauses + 100, [2])
    assert world.left(1, 2, 3) == {2, 3}


def take_as_no_shadow(store: MemoryStore) -> None:
    node = store.get(BROKEN_PATH)
    assert node is not None
    NoShadowRecords(store).write(NoShadow(BROKEN_PATH, NodeContent.of(node), "me@here", 1, "it is none"))


def test_a_node_that_turns_out_to_be_a_shadow_keeps_what_it_lists() -> None:
    world = World(0)
    world.ledgers(DATA, 1, 2)

    def mend(pauses: int) -> None:
        if pauses == 12:
            Population(world.store).names(BROKEN, [2])

    world.while_waiting = mend
    rows = world.batch(mark(1), mark(2))
    assert outcomes(rows) == {Outcome.DELETED: 1, Outcome.STILL_REFERENCED: 1}


def test_the_room_is_counted_for_each_step_and_a_full_topic_stays_full_for_some_seconds() -> None:
    now, there, counted = 0.0, [7], []

    def waiting() -> int:
        counted.append(now)
        return there[0]

    room = RetryTopicRoom(10, waiting, lambda: now)
    assert room.take(2) == 2
    # Another task sends as well.
    there[0] = 9
    assert [room.take(2), room.take(2)] == [1, 0]
    assert counted == [0.0, 0.0]
    now, there[0] = 5.0, 4
    assert room.take(9) == 6
    now, there[0] = 10.0, 11
    assert room.take(1) == 0
