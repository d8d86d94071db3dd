"""The part of a ledger that its bookies still hold, from what they answer about a few of its entries.

A bookie's garbage collection drops a ledger whole, so the first and the last entries of each segment tell of every
bookie that has a part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bookwarden.clusters.bookkeeper.bookies.probe import Holding, Presence
from bookwarden.ledgers.metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Survival:
    """The answers of the bookies about a ledger, summed up: the copies asked for, and those held.

    ``lost`` are entries that no bookie holds; ``unknown`` those that none is known to hold, while some bookies did not
    answer. ``silent`` are those bookies, each with the reason.
    """

    copies: int
    held: int
    lost: tuple[int, ...]
    unknown: tuple[int, ...]
    silent: Mapping[str, str]

    @property
    def is_whole(self) -> bool:
        """Whether each copy that was asked for was found."""
        return self.held == self.copies

    def __str__(self) -> str:
        parts = []
        if self.lost:
            parts.append(f"no bookie holds {_entries(self.lost)}")
        if self.unknown:
            parts.append(f"not known whether {_entries(self.unknown)} is held")
        missing = self.copies - self.held
        if missing and self.held:
            parts.append(f"under-replicated: {self.held} of {self.copies} copies found")
        if self.silent:
            parts.append("no answer from " + ", ".join(f"{bookie} ({why})" for bookie, why in self.silent.items()))
        return "; ".join(parts)


def entries_to_ask(metadata: LedgerMetadata) -> list[int]:
    """List the entries that show the state of every bookie of a closed ledger: both ends of each segment.

    Where an entry is not on all bookies of its ensemble, as many entries as there are bookies are needed at each end.
    """
    last = -1 if metadata.last_entry_id is None else metadata.last_entry_id
    span = 1 if metadata.write_quorum == metadata.ensemble_size else metadata.ensemble_size
    entries: set[int] = set()
    ends = [segment.first_entry_id for segment in metadata.segments[1:]]
    for segment, end in zip(metadata.segments, [*ends, last + 1], strict=True):
        whole = range(segment.first_entry_id, min(end, last + 1))
        entries.update(whole[:span])
        entries.update(whole[-span:])
    return sorted(entries)


def survey(answers: Iterable[tuple[int, Mapping[str, Holding]]]) -> Survival:
    """Sum up the answers about one ledger: entry id, and by bookie whether it holds the entry."""
    copies = held = 0
    lost: list[int] = []
    unknown: list[int] = []
    silent: dict[str, str] = {}
    for entry_id, found in answers:
        present = sum(holding.presence is Presence.HELD for holding in found.values())
        unanswered = {bookie: holding for bookie, holding in found.items() if holding.presence is Presence.UNKNOWN}
        copies += len(found)
        held += present
        silent.update((bookie, holding.reason) for bookie, holding in unanswered.items())
        if not present:
            (unknown if unanswered else lost).append(entry_id)
    return Survival(copies, held, tuple(lost), tuple(unknown), silent)


def _entries(ids: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ids[:4])) + (", ..." if len(ids) > 4 else "")
    return f"entry {shown}" if len(ids) == 1 else f"entries {shown}"
