"""Retries and dead letters of a batch: sent on, and recorded, so that its replay does not send the same ones again.

A batch that fails after its sends is replayed as a whole. By then the sends that the broker confirmed are recorded, in
a file for each process and batch, which the replay reads. A process killed between the confirmation and the record
sends twice: the other order would lose a mark.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from bookwarden.clusters.pulsar.messages.retries import RetrySender
from bookwarden.deletion.phase_two.decide import Action, Decision, await_dead_letters, finish
from bookwarden.errors import StoreError, StoreUnavailableError, UnconfirmedError
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.received import ReceivedMark

if TYPE_CHECKING:
    from bookwarden.clusters.journal_objects import S3Objects

logger = logging.getLogger(__name__)
SUFFIX: Final = ".sent"
_SENT: Final = (Action.RETRY, Action.DELAY, Action.WAIT, Action.GIVE_UP)
_Decided = tuple[ReceivedMark, Decision]


@dataclass(frozen=True, slots=True)
class SentOn:
    """A message that was sent on, and its outcome."""

    topic: str
    message_id: str
    outcome: str
    reason: str


class SentRecords(Protocol):
    """The records of messages sent on; ``run`` is ``<query>/<batch>``, the same for each try of a batch."""

    def read(self, run: str) -> Iterable[SentOn]:
        """Yield what any process recorded of the batch; raises StoreError when that cannot be known."""

    def add(self, run: str, sent: Sequence[SentOn]) -> None:
        """Record durably; raises StoreError when that fails."""


class Sendings:
    """Way of the messages that are not finished, which this try of a batch or an earlier one sends; one per process.

    Without ``records`` a replay sends again. ``why_dead_letters_are_lost`` says why the DLQ keeps nothing, None if it
    does.
    """

    def __init__(
        self,
        outbox: RetrySender,
        records: SentRecords | None,
        retry_delay: float,
        why_dead_letters_are_lost: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._outbox = outbox
        self._records = records
        self._retry_delay = retry_delay
        self._why_dead_letters_are_lost = why_dead_letters_are_lost
        self._run = ""
        self._known: dict[tuple[str, str], SentOn] | None = None

    def begin(self, run: str) -> None:
        """Begin a try of a batch: records of other processes are read again when needed."""
        self._run, self._known = run, None

    def without_sent(self, decided: Sequence[_Decided]) -> list[_Decided]:
        """Return the decisions; a message that was sent on before gets its outcome of then, and is not sent again."""
        return [
            (message, self._settled(message) or decision) if _sends(decision) else (message, decision)
            for message, decision in decided
        ]

    def without_lost_dead_letters(self, decided: Sequence[_Decided]) -> Sequence[_Decided]:
        """Return the decisions; what would be given up waits while the DLQ keeps nothing."""
        if not any(decision.action is Action.GIVE_UP for _, decision in decided):
            return decided
        why = self._why_dead_letters_are_lost()
        return decided if why is None else [(message, await_dead_letters(made, why)) for message, made in decided]

    def send(self, decided: Sequence[_Decided], now_ms: int) -> None:
        """Send on what these decisions send, and record it once the broker has confirmed it; raises PulsarError."""
        sent = [pair for pair in decided if _sends(pair[1])]
        for message, decision in sent:
            self._send(message, decision, now_ms)
        if not sent:
            return
        try:
            self._outbox.flush()
        except UnconfirmedError as error:
            # The batch is tried again: without this it would send the others again too, each time.
            self._note([(message, made) for message, made in sent if _name(message) not in error.messages])
            raise
        self._note(sent)

    def _send(self, message: ReceivedMark, decision: Decision, now_ms: int) -> None:
        if decision.action is Action.RETRY:
            self._outbox.retry(message, self._retry_delay, decision.reason)
        elif decision.action is Action.DELAY:
            verified_ms = now_ms if message.verified_at is None else message.verified_at
            self._outbox.delay(message, decision.wait, verified_ms, decision.reason)
        elif decision.action is Action.WAIT:
            self._outbox.wait(message, self._retry_delay, decision.reason)
        else:
            self._outbox.give_up(message, decision.outcome, decision.reason)

    def _note(self, decided: Sequence[_Decided]) -> None:
        sent = [SentOn(*_name(message), decision.outcome.value, decision.reason) for message, decision in decided]
        if not sent:
            return
        self._read().update({(one.topic, one.message_id): one for one in sent})
        try:
            if self._records is not None:
                self._records.add(self._run, sent)
        except StoreError as error:
            # They are sent: failing now would only send them again.
            logger.warning("a replay of batch %s would send %d messages again: %s", self._run, len(sent), error)

    def _settled(self, message: ReceivedMark) -> Decision | None:
        found = self._read().get(_name(message))
        return finish(Outcome(found.outcome), found.reason) if found else None

    def _read(self) -> dict[tuple[str, str], SentOn]:
        if self._known is None:
            recorded = () if self._records is None else self._records.read(self._run)
            self._known = {(one.topic, one.message_id): one for one in recorded}
        return self._known


def _sends(decision: Decision) -> bool:
    return decision.action in _SENT


def _name(message: ReceivedMark) -> tuple[str, str]:
    return message.topic, message.message_id


class FileSentRecords:
    """A folder next to the journal, which all sweeping machines should share; a file for each process and batch.

    When a process begins a batch, files of its query's earlier batches are deleted: Spark has finished those.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run = ""
        self._path = folder

    def read(self, run: str) -> Iterator[SentOn]:
        """Yield what any process recorded of the batch; StoreUnavailableError if the folder cannot be read."""
        try:
            for path in sorted(self._folder.glob(f"{file_stem(run)}-*{SUFFIX}")):
                yield from decode_sent(path.read_bytes())
        except OSError as error:
            raise StoreUnavailableError(f"{self._folder} cannot be read ({error.strerror})") from error

    def add(self, run: str, sent: Sequence[SentOn]) -> None:
        """Record durably; StoreUnavailableError if that fails."""
        try:
            _make_folder(self._folder)
            if run != self._run:
                self._run, self._path = run, self._folder / file_name(run)
                self._delete_before(run)
            with self._path.open("ab") as file:
                file.write(encode_sent(sent))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreUnavailableError(f"{self._folder} cannot be written ({error.strerror})") from error

    def close(self) -> None:
        """Do nothing: no file is open between the calls."""

    def _delete_before(self, run: str) -> None:
        query, now = run.rsplit("/", 1)[0], file_stem(run)
        for path in self._folder.glob(f"{_quoted(query)}-*{SUFFIX}"):
            if path.name < now:
                path.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """Make a folder with the permissions of the one it is in: executors of other users write there as well."""
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    made.mkdir()
    try:
        made.chmod(stat.S_IMODE(folder.parent.stat().st_mode))
        made.rename(folder)
    except OSError:
        made.rmdir()
        # Another process may have been first.
        if not folder.exists():
            raise


