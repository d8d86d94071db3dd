"""`bookwarden bookie-clusters build`: ledgers copied to another bookie cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from bookwarden.bookie_clusters.moving.build import (
    ADVICE,
    DONE,
    STAYING,
    UNPROVEN_ADVICE,
    Build,
    BuildReport,
    FoundBuild,
)
from bookwarden.bookie_clusters.moving.scope import scope_of
from bookwarden.cli.shell.invocation import Invocation, pass_invocation, show_option
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table, counted, moment
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.findings import size_text
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.metrics.findings import of_build_report
from bookwarden.metrics.names import Program
from bookwarden.metrics.runs import published_run
from bookwarden.preflight import STARTING_SPARK, require_spark
from bookwarden.wiring.cluster import Cluster

_EPILOG = """\b
Examples:
  bookwarden bookie-clusters build --dry-run         what would be copied
  bookwarden bookie-clusters build                   schemas and cursors, to the active bookie cluster
  bookwarden bookie-clusters build --all             data too: all that the former cluster has
  bookwarden bookie-clusters build --resume          go on with the one that was stopped
  bookwarden bookie-clusters build --all --verify    read back what was copied, copy nothing

\b
Exit codes: 0 all is copied; 25 the rest can be copied later; 27 some failed. docs/moving-ledgers.md."""
_LISTING: Final = "listing ledgers"
_SAY_EVERY_S: Final = 30.0
bytes_option, ledgers_option = (
    click.option(
        f"--max-{unit}-per-second",
        type=click.FloatRange(min=0, min_open=True),
        metavar="N",
        help="For each bookie of either cluster.",
    )
    for unit in ("bytes", "ledgers")
)


@click.command("build", epilog=_EPILOG)
@click.option(
    "--src-cluster", "source", metavar="NAME", help="Copy from here. Default: the cluster that was active before."
)
@click.option("--target", metavar="NAME", help="Copy to here. Default: the active one.")
@click.option("--all", "every_kind", is_flag=True, help="Data and all other kinds too, not schemas and cursors alone.")
@click.option("--tenant", "tenants", metavar="NAME", multiple=True, help="Of this tenant. May be repeated.")
@click.option("--namespace", "namespaces", metavar="NAME", multiple=True, help="Of this namespace. May be repeated.")
@click.option("--topic", "topics", metavar="NAME", multiple=True, help="Of this topic. May be repeated.")
@click.option("--dry-run", is_flag=True, help="Count what would be copied, and what would stay; copy nothing.")
@click.option("--verify", is_flag=True, help="Copy nothing; read every copy back from its bookies.")
@bytes_option
@ledgers_option
@click.option("--folder", metavar="FOLDER", help="A new folder for what came of each ledger. Default: in var/builds.")
@click.option("--resume", is_flag=True, help="Go on with the build that was stopped, or with that in --folder.")
@show_option("Ledgers of each outcome to list that stay where they are.")
@pass_invocation
def build(
    invocation: Invocation,
    source: str | None,
    target: str | None,
    every_kind: bool,
    tenants: tuple[str, ...],
    namespaces: tuple[str, ...],
    topics: tuple[str, ...],
    dry_run: bool,
    verify: bool,
    max_bytes_per_second: float | None,
    max_ledgers_per_second: float | None,
    folder: str | None,
    resume: bool,
    show: int,
) -> None:
    """Copy ledgers to the active bookie cluster.

    Each keeps its id, and is read back from every bookie before it counts. Nothing is deleted, and no topic's metadata
    changes; brokers read a copy once it is whole. Ctrl-C stops it, and --resume goes on.
    """
    scope = scope_of(every_kind=every_kind, tenants=tenants, namespaces=namespaces, topics=topics)
    if resume and (dry_run or every_kind or tenants or namespaces or topics):
        raise click.UsageError(
            "--resume goes on with what the build was begun with: --dry-run and a scope are for new ones"
        )
    if verify and (resume or dry_run or max_bytes_per_second or max_ledgers_per_second):
        raise click.UsageError("--verify goes with none of --resume, --dry-run and the limits, which are for copying")
    limits = CopyLimits(max_bytes_per_second, max_ledgers_per_second)
    program = Program.BUILD_VERIFY if verify else Program.BUILD
    with published_run(invocation.settings.metrics, program, publishes=not dry_run) as run:
        require_spark()
        from bookwarden.pipelines.copying.driver import BuildRequest, run_build

        invocation.set_up_logging()
        invocation.say(STARTING_SPARK)
        request = BuildRequest(folder, source, target, scope, limits, show, dry_run, resume, verify)
        with (
            Cluster(invocation.settings) as cluster,
            show_build(invocation, "reading back" if verify else "copying") as (listed, updated),
        ):
            report = run_build(cluster, request, progress=listed, on_update=updated, say=invocation.say, local=True)
        run.show(of_build_report(report.build, is_verification=verify))
        invocation.write(describe_report(report))
        click.get_current_context().exit(report.exit_code)


def build_facts(found: FoundBuild | None) -> list[tuple[str, str]]:
    """Describe the build under way, and the newest that is through, for `status`."""
    if found is None:
        return []
    pairs = []
    newest, last = found.newest, found.last_through
    if not newest.is_through:
        by = f"stopped; go on with `bookie-clusters build --resume` in {newest.folder} ({found.holder})"
        text = f", {by}" if found.is_stopped else f"{_pace(newest)}, by {found.holder}"
        pairs.append(("build", f"{_route(newest)}: {_progress(newest)}{text}"))
    if last is not None:
        done, failed = last.counts.of(*DONE), last.counts.of(CopyOutcome.FAILED)
        text = f"{counted(done, 'ledger')} there, {size_text(last.counts.size_of(*DONE))}, {failed:,} failed"
        pairs.append(("last build", f"{_route(last)}, through at {moment(last.ended_ms)}: {text}"))
    return pairs


def describe_report(report: BuildReport) -> Document:
    """Describe what a build did, or would do."""
    one = report.build
    rows = f"{one.folder}/copies" + ("" if report.is_verification else f", {one.folder}/complete")
    pairs = (
        ("verified against" if report.is_verification else "copied from", one.source),
        ("in" if report.is_verification else "to", one.target),
        ("ledgers of", str(one.scope)),
        ("took", f"{report.seconds:,.1f} s"),
        *(() if report.is_dry_run else (("rows", rows),)),
    )
    columns = (
        Column("outcome"),
        Column("ledgers of"),
        Column("ledgers", right=True),
        Column("size", right=True),
    )
    would = {CopyOutcome.COPIED: "would copy"} if report.is_dry_run else {}
    table = tuple(
        (would.get(outcome, outcome.value), kind, f"{one.counts.ledgers[outcome, kind]:,}", _size(one, outcome, kind))
        for outcome, kind in one.counts.in_order()
    )
    parts: list[Part] = [Facts(pairs), Table(columns, table, empty=f"Nothing of {one.scope} is in {one.source}.")]
    if report.staying:
        stay = (Column("stays", right=True), Column("outcome"), Column("of", whole=False), Column("why", whole=False))
        shown = tuple((str(x.ledger_id), x.outcome.value, x.holder or x.kind, x.reason) for x in report.staying)
        parts.append(Table(stay, shown, title="What stays where it is"))
    for outcome in STAYING:
        number = one.counts.of(outcome)
        if number:
            advice = UNPROVEN_ADVICE if report.is_verification else ADVICE[outcome]
            parts.append(Note(f"{counted(number, 'ledger')} {outcome.value}: {advice}."))
    parts.append(Note(_verdict(report)))
    return Document(report.as_json(), tuple(parts))


def _verdict(report: BuildReport) -> str:
    counts = report.build.counts
    if report.is_verification:
        proven = counted(counts.of(CopyOutcome.COMPLETE), "copy", "copies")
        return f"{proven} of {report.build.target} read back whole, from every bookie that should have them."
    if report.is_dry_run:
        return (
            "Nothing was copied. Ledgers that nothing names any more are found when they are to be copied: they are "
            "not."
        )
    if any(counts.of(outcome) for outcome in STAYING):
        return f"All others asked for are in {report.build.target}, whole."
    return f"Everything asked for is in {report.build.target}, whole."


def _size(one: Build, outcome: CopyOutcome, kind: str) -> str:
    size = one.counts.sizes[outcome, kind]
    return size_text(size) if size else ""


def _route(one: Build) -> str:
    return f"{one.scope} from {one.source} to {one.target}"


def _progress(one: Build) -> str:
    if not one.is_listed:
        return "ledgers are listed"
    failed = one.counts.of(CopyOutcome.FAILED)
    text = f"{one.looked_at:,} of {one.ledgers:,} ledgers, {size_text(one.size_looked_at)} of {size_text(one.size)}"
    return f"{text}, {failed:,} failed" if failed else text


def _pace(one: Build) -> str:
    if one.pace is None:
        return ""
    text = f", {one.pace.ledgers_per_s:,.0f} ledgers/s, {size_text(round(one.pace.bytes_per_s))}/s"
    return text if one.left_s is None else f"{text}, {timedelta(seconds=round(one.left_s))} left"


@contextmanager
def show_build(
    invocation: Invocation, work: str = "copying"
) -> Iterator[tuple[Callable[[str, int, int], None], Callable[[Build], None]]]:
    """Show on a terminal a bar for the listing and one for the work; elsewhere write a line from time to time."""

    def line(one: Build) -> str:
        return f"{_progress(one)}{_pace(one)}"

    if invocation.output != "json" and sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        with Progress(*columns, console=Console(stderr=True)) as bars:
            tasks: dict[str, Any] = {}

            def bar(name: str, share: float, text: str) -> None:
                if name not in tasks:
                    tasks[name] = bars.add_task(name, total=1.0, text="")
                bars.update(tasks[name], completed=share, text=text)

            yield (
                lambda _, done, total: bar(_LISTING, done / total if total else 1.0, f"{done:,} of {total:,} parts"),
                lambda one: bar(work, one.share_done, line(one)),
            )
        return
    said = 0.0

    def say(one: Build) -> None:
        nonlocal said
        now = time.monotonic()
        text = line(one)
        if now >= said + _SAY_EVERY_S or one.looked_at == one.ledgers:
            said = now
            invocation.say(text)

    def listed(_: str, done: int, total: int) -> None:
        if done == total:
            invocation.say(f"{_LISTING}: all {total:,} parts")

    yield listed, say
