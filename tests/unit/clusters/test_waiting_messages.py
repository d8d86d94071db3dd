"""Messages behind a subscription's position: those in flight, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bookwarden.clusters.pulsar.entries import TopicEntry
from bookwarden.clusters.pulsar.messages.waiting import WaitingMessages
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.wire.pb.pulsar_api_pb2 import MessageMetadata

TOPIC = "persistent://public/default/deletions"


class Admin:
    """The stats of one topic."""

    def __init__(self, ledgers: Mapping[int, int], confirmed: str, position: str) -> None:
        spans = [{"ledgerId": ledger_id, "entries": entries} for ledger_id, entries in ledgers.items()]
        self.stats = {
            "lastConfirmedEntry": confirmed,
            "ledgers": spans,
            "cursors": {"worker": {"markDeletePosition": position}},
        }

    def get_json(self, path: str, **_: object) -> Any:
        if path.endswith("/partitions"):
            return {"partitions": 0}
        return self.stats if path.endswith("/internalStats") else [TOPIC]


class Entries:
    """The entries of one topic, from one before what was asked for, as brokers may give them."""

    def __init__(self, *positions: Position) -> None:
        self.positions = positions
        self.opened: list[Position] = []

    @contextmanager
    def open(self, _topic: str, first: Position, _timeout_s: float) -> Iterator[Entries]:
        self.opened.append(first)
        begin = max((one for one in self.positions if one < first), default=first)
        self._left = [one for one in self.positions if one >= begin]
        yield self

    def next(self, _timeout_s: float) -> TopicEntry | None:
        return TopicEntry(self._left.pop(0), MessageMetadata(), b"mark") if self._left else None


def read(admin: Admin, entries: Entries) -> Sequence[str]:
    waiting = WaitingMessages(entries, admin, "worker", "persistent://public/default/retry")  # type: ignore[arg-type]
    return [one.message_id for one in waiting.read([TOPIC])]


def test_the_last_acknowledged_entry_is_not_in_flight() -> None:
    entries = Entries(Position(122, 0), Position(122, 1))
    assert read(Admin({122: 2}, "122:1", "122:0"), entries) == ["122:1:0"]
    entries = Entries(Position(121, 4), Position(122, 0), Position(122, 1))
    assert read(Admin({121: 5, 122: 2}, "122:1", "121:4"), entries) == ["122:0:0", "122:1:0"]


def test_a_partition_with_nothing_behind_the_position_is_not_read() -> None:
    for admin in (Admin({122: 2}, "122:1", "122:1"), Admin({130: 0}, "130:-1", "122:1")):
        entries = Entries()
        assert read(admin, entries) == []
        assert entries.opened == []
