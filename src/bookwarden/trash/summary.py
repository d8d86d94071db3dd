"""Generations in the trash, in the words of `trash list`; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bookwarden.errors import FormatError
from bookwarden.ledgers.metadata import AbsentLedger, LedgerReading, StoredLedger
from bookwarden.ledgers.names import TopicName, decode_local_name
from bookwarden.ledgers.trash import TrashLease, namespace_of
from bookwarden.trash.expiry import brief_of, due_ms
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.trash.plan import former_entries, former_ledgers
from bookwarden.wire.managed_ledger import decode_ledger_entry


@dataclass(frozen=True, slots=True)
class Summary:
    """One life of a topic, and what the trash has of it."""

    topic: str  #: Its full name.
    generation: int  #: When its node was made, in ms since the epoch.
    what: str  #: ``topic``, ``ledgers`` that were trimmed, or ``subscriptions``.
    dropped_ms: int  #: When it was deleted, or the newest of it dropped.
    brokers: tuple[str, ...]  #: HOST:PORT of those that dropped it.
    ledgers: int  #: Of all kinds.
    bytes: int  #: Of the topic's messages, without the copies on bookies.
    subscriptions: tuple[str, ...]  #: Also those that were removed before the topic.
    schema: bool  #: Whether the trash has its schema.
    expires_ms: int | None  #: None where it is not known: no sweep has written how long brokers keep it.
    missing: tuple[str, ...]  #: Of ledgers and records.
    restore: str  #: How far a restore is that is not finished, and whose; empty where there is none.


def summarize(
    trashed: TrashedGeneration,
    readings: Sequence[LedgerReading],
    lease: TrashLease | None,
    under_way: Mapping[str, str],
) -> Summary:
    """Describe it; ``readings`` are of all of its ledgers, ``under_way`` has restores by managed ledger."""
    try:
        topic = str(TopicName.of_managed_ledger(trashed.managed_ledger))
    except FormatError:
        topic = trashed.managed_ledger
    names = {decode_local_name(cursor) for cursor in (*trashed.cursors, *trashed.removed)}
    missing = [f"parts of {len(trashed.broken)} nodes"] if trashed.broken else []
    missing += unseen_policies(trashed)
    size = 0
    try:
        size = _size(trashed, readings)
        missing += _missing(trashed, readings)
    except FormatError as error:
        missing.append(str(error))
    return Summary(
        topic,
        trashed.generation.created_ms,
        _what(trashed),
        trashed.dropped_ms,
        trashed.brokers,
        len(trashed.ledger_ids),
        size,
        tuple(sorted(names)),
        trashed.schema is not None,
        _expires_ms(trashed, lease),
        tuple(missing),
        under_way.get(trashed.managed_ledger, ""),
    )


def unseen_policies(trashed: TrashedGeneration) -> list[str]:
    """Return what of the policies and permissions of a deleted topic the trash does not have, for people."""
    if trashed.topic is None:
        return []
    if trashed.topic.policies is None:
        return ["its policies and permissions: the sweep has not looked for them yet"]
    return list(trashed.topic.policies.unseen)


def _what(trashed: TrashedGeneration) -> str:
    if trashed.topic is not None:
        return "topic"
    return "ledgers" if trashed.trims else "subscriptions"


def _size(trashed: TrashedGeneration, readings: Iterable[LedgerReading]) -> int:
    lengths = {one.ledger_id: one.metadata.length for one in readings if isinstance(one, StoredLedger)}
    infos = map(decode_ledger_entry, former_entries(trashed).values())
    return sum(info.size or lengths.get(info.ledger_id, 0) for info in infos)


def _missing(trashed: TrashedGeneration, readings: Iterable[LedgerReading]) -> list[str]:
    empty = {
        info.ledger_id
        for info in map(decode_ledger_entry, former_entries(trashed).values())
        if info.timestamp_ms > 0 and info.entries == 0
    }
    named = former_ledgers(trashed) - empty
    gone = [one.ledger_id for one in readings if isinstance(one, AbsentLedger) and one.ledger_id in named]
    if not gone:
        return []
    shown = ", ".join(map(str, gone[:3])) + (", ..." if len(gone) > 3 else "")
    return [f"{len(gone)} ledgers that BookKeeper has no more: {shown}"]


def _expires_ms(trashed: TrashedGeneration, lease: TrashLease | None) -> int | None:
    """Return when the first of it is let go."""
    rule = None if lease is None else lease.rule_of(namespace_of(trashed.managed_ledger))
    if rule is None:
        return None

    ended = () if trashed.topic is None else {record.generation for record in trashed.records if record.generation}
    return min((due_ms(brief_of(record, 0), [rule], ended) for record in trashed.records), default=None)
