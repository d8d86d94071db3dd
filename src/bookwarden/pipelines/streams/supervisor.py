"""A supervisor of a streaming query: it watches progress, restarts a query that stalls or fails, and stops gently.

``isActive`` stays true while a task waits for ever, so signs of life are the query's own events: a finished batch, an
idle poll, a batch of ours that began or ended.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from bookwarden.errors import (
    BookwardenError,
    DataGoneError,
    FileError,
    SharedDoubtError,
    SparkError,
    StateTakenOverError,
    StoreError,
)
from bookwarden.metastore.following.store import Migrations

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_WATCH_SECONDS = 0.25
_ACKNOWLEDGE_SECONDS = 1.0
_PROGRESS_SECONDS = 5.0
# As Java and Python say it, with words around.
_FULL = ("No space left on device", "Disk quota exceeded")
_FINAL = (DataGoneError, SharedDoubtError, StateTakenOverError)


class BatchRefusedError(SparkError):
    """A batch was planned after a stop was asked for; it is replayed at the next start."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits at which the supervisor steps in; all times in seconds."""

    stall: float = 300.0  #: Longest time without a sign of life.
    max_failures: int = 10  #: Failures in ``failure_window`` that end the sweep.
    failure_window: float = 3600.0  #: How long a failure counts.
    backoff: float = 1.0  #: Pause after the first failure; doubled with each further one.
    max_backoff: float = 60.0  #: Longest pause.
    stop_timeout: float = 60.0  #: How long a query may take to stop.


class BatchNumbers(JStreamingQueryListener):
    """Listener that takes from a progress event of the JVM only the number of its batch.

    pyspark's conversion of the rest costs more processor time than sweeping a small batch.
    """

    def onQueryProgress(self, jevent: Any) -> None:
        """Pass on an event that has the number only."""
        number = jevent.progress().batchId()
        progressed: Any = SimpleNamespace(progress=SimpleNamespace(batchId=number))
        self.pylistener.onQueryProgress(progressed)


