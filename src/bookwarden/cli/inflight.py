"""The command that counts the marks not yet swept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Note, Part, Table
from bookwarden.clusters.pulsar.rest.topic_positions import Position
from bookwarden.config import Settings
from bookwarden.deletion.inflight import DEFAULT_MAX_ENTRIES, InFlight
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.shared_doubts import SharedDoubt
from bookwarden.migration.watching import StorePhase, read_phases
from bookwarden.preflight import require_topics
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.migration import movable_stores_of
from bookwarden.wiring.pulsar import TopicsContext


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

    Counts messages on each partition of the deletion topic and of the retry topic, and names the first entry. The
    broker's own backlog counts entries, each of which may hold a batch of messages. Tells too whether that entry cannot
    be read, and what the sweep waits for: a move of Pulsar's metadata, or a doubt about very many marks.
    """
    settings = invocation.settings
    with TopicsContext(settings) as topics:
        require_topics(topics.admin, settings, settings.deletion.topic, settings.deletion.retry_topic)
        found = topics.in_flight(max_entries)
        unreadable = {
            backlog.topic: reason
            for backlog in found.partitions
            if backlog.first and (reason := topics.why_unreadable(backlog.topic, Position.parse(backlog.first)))
        }
        phases = read_phases(movable_stores_of(settings.metadata_store))
        invocation.write(_describe(found, unreadable, phases, _doubts(settings, found)))


def _doubts(settings: Settings, found: InFlight) -> Sequence[SharedDoubt]:
    """Find what the sweep may wait for; nothing is read while the retry topic has room."""
    retry_topic = TopicName.parse(settings.deletion.retry_topic)
    waiting = sum(one.entries for one in found.partitions if TopicName.parse(one.topic).base == retry_topic)
    if not waiting or waiting < settings.sweep.max_waiting_marks:
        return ()
    with MetadataContext(settings) as metadata:
        return metadata.shared_doubts()


def _describe(
    found: InFlight, unreadable: Mapping[str, str], phases: Sequence[StorePhase], doubts: Sequence[SharedDoubt]
) -> Document:
    rows = [
        (backlog.topic, f"{backlog.entries:,}", _estimate(backlog.messages, backlog.exact), backlog.first)
        for backlog in found.partitions
    ]
    rows.append(("total", f"{found.entries:,}", _estimate(found.messages, found.exact), ""))
    columns = (
        Column("partition", whole=False),
        Column("entries", right=True),
        Column("messages", right=True),
        Column("first entry"),
    )
    parts: list[Part] = [Table(columns, tuple(rows))]
    parts += [
        Note(f"{topic}: its first entry cannot be read ({reason}): see docs/metrics.md, An entry that cannot be read.")
        for topic, reason in unreadable.items()
    ]
    if not found.exact:
        parts.append(Note("~ is estimated; --max-entries looks into more."))
    if not found.messages:
        parts.append(Note("Nothing is in flight."))
    parts += [Note(f"The sweep may wait for this to be mended: {doubt}") for doubt in doubts]
    parts += [Note(_of_migration(at)) for at in phases if at.phase not in ("NOT_STARTED", "FAILED")]
    data = {
        "total": found.messages,
        "entries": found.entries,
        "exact": found.exact,
        "partitions": found.partitions,
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