class ObjectSentRecords:
    """Records in an object store, one object for each call; a lifecycle rule of the bucket may expire them."""

    def __init__(self, objects: S3Objects) -> None:
        self._objects = objects

    def read(self, run: str) -> Iterator[SentOn]:
        """Yield what any process recorded of the batch; raises StoreError."""
        for name in self._objects.names_from(f"sent/{file_stem(run)}-"):
            opened = self._objects.open(name)
            if opened is not None:
                with opened as data:
                    yield from decode_sent(data.read())

    def add(self, run: str, sent: Sequence[SentOn]) -> None:
        """Record durably; raises StoreError."""
        self._objects.put(f"sent/{file_name(run)}", encode_sent(sent))

    def close(self) -> None:
        """Close the store's connections."""
        self._objects.close()


def file_stem(run: str) -> str:
    """Return the prefix of the names of a batch's files; those of a query sort by its batches."""
    query, _, batch = run.rpartition("/")
    return f"{_quoted(query)}-{batch.zfill(12)}"


def file_name(run: str) -> str:
    """Make a name that is unique among all processes."""
    return f"{file_stem(run)}-{uuid.uuid4().hex}{SUFFIX}"


def encode_sent(sent: Iterable[SentOn]) -> bytes:
    """Render as lines of JSON, each followed by a tab and its CRC-32."""
    lines = (json.dumps([one.topic, one.message_id, one.outcome, one.reason]).encode() for one in sent)
    return b"".join(b"%s\t%08x\n" % (line, zlib.crc32(line)) for line in lines)


def decode_sent(data: bytes) -> Iterator[SentOn]:
    """Parse the lines; one that is cut off or damaged is no record."""
    for line in data.splitlines():
        body, _, checksum = line.rpartition(b"\t")
        if checksum == b"%08x" % zlib.crc32(body):
            yield SentOn(*json.loads(body))


def _quoted(query: str) -> str:
    return re.sub(r"[^0-9A-Za-z-]", "_", query)
