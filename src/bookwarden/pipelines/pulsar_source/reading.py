"""The executor's side: reads every planned entry of a partition, in order, whatever the brokers do meanwhile."""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pulsar
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import Position, read_entry_header
from bookwarden.errors import DataGoneError, FormatError, NotFoundError, PulsarAccessError, PulsarUnavailableError
from bookwarden.ledgers.names import TopicName
from bookwarden.pipelines.garbage import collect_seldom
from bookwarden.pipelines.orphaned_worker import end_with_daemon
from bookwarden.pipelines.per_process import PerProcess
from bookwarden.pipelines.pulsar_source.columns import RowBuffer
from bookwarden.pipelines.pulsar_source.progress import Progress, Verdict, is_chunked, rows_of_entry
from bookwarden.pipelines.pulsar_source.ranges import EntryRange

_LOG = logging.getLogger(__name__)

# A subscribe that meets a topic under unload is never answered, and the client waits for its whole operation
# timeout; so the first attempts are short, and only then give a slow broker more time.
_FIRST_TIMEOUT_S = 1
_LONGEST_TIMEOUT_S = 20
_SHORT_ATTEMPTS = 2
_PAUSE_S = 0.05
_RECEIVER_QUEUE = 2000
# An entry counts as gone only if its broker says so this many times in a row, with pauses to load the topic.
_DENIALS = 3
# The size of an entry that is part of a chunked message.
_CHUNKED = 0
_REFUSALS = (pulsar.AuthenticationError, pulsar.AuthorizationError)


@dataclass(frozen=True, slots=True)
class PartitionEntries:
    """The entries of one partition that a batch of Spark reads."""

    topic: str
    ranges: tuple[EntryRange, ...]


class TaskShare(InputPartition):
    """The share of one task: the entries of one partition, or of several that have few."""

    def __init__(self, parts: tuple[PartitionEntries, ...], connection: PulsarConnection) -> None:
        super().__init__(parts)
        self.parts = parts
        self.connection = connection


@dataclass(frozen=True, slots=True)
class ReadRules:
    """Rules of reading."""

    max_unreachable_s: float  #: Seconds without progress until an error.
    rows_per_arrow_batch: int  #: Largest number of rows in a record batch.
    fail_on_data_loss: bool  #: Entries that are gone are an error.
    chunked: str = "fail"  #: A chunked message is an error (fail), left out (skip), or a row without a value (empty).


def read_entries(share: TaskShare, rules: ReadRules) -> Iterator[pa.RecordBatch]:
    """Yield every message of the planned entries, partition by partition, once and in order.

    Raises DataGoneError, PulsarAccessError or, after `max_unreachable_s` without progress, PulsarUnavailableError.
    """
    collect_seldom()
    end_with_daemon()
    for part in share.parts:
        yield from _EntryReader(part, share.connection, rules).record_batches()


@dataclass(frozen=True, slots=True)
class _Undelivered:
    """A message known by the header of its entry only, in the shape of the native client's."""

    published_ms: int

    def partition_key(self) -> str:
        return ""

    def ordering_key(self) -> str:
        return ""

    def properties(self) -> dict[str, str]:
        return {}

    def publish_timestamp(self) -> int:
        return self.published_ms

    def event_timestamp(self) -> int:
        return 0

    def producer_name(self) -> str:
        return ""

    def int_schema_version(self) -> int:
        return -1


