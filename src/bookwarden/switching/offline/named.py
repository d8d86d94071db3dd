"""All ledgers that Pulsar's metadata names: what a move has to take along."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bookwarden.findings import some
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.listing import ListedReference
from bookwarden.ledgers.references import Doubt
from bookwarden.switching.offline.sides import refused

_LOGS: Final = frozenset({PlaceKind.LOG_SEGMENT.value, PlaceKind.LOG_ALLOCATION.value})


class ReferencesRead(Protocol):
    """A part of all references."""

    @property
    def rows(self) -> Sequence[ListedReference]:
        """What is named."""

    @property
    def doubts(self) -> Sequence[Doubt]:
        """What could not be read."""


#: Reads all references anew; StoreError where the store does not answer.
ReadsAllReferences = Callable[[], Iterable[ReferencesRead]]


@dataclass(frozen=True, slots=True)
class NamedLedgers:
    """Ids of ledgers."""

    needed: frozenset[int]  #: Brokers want to find them.
    #: They need not be there: their bytes are offloaded, or a cursor's node still has what was replaced.
    optional: frozenset[int]
    in_logs: int  #: Ledgers of Functions and packages, which stay in the bookie cluster that their namespace names.
    doubts: tuple[str, ...] = ()  #: What could not be read, such as a cursor's ledger that is open.

    @property
    def all(self) -> list[int]:
        """All that are moved, in order."""
        return sorted(self.needed | self.optional)

    def require_whole(self) -> None:
        """Raise RefusedError where anything could not be read: a ledger that nobody knows of would not be moved."""
        if self.doubts:
            raise refused(
                f"what names ledgers could not be read whole: {some(list(self.doubts))}. Put that right first"
            )


def read_named(read: ReadsAllReferences) -> NamedLedgers:
    """Read what is named."""
    needed, optional, logs = set[int](), set[int](), set[int]()
    doubts: list[str] = []
    for part in read():
        doubts += [f"{doubt.path}: {doubt.reason}" for doubt in part.doubts]
        for row in part.rows:
            if row.ledger_id is not None:
                (logs if row.place in _LOGS else optional if row.gone else needed).add(row.ledger_id)
    moved = needed | optional
    return NamedLedgers(frozenset(needed), frozenset(optional - needed), len(logs - moved), tuple(doubts))
