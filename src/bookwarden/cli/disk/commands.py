"""The command disk: who uses the disks of the bookies; and the list of the commands below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import click
from click.core import ParameterSource

from bookwarden.cli.disk.why import pin_search, pins_data
from bookwarden.cli.shell.invocation import Invocation, max_reads_option, parse_topic, pass_invocation, with_limit
from bookwarden.cli.shell.late import LateCommand
from bookwarden.cli.shell.output import Cells, Column, Document, Facts, Note, Part, counted, moment, size_cell, table_of
from bookwarden.config import Settings
from bookwarden.findings import size_text
from bookwarden.ledgers.bookie_report import state_text
from bookwarden.ledgers.disk_use import BOOKIE, USES, BookieUse, DiskUse, Use
from bookwarden.ledgers.kinds import KINDS
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pins import TopicPins
from bookwarden.metrics.findings import of_disk
from bookwarden.metrics.names import Program
from bookwarden.metrics.runs import published_run
from bookwarden.preflight import STARTING_SPARK, require_folder, require_spark, require_stores
from bookwarden.wiring.cluster import Cluster

#: Name, place and summary of each command below it; it is imported when it is called.
_COMMANDS: Final = (
    ("why", "why:why", "Show what holds the oldest ledger of a topic."),
    ("collect", "collect:collect", "Have bookies collect their garbage now."),
)
_TOPIC: Final = "topic"
_KINDS = {kind.component.name: kind for kind in KINDS}
_UNTOLD = "Unexplained includes journals and indexes: no bookie tells their size."
_UNNAMED = (
    "What no node names is new, or an orphan: `bookwarden orphans scan` tells which, and how to get the space back."
)

_EPILOG = """\b
Examples:
  bookwarden disk                            by namespace, the largest first
  bookwarden disk --by topic --top 50        the largest topics, loaded or not
  bookwarden disk --by topic --why           and what holds the oldest ledger of each
  bookwarden disk --by bookie                what lies on each bookie, and what nothing explains
  bookwarden disk --by kind --tenant sales   data, subscriptions, schemas of one tenant

\b
What is counted, and how: docs/disk.md."""


@click.group(epilog=_EPILOG, invoke_without_command=True)
@click.option(
    "--by",
    type=click.Choice((*USES, BOOKIE)),
    default="namespace",
    show_default=True,
    help="What the rows are.",
)
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Rows, the largest first.")
@click.option("--tenant", metavar="TENANT", default="", help="Count what is of this tenant.")
@click.option("--namespace", metavar="TENANT/NAMESPACE", default="", help="Count what is of this namespace.")
@click.option("--topic", metavar="TOPIC", type=parse_topic, help="Count what is of this topic, its partitions too.")
@click.option("--why", "with_pins", is_flag=True, help="With --by topic: what holds the oldest ledger of each row.")
@click.option("--from", "snapshot", metavar="URL", help="Read a snapshot of the metadata store: zk-snapshot:FILE.")
@max_reads_option("from the metadata stores in a second, by all processes. Default: orphans.max_reads_per_second.")
@pass_invocation
@click.pass_context
def disk(
    context: click.Context,
    invocation: Invocation,
    by: str,
    top: int,
    tenant: str,
    namespace: str,
    topic: str | None,
    with_pins: bool,
    snapshot: str | None,
    limit: float | None,
) -> None:
    """Show who uses the disks of the bookies.

    Each ledger counts with all its copies, whether its topic is loaded or not. Changes nothing.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    if with_pins and by != _TOPIC:
        raise click.UsageError("--why goes with --by topic")
    settings = with_limit(invocation.settings, limit)
    is_whole = snapshot is None and not (tenant or namespace or topic)
    with published_run(settings.metrics, Program.DISK, publishes=is_whole) as run:
        require_spark()
        from bookwarden.cli.shell.steps import stage_progress
        from bookwarden.pipelines.disk.measuring import Wanted
        from bookwarden.pipelines.disk.operation import run_account
        from bookwarden.pipelines.disk.summary import read_summary
        from bookwarden.pipelines.folders import Folder

        require_folder("disk.folder", settings.disk.folder)
        if snapshot is None:
            with Cluster(settings) as cluster:
                require_stores(cluster)
        invocation.set_up_logging()
        invocation.say(STARTING_SPARK)
        wanted = Wanted(tenant, namespace, TopicName.parse(topic).managed_ledger if topic else "")
        with stage_progress(invocation) as tell:
            found = run_account(settings, by, top, wanted, snapshot, progress=tell, local=True)
        summary = read_summary(Folder(settings.disk.folder)) if is_whole else None
        if summary is not None:
            run.show(of_disk(summary.measured_ms, summary.tenants, summary.bookies, summary.forecast))
        pins = pins_of_rows(settings, found, snapshot) if with_pins else None
        invocation.write(describe_disk_use(found, by, from_snapshot=snapshot is not None, pins=pins))


