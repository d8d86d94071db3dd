"""`bookwarden metadata-migration status` and `watch`: the flag, the participants, and the broker's answer."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import click
from rich.console import Console
from rich.text import Text

from bookwarden.cli.metadata_migration.options import reads_option, source_option
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table, counted, moment, plain, printable
from bookwarden.cli.shell.steps import telling
from bookwarden.clusters.pulsar.rest.migration import BrokerStatus, MigrationAdmin
from bookwarden.errors import BookwardenError, NotFoundError, StoreError
from bookwarden.exit_codes import MIGRATION_FAILED, MORE_LATER
from bookwarden.metadata_migration.control import MigrationControl, Survey
from bookwarden.metadata_migration.watching import (
    MigrationOutcome,
    NodeCopyProgress,
    PhaseSnapshot,
    PhaseStep,
    ending_of,
    follow,
)
from bookwarden.wiring.metadata_migration import MigrationStores, control_of

_SAID_EVERY_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.5
_LAST_COUNT_S: Final = 10.0
_SHOWN: Final = 5

_ENDED: Final = {
    MigrationOutcome.COMPLETED: "COMPLETED: the target serves. Run `metadata-migration counters --execute` at once, "
    "then `verify`. What follows: docs/howto/move-metadata.md, 'After COMPLETED'.",
    MigrationOutcome.FAILED: "FAILED: the source serves as before. What follows: "
    "docs/howto/move-metadata.md, 'After FAILED'.",
    MigrationOutcome.REMOVED: "The flag was removed: brokers write to the source again. Find out who did that, and "
    "why.",
}

_EPILOG = """\b
Exit codes: 0 COMPLETED; 24 FAILED, or the flag was removed; 25 not over within --timeout; 4 nothing was begun."""


@click.command(epilog=_EPILOG)
@source_option
@reads_option
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Maximum seconds to watch.")
@pass_invocation
def watch(
    invocation: Invocation,
    source: str | None,
    limit: float | None,
    timeout: float | None,
) -> None:
    """Follow a migration until it is COMPLETED or FAILED.

    Shows the phase, the seconds since writes were stopped, the participants that have not left, and how many of the
    source's nodes are in the target. With -o json one line for each change. Stopping it stops nothing.
    """
    with MigrationStores(invocation.settings, source) as stores:
        control = control_of(stores, max_reads_per_second=limit)
        if control.snapshot().phase is None:
            raise NotFoundError(
                f"{control.source_url} has no migration to watch: `metadata-migration start` begins one"
            )
        code = watch_to_the_end(invocation, control, timeout=timeout)
    click.get_current_context().exit(code)


def watch_to_the_end(
    invocation: Invocation, control: MigrationControl, *, found: Survey | None = None, timeout: float | None = None
) -> int:
    """Report on a migration until it is over; return the exit code. Without a survey one is made meanwhile."""
    counting = _CopyCounter(control, found)
    deadline = None if timeout is None else time.monotonic() + timeout
    with telling(invocation.output, _SAID_EVERY_S, _json_of, _lines_of, _live, _end_of) as tell:
        for step in follow(_Snapshots(control, counting.copied), every_s=_LOOK_EVERY_S):
            tell(step)
            if step.ending is not None:
                return 0 if step.ending is MigrationOutcome.COMPLETED else MIGRATION_FAILED
            if deadline is not None and time.monotonic() >= deadline:
                return MORE_LATER
    raise AssertionError("a migration is followed to its end")


class _Snapshots:
    """Looks at a migration; while the source does not answer the last look is repeated, with the reason."""

    def __init__(self, control: MigrationControl, copied: Callable[[PhaseSnapshot], NodeCopyProgress | None]) -> None:
        self._control = control
        self._copied = copied
        self._last = PhaseSnapshot(0)

    def __call__(self) -> PhaseSnapshot:
        try:
            snapshot = self._control.snapshot()
        except StoreError as error:
            return dataclasses.replace(self._last, at_ms=int(time.time() * 1000), error=str(error))
        self._last = dataclasses.replace(snapshot, copied=self._copied(snapshot))
        return self._last


class _CopyCounter:
    """Counts the copied nodes, once the source is surveyed; a target that does not answer delays no look."""

    def __init__(self, control: MigrationControl, found: Survey | None) -> None:
        self._control = control
        self._found = found
        self._last: NodeCopyProgress | None = None
        self._under_way: threading.Thread | None = None
        if found is None:
            threading.Thread(target=self._survey, name="survey", daemon=True).start()

    def copied(self, snapshot: PhaseSnapshot) -> NodeCopyProgress | None:
        if self._found is None or snapshot.phase not in ("COPYING", "COMPLETED"):
            return None
        is_over = snapshot.phase == "COMPLETED"
        if is_over:
            # The count from before the end is not final.
            self._wait(_LAST_COUNT_S)
        if self._under_way is None:
            asked = (self._found, snapshot.target_url)
            self._under_way = threading.Thread(target=self._count, args=asked, name="count", daemon=True)
            self._under_way.start()
        self._wait(_LAST_COUNT_S if is_over else _LOOK_EVERY_S)
        return self._last

    def _count(self, found: Survey, target_url: str | None) -> None:
        self._last = self._control.copy_progress(found, target_url)

    def _wait(self, seconds: float) -> None:
        if self._under_way is not None:
            self._under_way.join(seconds)
            if not self._under_way.is_alive():
                self._under_way = None

    def _survey(self) -> None:
        try:
            self._found = self._control.survey()
        except BookwardenError:
            # The watch goes on without the figure; it reports errors of the source by itself.
            return


def _live(console: Console, step: PhaseStep) -> Text:
    for text in step.warnings:
        console.print(Text(printable(f"warning: {text}")))
    return Text(printable(_sentence(step.snapshot)))


def _json_of(step: PhaseStep) -> str:
    snapshot = step.snapshot
    data: dict[str, Any] = {
        **plain(snapshot),
        "blocked_seconds": round(snapshot.blocked_seconds, 3),
        "warnings": step.warnings,
        "ending": step.ending,
    }
    return json.dumps(plain(data), ensure_ascii=False) + "\n"


def _lines_of(step: PhaseStep) -> list[str]:
    return [_sentence(step.snapshot), *(f"warning: {text}" for text in step.warnings)]


def _end_of(step: PhaseStep) -> list[str]:
    return [] if step.ending is None else [_ENDED[step.ending]]


def _sentence(snapshot: PhaseSnapshot) -> str:
    parts = [snapshot.phase or "no flag", f"writes blocked for {snapshot.blocked_seconds:.1f} s"]
    if snapshot.participants and snapshot.phase != "COMPLETED":
        names = sorted(snapshot.participants)
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        parts.append(f"{counted(len(names), 'participant')} not gone: {shown}")
    if snapshot.copied is not None:
        about = "about " if snapshot.copied.estimated else ""
        parts.append(f"{about}{snapshot.copied.nodes:,} of {snapshot.copied.of:,} nodes copied")
    if snapshot.error is not None:
        parts.append(f"the source does not answer: {snapshot.error}")
    return "; ".join(parts)


_STATUS_EPILOG = """\b
Exit codes: 0 nothing was begun, or COMPLETED; 24 FAILED; 25 under way (PREPARATION, COPYING).

