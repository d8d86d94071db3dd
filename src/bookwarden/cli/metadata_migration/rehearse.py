"""`bookwarden metadata-migration rehearse`: the copy of a migration, into a scratch namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from bookwarden.cli.metadata_migration.verify import describe_difference
from bookwarden.cli.shell.invocation import Invocation, max_reads_option, pass_invocation, show_option
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table, counted
from bookwarden.cli.shell.steps import node_progress
from bookwarden.errors import ConfigError
from bookwarden.exit_codes import NOT_DONE
from bookwarden.leases import LeaseTimes
from bookwarden.metadata_migration.comparison import row_of
from bookwarden.metadata_migration.rehearsal import (
    Rehearsal,
    RehearsalReport,
    claim,
    clean_own,
    require_idle,
    require_scratch,
)
from bookwarden.metadata_migration.rehearsal import clean as clean_up
from bookwarden.metadata_migration.watching import PARTICIPANTS_LIMIT_SECONDS, PROPOSED_BYTES, PROPOSED_SECONDS
from bookwarden.metastore.following.flag import read_flag
from bookwarden.metastore.interface import ScratchStore
from bookwarden.metastore.wrappers import TimedStore, throttled
from bookwarden.wiring.metadata_migration import MigrationStores

_MEGABYTE: Final = 1_000_000

_EPILOG = """\b
Examples:
  bookwarden metadata-migration rehearse --target oxia://oxia1:6648/scratch --clean
  bookwarden metadata-migration rehearse --target oxia://oxia1:6648/scratch --max-reads-per-second 2000
  bookwarden metadata-migration rehearse --target oxia://oxia1:6648/scratch --only-clean