def pins_of_rows(settings: Settings, found: DiskUse, snapshot: str | None) -> dict[str, TopicPins | None]:
    """Find what holds the ledgers of each row, by the name of its managed ledger; None where there is no such topic."""
    names = [use.name for use in found.uses if use.name]
    with pin_search(settings, snapshot) as search:
        return {name: search.of_managed_ledger(name) for name in names}


def _refuse_options(context: click.Context) -> None:
    """Refuse options of the account in front of a command below it, which would be of no effect."""
    for name in context.params:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = next(one for one in context.command.params if one.name == name)
            raise click.UsageError(f"{option.opts[0]} is not of `disk {context.invoked_subcommand}`", context)


def describe_disk_use(
    found: DiskUse, by: str, *, from_snapshot: bool, pins: Mapping[str, TopicPins | None] | None = None
) -> Document:
    """Describe the use of disks ``by`` a tenant, namespace, topic, kind or bookie; ``pins`` has what holds topics."""
    total = found.total
    parts: list[Part] = [
        Facts(
            (
                ("measured", moment(found.measured_ms)),
                ("ledgers", f"{total.ledgers:,}, {total.open_ledgers:,} of them open"),
                ("on disks", size_text(total.disk_bytes)),
                ("written", size_text(total.logical_bytes)),
                ("offloaded", size_text(total.offloaded_bytes)),
                *_growth(found),
            )
        ),
        _bookies(found) if by == BOOKIE else _uses(found, by, pins),
    ]
    if by == BOOKIE:
        parts += map(Note, _notes_of_bookies(found))
    elif found.left_out:
        parts.append(Note(f"{counted(found.left_out, 'row')} more are not shown: --top."))
    if total.unasked:
        why = "a snapshot does not have their length" if from_snapshot else "no bookie told their length"
        parts.append(Note(f"{counted(total.unasked, 'open ledger')} count without bytes: {why}."))
    if total.unnamed_bytes:
        parts.append(Note(_UNNAMED))
    data = {
        "by": by,
        "measured_ms": found.measured_ms,
        "total": total._asdict(),
        "uses": [] if by == BOOKIE else [use._asdict() for use in found.uses],
        "left_out": 0 if by == BOOKIE else found.left_out,
        "growth": None if found.growth is None else found.growth._asdict(),
        "forecast": None if found.forecast is None else found.forecast._asdict(),
        "bookies": [_data_of(one) for one in found.bookies],
        "journal_error": found.journal_error,
    }
    if pins is not None:
        held = {name: None if one is None else pins_data(one) for name, one in pins.items()}
        data["uses"] = [{**use._asdict(), "why": held.get(use.name)} for use in found.uses]
        unseen = dict.fromkeys(text for one in pins.values() if one is not None for text in one.unseen)
        parts += [Note(f"Not seen: {text}.") for text in unseen]
    return Document(data, tuple(parts))


def _growth(found: DiskUse) -> Iterator[tuple[str, str]]:
    if found.growth is not None:
        more, size = found.growth.disk_bytes >= 0, size_text(abs(found.growth.disk_bytes))
        yield "growth", f"{size} {'more' if more else 'less'} than on {found.growth.since}"
    forecast = found.forecast
    if forecast is None:
        return
    if forecast.full is None:
        yield "disks full", "not in sight: they do not fill"
        return
    latest = f"{forecast.latest} at the latest" if forecast.latest else "or never: the growth is not certain"
    a_day = f"{size_text(forecast.bytes_per_day)} a day, give or take {size_text(forecast.error_per_day)}"
    yield "disks full", f"on {forecast.full} ({forecast.earliest} at the earliest, {latest}): {a_day}"


