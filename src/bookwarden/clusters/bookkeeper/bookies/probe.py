"""Asks bookies whether they hold entries: all of an entry, or one for many; the entry's digest is not checked."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bookwarden.clusters.bookkeeper.bookies.protocol import NO_ENTRY, NO_LEDGER, OK, ReadEntry, status_name
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas
from bookwarden.clusters.bookkeeper.bookies.requests import Answer, Bookies
from bookwarden.errors import BookieUnavailableError
from bookwarden.ledgers.metadata import LedgerMetadata

# A bookie answers with the whole entry, which may be megabytes.
_AT_ONCE: Final = 64


class Presence(enum.Enum):
    """The answer of a bookie that was asked for an entry."""

    HELD = "held"
    NOT_HELD = "not held"
    UNKNOWN = "did not answer"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The holding of an entry by one bookie; ``reason`` says why it is unknown."""

    presence: Presence
    reason: str = ""


class ReplicaProbe:
    """Asks over connections that the caller closes; for one thread."""

    def __init__(self, bookies: Bookies) -> None:
        self._bookies = bookies
        self._silent: dict[str, str] = {}

    def holdings(self, entries: Sequence[tuple[int, LedgerMetadata, int]]) -> list[Mapping[str, ReplicaStatus]]:
        """Ask for each (ledger id, its metadata, entry id) all bookies that should have it; answers by bookie id.

        A bookie that did not answer is not asked again for a while: each try can take as long as a connection may.
        """
        wanted = [(ledger_id, entry_id, Replicas(metadata).of(entry_id)) for ledger_id, metadata, entry_id in entries]
        questions = [(bookie, ReadEntry(ledger, entry)) for ledger, entry, bookies in wanted for bookie in bookies]
        found: dict[tuple[str, int, int], ReplicaStatus] = {}
        for start in range(0, len(questions), _AT_ONCE):
            found.update(self._ask(questions[start : start + _AT_ONCE]))
        return [{bookie: found[bookie, ledger, entry] for bookie in bookies} for ledger, entry, bookies in wanted]

    def _ask(self, questions: Sequence[tuple[str, ReadEntry]]) -> dict[tuple[str, int, int], ReplicaStatus]:
        found: dict[tuple[str, int, int], ReplicaStatus] = {}
        skipped: list[tuple[str, ReadEntry]] = []
        with self._bookies.exchange():
            for bookie, request in dict.fromkeys(questions):
                if self._bookies.is_avoided(bookie):
                    skipped.append((bookie, request))
                else:
                    self._bookies.ask(bookie, request)
            while answers := self._bookies.answers():
                for answer in answers:
                    found[_key(answer)] = holding_of(answer)
                    if answer.failure:
                        self._silent[answer.bookie_id] = answer.failure
        for bookie, request in skipped:
            reason = self._silent.get(bookie, "it did not answer a moment ago")
            found[bookie, request.ledger_id, request.entry_id] = ReplicaStatus(Presence.UNKNOWN, reason)
        return found


def _key(answer: Answer) -> tuple[str, int, int]:
    request = answer.request
    assert isinstance(request, ReadEntry)
    return answer.bookie_id, request.ledger_id, request.entry_id


def holding_of(answer: Answer) -> ReplicaStatus:
    """Return the meaning of an answer to ReadEntry."""
    if answer.response is None:
        return ReplicaStatus(Presence.UNKNOWN, answer.failure)
    status = answer.response.status
    if status == OK:
        return ReplicaStatus(Presence.HELD)
    if status in (NO_LEDGER, NO_ENTRY):
        return ReplicaStatus(Presence.NOT_HELD)
    return ReplicaStatus(Presence.UNKNOWN, f"it answered {status_name(status)}")


class Bookie:
    """One bookie, asked over connections that the caller closes; for one thread."""

    def __init__(self, bookie_id: str, bookies: Bookies) -> None:
        self._id = bookie_id
        self._bookies = bookies

    def holdings(self, ledger_ids: Sequence[int], entry_id: int = 0) -> dict[int, ReplicaStatus]:
        """Return for each ledger whether the bookie has this entry of it; a bookie that is down makes all unknown.

        Replicas says whether it should have the entry. The entry's digest is not checked.
        """
        found: dict[int, ReplicaStatus] = {}
        distinct = list(dict.fromkeys(ledger_ids))
        for start in range(0, len(distinct), _AT_ONCE):
            with self._bookies.exchange():
                for ledger_id in distinct[start : start + _AT_ONCE]:
                    self._bookies.ask(self._id, ReadEntry(ledger_id, entry_id))
                while answers := self._bookies.answers():
                    for answer in answers:
                        assert isinstance(answer.request, ReadEntry)
                        found[answer.request.ledger_id] = holding_of(answer)
        return found

    def holds(self, ledger_ids: Sequence[int]) -> dict[int, bool]:
        """Return the same, but raise BookieUnavailableError if it is unknown for any ledger."""
        found = self.holdings(ledger_ids)
        for ledger_id, holding in found.items():
            if holding.presence is Presence.UNKNOWN:
                raise BookieUnavailableError(f"ledger {ledger_id} on bookie {self._id}: {holding.reason}")
        return {ledger_id: holding.presence is Presence.HELD for ledger_id, holding in found.items()}
