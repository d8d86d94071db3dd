"""Commands around dead letters: pending deletions that the sweep could not settle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import click

from bookwarden.cli.invocation import Invocation, pass_invocation
from bookwarden.cli.output import Column, Document, Facts, Note, Part, Table, counted, moment
from bookwarden.cli.preflight import require_topics
from bookwarden.cli.questions import confirm, yes_option
from bookwarden.config import Settings
from bookwarden.context import dead_letters_of, decoder_of
from bookwarden.deletion.dead_letters import DeadLetter, DeadLetters
from bookwarden.ledgers.received import decoded

_EPILOG = """\b
Examples:
  bookwarden dlq list
  bookwarden dlq show 12:0:-1
  bookwarden dlq replay --all        once the cause is mended
  bookwarden dlq drop 12:0:-1"""


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A dead letter as programs read it; times in milliseconds since the epoch, ``ledger_id`` None if malformed."""

    id: str
    ledger_id: int | None
    holder: str
    outcome: str
    attempts: int
    reason: str
    published_at: int
    topic: str
    payload: bytes
    properties: dict[str, str]


@click.group(epilog=_EPILOG)
def dlq() -> None:
    """Look at dead letters, send them back, or drop them.

    The sweep puts a pending deletion here when it is malformed, or was retried too often. Nothing is lost by that:
    its ledger is still there.
    """


_ids = click.argument("ids", metavar="[ID]...", nargs=-1)
_all = click.option("--all", "everything", is_flag=True, help="All dead letters, instead of IDs.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only show which would be taken.")


@dlq.command("list")
@click.option("--limit", type=click.IntRange(min=1), help="Show at most so many.")
@pass_invocation
def list_letters(invocation: Invocation, limit: int | None) -> None:
    """List the dead letters, oldest first."""
    settings = invocation.settings
    invocation.write(_listing(_views(settings, list(_letters(settings).read(limit)))))


@dlq.command()
@click.argument("message_id", metavar="ID")
@pass_invocation
def show(invocation: Invocation, message_id: str) -> None:
    """Show one dead letter with its payload and properties."""
    settings = invocation.settings
    (view,) = _views(settings, [_letters(settings).show(message_id)])
    facts = Facts((*_facts(view), ("topic", view.topic), ("published", moment(view.published_at))))
    properties = Table(
        (Column("property"), Column("value", whole=False)), tuple(sorted(view.properties.items())), empty="none"
    )
    payload = Note(view.payload.decode("utf-8", errors="backslashreplace"))
    invocation.write(Document(view, (facts, properties, payload)))


@dlq.command()
@_ids
@_all
@_dry_run
@yes_option
@pass_invocation
def replay(invocation: Invocation, ids: tuple[str, ...], everything: bool, dry_run: bool, yes: bool) -> None:
    """Send dead letters back to the deletion topic, their counts reset."""

    def act(letters: DeadLetters, wanted: tuple[str, ...] | None, dry: bool) -> list[DeadLetter]:
        return letters.replay(wanted, dry_run=dry)

    _run(invocation, act, "Send back", _wanted(ids, everything), dry_run=dry_run, yes=yes)


@dlq.command()
@_ids
@_all
@_dry_run
@yes_option
@pass_invocation
def drop(invocation: Invocation, ids: tuple[str, ...], everything: bool, dry_run: bool, yes: bool) -> None:
    """Take dead letters off the DLQ for good; their ledgers stay."""

    def act(letters: DeadLetters, wanted: tuple[str, ...] | None, dry: bool) -> list[DeadLetter]:
        return letters.drop(wanted, dry_run=dry)

    _run(invocation, act, "Drop", _wanted(ids, everything), dry_run=dry_run, yes=yes)


def _letters(settings: Settings) -> DeadLetters:
    require_topics(settings, settings.deletion.dlq_topic)
    return dead_letters_of(settings)


def _wanted(ids: tuple[str, ...], everything: bool) -> tuple[str, ...] | None:
    if everything == bool(ids):
        raise click.UsageError("give IDs, or --all")
    return None if everything else ids


def _run(
    invocation: Invocation,
    act: Callable[[DeadLetters, tuple[str, ...] | None, bool], list[DeadLetter]],
    verb: str,
    wanted: tuple[str, ...] | None,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    settings = invocation.settings
    letters = _letters(settings)
    if dry_run:
        invocation.write(_listing(_views(settings, act(letters, wanted, True)), "Dry run: nothing was changed."))
        return
    if not yes:
        planned = act(letters, wanted, True)
        # Those that were looked at, and no others that arrive while the question stands.
        wanted = tuple(letter.message_id for letter in planned)
        confirm(f"{verb} {counted(len(planned), 'dead letter')}?", yes=False)
    done = act(letters, wanted, False) if wanted != () else []
    past = "Sent back" if verb == "Send back" else "Dropped"
    invocation.write(_listing(_views(settings, done), f"{past}: {counted(len(done), 'dead letter')}."))


def _views(settings: Settings, letters: list[DeadLetter]) -> list[DeadLetterView]:
    decode = decoder_of(settings).decode
    views = []
    for letter in letters:
        received = decoded(letter.received, decode)
        mark = received.mark
        views.append(
            DeadLetterView(
                id=letter.message_id,
                ledger_id=mark.ledger_id if mark else None,
                holder=str(mark.holder()) if mark else (received.key or ""),
                outcome=letter.outcome,
                attempts=letter.attempts,
                reason=letter.reason or received.problem or "",
                published_at=received.published_at,
                topic=received.topic,
                payload=received.payload,
                properties=dict(received.properties),
            )
        )
    return views


def _listing(views: list[DeadLetterView], note: str = "") -> Document:
    columns = (
        Column("id"),
        Column("ledger", right=True),
        Column("outcome"),
        Column("retries", right=True),
        Column("holder", whole=False),
        Column("reason", whole=False),
    )
    rows = tuple(
        (view.id, _ledger(view), view.outcome or "-", str(view.attempts), view.holder or "-", view.reason or "-")
        for view in views
    )
    parts: list[Part] = [Table(columns, rows, empty="No dead letters.")]
    if note:
        parts.append(Note(note))
    return Document({"dead_letters": views}, tuple(parts))


def _facts(view: DeadLetterView) -> tuple[tuple[str, str], ...]:
    return (
        ("id", view.id),
        ("ledger", _ledger(view)),
        ("holder", view.holder or "-"),
        ("outcome", view.outcome or "-"),
        ("retries", str(view.attempts)),
        ("reason", view.reason or "-"),
    )


def _ledger(view: DeadLetterView) -> str:
    return "-" if view.ledger_id is None else str(view.ledger_id)
