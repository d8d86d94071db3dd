"""A topic as its broker serves it, in memory and in a time of its own: lost ledgers, entries that nobody can read."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from bookwarden.clusters.pulsar.entries import TopicEntry
from bookwarden.errors import FormatError, NotFoundError, PulsarUnavailableError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.wire.entry import open_entry
from servers.pulsar_topics import raw_entry, single

SUBSCRIPTION = "job"
# What a producer may send that nobody can read, in the bytes that its broker stores.
UNREADABLE = {
    "empty batch": (b"", {"num_messages_in_batch": 0}),
    "batch without a payload": (b"", {"num_messages_in_batch": 1}),
    "false count": (single(b"x"), {"num_messages_in_batch": 10**9}),
    "false length": (single(b"x", payload_size=2**30), {"num_messages_in_batch": 2}),
    "false length of metadata": (struct.pack(">I", 2**31 - 1), {"num_messages_in_batch": 2}),
    "garbage": (b"garbage", {"compression": 3, "uncompressed_size": 100}),
    "bomb": (zlib.compress(bytes(1 << 16)), {"compression": 2, "uncompressed_size": 1 << 31}),
    "unknown compression": (b"x", {"compression": 77}),
}


@dataclass
class Stored:
    """An entry; ``kind`` is good, chunk, marker, aborted, filtered, or one of UNREADABLE."""

    kind: str
    raw: bytes
    values: tuple[bytes, ...] = ()  #: Of its messages, if it is good.
    written: float = 0.0
    due: float = 0.0  #: By the true time; only of a good one.
    lost: bool = False  #: No bookie has it any more.
    damaged: int = 0  #: How often it was on its way; what comes three times so is stored so.
    last_chunk: bool = False


@dataclass
class Ledger:
    ledger_id: int
    entries: list[Stored] = field(default_factory=list)
    lost: str = ""  #: "", "metadata", or "bookies".


class Time:
    """Seconds that pass when somebody waits; the machine's own clock may be wrong."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.skew = 0.0

    def steady(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self.skew

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Topic:
    """A partition; ``auto_skip`` is a broker with autoSkipNonRecoverableData, which skips what lies behind it too."""

    def __init__(self, name: str, time: Time, rng: Random, *, auto_skip: bool = False) -> None:
        self.name = name
        self.time = time
        self.rng = rng
        self.auto_skip = auto_skip
        self.ledgers = [Ledger(10)]
        self.cursor = Position(10, -1)
        self.refuses = 0.0  #: How often a broker does not answer.
        self.damages = 0.0  #: How often an entry is damaged on its way.
        self.rest_is_mute = False  #: Of single entries.
        self.readers: dict[str, Position] = {}  #: What the broker reads next for each that is open.
        self._numbers = 0

    def publish(self, kind: str, *, delay: float | None = None, ahead: float = 0.0) -> None:
        """Store an entry; a delay makes it due so much later, by the sender's clock, which may be ahead."""
        now_ms = int((self.time.now + ahead) * 1000)
        times: dict[str, Any] = {}
        if delay is not None:
            # The sender's own clock is nobody's business.
            times = {"deliver_at_time": now_ms + int(delay * 1000), "publish_time": now_ms}
            times["properties"] = [{"key": b"DELAY_TIME", "value": b"%d" % int(delay * 1000)}]
        stored = Stored(kind, b"", (), self.time.now, self.time.now + (delay or 0))
        if kind == "good":
            stored.values = tuple(self._value() for _ in range(self.rng.choice((1, 1, 1, 3))))
            if len(stored.values) == 1:
                stored.raw = raw_entry(stored.values[0], **times)
            else:
                batch = b"".join(map(single, stored.values))
                stored.raw = raw_entry(batch, num_messages_in_batch=len(stored.values), **times)
        elif kind in UNREADABLE:
            payload, metadata = UNREADABLE[kind]
            stored.raw = raw_entry(payload, **metadata, **times)
        else:
            stored.raw = raw_entry(b"", **times)
        self.ledgers[-1].entries.append(stored)

    def publish_chunked(self) -> None:
        for chunk in range(2):
            raw = raw_entry(b"part", num_chunks_from_msg=2, chunk_id=chunk)
            self.ledgers[-1].entries.append(Stored("chunk", raw, last_chunk=chunk == 1))

    def roll(self) -> None:
        """Begin a new ledger; one without entries leaves the list."""
        last = self.ledgers[-1].ledger_id
        if not self.ledgers[-1].entries:
            self.ledgers.pop()
        self.ledgers.append(Ledger(last + self.rng.randint(1, 5)))

    def acknowledge(self, position: Position) -> None:
        self.cursor = max(self.cursor, position)

    def trim(self) -> None:
        """Let what is acknowledged go, oldest first, but the ledger that is written to."""
        while len(self.ledgers) > 1:
            first = self.ledgers[0]
            if self.cursor < Position(first.ledger_id, len(first.entries) - 1):
                return
            self.ledgers.pop(0)
            self.cursor = max(self.cursor, Position(self.ledgers[0].ledger_id, -1))

    def ledger(self, ledger_id: int) -> Ledger | None:
        return next((ledger for ledger in self.ledgers if ledger.ledger_id == ledger_id), None)

    def places(self) -> Iterator[tuple[Position, Ledger, Stored]]:
        for ledger in self.ledgers:
            for number, stored in enumerate(ledger.entries):
                yield Position(ledger.ledger_id, number), ledger, stored

    def may_fail(self) -> None:
        if self.rng.random() < self.refuses:
            self.time.sleep(0.5)
            raise PulsarUnavailableError("nobody answers")

    def stats(self) -> dict[str, Any]:
        filled = [ledger for ledger in self.ledgers if ledger.entries]
        last = filled[-1] if filled else None
        confirmed = f"{last.ledger_id}:{len(last.entries) - 1}" if last else f"{self.ledgers[0].ledger_id}:-1"
        return {
            "lastConfirmedEntry": confirmed,
            "ledgers": [{"ledgerId": one.ledger_id, "entries": len(one.entries)} for one in self.ledgers],
            "cursors": {
                name: {"markDeletePosition": str(self.cursor), "readPosition": str(read)}
                for name, read in {SUBSCRIPTION: self.cursor, **self.readers}.items()
            },
        }

    def _value(self) -> bytes:
        self._numbers += 1
        return b"%d" % self._numbers


class Stream:
    """What the broker sends a reader from a position on."""

    subscription = "reader"

    def __init__(self, topic: Topic, first: Position) -> None:
        self._topic = topic
        self._next = first

    def next(self, timeout_s: float) -> TopicEntry | None:
        self._topic.may_fail()
        found = self._read()
        self._topic.readers[self.subscription] = self._next
        if found is None:
            self._topic.time.sleep(timeout_s)
        return found

    def _read(self) -> TopicEntry | None:
        topic = self._topic
        for position, ledger, stored in topic.places():
            if position < self._next:
                continue
            if ledger.lost or stored.lost:
                if not topic.auto_skip:
                    self._next = position
                    return None
                # A broker skips as many entries as it would have read, and all of a ledger without metadata.
                skipped = 10**6 if ledger.lost else topic.rng.randint(1, 4)
                self._next = Position(position.ledger_id, position.entry_id + skipped)
                continue
            self._next = Position(position.ledger_id, position.entry_id + 1)
            if stored.kind in ("marker", "aborted", "filtered"):
                continue
            if topic.rng.random() < topic.damages and stored.damaged < 2:
                stored.damaged += 1
                return TopicEntry(position, None, b"", "its checksum is not that of its bytes")
            try:
                return TopicEntry(position, *open_entry(stored.raw))
            except FormatError as error:
                return TopicEntry(position, None, b"", str(error))
        return None


class Entries:
    """Stands where the connections to brokers stand."""

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self._topics = topics
        self.opened = 0

    @contextmanager
    def open(self, topic: str, first: Position, timeout_s: float) -> Iterator[Stream]:
        self.opened += 1
        self._topics[topic].may_fail()
        try:
            yield Stream(self._topics[topic], first)
        finally:
            self._topics[topic].readers.clear()


class Admin:
    """Stands where the admin REST stands, as far as the source asks it."""

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self._named = topics

    @property
    def _topics(self) -> dict[str, Topic]:
        return {name.removeprefix("persistent://"): topic for name, topic in self._named.items()}

    def get_json(self, path: str, *, params: object = None) -> Any:
        name, _, asked = path.removeprefix("/persistent/").rpartition("/")
        if asked == "internalStats":
            if name not in self._topics:
                raise NotFoundError(f"{path}: the broker answered 404")
            return self._topics[name].stats()
        if asked == "partitions":
            return {"partitions": 0}
        return [f"persistent://{topic}" for topic in self._topics]

    def request(self, method: str, path: str) -> Any:
        found = re.fullmatch(r"/persistent/(.+)/ledger/(\d+)/entry/(\d+)", path)
        assert found is not None
        topic = self._topics[found[1]]
        if topic.rest_is_mute:
            raise PulsarUnavailableError(f"{path}: the broker closed the connection")
        topic.may_fail()
        ledger = topic.ledger(int(found[2]))
        if ledger is None:
            raise NotFoundError(f"{path}: the broker answered 404")
        stored = ledger.entries[int(found[3])]
        if ledger.lost == "metadata":
            raise PulsarUnavailableError(f"{path}: 500: Message: No such ledger exists on Metadata Server")
        if ledger.lost or stored.lost:
            raise PulsarUnavailableError(f"{path}: 500: Message: Bookie handle is not available")
        headers = {"marker": {"X-Pulsar-marker-type": "1"}, "aborted": {"X-Pulsar-txn-aborted": "true"}}
        return SimpleNamespace(headers=headers.get(stored.kind, {}))

    def close(self) -> None:
        pass
