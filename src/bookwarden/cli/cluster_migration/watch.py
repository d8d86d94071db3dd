"""`bookwarden cluster-migration watch` and `release`: a migration under way, until everything is drained."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import click
from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.text import Text

from bookwarden.cli.cluster_migration.options import late_option, named_or_begun, namespaces_argument
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Document, Note, Part, counted, plain, printable
from bookwarden.cli.shell.steps import telling
from bookwarden.cluster_migration.green_resources import GreenResources, LatePolicy
from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.record import CONNECTED
from bookwarden.cluster_migration.releasing import ContinuousReleaser, ReleasePlan, ReleaseResult, TopicReleaser
from bookwarden.cluster_migration.scope import namespace_of
from bookwarden.cluster_migration.states import DONE, TopicStatus
from bookwarden.cluster_migration.watching import BrokerHealth, DrainOutcome, DrainStep, deadlock_advice, follow
from bookwarden.errors import FormatError, NotFoundError, PulsarError, StoreError
from bookwarden.exit_codes import DEADLOCKED, LATE, MIGRATION_FAILED, MORE_LATER, SOME_FAILED
from bookwarden.wiring.cluster_migration import ClusterMigration

_EVERY_S: Final = 2.0
_SAID_EVERY_S: Final = 10.0
# Of clients that are connected to blue, in the record.
_NOTED_EVERY_S: Final = 60.0
# What is stranded has to be reported soon: the others are for the next snapshot.
_RELEASED_AT_ONCE: Final = 50

_ENDED: Final = {
    DrainOutcome.DRAINED: "Drained: blue has nothing left to read. Next: `cluster-migration verify`.",
    DrainOutcome.CLIENTS_LEFT: "Drained, and green has not seen every client that blue had: see whether the "
    "applications still run. Nothing is left to read on blue. Next: `cluster-migration verify`.",
    DrainOutcome.FLAG_OFF: "The flag is off: blue redirects no client. Topics that were marked accept no message until "
    "they are reopened: docs/cluster-migration.md, 'Abort'.",
    DrainOutcome.DEADLOCKED: "A broker of blue is deadlocked, and has to be killed: "
    "docs/cluster-migration.md, 'A deadlocked broker'.",
}

_CODES: Final = {
    DrainOutcome.DRAINED: 0,
    DrainOutcome.CLIENTS_LEFT: SOME_FAILED,
    DrainOutcome.FLAG_OFF: MIGRATION_FAILED,
    DrainOutcome.DEADLOCKED: DEADLOCKED,
}

_EPILOG = """\b
Exit codes: 0 drained; 24 no flag is set; 25 not over within --timeout; 27 the same, and topics are
STRANDED or UNMARKED: no client reaches them until the flag is off; 27 also: drained, and green has not seen every
client that blue had; 28 a broker of blue is deadlocked, and has to be killed; 29 drained, and subscriptions came too
late to green and may have lost messages: the output names them; 4 nothing was begun."""

release_option: Final = click.option(
    "--release",
    "releases",
    is_flag=True,
    help="While watching, do what `release --execute` does, as soon as it can be.",
)


@click.command(epilog=_EPILOG)
@namespaces_argument
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Maximum seconds to watch.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=_EVERY_S,
    show_default=True,
    metavar="SECONDS",
    help="Time between two snapshots.",
)
@release_option
@click.option("--dry-run", is_flag=True, help="Only watch: make nothing on green.")
@late_option
@pass_invocation
def watch(
    invocation: Invocation,
    namespaces: list[str],
    timeout: float | None,
    every: float,
    releases: bool,
    dry_run: bool,
    late_policy: LatePolicy,
) -> None:
    """Follow a migration until everything is drained.

    Shows how many topics are done and what is left to read, by the nodes of the topics in blue's metadata and by the
    brokers that have them loaded, and says within one snapshot what no client can reach any more: a topic whose broker
    restarted, or whose bundle moved. Where topics stall for 30 s blue's brokers are asked whether they are
    deadlocked. A subscription that blue has and green has not is made on green at the earliest message, and one that
    came too late is reported. With -o json one line for each change. Stopping it stops nothing.
    """
    if dry_run and (releases or late_policy is LatePolicy.RESET):
        raise click.UsageError("--dry-run only watches: leave out --release, and --late-subscriptions reset")
    with (
        ClusterMigration(invocation.settings) as migration,
        closing(
            GreenResources(migration.blue, migration.green, migration.record, late_policy, invocation.say)
        ) as resources,
    ):
        code = watch_to_the_end(
            invocation,
            migration,
            named_or_begun(migration, namespaces),
            None if dry_run else resources,
            every=every,
            timeout=timeout,
            releases=releases,
        )
    click.get_current_context().exit(code)


def watch_to_the_end(
    invocation: Invocation,
    migration: ClusterMigration,
    namespaces: Sequence[str],
    resources: GreenResources | None,
    *,
    every: float = _EVERY_S,
    timeout: float | None = None,
    releases: bool = False,
) -> int:
    """Report on a migration until it is over; return the exit code.

    ``resources`` make on green what blue has got since; without them nothing is made.
    With ``releases`` topics that are drained are unloaded, those of which green lacks clients a little later.
    """
    as_it_goes = ContinuousReleaser(TopicReleaser(migration.blue, migration.observer, migration.record))
    health = BrokerHealth(migration.blue)
    deadline = None if timeout is None else time.monotonic() + timeout
    with telling(invocation.output, _SAID_EVERY_S, _json_of, _lines_of, _live, _end_of) as tell:
        if resources is not None:
            resources.follow(namespaces)
        snapshots = _Snapshots(migration, namespaces, resources)
        for step in follow(snapshots, every_s=every, health=health, unanswered=lambda: as_it_goes.timed_out):
            tell(step)
            if releases:
                # No look comes after the last one.
                at_most = _RELEASED_AT_ONCE if step.ending is None else None
                for reason in as_it_goes.take(step.snapshot.topics, at_most=at_most):
                    invocation.say(f"not released: {reason}")
            if step.ending is not None:
                return LATE if step.snapshot.late and step.ending is DrainOutcome.DRAINED else _CODES[step.ending]
            if deadline is not None and time.monotonic() >= deadline:
                return SOME_FAILED if step.lost_sight else MORE_LATER
    raise AssertionError("a migration is followed to its end")


class _Snapshots:
    """Looks at a migration; while the store does not answer the last snapshot is repeated, with the reason."""

    def __init__(
        self, migration: ClusterMigration, namespaces: Sequence[str], resources: GreenResources | None
    ) -> None:
        self._resources = resources
        self._migration = migration
        self._namespaces = namespaces
        self._expected = migration.record.expected(namespaces)
        self._last: MigrationSnapshot | None = None
        self._arrived: frozenset[tuple[str, str]] = frozenset()
        self._noted_at = -_NOTED_EVERY_S

    def __call__(self) -> MigrationSnapshot:
        try:
            self._last = self._completed(self._migration.observer.snapshot(self._namespaces, self._expected))
        except StoreError as error:
            if self._last is None:
                raise
            return self._last.repeated(int(time.time() * 1000), str(error))
        return self._last

    def _completed(self, snapshot: MigrationSnapshot) -> MigrationSnapshot:
        """Make on green what it lacks of a snapshot; an error is one of the snapshot, and the next one tries."""
        try:
            if self._resources is not None:
                self._resources.complete_snapshot(snapshot)
        except (PulsarError, NotFoundError, FormatError) as error:
            snapshot = replace(
                snapshot, errors=(*snapshot.errors, f"green was not given what blue has got since: {error}")
            )
        self._note_clients(snapshot)
        return replace(snapshot, late=self._migration.record.late(self._namespaces))

    def _note_clients(self, snapshot: MigrationSnapshot) -> None:
        """Record, for `finish`, which clients have come to green, and which topics of blue have some connected."""
        record, found = self._migration.record, self._migration.observer.found_on_green
        record.arrived(found - self._arrived)
        self._arrived = found
        topics = defaultdict(list)
        for seen in snapshot.topics:
            if seen.publishers or any(cursor.consumers for cursor in seen.cursors):
                topics[namespace_of(seen.topic)].append(seen.topic)
        now = time.monotonic()
        if topics and now >= self._noted_at + _NOTED_EVERY_S:
            self._noted_at = now
            for name, found_there in topics.items():
                record.append(CONNECTED, namespace=name, topics=found_there)


def _live(_console: Console, step: DrainStep) -> Group:
    bar = ProgressBar(total=max(1, len(step.snapshot.topics)), completed=step.snapshot.done, width=40)
    return Group(bar, *(Text(printable(line)) for line in _lines_of(step)))


def _json_of(step: DrainStep) -> str:
    snapshot = step.snapshot
    data: dict[str, Any] = {
        "at_ms": snapshot.at_ms,
        "flagged": snapshot.flagged,
        "topics": len(snapshot.topics),
        "done": snapshot.done,
        "unread": snapshot.unread,
        "entries_per_second": step.rate,
        "seconds_left": step.seconds_left,
        "states": {state.value: count for state, count in snapshot.states.items()},
        "not_done": [describe_topic(seen) for seen in step.holding],
        "warnings": step.warnings,
        "deadlocked": step.deadlocked,
        "troubles": snapshot.errors,
        "late": snapshot.late,
        "ending": step.ending,
    }
    return json.dumps(plain(data), ensure_ascii=False) + "\n"


def describe_topic(seen: TopicStatus) -> dict[str, Any]:
    """Return a topic in the form of JSON."""
    cursors = [
        {"name": one.name, "unread": one.unread, "consumers": one.consumers} for one in seen.cursors if not one.is_read
    ]
    return {
        "topic": seen.topic,
        "state": seen.state.value,
        "unread": None if any(one.unread is None for one in seen.cursors) else seen.unread,
        "publishers": seen.publishers,
        "subscriptions": cursors,
    }


def _lines_of(step: DrainStep) -> list[str]:
    return [_sentence(step), *(f"warning: {text}" for text in (*step.warnings, *step.snapshot.errors))]


def _end_of(step: DrainStep) -> list[str]:
    return [] if step.ending is None else [_ENDED[step.ending]]


def _sentence(step: DrainStep) -> str:
    snapshot = step.snapshot
    parts = [f"{snapshot.done} of {counted(len(snapshot.topics), 'topic')} done, {snapshot.unread:,} entries unread"]
    if step.rate is not None:
        parts.append(f"{step.rate:,.0f} a second")
    if step.seconds_left is not None:
        parts.append(f"about {step.seconds_left:,.0f} s left")
    states = [f"{state.value} {count}" for state, count in snapshot.states.items() if state not in DONE]
    return "; ".join([", ".join(parts), *([", ".join(states)] if states else [])])


_RELEASE_EPILOG = """\b
Exit codes: 0 all that is drained is planned or released; 25 some topics have to drain first;
28 a broker of blue is deadlocked, and has to be killed."""


@click.command(epilog=_RELEASE_EPILOG)
@namespaces_argument
@click.option("--execute", is_flag=True, help="Unload the topics; without it, only list them.")
@pass_invocation
def release(invocation: Invocation, namespaces: list[str], execute: bool) -> None:
    """Unload topics with nothing left to read: all go to green.

    A broker may hold a topic fenced after it was marked, so that its producers are on neither side. And as long as it
    has a drained topic loaded, a consumer that is created again with blue's URL, from the earliest message on, reads
    all of it again. A topic that still has something to read is named, and has to drain first: no client could read it
    otherwise.
    """
    with ClusterMigration(invocation.settings) as migration:
        names = named_or_begun(migration, namespaces)
        releasing = TopicReleaser(migration.blue, migration.observer, migration.record)
        held = releasing.plan(names, migration.record.expected(names))
        result = releasing.release_all((*held.free, *held.drained)) if execute else ReleaseResult()
        deadlocked = migration.blue.deadlocked_brokers() if result.timed_out else ()
    invocation.write(_describe_release(held, result, deadlocked, executed=execute))
    left = held.draining or result.refused or result.timed_out
    click.get_current_context().exit(DEADLOCKED if deadlocked else MORE_LATER if left else 0)


def _describe_release(
    held: ReleasePlan, result: ReleaseResult, deadlocked: tuple[str, ...], *, executed: bool
) -> Document:
    said = "released" if executed else "would be released"
    refused, kept = result.refused, {*result.refused, result.timed_out, *result.not_tried}
    free, drained = ([topic for topic in topics if topic not in kept] for topics in (held.free, held.drained))
    parts: list[Part] = [Note(f"{said}, green has not seen all its clients: {topic}") for topic in free]
    parts += [Note(f"{said}: {topic}") for topic in drained]
    parts += [Note(f"not released: {reason}") for reason in refused.values()]
    if result.timed_out:
        behind = f"; {counted(len(result.not_tried), 'topic')} behind it not tried" if result.not_tried else ""
        parts.append(
            Note(f"not released: the broker of {result.timed_out} gave no answer in time{behind}: run it again")
        )
    parts += [Note(deadlock_advice(deadlocked))] if deadlocked else []
    parts += [Note(f"has to drain first: {topic}") for topic in held.draining]
    number = counted(len(held.free) + len(held.draining), "topic")
    parts.append(Note(f"{number} of which green has not seen every client that blue had."))
    data = {"executed": executed, "free": free, "drained": drained, "draining": held.draining, "refused": refused}
    data |= {"timed_out": result.timed_out, "not_tried": result.not_tried, "deadlocked": deadlocked}
    return Document(data, tuple(parts))
