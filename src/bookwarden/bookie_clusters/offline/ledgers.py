"""All ledgers that Pulsar's metadata names, which a move has to copy, and each compared in both clusters."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

from bookwarden.bookie_clusters.offline.checking import refused
from bookwarden.bookie_clusters.registry import is_marked
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.findings import some
from bookwarden.ledgers.custom_metadata import COPY_KEY, OWNER_KEY, is_unfinished
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerReading, LedgerState, StoredLedger, UnreadableLedger

_LOGS: Final = frozenset({PlaceKind.LOG_SEGMENT.value, PlaceKind.LOG_ALLOCATION.value})


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
        """Raise RefusedError where anything could not be read: a ledger that is not known would not be moved."""
        if self.doubts:
            raise refused(
                f"what names ledgers could not be read whole: {some(list(self.doubts))}. Put that right first"
            )


def read_named(references: ReferencePieces) -> NamedLedgers:
    """Read what is named now; StoreError where a store does not answer."""
    needed, optional, logs = set[int](), set[int](), set[int]()
    doubts: list[str] = []
    for part in references.read_all():
        doubts += [f"{doubt.path}: {doubt.reason}" for doubt in part.doubts]
        for row in part.rows:
            if row.ledger_id is not None:
                (logs if row.place in _LOGS else optional if row.gone else needed).add(row.ledger_id)
    moved = needed | optional
    return NamedLedgers(frozenset(needed), frozenset(optional - needed), len(logs - moved), tuple(doubts))


class CopyStatus(enum.Enum):
    """The status of a ledger between two clusters."""

    SAME = "the same"  #: Both have it, closed, and it is one ledger.
    TO_COPY = "to copy"  #: The target has nothing of it, or an unfinished copy.
    OPEN = "open"  #: It is still written, or was not closed by who wrote it.
    MISSING = "missing"  #: Neither has it, although it is named.
    DIFFERENT = "different"  #: Brokers on the target would read something else.


class LedgerComparison(NamedTuple):
    """A ledger, and the reason if that is DIFFERENT."""

    ledger_id: int
    status: CopyStatus
    reason: str = ""
    bookies: frozenset[str] = frozenset()  #: Of the target, that have it if it is the SAME.


def compare(source: LedgerReading, target: LedgerReading, owner: str) -> LedgerComparison:
    """Compare a ledger by its metadata on both sides; the copier's mark says what it proved."""
    ledger_id = source.ledger_id

    def differs(reason: str) -> LedgerComparison:
        return LedgerComparison(ledger_id, CopyStatus.DIFFERENT, reason)

    if isinstance(source, UnreadableLedger):
        return differs(f"its metadata on the source cannot be understood: {source.reason}")
    if isinstance(target, UnreadableLedger):
        return differs(f"its metadata on the target cannot be understood: {target.reason}")
    if not isinstance(source, StoredLedger):
        if isinstance(target, StoredLedger):
            return differs("it is on the target, and not on the source: brokers ran there, or it was deleted here")
        return LedgerComparison(ledger_id, CopyStatus.MISSING)
    one = source.metadata
    if is_unfinished(one):
        return differs("the source has an unfinished copy of it")
    if isinstance(target, StoredLedger):
        other = target.metadata
        if _said_of(one) != _said_of(other):
            return differs(f"the target has another ledger of this id ({_difference(one, other)})")
        if not is_unfinished(other):
            if one.state is LedgerState.CLOSED and _end(one) == _end(other):
                bookies = frozenset(bookie for segment in other.segments for bookie in segment.ensemble)
                return LedgerComparison(ledger_id, CopyStatus.SAME, bookies=bookies)
            return differs(f"it ends at {_ends(one)} on the source, and at {_ends(other)} on the target")
        if not is_marked(other.custom, owner):
            return differs("the target has an unfinished copy of it that is not of this move")
    return LedgerComparison(ledger_id, CopyStatus.TO_COPY if one.state is LedgerState.CLOSED else CopyStatus.OPEN)


def _said_of(metadata: LedgerMetadata) -> dict[str, object]:
    """Return what a copy has of its source from the beginning."""
    return {
        "custom metadata": {key: value for key, value in metadata.custom.items() if key not in (OWNER_KEY, COPY_KEY)},
        "digest": metadata.digest_type,
        "creation time": metadata.ctime_ms,
    }


def _difference(one: LedgerMetadata, other: LedgerMetadata) -> str:
    here, there = _said_of(one), _said_of(other)
    return "other " + ", ".join(name for name in here if here[name] != there[name])


def _end(metadata: LedgerMetadata) -> tuple[LedgerState, int | None, int]:
    return metadata.state, metadata.last_entry_id, metadata.length


def _ends(metadata: LedgerMetadata) -> str:
    if metadata.state is not LedgerState.CLOSED:
        return f"no known entry ({metadata.state.name})"
    return f"entry {metadata.last_entry_id} with {metadata.length:,} bytes"