\b
What to do in each phase: docs/metadata-migration.md."""


@click.command(epilog=_STATUS_EPILOG)
@source_option
@pass_invocation
def status(invocation: Invocation, source: str | None) -> None:
    """Show how far a migration is.

    The flag and the participants are read from the source itself, so it works without a broker; what the broker
    answers is shown next to it. The flag counts.
    """
    with MigrationStores(invocation.settings, source) as stores:
        snapshot = control_of(stores).snapshot()
        broker, error = _ask(stores.admin)
        invocation.write(_describe_status(stores.source_url, snapshot, broker, error))
    click.get_current_context().exit(exit_code_of(snapshot))


def exit_code_of(snapshot: PhaseSnapshot) -> int:
    """Return the exit code of `status`."""
    if snapshot.phase in (None, "NOT_STARTED"):
        return 0
    ending = ending_of(snapshot.phase)
    return MORE_LATER if ending is None else 0 if ending is MigrationOutcome.COMPLETED else MIGRATION_FAILED


def participants_table(snapshot: PhaseSnapshot) -> Table:
    """List the participants that are registered in the source."""
    rows = tuple((name, whose or "a broker's or a bookie's") for name, whose in sorted(snapshot.participants.items()))
    return Table((Column("participant"), Column("whose", whole=False)), rows, empty="No participant is registered.")


def _ask(admin: MigrationAdmin) -> tuple[BrokerStatus | None, str | None]:
    try:
        return admin.status(), None
    except BookwardenError as error:
        return None, str(error)


def _describe_status(
    source_url: str, snapshot: PhaseSnapshot, broker: BrokerStatus | None, error: str | None
) -> Document:
    data = {
        "source": source_url,
        "phase": snapshot.phase,
        "target": snapshot.target_url,
        "began_ms": snapshot.began_ms or None,
        "changed_ms": snapshot.changed_ms or None,
        "phase_seconds": snapshot.phase_seconds,
        "blocked_seconds": snapshot.blocked_seconds,
        "participants": snapshot.participants,
        "broker": None if broker is None else {"phase": broker.phase, "target": broker.target_url},
        "broker_trouble": error,
    }
    since = f", since {moment(snapshot.changed_ms)} ({snapshot.phase_seconds:,.0f} s)" if snapshot.changed_ms else ""
    pairs = [
        ("source", source_url),
        ("phase", f"{snapshot.phase or 'no flag: nothing was begun'}{since}"),
        ("target", snapshot.target_url or "-"),
        ("the broker says", error if broker is None else f"{broker.phase}, {broker.target_url or 'no target'}"),
    ]
    if snapshot.began_ms:
        pairs.insert(3, ("writes blocked", f"{snapshot.blocked_seconds:,.1f} s"))
    parts: list[Part] = [Facts(tuple((name, value or "-") for name, value in pairs)), participants_table(snapshot)]
    parts += [Note(text) for text in _notes(snapshot, broker, error)]
    return Document(data, tuple(parts))


def _notes(snapshot: PhaseSnapshot, broker: BrokerStatus | None, error: str | None) -> list[str]:
    notes = []
    if error is not None:
        notes.append("The broker did not tell; the flag and the participants are from the source itself.")
    elif broker is not None and broker.phase != (snapshot.phase or "NOT_STARTED"):
        notes.append(
            "The broker says otherwise than the flag in the source, which counts. After COMPLETED it reads the copy of "
            "the flag in the target, which was made in mid-copy and says COPYING for ever."
        )
    if snapshot.phase == "FAILED":
        notes.append("No start succeeds while the flag is there: docs/howto/move-metadata.md, 'After FAILED'.")
    return notes
