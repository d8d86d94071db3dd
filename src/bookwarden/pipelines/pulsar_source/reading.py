"""The executor's side: reads every planned entry of a partition, in order, whatever the brokers do meanwhile."""

from __future__ import annotations

import contextlib
import enum
import logging
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.entries import EntryStream, TopicEntries, TopicEntry
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import (
    TopicPositions,
    is_passed_over,
    list_partitions,
    next_to_read,
    read_positions,
)
from bookwarden.errors import (
    DataGoneError,
    FormatError,
    NotFoundError,
    PulsarAccessError,
    PulsarError,
    PulsarUnavailableError,
)
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName
from bookwarden.pipelines.pulsar_source.columns import RowBuffer
from bookwarden.pipelines.pulsar_source.ranges import EntryRange, ReadProgress, first_readable
from bookwarden.pipelines.workers import PerProcess, collect_seldom, end_with_daemon
from bookwarden.wire.entry import is_chunk, messages
from bookwarden.wire.pb.pulsar_api_pb2 import MessageMetadata

_LOG = logging.getLogger(__name__)

# A reader that meets a topic under unload may never be answered; so the first attempts are short, and only then give a
# slow broker more time.
_FIRST_TIMEOUT_S = 1.0
_LONGEST_TIMEOUT_S = 20.0
_SHORT_ATTEMPTS = 2
_PAUSE_S = 0.05
_ADMIN_TIMEOUT_S = 5.0
# What a broker says of an entry counts when it has said so this many times in a row, with pauses to load the topic.
_SURE = 3
# When an entry that cannot be read is logged, and how often it is asked then whether others can.
_WARN_AFTER_S = 30.0
_PROBED_EVERY_S = 60.0
_PROBE_TIMEOUT_S = 5.0
_PROBED_PLACES = 12
# BookKeeper's text for a ledger without metadata, as brokers pass it on.
_NO_LEDGER = "No such ledger exists"


@dataclass(frozen=True, slots=True)
class PartitionEntries:
    """The entries of one partition that a batch of Spark reads."""

    topic: str
    ranges: tuple[EntryRange, ...]
    may_be_lost: bool = False  #: What cannot be read is left out after `ReadRules.max_unreachable_s`, without an error.


class TaskShare(InputPartition):
    """The share of one task: the entries of one partition, or of several that have few."""

    def __init__(self, parts: tuple[PartitionEntries, ...], connection: PulsarConnection) -> None:
        super().__init__(parts)
        self.parts = parts
        self.connection = connection


@dataclass(frozen=True, slots=True)
class ReadRules:
    """Rules of reading; what a rule calls fail, skip or empty is an error, left out, or a row without a value."""

    max_unreachable_s: float  #: Seconds without progress until an error.
    rows_per_arrow_batch: int  #: Largest number of rows in a record batch.
    fail_on_data_loss: bool  #: Entries that were trimmed are an error.
    chunked: str = "fail"  #: What a chunked message does.
    unreadable: str = "fail"  #: What unreadable entries do.
    lost_ledger_s: float | None = None  #: Seconds until a ledger counts as lost while others can be read; None: never.
    largest: int = 64 << 20  #: Most bytes of an entry once it is decompressed.