\b
How to read it, and what to do about what it finds: docs/metadata-migration-rehearse.md."""


@click.command(epilog=_EPILOG)
@click.option("--target", required=True, metavar="URL", help="An empty namespace to copy into: oxia://host:port/name.")
@click.option("--source", metavar="URL", help="The store to copy, or a snapshot. Default: metadata_store.urls.")
@click.option("--clean", is_flag=True, help="Remove the copy afterwards, and before it what an earlier one left.")
@click.option("--only-clean", is_flag=True, help="Remove what an earlier one left, and do nothing else.")
@max_reads_option("from each of both stores in a second. Default: no limit but that of the settings.")
@show_option("Nodes to list that are not as they should.")
@pass_invocation
def rehearse(
    invocation: Invocation,
    target: str,
    source: str | None,
    clean: bool,
    only_clean: bool,
    limit: float | None,
    show: int,
) -> None:
    """Copy the metadata to a scratch namespace, as a migration would.

    Tells how long a migration will take, which nodes would make it fail, and whether the copy is right. The store in
    use is only read. Ends with 0 where a migration would end well, and with 22 where it would not.
    """
    with MigrationStores(invocation.settings, source) as stores:
        require_scratch(target, stores.in_use)
        # It needs a library, and says so before the source is asked.
        scratch = stores.open(target)
        timed, times = TimedStore(stores.source), LeaseTimes()
        require_idle(read_flag(timed), stores.source_url, target)
        if not isinstance(scratch, ScratchStore):
            raise ConfigError(f"{type(scratch).__name__} takes no copy")
        left = clean_up(scratch, times, invocation.say) if clean or only_clean else 0
        if only_clean:
            data = {"target": target, "removed": left}
            invocation.write(Document(data, (Note(f"{counted(left, 'node')} removed from {target}."),)))
            return
        with claim(scratch, times) as hold:
            with node_progress(invocation, f"copying {stores.source_url} to {target}", "read") as tell:
                report = Rehearsal(
                    *(throttled(timed, limit), scratch, throttled(scratch, limit), hold),
                    reading_s=lambda: timed.reading_s,
                    limited=limit is not None,
                    keep=show,
                    progress=tell,
                ).run()
            removed = clean_own(scratch, hold, times) if clean else None
    invocation.write(_describe(stores.source_url, target, report, removed, show))
    click.get_current_context().exit(0 if report.is_good else NOT_DONE)


def _describe(source_url: str, target: str, report: RehearsalReport, removed: int | None, show: int) -> Document:
    copy, estimate, comparison = report.copy, report.estimate, report.comparison
    speed = copy.copied / copy.seconds if copy.seconds else 0.0
    not_copied = copy.not_copied[:show]
    data = {
        "source": source_url,
        "target": target,
        "good": report.is_good,
        "nodes": copy.copied,
        "ephemeral": copy.ephemeral,
        "value_bytes": copy.value_bytes,
        "path_bytes": copy.path_bytes,
        "seconds": round(copy.seconds, 3),
        "nodes_per_second": round(speed, 1),
        "largest": copy.largest._asdict() if copy.largest else None,
        "not_copied": len(copy.not_copied),
        "first_not_copied": [{"path": one.path, "size": one.size, "reason": one.reason.value} for one in not_copied],
        "estimate": {
            "copying_seconds": round(estimate.copying, 3),
            "blocked_least_seconds": round(estimate.blocked_least, 3),
            "blocked_most_seconds": round(estimate.blocked_most, 3),
            "proposed_seconds": round(estimate.proposed, 3),
        },
        "comparing_seconds": round(report.comparing_s, 3),
        "compared": comparison.compared,
        "equal": comparison.equal,
        "changed_meanwhile": report.changed,
        "damaged": report.damaged,
        "first_damaged": [row_of(one) for one in report.first],
        "versions_kept": comparison.versions_kept,
        "removed": removed,
    }
    largest = f"{copy.largest.size:,} bytes, {copy.largest.path}" if copy.largest else "none"
    pairs = (
        ("source", source_url),
        ("target", target),
        ("nodes copied", f"{copy.copied:,} in {copy.seconds:,.1f} s, {speed:,.0f} a second"),
        ("size", f"{copy.value_bytes / _MEGABYTE:,.1f} MB in values, {copy.path_bytes / _MEGABYTE:,.1f} MB in paths"),
        ("largest", largest),
        ("ephemeral", f"{copy.ephemeral:,}, left out"),
        ("not copied", f"{len(copy.not_copied):,}"),
        ("compared", f"{comparison.compared:,} in {report.comparing_s:,.1f} s"),
        ("equal", f"{comparison.equal:,}"),
        ("changed meanwhile", f"{report.changed:,} in the source"),
        ("not as in the source", f"{report.damaged:,}"),
    )
    times = (
        ("copying", f"{estimate.copying:,.1f} s", f"{estimate.proposed:,.1f} s by the proposal, for this size"),
        ("writes blocked", f"{estimate.blocked_least:,.1f} s", "where all participants leave at once"),
        (
            "at most",
            f"{estimate.blocked_most:,.1f} s",
            f"where one never does: {PARTICIPANTS_LIMIT_SECONDS:.0f} s more",
        ),
    )
    columns = (Column("a migration"), Column("takes", right=True), Column(""))
    parts: list[Part] = [Facts(pairs), Table(columns, times, title="Estimate")]
    if not_copied:
        nodes = tuple((one.reason.value, f"{one.size:,}", one.path) for one in not_copied)
        parts.append(Table((Column("not copied"), Column("bytes", right=True), Column("path", whole=False)), nodes))
    if report.first:
        damaged = tuple((one.kind.value, one.path, describe_difference(one)) for one in report.first)
        parts.append(Table((Column("difference"), Column("path", whole=False), Column("how", whole=False)), damaged))
    parts += [Note(text) for text in _notes(target, report, removed)]
    return Document(data, tuple(parts))


def _notes(target: str, report: RehearsalReport, removed: int | None) -> Iterator[str]:
    estimate = report.estimate
    if not estimate.is_as_proposed:
        yield (
            f"Copying is slower than the proposal's {PROPOSED_SECONDS:.0f} s for {PROPOSED_BYTES // _MEGABYTE} MB: "
            "tell those who make topics and subscriptions how long they will have to wait."
        )
    if estimate.blocked_least > PARTICIPANTS_LIMIT_SECONDS:
        yield (
            f"Writes will be blocked for longer than {PARTICIPANTS_LIMIT_SECONDS:.0f} s. What waits for less gives up: "
            "here that is metadata_store.migration_write_wait_seconds."
        )
    if report.copy.not_copied:
        yield (
            "A migration would fail at the first node that the target does not take and go back to the source, or "
            "leave one that is too large for brokers to read."
        )
    yield (
        f"The copy was removed, {counted(removed, 'node')}."
        if removed is not None
        else f"The copy is still in {target}: remove it with --only-clean before a migration."
    )
    yield "A migration would end well." if report.is_good else "A migration would not end well."