class _EntryReader:
    def __init__(self, work: PartitionEntries, connection: PulsarConnection, rules: ReadRules) -> None:
        self._topic = work.topic
        self._connection = connection
        self._rules = rules
        self._progress = Progress(work.ranges)
        self._rows = RowBuffer(work.topic, TopicName.parse(work.topic).partition or 0, rules.rows_per_arrow_batch)
        self._attempts = 0
        self._denials = 0
        self._moved_at = time.monotonic()

    def record_batches(self) -> Iterator[pa.RecordBatch]:
        while not self._progress.is_done:
            before = self._progress.expected
            try:
                with _opened_reader(self._connection, self._topic, before, self._timeout_s(), self._attempts) as read:
                    yield from self._drain(read)
            except _REFUSALS as error:
                raise PulsarAccessError(
                    f"{self._topic}: the broker refuses to let us read ({type(error).__name__}); "
                    "check the credentials and that our role may consume"
                ) from error
            except pulsar.PulsarException as error:
                self._note_trouble(f"{type(error).__name__}: {error}", error)
        if len(self._rows):
            yield self._rows.take()

    def _drain(self, read: Callable[[int], Any]) -> Iterator[pa.RecordBatch]:
        timeout_ms = int(self._timeout_s() * 1000)
        rows, progress, seen_entry, size = self._rows, self._progress, (-1, -1), 1
        while not progress.is_done:
            try:
                message = read(timeout_ms)
            except pulsar.Timeout as error:
                # The broker passes over markers and aborted transactions; at the end of the plan nothing follows them.
                if not self._skip_undeliverable():
                    self._note_trouble("no message within the timeout", error)
                    return
                continue
            message_id = message.message_id()
            ledger_id, entry_id = position = message_id.ledger_id(), message_id.entry_id()
            if seen_entry != position:
                seen_entry, size = position, self._rows_of(message_id)
            batch_index = message_id.batch_index()
            row = batch_index if batch_index > 0 else 0
            if size == _CHUNKED:
                full = self._pass_over(Position(ledger_id, entry_id), message)
                if full:
                    yield rows.take()
                continue
            verdict = progress.judge(ledger_id, entry_id, row, size)
            while verdict is Verdict.GAP and not progress.is_done and self._skip_undeliverable():
                verdict = progress.judge(ledger_id, entry_id, row, size)
            if verdict is Verdict.GAP:
                self._note_trouble(f"entry {ledger_id}:{entry_id} came too early", None)
                return
            if verdict is Verdict.TAKE and rows.add(message, position, batch_index, size):
                self._note_progress()
                yield rows.take()

    def _rows_of(self, message_id: Any) -> int:
        self._note_progress()
        serialized = message_id.serialize()
        if is_chunked(serialized):
            self._note_chunked()
            return _CHUNKED
        return rows_of_entry(serialized)

    def _note_chunked(self) -> None:
        text = f"{self._topic}: entry {self._progress.expected} is part of a chunked message, which this source does "
        if self._rules.chunked == "fail":
            raise FormatError(f"{text}not read; let producers send smaller messages, or set chunkedMessages to skip")
        _LOG.warning("%snot read; it is left out", text)

    def _pass_over(self, last: Position, message: Any) -> bool:
        """Pass a chunked message that was delivered whole, with its last chunk's id; return whether rows are due."""
        if self._progress.is_done or self._progress.expected > last:
            return False
        while not self._progress.is_done and self._progress.expected <= last:
            self._progress.skip_entry()
        return self._note_row(last, message)

    def _note_row(self, position: Position, message: Any) -> bool:
        """Add the row of an unread chunked message, at the place of its last chunk."""
        if self._rules.chunked != "empty":
            return False
        return self._rows.add(message, (position.ledger_id, position.entry_id), -1, _CHUNKED)

    def _skip_undeliverable(self) -> bool:
        """Pass the expected entry if the broker never delivers it; return False if it must still come."""
        if self._progress.is_inside_entry:
            return False
        position = self._progress.expected
        try:
            with contextlib.closing(PulsarAdmin(self._connection, timeout_s=5)) as admin:
                header = read_entry_header(admin, self._topic, position)
        except NotFoundError as error:
            return self._note_denial(error)
        except PulsarUnavailableError:
            return False
        self._denials = 0
        if header.chunk_id is not None:
            self._note_chunked()
            if header.chunk_id == header.chunks - 1:
                # Its first chunks lie before the plan, or are gone, so that it is never delivered.
                self._note_row(position, _Undelivered(header.published_ms or 0))
        if header.chunk_id is not None or header.is_marker or header.is_aborted:
            self._progress.skip_entry()
            self._note_progress()
            return True
        return False

    def _note_denial(self, error: NotFoundError) -> bool:
        self._denials += 1
        if self._denials < _DENIALS:
            return False
        text = f"{self._topic}: entry {self._progress.expected} was planned, but is gone: trimmed, or the topic deleted"
        if self._rules.fail_on_data_loss:
            raise DataGoneError(f"{text}; set failOnDataLoss to false to go on without it") from error
        _LOG.warning("%s; going on with the next ledger", text)
        self._denials = 0
        self._progress.skip_ledger()
        return True

    def _timeout_s(self) -> int:
        longer = max(self._attempts - _SHORT_ATTEMPTS, 0)
        return min(_FIRST_TIMEOUT_S << min(longer, 8), _LONGEST_TIMEOUT_S)

    def _note_progress(self) -> None:
        self._attempts = 0
        self._moved_at = time.monotonic()

    def _note_trouble(self, what: str, error: Exception | None) -> None:
        self._attempts += 1
        stuck_s = time.monotonic() - self._moved_at
        text = f"{self._topic}: entry {self._progress.expected} could not be read for {stuck_s:.0f} s ({what})"
        if stuck_s >= self._rules.max_unreachable_s:
            raise PulsarUnavailableError(f"{text}; check the brokers, or raise maxUnreachableSeconds") from error
        _LOG.info("%s; attempt %d", text, self._attempts + 1)
        time.sleep(min(_PAUSE_S * self._attempts, 1))


_clients: PerProcess[pulsar.Client] = PerProcess()


@contextlib.contextmanager
def _opened_reader(
    connection: PulsarConnection, topic: str, first: Any, timeout_s: int, attempt: int
) -> Iterator[Callable[[int], Any]]:
    # A client is dropped after its first failure.
    key = pickle.dumps(connection)
    client = _clients.take(key)
    if client is not None and attempt > 0:
        _close_aside(client)
        client = None
    if client is None:
        client = connection.client(operation_timeout_seconds=timeout_s)
    start = pulsar.MessageId(-1, first.ledger_id, first.entry_id, -1)
    try:
        reader = client.create_reader(
            topic,
            start,
            start_message_id_inclusive=True,
            receiver_queue_size=_RECEIVER_QUEUE,
            # An undecryptable message is a row like any other; a client that holds it back would stop the query.
            crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
        )
    except pulsar.PulsarException:
        _close_aside(client)
        raise
    try:
        # Without the wrapper a message costs half as much.
        yield reader._reader.read_next
    except pulsar.PulsarException:
        _close_aside(client)
        raise
    finally:
        _close_aside(reader)
    _clients.put(key, client)


def _close_aside(handle: pulsar.Client | pulsar.Reader) -> None:
    threading.Thread(target=_close, args=(handle,), daemon=True).start()


def _close(handle: pulsar.Client | pulsar.Reader) -> None:
    # A reader that cannot be closed is broken already, and nothing waits for it.
    with contextlib.suppress(pulsar.PulsarException):
        handle.close()
