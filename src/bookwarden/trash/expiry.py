"""The decision which records of the trash are due: their time is over, or newer ones need their room; pure.

A broker that deletes a topic shortens its list first, and such a drop looks like a trim. So where deleted topics are
kept each trim is held for ten minutes: if its topic's node follows, it is kept as long as that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from bookwarden.ledgers.trash import Generation, KeepRule, TrashRecord, namespace_of

#: How long a trim waits for the end of its topic.
HOLD_MS: Final = 600_000


class Brief(NamedTuple):
    """The part of a record that decides."""

    time_ms: int  #: When it was dropped.
    size: int  #: Bytes of its ledgers.
    namespace: str
    generation: Generation | None  #: Of ledgers that left a topic's list; None of what was deleted.


def brief_of(record: TrashRecord, size: int) -> Brief:
    """Return what decides about a record whose ledgers have so many bytes."""
    generation = None if record.deletes_topic else record.generation
    return Brief(record.time_ms, size, namespace_of(record.managed_ledger), generation)


def due_ms(brief: Brief, rules: Iterable[KeepRule], ended: Collection[Generation]) -> int:
    """Return when the time of a record is over; ``ended`` are the generations whose topic nodes are in the trash."""
    rule = next((each for each in rules if each.matches(brief.namespace)), KeepRule("*"))
    if brief.generation is None or brief.generation in ended:
        return brief.time_ms + 1000 * rule.deleted_s
    hold_ms = HOLD_MS if rule.deleted_s else 0
    return brief.time_ms + max(hold_ms, 1000 * rule.trimmed_s)


def oldest_beyond(briefs: Iterable[Brief], max_bytes: int) -> int:
    """Return until when everything has to go for the rest to be within the limit; -1 where all is."""
    left = max_bytes
    for brief in sorted(briefs, reverse=True):
        left -= brief.size
        if left < 0:
            return brief.time_ms
    return -1
