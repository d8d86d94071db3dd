"""`bookwarden metadata-migration status`: the flag, the registered participants, the broker's answer."""

from __future__ import annotations

from typing import Final

import click

from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table, moment
from bookwarden.clusters.pulsar.rest.migration import BrokerStatus, MigrationAdmin
from bookwarden.errors import BookwardenError
from bookwarden.migration.watching import Ending, Look, ending_of
from bookwarden.wiring.migration import MigrationContext

# Above the exit codes of errors, and those of scans, comparisons and pre-flights.
MIGRATION_FAILED: Final = 24
UNDER_WAY: Final = 25

source_option = click.option("--source", metavar="URL", help="The store that is moved. Default: metadata_store.urls.")

_EPILOG = """\b
Exit codes: 0 nothing was begun, or COMPLETED; 24 FAILED; 25 under way (PREPARATION, COPYING).

\b
What to do in each phase: docs/metadata-migration.md."""


@click.command(epilog=_EPILOG)
@source_option
@output_option
@pass_invocation
def status(invocation: Invocation, source: str | None) -> None:
    """Show how far a migration is.

    The flag and the participants are read from the source itself, so it works without a broker; what the broker
    answers is shown next to it. The flag counts.
    """
    with MigrationContext(invocation.settings, source=source) as context:
        look = context.control.look()
        broker, trouble = _ask(context.admin)
        invocation.write(_describe(context.control.source_url, look, broker, trouble))
    click.get_current_context().exit(exit_code_of(look))


def exit_code_of(look: Look) -> int:
    """Return the exit code of `status`."""
    if look.phase in (None, "NOT_STARTED"):
        return 0
    ending = ending_of(look.phase)
    return UNDER_WAY if ending is None else 0 if ending is Ending.COMPLETED else MIGRATION_FAILED


def participants_table(look: Look) -> Table:
    """List the participants that are registered in the source."""
    rows = tuple((name, whose or "a broker's or a bookie's") for name, whose in sorted(look.participants.items()))
    return Table((Column("participant"), Column("whose", whole=False)), rows, empty="No participant is registered.")


def _ask(admin: MigrationAdmin) -> tuple[BrokerStatus | None, str | None]:
    try:
        return admin.status(), None
    except BookwardenError as error:
        return None, str(error)


def _describe(source_url: str, look: Look, broker: BrokerStatus | None, trouble: str | None) -> Document:
    data = {
        "source": source_url,
        "phase": look.phase,
        "target": look.target_url,
        "began_ms": look.began_ms or None,
        "changed_ms": look.changed_ms or None,
        "phase_seconds": look.phase_seconds,
        "blocked_seconds": look.blocked_seconds,
        "participants": look.participants,
        "broker": None if broker is None else {"phase": broker.phase, "target": broker.target_url},
        "broker_trouble": trouble,
    }
    since = f", since {moment(look.changed_ms)} ({look.phase_seconds:,.0f} s)" if look.changed_ms else ""
    pairs = [
        ("source", source_url),
        ("phase", f"{look.phase or 'no flag: nothing was begun'}{since}"),
        ("target", look.target_url or "-"),
        ("the broker says", trouble if broker is None else f"{broker.phase}, {broker.target_url or 'no target'}"),
    ]
    if look.began_ms:
        pairs.insert(3, ("writes blocked", f"{look.blocked_seconds:,.1f} s"))
    parts: list[Part] = [Facts(tuple((name, value or "-") for name, value in pairs)), participants_table(look)]
    parts += [Note(text) for text in _notes(look, broker, trouble)]
    return Document(data, tuple(parts))


def _notes(look: Look, broker: BrokerStatus | None, trouble: str | None) -> list[str]:
    notes = []
    if trouble is not None:
        notes.append("The broker did not tell; the flag and the participants are from the source itself.")
    elif broker is not None and broker.phase != (look.phase or "NOT_STARTED"):
        notes.append(
            "The broker says otherwise than the flag in the source, which counts. After COMPLETED it reads the copy of "
            "the flag in the target, which was made in mid-copy and says COPYING for ever."
        )
    if look.phase == "FAILED":
        notes.append("No start succeeds while the flag is there: docs/howto/move-metadata.md, 'After FAILED'.")
    return notes