def _uses(found: DiskUse, by: str, pins: Mapping[str, TopicPins | None] | None) -> Part:
    cells: Cells[Use] = {
        Column(by): lambda use: _label(use.name, by),
        Column("ledgers", right=True): lambda use: f"{use.ledgers:,}",
        Column("open", right=True): lambda use: f"{use.open_ledgers:,}",
        Column("on disks", right=True): lambda use: size_text(use.disk_bytes),
        Column("part", right=True): lambda use: _part(use.disk_bytes, found.total.disk_bytes),
        Column("trash", right=True): lambda use: size_text(use.trashed_bytes),
        Column("no node names", right=True): lambda use: size_text(use.unnamed_bytes),
        Column("offloaded", right=True): lambda use: size_text(use.offloaded_bytes),
        Column("oldest ledger"): lambda use: moment(use.oldest_ms),
        Column("held by", whole=False): lambda use: _held_by(use.name, pins),
    }
    return table_of(found.uses, cells, empty="There is no ledger of it.")


def _held_by(name: str, pins: Mapping[str, TopicPins | None] | None) -> str:
    if pins is None or name not in pins:
        return ""
    found = pins[name]
    if found is None:
        return "no such topic"
    if found.holding:
        return found.holding[0].title
    return "nothing" if found.ledgers else "-"


def _data_of(bookie: BookieUse) -> dict[str, object]:
    return {
        **bookie._asdict(),
        "unexplained_bytes": bookie.unexplained_bytes,
        "dead_bytes": None if bookie.report is None else bookie.report.dead_bytes,
    }


def _notes_of_bookies(found: DiskUse) -> Iterator[str]:
    for one in found.bookies:
        if one.error:
            yield f"{one.name} tells nothing of its disks: {one.error}."
        if one.compaction_problem:
            yield f"{one.name}: {one.compaction_problem}."
    silent = Counter(one.report.error for one in found.bookies if one.report is not None and one.report.error)
    for error, number in silent.items():
        yield f"{counted(number, 'bookie')} told nothing of garbage collection: {error}."
    if found.journal_error:
        yield f"What was deleted since the last compaction is not known: {found.journal_error}."
    if any(one.unexplained_bytes is not None for one in found.bookies):
        yield _UNTOLD


def _bookies(found: DiskUse) -> Part:
    optional: Cells[BookieUse] = {
        Column("state"): lambda one: state_text(one.is_read_only),
        Column("deleted", right=True): lambda one: size_cell(one.deleted_bytes),
        Column("dead, at most", right=True): lambda one: size_cell(
            None if one.report is None else one.report.dead_bytes
        ),
        Column("compacted"): lambda one: moment(None if one.report is None else one.report.compacted_ms),
    }
    shown = {column: cell for column, cell in optional.items() if any(cell(one) != "-" for one in found.bookies)}
    cells: Cells[BookieUse] = {
        Column("bookie"): lambda one: one.name,
        Column("ledgers", right=True): lambda one: f"{one.ledgers:,}",
        Column("nodes name", right=True): lambda one: size_text(one.named_bytes),
        Column("trash", right=True): lambda one: size_text(one.trashed_bytes),
        Column("no node names", right=True): lambda one: size_text(one.unnamed_bytes),
        Column("not Pulsar's", right=True): lambda one: size_text(one.foreign_bytes),
        Column("unexplained", right=True): lambda one: size_cell(one.unexplained_bytes),
        Column("free", right=True): lambda one: size_cell(one.free),
        Column("of", right=True): lambda one: size_cell(one.total),
    }
    cells |= shown
    return table_of(found.bookies, cells, empty="There is no bookie.")


def _label(name: str, by: str) -> str:
    if by == "kind":
        kind = _KINDS.get(name)
        return kind.ledgers_label if kind else "not Pulsar's"
    if by == _TOPIC:
        return str(TopicName.of_managed_ledger(name)) if name else "not Pulsar's"
    return name


def _part(size: int, of: int) -> str:
    return f"{100 * size / of:.1f} %" if of else "-"


for _name, _place, _summary in _COMMANDS:
    disk.add_command(LateCommand(_name, f"bookwarden.cli.disk.{_place}", _summary))
