"""The supervisor as a machine: queries that end, stall or recover, without Spark."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import NoReturn

import pytest

from bookwarden.errors import (
    BookwardenError,
    DataGoneError,
    SharedDoubtError,
    SparkError,
    StateTakenOverError,
    StoreUnavailableError,
)
from bookwarden.pipelines.streams.supervisor import (
    BatchNumbers,
    BatchRefusedError,
    Pulse,
    StreamLimits,
    Supervisor,
)
from servers.waiting import eventually

QUICK = StreamLimits(stall=30, max_failures=3, failure_window=60, backoff=0.001, max_backoff=0.002, stop_timeout=5)


class ScriptedQuery:
    """A query that is active until it is stopped, or fails at once with the given error."""

    def __init__(self, error: Exception | None = None, at_stop: Exception | None = None) -> None:
        self._error = error
        self._at_stop = at_stop
        self.stopped = threading.Event()

    @property
    def isActive(self) -> bool:
        return self._error is None and not self.stopped.is_set()

    def fail(self, error: Exception) -> None:
        self._error = error

    def stop(self) -> None:
        self.stopped.set()
        if self._at_stop:
            raise self._at_stop

    def exception(self) -> Exception | None:
        return self._error


def progress(pulse: Pulse, batch: int) -> None:
    pulse.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(batchId=batch)))


def test_a_query_that_fails_too_often_ends_the_process_with_the_cause() -> None:
    started: list[ScriptedQuery] = []

    def start() -> ScriptedQuery:
        started.append(ScriptedQuery(StoreUnavailableError("nobody answers")))
        return started[-1]

    with pytest.raises(SparkError, match="nobody answers") as caught:
        Supervisor(start, Pulse(), QUICK).run()
    assert len(started) == 3
    assert isinstance(caught.value.__cause__, StoreUnavailableError)


OF_SPARK = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_DATA_SOURCE_ERROR]
  File "source.py", line 80, in latestOffset
bookwarden.errors.DataGoneError: partition 3 was trimmed
 SQLSTATE: 38000"""


@pytest.mark.parametrize("error", [DataGoneError("partition 3 was trimmed"), RuntimeError(OF_SPARK)])
def test_messages_that_are_gone_end_the_process_at_once(error: Exception) -> None:
    started: list[ScriptedQuery] = []

    def start() -> ScriptedQuery:
        started.append(ScriptedQuery(error))
        return started[-1]

    with pytest.raises(DataGoneError, match=r"^partition 3 was trimmed$"):
        Supervisor(start, Pulse(), QUICK).run()
    assert len(started) == 1


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (SharedDoubtError, "4 marks wait: /managed-ledgers/t/ns/persistent/a: mend the node"),
        (StateTakenOverError, "another follow has taken over var/follow: h as process 7 since now"),
    ],
)
def test_what_no_restart_helps_against_ends_the_process_at_once(kind: type[BookwardenError], said: str) -> None:
    text = f"bookwarden.errors.{kind.__name__}: {said}"
    error = RuntimeError(f"Traceback (most recent call last):\n  File 'a'\n{text}\n")
    started: list[ScriptedQuery] = []

    def start() -> ScriptedQuery:
        started.append(ScriptedQuery(error))
        return started[-1]

    with pytest.raises(kind, match=f"^{said}$"):
        Supervisor(start, Pulse(), QUICK, once=True).run()
    assert len(started) == 1


def test_a_stop_does_not_wait_for_a_batch_that_waits_itself() -> None:
    pulse, query = Pulse(), ScriptedQuery()
    limits = replace(QUICK, stop_timeout=3600)
    supervisor = Supervisor(lambda: query, pulse, limits, is_waiting=lambda: pulse.batch_seconds > 0)
    pulse.enter(0)
    thread = threading.Thread(target=supervisor.run, daemon=True)
    thread.start()
    supervisor.stop()
    thread.join(10)
    assert query.stopped.is_set()
    assert not thread.is_alive()
    assert supervisor.failing is None
    pulse.leave(0, finished=False)
    assert pulse.batch_seconds == 0


def test_a_stop_between_failures_tells_the_last_one_and_a_stop_after_a_recovery_none() -> None:
    def run(then: ScriptedQuery, advance: bool) -> str | None:
        queries, pulse = [ScriptedQuery(RuntimeError("no space")), then], Pulse()
        supervisor = Supervisor(lambda: queries.pop(0), pulse, QUICK)
        thread = threading.Thread(target=supervisor.run)
        thread.start()
        eventually(lambda: not queries, 10)
        if advance:
            progress(pulse, 0)
        supervisor.stop()
        thread.join(10)
        assert not thread.is_alive()
        assert not supervisor.through
        return supervisor.failing

    assert run(ScriptedQuery(), advance=False) == "the query ended: no space"
    assert run(ScriptedQuery(), advance=True) is None


