"""The command that counts the marks not yet swept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import click

from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table, counted, moment
from bookwarden.clusters.pulsar.broker_marks import Outbox, OutboxSize
from bookwarden.deletion.inflight import DEFAULT_MAX_ENTRIES, InFlight
from bookwarden.errors import StoreError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.ledgers.shared_doubts import SharedDoubt
from bookwarden.metadata_migration.watching import StorePhase, read_phases
from bookwarden.metastore.interface import MetadataStore
from bookwarden.preflight import require_topics
from bookwarden.trash.keeper import TrashState, read_state
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.metadata_migration import movable_stores_of

_T = TypeVar("_T")


@click.command(epilog="Example:  bookwarden -o json inflight")
@click.option(
    "--max-entries",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_ENTRIES,
    show_default=True,
    help="Entries to look into on each partition; what lies behind is estimated.",
)
@pass_invocation
def inflight(invocation: Invocation, max_entries: int) -> None:
    """Count the pending deletions that wait.

    Counts messages on each partition of the deletion topic and of the retry topic, names the first entry, and says how
    old the oldest mark is, and when the next is due. The broker's own backlog counts entries, each of which may hold a
    batch of messages. Counts too what waits in the outbox of brokers that mark, which is before the deletion topic
    (docs/broker-marks.md), and what is in the trash, which comes before both (docs/trash.md). Tells too whether that
    entry cannot be read, and what the sweep waits for: a move of Pulsar's metadata, or a doubt about very many marks.
    """
    settings = invocation.settings
    with Cluster(settings) as cluster:
        topics = cluster.deletion_topics
        require_topics(cluster.admin, settings, settings.deletion.topic, settings.deletion.retry_topic)
        found = topics.in_flight(max_entries)
        unreadable = {
            backlog.topic: reason
            for backlog in found.partitions
            if backlog.first and (reason := topics.why_unreadable(backlog.topic, Position.parse(backlog.first)))
        }
        readable = [one.topic for one in found.partitions if one.first and one.topic not in unreadable]
        firsts = [first for partition in readable if (first := topics.first_on(partition))]
        phases = read_phases(movable_stores_of(settings.metadata_store))
        before = WaitingBefore.read(cluster.store)
        invocation.write(_describe(found, firsts, before, unreadable, phases, _doubts(cluster, found)))


@dataclass(frozen=True, slots=True)
class _Waits:
    """For how long marks wait; None where none does."""

    oldest_s: float | None
    due_ms: int | None  #: When the delay of the first of them is over, in ms since the epoch.
    facts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, firsts: Sequence[ReceivedMark], now_s: float) -> _Waits:
        """Judge by the first mark of each partition."""
        if not firsts:
            return cls(None, None)
        oldest_s = round(now_s - min(one.published_at for one in firsts) / 1000, 1)
        due_ms = min(one.due_at for one in firsts)
        due = "now" if due_ms <= now_s * 1000 else moment(due_ms)
        return cls(oldest_s, due_ms, (("oldest mark", f"{oldest_s:,.0f} s old"), ("next mark due", due)))


@dataclass(frozen=True, slots=True)
class WaitingBefore:
    """The ledgers that are not on the deletion topic yet; texts say why that is not known."""

    outbox: OutboxSize | str
    trash: TrashState | str

    @classmethod
    def read(cls, store: MetadataStore) -> WaitingBefore:
        return cls(_known(Outbox(store).size), _known(partial(read_state, store)))

    def facts(self, now_s: float) -> list[tuple[str, str]]:
        outbox, trash = self.outbox, self.trash
        return [
            (
                "outbox of brokers that mark",
                f"not known: {outbox}" if isinstance(outbox, str) else outbox_text(outbox, now_s),
            ),
            ("trash", f"not known: {trash}" if isinstance(trash, str) else trash_text(trash, now_s)),
        ]

    def data(self, now_s: float) -> dict[str, object]:
        outbox, trash = self.outbox, self.trash
        return {
            "outbox": {"problem": outbox} if isinstance(outbox, str) else outbox_data(outbox, now_s),
            "trash": {"problem": trash} if isinstance(trash, str) else trash_data(trash, now_s),
        }


def _known(read: Callable[[], _T]) -> _T | str:
    try:
        return read()
    except StoreError as error:
        return str(error)


def trash_data(state: TrashState, now_s: float) -> dict[str, object]:
    """Return what programs read of the trash."""
    fields = {"records": state.records, "bytes": state.size, "oldest_seconds": round(state.oldest_s(now_s), 1)}
    return {**fields, "lease_until": state.lease_until_ms}


def trash_text(state: TrashState, now_s: float) -> str:
    """Return what people read of the trash."""
    if state.lease_until_ms > now_s * 1000:
        lease = f"brokers keep what they drop until {moment(state.lease_until_ms)}, unless the sweep renews that"
    else:
        lease = "brokers keep nothing"
    if not state.records:
        return f"empty; {lease}"
    size = f"{counted(state.records, 'record')}, {counted(state.size, 'byte')}"
    return f"{size}, the oldest {state.oldest_s(now_s):,.0f} s old; {lease}"


def outbox_data(size: OutboxSize, now_s: float) -> dict[str, object]:
    """Return what programs read of the outbox."""
    return {"nodes": size.nodes, "bytes": size.size, "oldest_seconds": round(size.oldest_s(now_s), 1)}


def outbox_text(size: OutboxSize, now_s: float) -> str:
    """Return what people read of the outbox."""
    if not size.nodes:
        return "empty"
    return f"{counted(size.nodes, 'node')}, {counted(size.size, 'byte')}, the oldest {size.oldest_s(now_s):,.0f} s old"


def _doubts(cluster: Cluster, found: InFlight) -> Sequence[SharedDoubt]:
    """Find what the sweep may wait for; nothing is read while the retry topic has room."""
    settings = cluster.settings
    retry_topic = TopicName.parse(settings.deletion.retry_topic)
    waiting = sum(one.entries for one in found.partitions if TopicName.parse(one.topic).base == retry_topic)
    if not waiting or waiting < settings.sweep.max_waiting_marks:
        return ()
    return cluster.references.shared_doubts()


def _describe(
    found: InFlight,
    firsts: Sequence[ReceivedMark],
    before: WaitingBefore,
    unreadable: Mapping[str, str],
    phases: Sequence[StorePhase],
    doubts: Sequence[SharedDoubt],
) -> Document:
    now_s = time.time()
    waits = _Waits.of(firsts, now_s)
    rows = [
        (backlog.topic, f"{backlog.entries:,}", _estimate(backlog.messages, backlog.exact), backlog.first)
        for backlog in found.partitions
    ]
    rows.append(("total", f"{found.entries:,}", _estimate(found.messages, found.exact), ""))
    columns = (
        Column("partition", whole=False, topics=True),
        Column("entries", right=True),
        Column("messages", right=True),
        Column("first entry"),
    )
    facts = (*waits.facts, *before.facts(now_s))
    parts: list[Part] = [Table(columns, tuple(rows)), Facts(facts)]
    parts += [
        Note(
            f"{topic}: its first entry cannot be read ({reason}): see docs/monitoring.md, An entry that cannot be read."
        )
        for topic, reason in unreadable.items()
    ]
    if not found.exact:
        parts.append(Note("~ is estimated; --max-entries looks into more."))
    if not found.messages and before.outbox == OutboxSize():
        parts.append(Note("Nothing is in flight."))
    parts += [Note(f"The sweep may wait for this to be mended: {doubt}") for doubt in doubts]
    parts += [Note(_of_migration(at)) for at in phases if at.phase not in ("NOT_STARTED", "FAILED")]
    data = {
        "total": found.messages,
        "entries": found.entries,
        "exact": found.exact,
        "oldest_seconds": waits.oldest_s,
        "next_due": waits.due_ms,
        "partitions": found.partitions,
        **before.data(now_s),
        "unreadable": unreadable,
        "doubts": [{"cause": doubt.cause, "path": doubt.path, "reason": doubt.reason} for doubt in doubts],
        "migrations": phases,
    }
    return Document(data, tuple(parts))


def _of_migration(at: StorePhase) -> str:
    if at.phase == "COMPLETED":
        return f"The metadata of {at.store} was moved to {at.target}, where the sweep goes on."
    if at.problem:
        return f"Whether the metadata of {at.store} is being moved is not known: {at.problem}"
    return f"The metadata of {at.store} is being moved to {at.target} ({at.phase}): the sweep waits for the end."


def _estimate(messages: int, exact: bool) -> str:
    return f"{messages:,}" if exact else f"~{messages:,}"
