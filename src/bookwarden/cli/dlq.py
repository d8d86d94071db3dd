"""Commands around dead letters: pending deletions that the sweep could not settle."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Cells, Column, Document, Facts, Note, Stream, Table, counted, moment, table_of
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.config import Settings
from bookwarden.deletion.dead_letters import DeadLetter, DeadLetters, LetterBounds, ReasonGroup, group_by_reason
from bookwarden.errors import FileError
from bookwarden.ledgers.received import Decode, decoded, shortened
from bookwarden.preflight import require_topics
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion_topics import TwoPhaseTopics

# Of a payload or a property in an example, in bytes; a reason's kind is as long.
_SHOWN = 200
_EPILOG = """\b
Examples:
  bookwarden dlq list --group-by reason
  bookwarden dlq list --reason 'no driver'
  bookwarden dlq show 12:0:-1
  bookwarden dlq replay --reason 'no driver'   once the cause is fixed
  bookwarden dlq export letters.jsonl
  bookwarden dlq drop 12:0:-1"""


@dataclass(frozen=True, slots=True)
class DeadLetterView:
    """A dead letter as programs read it."""

    id: str  #: Message id on the DLQ.
    ledger_id: int | None  #: None for a malformed mark.
    holder: str  #: As text; the message's key for a malformed mark.
    outcome: str  #: "" if a Java client sent it to the DLQ.
    attempts: int  #: Retries before it was given up.
    reason: str  #: Why phase two gave it up, for people.
    published_at: int  #: In ms since the epoch.
    topic: str  #: The partition of the DLQ.
    key: str | None  #: Of the message; None without one.
    event_time: int | None  #: In ms since the epoch; None if not set.
    schema_version: str | None  #: In hexadecimal digits, for the registry of ``topic``; None without a schema.
    payload: bytes  #: The mark, as its producer encoded it.
    properties: dict[str, str]  #: As sent, and phase two's.


@dataclass(frozen=True, slots=True)
class GroupView:
    """Dead letters of one kind of reason as programs read them; times in milliseconds since the epoch."""

    reason: str  #: Ids, names and figures are replaced.
    count: int  #: Number of letters.
    oldest: int  #: When its oldest letter was published.
    newest: int  #: When its newest letter was published.
    example: DeadLetterView  #: Payload and properties are cut.
    payload_bytes: int  #: Of the example's whole payload.


@dataclass(frozen=True, slots=True)
class Choice:
    """The dead letters that a command takes: by ids, by reason, at most a number; None does not limit."""

    ids: tuple[str, ...] | None = None
    reason: str | None = None
    limit: int | None = None


@click.group(epilog=_EPILOG)
def dlq() -> None:
    """Look at dead letters, send them back, or drop them.

    The sweep puts a pending deletion here when it is malformed, or was retried too often. Nothing is lost by that:
    its ledger is still there.
    """


_ids = click.argument("ids", metavar="[ID]...", nargs=-1)
_all = click.option("--all", "everything", is_flag=True, help="All dead letters, instead of IDs.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only show which would be taken.")
_reason = click.option("--reason", metavar="TEXT", help="Those whose reason, or its group in the list, has this text.")
_limit = click.option("--limit", type=click.IntRange(min=1), help="Maximum number of dead letters.")


def _taking(command: Callable[..., None]) -> Any:
    """Add the options that choose dead letters to a command, as one Choice."""

    @_ids
    @_all
    @_reason
    @_limit
    @_dry_run
    @yes_option
    @pass_invocation
    @functools.wraps(command)
    def taking(
        invocation: Invocation,
        ids: tuple[str, ...],
        everything: bool,
        reason: str | None,
        limit: int | None,
        dry_run: bool,
        yes: bool,
    ) -> None:
        command(invocation, _choice(ids, everything, reason, limit), dry_run=dry_run, yes=yes)

    return taking


@dlq.command("list")
@click.option("--group-by", type=click.Choice(["reason"]), help="Count those whose reasons are of one kind.")
@_reason
@_limit
@pass_invocation
def list_letters(invocation: Invocation, group_by: str | None, reason: str | None, limit: int | None) -> None:
    """List the dead letters, oldest first."""
    with _opened(invocation.settings) as topics:
        found = topics.dead_letters.read(limit, reason=reason)
        if group_by:
            invocation.write(_grouped(topics.decode, group_by_reason(found)))
        else:
            invocation.write_stream(_listing(_views(topics.decode, found)))


@dlq.command()
@click.argument("message_id", metavar="ID")
@pass_invocation
def show(invocation: Invocation, message_id: str) -> None:
    """Show one dead letter with its payload and properties."""
    with _opened(invocation.settings) as topics:
        (view,) = tuple(_views(topics.decode, [topics.dead_letters.show(message_id)]))
    facts = Facts((*_facts(view), ("topic", view.topic), ("published", moment(view.published_at))))
    properties = Table(
        (Column("property"), Column("value", whole=False)),
        tuple(sorted(view.properties.items())),
        empty="No properties.",
    )
    payload = Note(view.payload.decode("utf-8", errors="backslashreplace"))
    invocation.write(Document(view, (facts, properties, payload)))


@dlq.command()
@_taking
def replay(invocation: Invocation, choice: Choice, *, dry_run: bool, yes: bool) -> None:
    """Send dead letters back to the deletion topic, their counts reset.

    What came from the topic of switch directives is no mark, and stays.
    """
    _run(invocation, DeadLetters.replay, "Send back", choice, dry_run=dry_run, yes=yes)


@dlq.command()
@_taking
def drop(invocation: Invocation, choice: Choice, *, dry_run: bool, yes: bool) -> None:
    """Take dead letters off the DLQ for good; their ledgers stay."""
    _run(invocation, DeadLetters.drop, "Drop", choice, dry_run=dry_run, yes=yes)


@dlq.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@_reason
@_limit
@yes_option
@pass_invocation
def export(invocation: Invocation, file: Path, reason: str | None, limit: int | None, yes: bool) -> None:
    """Write dead letters to FILE, a JSON object a line.

    "-" writes to the standard output. The dead letters stay on the DLQ. Payloads are in base64.
    """
    with _opened(invocation.settings) as topics:
        views = _views(topics.decode, topics.dead_letters.read(limit, reason=reason))
        lines = (_exported(view) for view in views)
        if str(file) == "-":
            for line in lines:
                click.echo(line, nl=False)
            return
        if file.exists():
            confirm(f"Replace {file}?", yes=yes)
        count = _write_whole(file, lines)
    note = f"Written to {file}: {counted(count, 'dead letter')}."
    invocation.write(Document({"file": str(file), "dead_letters": count}, (Note(note),)))


@contextmanager
def _opened(settings: Settings) -> Iterator[TwoPhaseTopics]:
    with Cluster(settings) as cluster:
        require_topics(cluster.admin, settings, settings.deletion.dlq_topic)
        yield cluster.deletion_topics


def _choice(ids: tuple[str, ...], everything: bool, reason: str | None, limit: int | None) -> Choice:
    if sum((bool(ids), everything, reason is not None)) != 1:
        raise click.UsageError("give IDs, or --reason, or --all")
    if ids and limit is not None:
        raise click.UsageError("--limit goes with --reason or --all")
    return Choice(ids or None, reason, limit)


def _exported(view: DeadLetterView) -> str:
    fields = {**dataclasses.asdict(view), "payload": base64.b64encode(view.payload).decode()}
    return json.dumps(fields, ensure_ascii=False) + "\n"


def _write_whole(file: Path, lines: Iterable[str]) -> int:
    """Write the file under another name first: half an export must not pass for a whole one."""
    count = 0
    part = file.with_name(file.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as output:
            for line in lines:
                output.write(line)
                count += 1
        part.replace(file)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise FileError(f"{file} cannot be written: {error.strerror}") from error
    return count


def _run(
    invocation: Invocation,
    act: Callable[..., Iterator[DeadLetter]],
    verb: str,
    choice: Choice,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    with _opened(invocation.settings) as topics:
        letters = partial(act, topics.dead_letters, choice.ids, reason=choice.reason, limit=choice.limit)
        if dry_run:
            note = "Dry run: nothing was changed."
            invocation.write_stream(_listing(_views(topics.decode, letters(dry_run=True)), lambda _: note))
            return
        # Those that were counted, and none that arrive while the question waits.
        bounds = None
        if not yes:
            bounds = LetterBounds()
            for letter in letters(dry_run=True):
                bounds.note(letter)
            confirm(f"{verb} {counted(bounds.count, 'dead letter')}?", yes=bounds.count == 0)
        past = "Sent back" if verb == "Send back" else "Dropped"
        done = _views(topics.decode, letters(bounds=bounds))
        invocation.write_stream(_listing(done, lambda count: f"{past}: {counted(count, 'dead letter')}."))


def _views(decode: Decode, letters: Iterable[DeadLetter]) -> Iterator[DeadLetterView]:
    for letter in letters:
        received = decoded(letter.received, decode)
        mark = received.mark
        yield DeadLetterView(
            id=letter.message_id,
            ledger_id=mark.ledger_id if mark else None,
            holder=str(mark.holder()) if mark else (received.key or ""),
            outcome=letter.outcome,
            attempts=letter.attempts,
            reason=letter.reason or received.problem or "",
            published_at=received.published_at,
            topic=received.topic,
            key=received.key,
            event_time=received.event_time,
            schema_version=received.schema_version.hex() if received.schema_version else None,
            payload=received.payload,
            properties=dict(received.properties),
        )


def _grouped(decode: Decode, groups: list[ReasonGroup]) -> Document:
    examples = _views(decode, [group.example for group in groups])
    views = [
        GroupView(group.reason, group.count, group.oldest, group.newest, _cut(example), len(example.payload))
        for group, example in zip(groups, examples, strict=True)
    ]
    cells: Cells[GroupView] = {
        Column("letters", right=True): lambda view: f"{view.count:,}",
        Column("oldest"): lambda view: moment(view.oldest),
        Column("newest"): lambda view: moment(view.newest),
        Column("ledger, such as", right=True): lambda view: _ledger(view.example),
        Column("id"): lambda view: view.example.id,
        Column("reason", whole=False): lambda view: view.reason or "(none)",
    }
    return Document({"groups": views}, (table_of(views, cells, empty="No dead letters."),))


def _cut(view: DeadLetterView) -> DeadLetterView:
    """Shorten what its sender wrote, which may be 5 MiB; `dlq show` has all of it."""
    properties = {name[:_SHOWN]: shortened(value, _SHOWN) for name, value in view.properties.items()}
    return dataclasses.replace(view, payload=view.payload[:_SHOWN], properties=properties)


def _listing(views: Iterable[DeadLetterView], note: Callable[[int], str] | None = None) -> Stream[DeadLetterView]:
    """Make the result of a command, a line for each letter as it comes; ``note`` is made of how many there were."""
    cells: Cells[DeadLetterView] = {
        Column("id"): lambda view: view.id,
        Column("ledger", right=True): _ledger,
        Column("outcome"): lambda view: view.outcome or "-",
        Column("retries", right=True): lambda view: str(view.attempts),
        Column("holder", whole=False): lambda view: view.holder or "-",
        Column("reason", whole=False): lambda view: view.reason or "-",
    }
    seen = 0

    def counting() -> Iterator[DeadLetterView]:
        nonlocal seen
        for view in views:
            seen += 1
            yield view

    def end() -> tuple[Mapping[str, object], tuple[Note, ...]]:
        return {}, () if note is None else (Note(note(seen)),)

    return Stream("dead_letters", counting(), cells, end, empty="No dead letters.")


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
