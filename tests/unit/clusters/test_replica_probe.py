"""Which bookies are asked for an entry, and what their answers mean."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bookwarden.clusters.bookkeeper.bookies.probe import Presence, ReplicaProbe, ReplicaStatus
from bookwarden.clusters.bookkeeper.bookies.protocol import NO_ENTRY, NO_LEDGER, OK, ReadEntry, Response
from bookwarden.clusters.bookkeeper.bookies.requests import Answer
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment

STRIPED = LedgerMetadata(
    3, LedgerState.CLOSED, 3, 2, 2, (Segment(0, ("a", "b", "c")), Segment(50, ("a", "b", "d"))), 1, 99
)


class Bookies:
    """Bookies that answer by status, or not at all, and then are avoided as the real ones are."""

    def __init__(self, **statuses: int | None) -> None:
        self._statuses = statuses
        self._waiting: list[Answer] = []
        self._avoided: set[str] = set()
        self.asked: list[tuple[str, int, int]] = []

    @contextlib.contextmanager
    def exchange(self) -> Iterator[None]:
        yield
        assert not self._waiting

    def is_avoided(self, bookie_id: str) -> bool:
        return bookie_id in self._avoided

    def ask(self, bookie_id: str, request: ReadEntry) -> None:
        self.asked.append((bookie_id, *request))
        status = self._statuses.get(bookie_id, OK)
        if status is None:
            self._avoided.add(bookie_id)
            self._waiting.append(Answer(bookie_id, request, None, "connection refused"))
        else:
            self._waiting.append(Answer(bookie_id, request, Response(status, b"")))

    def answers(self) -> list[Answer]:
        found, self._waiting = self._waiting, []
        return found


def test_an_entry_is_asked_of_those_that_it_was_written_to() -> None:
    bookies = Bookies(b=NO_LEDGER, d=NO_ENTRY)
    found = ReplicaProbe(bookies).holdings([(7, STRIPED, 1), (7, STRIPED, 99), (7, STRIPED, 98)])
    assert [sorted(answers) for answers in found] == [["b", "c"], ["a", "b"], ["a", "d"]]
    assert found[0] == {"b": ReplicaStatus(Presence.NOT_HELD), "c": ReplicaStatus(Presence.HELD)}
    assert found[2] == {"a": ReplicaStatus(Presence.HELD), "d": ReplicaStatus(Presence.NOT_HELD)}


def test_any_other_answer_leaves_it_unknown() -> None:
    found = ReplicaProbe(Bookies(b=501)).holdings([(7, STRIPED, 1)])
    assert found[0]["b"].presence is Presence.UNKNOWN
    assert found[0]["b"].reason


def test_a_bookie_that_did_not_answer_is_not_asked_for_each_ledger_anew() -> None:
    bookies = Bookies(b=None)
    found = ReplicaProbe(bookies).holdings([(ledger_id, STRIPED, 1) for ledger_id in range(500)])
    assert {answers["b"] for answers in found} == {ReplicaStatus(Presence.UNKNOWN, "connection refused")}
    assert {answers["c"] for answers in found} == {ReplicaStatus(Presence.HELD)}
    assert len([bookie for bookie, _, _ in bookies.asked if bookie == "b"]) == 1


def test_nothing_is_asked_twice_and_nothing_is_no_question() -> None:
    bookies = Bookies()
    assert len(ReplicaProbe(bookies).holdings([(7, STRIPED, 1)] * 3)) == 3
    assert len(bookies.asked) == 2
    assert ReplicaProbe(bookies).holdings([]) == []