def test_a_batch_that_fails_after_the_stop_was_asked_for_is_told() -> None:
    pulse, query = Pulse(), ScriptedQuery()
    supervisor = Supervisor(lambda: query, pulse, QUICK)
    pulse.enter(0)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    supervisor.stop()
    query.fail(RuntimeError("no space"))
    pulse.leave(0, finished=False)
    thread.join(10)
    assert supervisor.failing == "the query ended: no space"


def test_a_query_that_does_not_start_counts_as_a_failure() -> None:
    def start() -> ScriptedQuery:
        raise RuntimeError("no checkpoint")

    with pytest.raises(SparkError, match="does not start: no checkpoint"):
        Supervisor(start, Pulse(), QUICK).run()


def test_a_failed_query_is_started_again() -> None:
    queries = [ScriptedQuery(RuntimeError("once")), ScriptedQuery()]
    running = threading.Event()

    def start() -> ScriptedQuery:
        query = queries.pop(0)
        if not queries:
            running.set()
        return query

    supervisor = Supervisor(start, Pulse(), QUICK)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    assert running.wait(10)
    supervisor.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_query_without_a_sign_of_life_is_stopped_and_restarted() -> None:
    started: list[ScriptedQuery] = []

    def start() -> ScriptedQuery:
        started.append(ScriptedQuery())
        return started[-1]

    limits = StreamLimits(stall=0.01, max_failures=2, failure_window=60, backoff=0.001, stop_timeout=5)
    with pytest.raises(SparkError, match="no sign of life"):
        Supervisor(start, Pulse(), limits).run()
    assert [query.stopped.is_set() for query in started] == [True, True]


def test_a_batch_that_gets_on_is_not_taken_for_stalled_and_one_that_gets_on_no_more_is() -> None:
    figures = [str(number) for number in range(5)]
    seen: list[str] = []

    def look() -> str:
        seen.append(figures[min(len(seen), len(figures) - 1)])
        return seen[-1]

    limits = StreamLimits(stall=1.0, max_failures=1, stop_timeout=5)
    with pytest.raises(SparkError, match="no sign of life"):
        Supervisor(ScriptedQuery, Pulse(), limits, progress=look).run()
    assert set(seen) == set(figures)


def test_figures_that_cannot_be_had_are_no_sign_of_life() -> None:
    def look() -> str:
        raise RuntimeError("an execution that is not kept any more")

    with pytest.raises(SparkError, match="no sign of life"):
        Supervisor(ScriptedQuery, Pulse(), StreamLimits(stall=0.5, max_failures=1, stop_timeout=5), progress=look).run()


def test_a_stop_waits_for_the_running_batch_and_its_commit() -> None:
    pulse, query = Pulse(), ScriptedQuery()
    supervisor = Supervisor(lambda: query, pulse, QUICK)
    pulse.enter(0)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    supervisor.stop()
    assert not query.stopped.wait(0.5)
    pulse.leave(0, finished=True)
    assert not query.stopped.wait(0.3)
    progress(pulse, 0)
    assert query.stopped.wait(10)
    thread.join(10)


def test_no_batch_begins_after_a_stop_was_asked_for() -> None:
    pulse = Pulse()
    pulse.close()
    with pytest.raises(BatchRefusedError, match="batch 4"):
        pulse.enter(4)


def test_a_stop_before_the_start_starts_nothing() -> None:
    supervisor = Supervisor(lambda: pytest.fail("started"), Pulse(), QUICK)
    supervisor.stop()
    supervisor.run()


def test_a_stop_that_fails_ends_the_process_although_the_query_says_that_it_is_not_active() -> None:
    queries = [ScriptedQuery(at_stop=TimeoutError("stream execution thread")), ScriptedQuery()]
    limits = StreamLimits(stall=0.01, max_failures=9, backoff=0.001, stop_timeout=5)
    with pytest.raises(SparkError, match="did not stop"):
        Supervisor(lambda: queries.pop(0), Pulse(), limits).run()
    assert len(queries) == 1


