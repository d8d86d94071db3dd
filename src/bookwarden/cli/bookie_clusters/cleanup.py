"""`bookwarden bookie-clusters list-cleanup-targets` and `cleanup`: what former bookie clusters no longer need."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import click

from bookwarden.bookie_clusters.documents import cleaned_data, targets_data
from bookwarden.bookie_clusters.moving.cleanup import Targets
from bookwarden.cli.bookie_clusters.output import confirmed
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Note, Part, Table, counted
from bookwarden.cli.shell.questions import execute_option, yes_option
from bookwarden.errors import PulsarError
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.moving import MoveOperations

_EPILOG = """\b
What must hold before anything goes: docs/bookie-clusters.md, "Cleanup"."""
_source_option = click.option(
    "--src-cluster", help="This former bookie cluster alone; of the active one unfinished copies."
)


@click.command("list-cleanup-targets", epilog=_EPILOG)
@_source_option
@pass_invocation
def list_cleanup_targets(invocation: Invocation, src_cluster: str | None) -> None:
    """Count what former bookie clusters no longer need.

    That is what brokers read from the active one. Reads the metadata of every ledger there. Changes nothing.
    """
    with Cluster(invocation.settings) as cluster:
        operations = MoveOperations(cluster, looks_only=True)
        found = operations.cleanup.targets(src_cluster)
        invocation.write(Document(targets_data(found), (*_tables(found), *_window(found))))


@click.command("cleanup", epilog=_EPILOG)
@_source_option
@click.option(
    "--max-deletions", type=click.IntRange(min=0), default=0, help="Maximum number of ledgers to mark; 0: all."
)
@execute_option("Mark them; without this they are only listed.", former="--no-dry-run/--dry-run")
@click.option("--force", is_flag=True, help="Within the rollback window too: for testing only.")
@yes_option
@pass_invocation
def cleanup(
    invocation: Invocation, src_cluster: str | None, max_deletions: int, execute: bool, force: bool, yes: bool
) -> None:
    """Mark what former bookie clusters no longer need.

    That is what brokers read from the active one. The sweep then proves each copy that is kept, entry by entry, and
    deletes what the former cluster has. A former cluster's ledger without a whole copy stays. Without
    --execute nothing is marked.
    """
    with Cluster(invocation.settings) as cluster:
        operations = MoveOperations(cluster)

        def ask(total: int) -> AbstractContextManager[Callable[[int], object]]:
            ledgers = counted(total, "ledger")
            question = f"Mark {ledgers} of former bookie clusters for deletion?"
            return confirmed(invocation, question, f"marking {ledgers}", "marked", "ledgers", yes=yes)

        result = operations.cleanup.clean_up(
            src_cluster, at_most=max_deletions, force=force, dry_run=not execute, confirm=ask
        )
        found, total, done, _ = result
        if done is None:
            text = f"{counted(total, 'ledger')} would be marked, with --execute." if total else "Nothing to do."
            parts = (*_tables(found), *_window(found), Note(text))
        else:
            text = f"{counted(done.sent, 'ledger')} marked. The sweep proves each copy before anything is deleted."
            parts = (*_tables(found), Note(text))
        invocation.write(Document(cleaned_data(result), parts))
        if done is not None and done.failed:
            ledger_id, reason = done.failed[0]
            raise PulsarError(f"{counted(len(done.failed), 'ledger')} not marked, such as {ledger_id}: {reason}")


def _tables(found: Targets) -> tuple[Part, ...]:
    columns = (
        Column("former cluster"),
        Column("ledgers of"),
        Column("may go", right=True),
        Column("bytes", right=True),
    )
    rows = tuple((*key, f"{found.ledgers[key]:,}", f"{found.sizes[key]:,}") for key in sorted(found.ledgers))
    kept = tuple((cluster, f"{found.kept[cluster, why]:,}", why) for cluster, why in sorted(found.kept))
    return (
        Table(columns, rows, empty=f"No former cluster has a ledger that {found.active} has whole."),
        Table((Column("former cluster"), Column("stay", right=True), Column("because", whole=False)), kept),
    )


def _window(found: Targets) -> tuple[Part, ...]:
    if not found.window_left_s:
        return ()
    return (Note(f"The switch to {found.active} can be rolled back for another {found.window_left_s / 3600:.1f} h."),)