def read_entries(
    share: TaskShare,
    rules: ReadRules,
    entries: TopicEntries | None = None,
    admin: Callable[[], PulsarAdmin] | None = None,
    *,
    steady: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Yield every message of the planned entries, partition by partition, once and in order.

    Raises DataGoneError, PulsarAccessError or, after `max_unreachable_s` without progress, PulsarUnavailableError.
    """
    collect_seldom()
    end_with_daemon()
    key = pickle.dumps(share.connection)
    entries = entries or _kept.take(key) or TopicEntries(share.connection)
    admin = admin or (lambda: PulsarAdmin(share.connection, timeout_s=_ADMIN_TIMEOUT_S))
    for part in share.parts:
        yield from _PartitionReader(part, entries, admin, rules, steady, pause).record_batches()
    _kept.put(key, entries)


_kept: PerProcess[TopicEntries] = PerProcess()


class _Answer(enum.Enum):
    """The answer of a broker's admin REST about an entry that its reader is not given."""

    PASSED_OVER = "it is a marker, or of an aborted transaction"
    THERE = "it can be read"
    ABSENT = "its ledger is not the topic's"
    LOST = "its ledger has no metadata"
    UNKNOWN = "no usable answer"


@dataclass(slots=True)
class _Tries:
    """The attempts to get the expected entry, and their results."""

    moved_at: float  #: Since when it is expected, by the steady clock.
    attempts: int = 0  #: Attempts that failed.
    finding: object = None  #: The last finding about it.
    same: int = 0  #: How often in a row that was the finding.
    came: Position | None = None  #: The entry that came in its place last.
    gaps: int = 0  #: How often in a row that came.
    answer: _Answer | None = None  #: The last answer of REST.
    warn_after_s: float = _WARN_AFTER_S  #: Seconds without progress until the next warning.
    probed_at: float = float("-inf")  #: When other entries were last read for comparison.
    others_read: bool = False  #: True if they could be read then.

    def found(self, finding: object) -> int:
        """Count what was found of it; return how often it was so in a row."""
        self.same = self.same + 1 if finding == self.finding else 1
        self.finding = finding
        return self.same

    def passed_by(self, came: Position) -> None:
        """Count what came in its place."""
        self.gaps = self.gaps + 1 if came == self.came else 1
        self.came = came


class _PartitionReader:
    def __init__(
        self,
        work: PartitionEntries,
        entries: TopicEntries,
        admin: Callable[[], PulsarAdmin],
        rules: ReadRules,
        steady: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        self._topic = work.topic
        self._may_be_lost = work.may_be_lost
        self._entries = entries
        self._admin = admin
        self._rules = rules
        self._steady = steady
        self._pause = pause
        self._progress = ReadProgress(work.ranges)
        self._rows = RowBuffer(work.topic, TopicName.parse(work.topic).partition or 0, rules.rows_per_arrow_batch)
        self._lost: set[int] = set()
        self._note_progress()

    def record_batches(self) -> Iterator[pa.RecordBatch]:
        while not self._progress.is_done:
            try:
                with self._entries.open(self._topic, self._progress.expected, self._timeout_s()) as stream:
                    yield from self._drain(stream)
            except PulsarUnavailableError as error:
                self._note_failure(error)
        if len(self._rows):
            yield self._rows.take()

    def _drain(self, stream: EntryStream) -> Iterator[pa.RecordBatch]:
        progress = self._progress
        while not progress.is_done:
            entry = stream.next(self._timeout_s())
            if entry is None:
                # Nothing follows what the broker passes over at the end of the plan.
                if not self._pass_by_answers(None):
                    self._note_silence(stream)
                    raise PulsarUnavailableError("the broker sends nothing")
                continue
            if progress.expected < entry.position and not self._pass_by_answers(entry.position):
                self._tries.passed_by(entry.position)
                raise PulsarUnavailableError(f"entry {entry.position} came instead")
            if not progress.is_done and progress.expected == entry.position:
                self._take(entry)
            if self._rows.is_due:
                yield self._rows.take()
                # The consumer of the rows may have taken its time.
                self._tries.moved_at = self._steady()

    def _take(self, entry: TopicEntry) -> None:
        position, metadata = entry.position, entry.metadata
        if metadata is None:
            # Damage on the way here is not there when it comes again.
            if self._tries.found(entry.problem) < _SURE:
                raise PulsarUnavailableError(f"it came damaged: {entry.problem}")
            self._leave_out(position, entry.problem)
        elif is_chunk(metadata):
            self._leave_out_chunk(metadata)
        else:
            try:
                found = messages(metadata, entry.payload, self._rules.largest)
            except FormatError as error:
                self._leave_out(position, str(error), metadata)
            else:
                self._rows.add(position, metadata, found)
                self._progress.pass_entry()
        self._note_progress()

    def _pass_by_answers(self, came: Position | None) -> bool:
        """Pass entries that do not come, up to one that did, by what REST says; return whether any is passed.

        After an entry that came all of them must be passed: the rest of the stream begins behind them.
        """
        passed = False
        while not self._progress.is_done and (came is None or self._progress.expected < came):
            if not self._pass_by_answer():
                return passed and came is None
            passed = True
        return passed

    def _note_silence(self, stream: EntryStream) -> None:
        """Count a gap where the broker has read on and sent nothing: at the end of a topic no later entry shows it."""
        try:
            with contextlib.closing(self._admin()) as admin:
                read = next_to_read(admin, self._topic, stream.subscription)
        except (PulsarError, NotFoundError, FormatError) as error:
            _LOG.info("%s: how far its broker has read cannot be seen: %s", self._topic, error)
            return
        if read is not None and read > self._progress.expected:
            self._tries.passed_by(read)

    def _pass_by_answer(self) -> bool:
        """Pass the expected entry, or its ledger, if REST says why it does not come; else return False."""
        answer = self._tries.answer = self._ask()
        if answer is _Answer.PASSED_OVER:
            self._progress.pass_entry()
            self._note_progress()
            return True
        if self._tries.found(answer) < _SURE or answer not in (_Answer.ABSENT, _Answer.LOST):
            return False
        if answer is _Answer.ABSENT:
            self._leave_out_trimmed()
        else:
            self._leave_out(self._progress.last_of_ledger, "its ledger is lost: BookKeeper has no metadata of it")
        self._note_progress()
        return True

    def _ask(self) -> _Answer:
        try:
            with contextlib.closing(self._admin()) as admin:
                try:
                    passed_over = is_passed_over(admin, self._topic, self._progress.expected)
                except NotFoundError:
                    # So brokers also answer of a ledger that the topic lists and BookKeeper has no metadata of.
                    listed = {ledger.ledger_id for ledger in read_positions(admin, self._topic).ledgers}
                    return _Answer.LOST if self._progress.expected.ledger_id in listed else _Answer.ABSENT
        except NotFoundError:
            return _Answer.ABSENT
        except PulsarAccessError:
            raise
        except PulsarError as error:
            return _Answer.LOST if _NO_LEDGER in str(error) else _Answer.UNKNOWN
        return _Answer.PASSED_OVER if passed_over else _Answer.THERE

    def _leave_out(self, last: Position, reason: str, metadata: MessageMetadata | None = None) -> None:
        """Pass the unreadable entries up to `last`, of one ledger; they have one row at most."""
        first = self._progress.expected
        which = (
            f"entry {first}" if first == last else f"the {last.entry_id - first.entry_id + 1} entries {first} to {last}"
        )
        text = f"{which} cannot be read: {reason}"
        if self._rules.unreadable == "fail":
            raise FormatError(f"{self._topic}: {text}; set unreadableMessages to skip or empty to go on without")
        _LOG.warning("%s: %s; going on behind", self._topic, text)
        if self._rules.unreadable == "empty":
            self._rows.add_unread(first, metadata, text)
        self._progress.pass_to(last.entry_id)

    def _leave_out_chunk(self, metadata: MessageMetadata) -> None:
        expected = self._progress.expected
        text = f"{self._topic}: entry {expected} is part of a chunked message, which this source does "
        if self._rules.chunked == "fail":
            raise FormatError(f"{text}not read; let producers send smaller messages, or set chunkedMessages to skip")
        _LOG.warning("%snot read; it is left out", text)
        # One row for the message, also where its first chunks lie before the plan.
        if self._rules.chunked == "empty" and metadata.chunk_id == metadata.num_chunks_from_msg - 1:
            self._rows.add_unread(expected, metadata, "a message in chunks, which are not read")
        self._progress.pass_entry()

    def _leave_out_trimmed(self) -> None:
        text = f"{self._topic}: entry {self._progress.expected} was planned, but is gone: trimmed, or the topic deleted"
        if self._rules.fail_on_data_loss and not self._may_be_lost:
            raise DataGoneError(f"{text}; set failOnDataLoss to false to go on without it")
        _LOG.warning("%s; going on with the next ledger", text)
        self._progress.pass_to(self._progress.last_of_ledger.entry_id)

    def _note_failure(self, error: PulsarUnavailableError) -> None:
        """Leave out what no broker delivers, wait before the next attempt, or raise the error when it is time."""
        tries = self._tries
        if tries.gaps >= _SURE and tries.answer not in (_Answer.ABSENT, _Answer.LOST):
            self._leave_out(self._last_unreadable(self._progress.expected, tries.came), "the broker passes over it")
            self._note_progress()
            return
        tries.attempts += 1
        stuck_s = self._steady() - tries.moved_at
        text = f"{self._topic}: entry {self._progress.expected} could not be read for {stuck_s:.0f} s ({error})"
        level = logging.WARNING if stuck_s >= tries.warn_after_s else logging.INFO
        if level == logging.WARNING:
            tries.warn_after_s = 2 * stuck_s
        _LOG.log(level, "%s; attempt %d", text, tries.attempts + 1)
        damaged = self._progress.expected.ledger_id in self._lost and tries.attempts >= _SURE
        if damaged or stuck_s >= self._rules.max_unreachable_s:
            self._give_up_ledger(text, error, stuck_s)
            return
        self._pause(min(_PAUSE_S * tries.attempts, 1))

    def _give_up_ledger(self, text: str, error: PulsarUnavailableError, stuck_s: float) -> None:
        """Leave out what cannot be read of a ledger that is lost; wait until it is, or raise the error."""
        limit, tries, expected = self._rules.lost_ledger_s, self._tries, self._progress.expected
        if self._may_be_lost:
            self._leave_out(self._progress.last_of_ledger, f"it could not for {stuck_s:.0f} s ({error})")
            self._note_progress()
            return
        if limit is not None and self._steady() >= tries.probed_at + _PROBED_EVERY_S:
            # A broker that has the entry, and does not send it, waits for the end of a transaction; and one that serves
            # no reader at all says nothing of the entry.
            tries.others_read = tries.answer is _Answer.UNKNOWN and self._reads_elsewhere(expected)
            tries.probed_at = self._steady()
        if limit is None or not tries.others_read:
            raise PulsarUnavailableError(f"{text}; check the brokers, or raise maxUnreachableSeconds") from error
        if stuck_s < limit and expected.ledger_id not in self._lost:
            self._pause(1)
            return
        self._lost.add(expected.ledger_id)
        reason = f"its ledger is lost: others of the topic can be read, and it could not for {stuck_s:.0f} s ({error})"
        self._leave_out(self._last_unreadable(expected, None), reason)
        self._note_progress()

    def _reads_elsewhere(self, lost: Position) -> bool:
        """Return whether other entries can be read now, of other ledgers of the topic or of the same one."""
        try:
            with contextlib.closing(self._admin()) as admin:
                places = [(self._topic, place) for place in _other_positions(read_positions(admin, self._topic), lost)]
                for sibling in list_partitions(admin, str(TopicName.parse(self._topic).base)):
                    if sibling != self._topic:
                        places += [(sibling, place) for place in _other_positions(read_positions(admin, sibling), None)]
        except (PulsarError, NotFoundError, FormatError) as error:
            _LOG.info("%s: what else there is to read cannot be listed: %s", self._topic, error)
            return False
        for topic, place in places[:_PROBED_PLACES]:
            with contextlib.suppress(PulsarUnavailableError):
                came = self._first_from(topic, place)
                if came is not None and came.ledger_id == place.ledger_id:
                    return True
        return False

    def _last_unreadable(self, lost: Position, came: Position | None) -> Position:
        """Return the end of a run of entries that cannot be read: `came` is the next that is known to be."""
        ledger, last = lost.ledger_id, self._progress.last_of_ledger.entry_id
        if came is not None and came.ledger_id == ledger:
            last = min(last, came.entry_id - 1)
        found = first_readable(lost.entry_id, last, lambda entry: self._is_readable(Position(ledger, entry)))
        return Position(ledger, found - 1)

    def _is_readable(self, position: Position) -> bool:
        """Return False for an entry that a broker which answers did not send, asked several times in a row."""
        for _ in range(_SURE):
            try:
                if self._first_from(self._topic, position) == position:
                    return True
            except PulsarUnavailableError:
                # Not known, so it is tried as any other.
                return True
        return False

    def _first_from(self, topic: str, position: Position) -> Position | None:
        """Return the first entry that comes from a position on; None if none comes in time."""
        with self._entries.open(topic, position, _PROBE_TIMEOUT_S) as stream:
            entry = stream.next(_PROBE_TIMEOUT_S)
        return None if entry is None else entry.position

    def _timeout_s(self) -> float:
        longer = max(self._tries.attempts - _SHORT_ATTEMPTS, 0)
        return min(_FIRST_TIMEOUT_S * float(1 << min(longer, 8)), _LONGEST_TIMEOUT_S)

    def _note_progress(self) -> None:
        self._tries = _Tries(self._steady())


def _other_positions(positions: TopicPositions, lost: Position | None) -> list[Position]:
    """List entries whose reading shows that brokers and bookies answer: of other ledgers and of the lost one by turns.

    Of other ledgers the youngest come first.
    """
    others, own = [], []
    for ledger in reversed(positions.ledgers):
        if lost is None or ledger.ledger_id != lost.ledger_id:
            # One of them may be lost too.
            entries = dict.fromkeys((ledger.entries - 1, 0))
            others += [Position(ledger.ledger_id, entry) for entry in entries if entry in range(ledger.entries)]
        else:
            # From a place before it on: what lies next to it may be markers, which no broker sends.
            before = [lost.entry_id - distance for distance in (1, 2, 4, 8)]
            entries = dict.fromkeys((lost.entry_id + 1, ledger.entries - 1, *before, 0))
            own += [Position(ledger.ledger_id, entry) for entry in entries if entry in range(ledger.entries)]
    turns = chain.from_iterable(zip_longest(others, own))
    return [place for place in turns if place is not None and place != lost]