class LostQuery(ScriptedQuery):
    """A query whose JVM was killed, before or after it says whether it is active."""

    def __init__(self, *, late: bool) -> None:
        super().__init__()
        self._late = late

    @property
    def isActive(self) -> bool:
        return False if self._late else self._refuse()

    def exception(self) -> Exception | None:
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConnectionRefusedError("py4j: connection refused")


@pytest.mark.parametrize("late", [False, True])
def test_a_killed_jvm_ends_the_process_at_once(late: bool) -> None:
    queries = [LostQuery(late=late)]
    with pytest.raises(SparkError, match="no longer answers"):
        Supervisor(lambda: queries.pop(), Pulse(), QUICK).run()


def test_failures_in_a_row_are_told_until_the_query_gets_on_again() -> None:
    pulse, told = Pulse(), []
    recovered = threading.Event()

    def tell(number: int) -> None:
        told.append(number)
        if number == 0:
            recovered.set()

    queries = [ScriptedQuery(RuntimeError("first")), ScriptedQuery(RuntimeError("second")), ScriptedQuery()]
    supervisor = Supervisor(lambda: queries.pop(0), pulse, QUICK, on_failures=tell)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    eventually(lambda: not queries)
    # An idle poll is reported again and again; the first may come while the query is still being started.
    while not recovered.wait(0.05):
        pulse.onQueryIdle(None)
    supervisor.stop()
    thread.join(10)
    assert told == [1, 2, 0]


def test_of_a_progress_only_the_number_of_its_batch_is_asked_of_the_jvm() -> None:
    pulse = Pulse()
    pulse.enter(7)
    pulse.leave(7, finished=True)
    assert not pulse.wait_until_settled(0)
    event = SimpleNamespace(progress=lambda: SimpleNamespace(batchId=lambda: 7))
    BatchNumbers(pulse).onQueryProgress(event)
    assert pulse.wait_until_settled(0)
    assert pulse.advances == 1


class Moving:
    """A metadata store that is moved, when a test says so."""

    def __init__(self) -> None:
        self.stops = 0
        self.blocked: str | None = None
        self.news: list[str | None] = []
        self.unreachable = False

    def look(self) -> None:
        if self.unreachable:
            raise StoreUnavailableError("no connection")
        if self.news:
            self.blocked = self.news.pop(0)
            self.stops += 1


def test_a_query_that_waits_for_a_migration_is_not_taken_for_stalled() -> None:
    moving, query = Moving(), ScriptedQuery()
    moving.blocked = "COPYING"
    limits = StreamLimits(stall=0.3, max_failures=1, stop_timeout=5)
    supervisor = Supervisor(lambda: query, Pulse(), limits, migrations=moving)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            supervisor.run()
        except SparkError as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert not query.stopped.wait(1)
    moving.blocked = None
    thread.join(10)
    assert "no sign of life" in str(ended[0])


def test_failures_while_the_metadata_is_moved_are_not_counted() -> None:
    moving, told = Moving(), []
    # What the look at the start and those after each query find.
    moving.news = [None, "PREPARATION", "COPYING", "COPYING", None]
    queries = [ScriptedQuery(RuntimeError(f"query {number}")) for number in range(9)]
    limits = StreamLimits(max_failures=2, backoff=0.001, max_backoff=0.002, stop_timeout=5)
    supervisor = Supervisor(lambda: queries.pop(0), Pulse(), limits, on_failures=told.append, migrations=moving)
    with pytest.raises(SparkError, match="query 5; 2 failures"):
        supervisor.run()
    assert told == [1]


def test_failures_count_where_the_migration_cannot_be_seen() -> None:
    moving = Moving()
    moving.unreachable = True
    with pytest.raises(SparkError, match="3 failures"):
        Supervisor(lambda: ScriptedQuery(RuntimeError("away")), Pulse(), QUICK, migrations=moving).run()


def test_a_query_is_started_anew_when_the_metadata_moved_to_where_another_has_to_run() -> None:
    moving, started, moved = Moving(), [], threading.Event()

    def start() -> ScriptedQuery:
        started.append(ScriptedQuery())
        return started[-1]

    limits = StreamLimits(max_failures=1, backoff=0.001, stop_timeout=5)
    supervisor = Supervisor(
        start, Pulse(), limits, migrations=moving, is_outdated=lambda: moved.is_set() and len(started) == 1
    )
    thread = threading.Thread(target=supervisor.run, daemon=True)
    thread.start()
    eventually(lambda: started)
    moving.stops = 1
    moved.set()
    eventually(lambda: len(started) == 2)
    assert started[0].stopped.is_set()
    supervisor.stop()
    thread.join(10)
    assert not thread.is_alive()