class Pulse(StreamingQueryListener):
    """Signs of life of the query, and the gate that each batch passes."""

    @cached_property
    def _jlistener(self) -> Any:
        jvm: Any = SparkContext._jvm
        return jvm.PythonStreamingQueryListenerWrapper(BatchNumbers(self))

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._last_sign = time.monotonic()
        self._running: int | None = None
        self._entered_at = 0.0
        self._finished = -1
        self._committed = -1
        self._advances = 0
        self._closed = False
        self._refused = False

    def onQueryStarted(self, event: Any) -> None:
        """Count the start as a sign of life."""
        self.beat()

    def onQueryProgress(self, event: Any) -> None:
        """Note which batch is committed."""
        with self._changed:
            self._committed = max(self._committed, event.progress.batchId)
            self._advances += 1
            self._beat()

    def onQueryIdle(self, event: Any) -> None:
        """Count an idle poll as a sign of life: everything before it is done."""
        with self._changed:
            self._advances += 1
            self._beat()

    def onQueryTerminated(self, event: Any) -> None:
        """Leave failures to the supervisor's loop."""

    def beat(self) -> None:
        """Send a sign of life."""
        with self._changed:
            self._beat()

    def _beat(self) -> None:
        self._last_sign = time.monotonic()
        self._changed.notify_all()

    def enter(self, batch: int) -> None:
        """Begin a batch; raises BatchRefusedError once the gate is closed."""
        with self._changed:
            if self._closed:
                self._refused = True
                self._beat()
                raise BatchRefusedError(f"batch {batch} is left for the next start: a stop was asked for")
            self._running, self._entered_at = batch, time.monotonic()
            self._beat()

    def leave(self, batch: int, *, finished: bool) -> None:
        """Note the end of a batch."""
        with self._changed:
            self._running = None
            if finished:
                self._finished = batch
            self._beat()

    def close(self) -> None:
        """Refuse further batches."""
        with self._changed:
            self._closed = True

    @property
    def refused(self) -> bool:
        """True once a batch was kept from beginning, which ends the query."""
        with self._changed:
            return self._refused

    @property
    def silence(self) -> float:
        """The seconds since the last sign of life."""
        with self._changed:
            return time.monotonic() - self._last_sign

    @property
    def batch_seconds(self) -> float:
        """The seconds since the running batch began; 0 while none runs."""
        with self._changed:
            return 0.0 if self._running is None else time.monotonic() - self._entered_at

    @property
    def advances(self) -> int:
        """The number of commits and of idle polls; a query that fails at once has neither."""
        with self._changed:
            return self._advances

    def wait_until_settled(self, timeout: float) -> bool:
        """Wait until the running batch is finished and committed; return whether it was."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._refused or self._settled(), timeout):
                return False
            # The poll for a next batch, which may find none, acknowledges this one.
            self._changed.wait_for(lambda: self._refused, _ACKNOWLEDGE_SECONDS)
            return True

    def _settled(self) -> bool:
        return self._running is None and self._committed >= self._finished


class Supervisor:
    """Keeps one query running until `stop` is called or it fails too often; with `once`, until it is through.

    ``on_failures`` is called with the number of failures in a row at each restart, and with 0 when the query makes
    progress again. While the metadata is being moved a query is not taken for stalled, and one that ends is restarted
    without counting as a failure; ``is_outdated`` returns whether it has to be replaced by another one. ``progress``
    returns a text that changes while a batch makes progress, however long it takes. ``is_waiting`` returns whether the
    running batch waits for something that may take days: a stop does not wait for its end.
    """

    def __init__(
        self,
        start: Callable[[], StreamingQuery],
        pulse: Pulse,
        limits: StreamLimits,
        *,
        once: bool = False,
        on_failures: Callable[[int], None] = lambda _: None,
        migrations: Migrations | None = None,
        is_outdated: Callable[[], bool] = lambda: False,
        progress: Callable[[], str] = lambda: "",
        is_waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._start = start
        self._once = once
        self._pulse = pulse
        self._limits = limits
        self._on_failures = on_failures
        self._migrations = migrations
        self._is_outdated = is_outdated
        self._progress = progress
        self._is_waiting = is_waiting
        self._seen = ""
        self._stops = 0
        self._advances = 0
        self._stopping = threading.Event()
        self._failures: deque[float] = deque()
        self._streak = 0
        self._last_failure = ""
        self._through = False

    @property
    def through(self) -> bool:
        """True once a query of `once` ended by itself."""
        return self._through

    @property
    def failing(self) -> str | None:
        """Return the last failure; None if there was none, or progress since."""
        return self._last_failure if self._streak else None

    def stop(self) -> None:
        """Ask for a gentle stop; safe to call from a signal handler or another thread."""
        self._stopping.set()

    def wait(self, seconds: float) -> bool:
        """Wait, or until a stop is asked for; return whether it was."""
        return self._stopping.wait(seconds)

    def run(self) -> None:
        """Return after a gentle stop, or when a query of `once` is through.

        Raises SparkError when the query failed more often than allowed, when it does not stop, and when Spark itself
        is gone: then only a new process helps; FileError for a full disk under a query of `once`. Raises DataGoneError,
        SharedDoubtError and StateTakenOverError at once, since no restart brings messages back, ends a doubt, or
        another process.
        """
        self._was_moved()
        while not self._stopping.is_set():
            try:
                query = self._start()
            except Exception as error:  # noqa: BLE001 - Spark raises its own tree and py4j's; all count as failures
                self._ended(f"the query does not start: {describe_cause(error)}", error)
                continue
            self._pulse.beat()
            self._advances = self._pulse.advances
            reason, cause = self._watch(query)
            if reason is None:
                return
            self._note_advance()
            self._ended(reason, cause)

    def _ended(self, reason: str, cause: BaseException | None) -> None:
        if self._was_moved():
            logger.warning("%s; starting it again, which counts as no failure: the metadata is moved", reason)
            self._stopping.wait(self._limits.backoff)
            return
        final = _final_error(cause)
        if final is not None:
            raise final from cause
        self._failed(reason, cause)

    def _was_moved(self) -> bool:
        """Return whether the metadata was being moved at any time since the last call, or is now."""
        if self._migrations is None:
            return False
        try:
            self._migrations.look()
        except StoreError as error:
            logger.warning("whether the metadata is being moved cannot be seen: %s", error)
        before, self._stops = self._stops, self._migrations.stops
        return self._migrations.blocked is not None or self._stops != before

    def _watch(self, query: StreamingQuery) -> tuple[str | None, BaseException | None]:
        while not self._stopping.wait(_WATCH_SECONDS):
            self._note_advance()
            if not _asked(lambda: query.isActive):
                cause = _asked(query.exception)
                if cause is None and self._once:
                    self._through = True
                    return None, None
                return f"the query ended: {describe_cause(cause) if cause else 'without an error'}", cause
            if self._is_outdated():
                self._end(query)
                return "the query has another number of tasks than may write where the metadata is now", None
            if self._migrations is not None and self._migrations.blocked:
                self._pulse.beat()
            self._look_into_the_batch()
            silence = self._pulse.silence
            if silence > self._limits.stall:
                self._end(query)
                return f"the query gave no sign of life for {silence:.0f} s", None
        self._pulse.close()
        self._await_batch()
        self._note_advance()
        self._note_failure_at_stop(query)
        self._end(query)
        return None, None

    def _await_batch(self) -> None:
        begun = time.monotonic()
        while not self._pulse.wait_until_settled(_WATCH_SECONDS):
            if self._is_waiting():
                logger.info("the running batch waits, and is not waited for; it is replayed")
                return
            if time.monotonic() - begun >= self._limits.stop_timeout:
                logger.warning("the running batch did not end in %.0f s; it is replayed", self._limits.stop_timeout)
                return

    def _note_failure_at_stop(self, query: StreamingQuery) -> None:
        cause = None if _asked(lambda: query.isActive) else _asked(query.exception)
        if cause is not None and not self._pulse.refused:
            self._last_failure = f"the query ended: {describe_cause(cause)}"
            self._streak += 1

    def _look_into_the_batch(self) -> None:
        if self._pulse.silence > min(_PROGRESS_SECONDS, self._limits.stall / 2):
            try:
                before, self._seen = self._seen, self._progress()
            except Exception as error:  # noqa: BLE001 - py4j's; whether Spark is gone is seen by the query itself
                logger.info("what Spark is at cannot be seen: %s", describe_cause(error))
                return
            if self._seen != before:
                self._pulse.beat()

    def _note_advance(self) -> None:
        if self._streak and self._pulse.advances > self._advances:
            self._streak = 0
            self._on_failures(0)

    def _failed(self, reason: str, cause: BaseException | None) -> None:
        if self._once and any(text in reason for text in _FULL):
            # A single run ends with the error, and does not wait for room as a stream does.
            raise FileError(f"{reason}; make room, then start it again") from cause
        now = time.monotonic()
        self._failures.append(now)
        while self._failures and self._failures[0] < now - self._limits.failure_window:
            self._failures.popleft()
        if len(self._failures) >= self._limits.max_failures:
            raise SparkError(
                f"{reason}; {len(self._failures)} failures within {self._limits.failure_window:.0f} s are too many"
            ) from cause
        delay = min(self._limits.backoff * 2**self._streak, self._limits.max_backoff)
        self._last_failure = reason
        self._streak += 1
        logger.error("%s; failure %d, restarting in %.1f s", reason, len(self._failures), delay)
        self._on_failures(self._streak)
        self._stopping.wait(delay)

    def _end(self, query: StreamingQuery) -> None:
        # A stalled query may not stop at all; the process that replaces it must not wait for that.
        stopped = threading.Event()
        thread = threading.Thread(target=_stop, args=(query, stopped), name="stop-query", daemon=True)
        thread.start()
        thread.join(self._limits.stop_timeout)
        # A second query on the same checkpoint and subscription must not begin while another still runs.
        if not stopped.is_set():
            raise SparkError(
                f"the query did not stop within {self._limits.stop_timeout:.0f} s; it ends with this process: "
                "start it again, the running batch is replayed"
            )


def _asked(question: Callable[[], _T]) -> _T:
    try:
        return question()
    except Exception as error:
        # Raised by py4j when the JVM has ended or was killed.
        raise SparkError(f"Spark no longer answers ({describe_cause(error)}): start it again") from error


def _stop(query: StreamingQuery, stopped: threading.Event) -> None:
    try:
        query.stop()
    except Exception as error:  # noqa: BLE001 - Spark's and py4j's; the caller sees that it is not stopped
        # After spark.sql.streaming.stopTimeout the query claims to be inactive, and runs on.
        logger.warning("while stopping: %s", describe_cause(error))
    else:
        stopped.set()


def _final_error(error: BaseException | None) -> BookwardenError | None:
    """Return the error that no restart helps against, if that ended a query: Spark passes on only the text of ours."""
    if error is None:
        return None
    if isinstance(error, _FINAL):
        return type(error)(str(error))
    name, _, text = describe_cause(error).partition(": ")
    return next((kind(text) for kind in _FINAL if kind.__name__ == name), None)


def attach(spark: SparkSession, pulse: Pulse) -> None:
    """Attach the pulse to the events of all queries of this session."""
    spark.streams.addListener(pulse)


_LONGEST: Final = 500
_TRACEBACK: Final = "Traceback (most recent call last):"
# The last line of a Python traceback, such as bookwarden.errors.DataGoneError: ... or pyarrow.lib.ArrowInvalid: ...
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*(: |$)")
# One without its traceback.
_NAMED: Final = re.compile(r"^(?!org\.|java\.|scala\.)[A-Za-z_.]+(Error|Exception): ")
# Errors that wrap a worker's error, with its traceback in their text.
_CARRIERS: Final = ("pyspark.errors.", "py4j.")


def describe_cause(error: BaseException) -> str:
    """Return the line with the cause: the Python worker's if it has one, else the first."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in _raised(lines) if not line.startswith(_CARRIERS)]
    telling = telling or [line.strip() for line in lines if _NAMED.match(line.strip())]
    chosen = telling[-1].removeprefix("bookwarden.errors.") if telling else (lines[0].strip() if lines else repr(error))
    return chosen[:_LONGEST]


def _raised(lines: list[str]) -> list[str]:
    """Find the last line of each traceback: the first that is indented no further than its heading."""
    found = []
    indent: int | None = None
    for line in lines:
        depth = len(line) - len(line.lstrip())
        text = line.strip()
        if text.endswith(_TRACEBACK):
            # The heading may follow other words on its line; the lines after it are then not indented.
            indent = depth
        elif indent is not None and depth <= indent:
            if _RAISED.match(text):
                found.append(text)
            indent = None
    return found
