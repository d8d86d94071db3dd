"""`bookwarden bookie-clusters move --offline`: all ledgers to another bookie cluster, for brokers without the jar."""

from __future__ import annotations

from pathlib import Path

import click

from bookwarden.bookie_clusters.documents import (
    broker_lines,
    moved_data,
    plan_data,
    record_data,
    restoration_data,
    settings_lines,
)
from bookwarden.bookie_clusters.offline.checking import TargetUri
from bookwarden.bookie_clusters.offline.ledgers import CopyStatus
from bookwarden.bookie_clusters.offline.move import MovePlan, MoveResult, OfflineMove
from bookwarden.bookie_clusters.offline.record import MovePhase, MoveRecord
from bookwarden.bookie_clusters.offline.saved_nodes import NodeDifferences, NodeRestorer
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Document, Facts, Note, Part, counted, findings_table
from bookwarden.cli.shell.questions import confirm, execute_option, yes_option
from bookwarden.cli.shell.steps import node_progress
from bookwarden.errors import NotFoundError
from bookwarden.exit_codes import WOULD_FAIL
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.moving import MoveOperations

_EPILOG = """\b
Examples:
  bookwarden bookie-clusters move --offline --target-uri zk+hierarchical://zk2:2181/bookies-b --folder /backup/move
  bookwarden bookie-clusters move --status

\b
Exit codes: 0 done, or copied ahead with --ahead; 23 a check blocks it; 5 brokers live, a ledger
is not the same, or it was not confirmed. The same command carries on. Order and way back: docs/moving-ledgers.md."""


@click.command(epilog=_EPILOG)
@click.option("--offline", is_flag=True, help="Brokers have no jar, and will be stopped for the end of it.")
@click.option("--target-uri", metavar="URI", help="The metadataServiceUri of the cluster to move to.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Where nodes are saved.")
@click.option("--ahead", is_flag=True, help="Only copy what is closed, while brokers run.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Maximum seconds to wait for brokers to stop.",
)
@click.option(
    "--may-miss",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Maximum number of named ledgers that neither cluster has, since they were lost before.",
)
@click.option("--dry-run", is_flag=True, help="Look at everything, say what would be done, do nothing.")
@click.option("--status", is_flag=True, help="Only show where the newest move stands.")
@click.option("--abandon", is_flag=True, help="Abandon a move that is not done.")
@click.option(
    "--restore-nodes",
    "saved",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Compare saved nodes with those that are there.",
)
@execute_option("With --restore-nodes: put them back.", former="--no-dry-run")
@yes_option
@pass_invocation
def move(
    invocation: Invocation,
    offline: bool,
    target_uri: str | None,
    folder: Path | None,
    ahead: bool,
    wait_s: float | None,
    may_miss: int,
    dry_run: bool,
    status: bool,
    abandon: bool,
    saved: Path | None,
    execute: bool,
    yes: bool,
) -> None:
    """Move all ledgers while brokers are stopped.

    The settings name the bookie cluster that brokers use. Copies what is closed while they run, waits until all are
    stopped, copies the rest, compares everything, and shows the lines for broker.conf. Brokers with the jar are
    switched while they run instead. The way back is the same, with both clusters exchanged.
    """
    if sum((target_uri is not None, status, abandon, saved is not None)) != 1:
        raise click.UsageError("name --target-uri, or one of --status, --abandon and --restore-nodes")
    if not offline and not status:
        raise click.UsageError("add --offline: brokers have to be stopped. With the jar: `bookie-clusters switch`")
    if (target_uri is not None) != (folder is not None):
        raise click.UsageError("--target-uri and --folder go together")
    if execute and saved is None:
        raise click.UsageError("--execute is for --restore-nodes: without --dry-run a move is carried out")
    with Cluster(invocation.settings) as cluster:
        operations = MoveOperations(cluster)
        if saved is not None:
            _restore(invocation, operations.restorer, saved, restores=execute and not dry_run, yes=yes)
        elif status:
            found = operations.offline.node.read()
            if found is None:
                raise NotFoundError("nothing was moved yet")
            invocation.write(Document(record_data(found.record), tuple(_record_parts(found.record))))
        elif abandon:
            _abandon(invocation, operations.offline, dry_run=dry_run, yes=yes)
        elif target_uri is not None and folder is not None:
            plan = operations.offline.plan(TargetUri.parse(target_uri), folder.absolute(), may_miss=may_miss)
            _carry_out(invocation, operations, plan, ahead=ahead, wait_s=wait_s, dry_run=dry_run, yes=yes)


def _abandon(invocation: Invocation, move: OfflineMove, *, dry_run: bool, yes: bool) -> None:
    if dry_run:
        record = move.under_way()
        invocation.write(Document(record_data(record), (*_record_parts(record), Note("Would be abandoned."))))
        return
    confirm("Abandon the move? What was copied stays on the target.", yes=yes)
    record = move.abandon()
    invocation.write(Document(record_data(record), (Note("Abandoned. Brokers go on with the source."),)))


def _carry_out(
    invocation: Invocation,
    operations: MoveOperations,
    plan: MovePlan,
    *,
    ahead: bool,
    wait_s: float | None,
    dry_run: bool,
    yes: bool,
) -> None:
    if plan.failing or dry_run or invocation.output != "json":
        invocation.write(_describe_plan(plan))
    if plan.failing:
        click.get_current_context().exit(WOULD_FAIL)
    if dry_run:
        return
    asked = "Copy ahead what is closed" if ahead else "Copy, wait until all brokers are stopped, and copy the rest"
    confirm(f"{asked}, to {plan.record.uri}?", yes=yes)
    with node_progress(invocation, f"copying to {plan.record.uri}", "copied", "ledgers") as tell:
        moved = operations.offline.carry_out(plan, ahead_only=ahead, wait_s=wait_s, say=invocation.say, progress=tell)
    invocation.write(_describe_moved(moved))


def _describe_plan(plan: MovePlan) -> Document:
    counts = plan.tally.counts
    pairs = (
        *_sides(plan.record),
        ("brokers that live", ", ".join(plan.brokers) or "none"),
        ("ledgers that are named", f"{plan.tally.total:,}"),
        ("to be copied", f"{counts[CopyStatus.TO_COPY]:,}"),
        ("open", f"{counts[CopyStatus.OPEN]:,}"),
        ("there already", f"{counts[CopyStatus.SAME]:,}"),
        ("next ledger id of the target", f"{plan.next_id}; it must be above {plan.free_id - 1}"),
    )
    note = (
        f"{counted(len(plan.failing), 'check')} blocking: nothing is done."
        if plan.failing
        else "What happens: nodes are saved, ids of the target raised, closed ledgers copied. Then all brokers have to "
        "be stopped, by you. What is open is recovered, the rest copied, everything compared. Copies have two entries "
        "more in their custom metadata (bookwarden.owner, bookwarden.copy), which brokers do not look at."
    )
    return Document(
        plan_data(plan), (Facts(pairs), findings_table(plan.findings), *_missing(plan.tally.missing), Note(note))
    )


def _describe_moved(moved: MoveResult) -> Document:
    record = moved.record
    pairs = (
        *_sides(record),
        ("phase", record.phase.value),
        ("copied by this command", f"{moved.copied:,}"),
        ("recovered", f"{moved.recovered:,}"),
        ("the same on both", f"{moved.tally.counts[CopyStatus.SAME]:,} of {moved.tally.total:,}"),
        ("next ledger id of the target", str(moved.next_id)),
        ("saved nodes", record.saved),
    )
    parts: list[Part] = [Facts(pairs), *_missing(moved.tally.missing)]
    parts += [Note(f"Not copied: {error}") for error in moved.errors]
    if record.phase is MovePhase.DONE:
        parts += _lines(record)
    else:
        parts.append(Note("Copied ahead. The same command without --ahead goes on, and waits for brokers to stop."))
    return Document(moved_data(moved), tuple(parts))


def _record_parts(record: MoveRecord) -> list[Part]:
    parts: list[Part] = [Facts((*_sides(record), ("phase", record.phase.value), ("saved nodes", record.saved)))]
    return [*parts, *_lines(record)] if record.phase is MovePhase.DONE else parts


def _sides(record: MoveRecord) -> tuple[tuple[str, str], ...]:
    return (
        ("from", f"{record.source.ledgers_root} in {record.source.url}, instance {record.source_instance}"),
        ("to", f"{record.target.ledgers_root} in {record.target.url}, instance {record.target_instance}"),
    )


def _lines(record: MoveRecord) -> list[Part]:
    return [
        Note("broker.conf of ALL brokers, in the place of the line with this name:"),
        *(Note(f"    {line}") for line in broker_lines(record)),
        Note("bookwarden's own settings:"),
        *(Note(f"    {line}") for line in settings_lines(record)),
        Note(
            "Change all brokers, then start them. Never one on the source and one on the target: acknowledged messages "
            "would be lost. Keep the source, metadata and bookies, as long as you may want to go back."
        ),
    ]


def _missing(ledger_ids: tuple[int, ...]) -> tuple[Note, ...]:
    if not ledger_ids:
        return ()
    shown = ", ".join(map(str, ledger_ids[:3]))
    return (Note(f"Ledgers that are named and that neither cluster has, such as {shown}: it stays so."),)


def _restore(invocation: Invocation, restorer: NodeRestorer, file: Path, *, restores: bool, yes: bool) -> None:
    found = restorer.plan(file)
    if not restores:
        invocation.write(_describe_restoration(found, None, "--execute puts them back, while no broker lives."))
        return
    restorer.require_no_broker()
    confirm(
        f"Put {counted(found.total, 'node')} back? What brokers have written since is lost from their lists.", yes=yes
    )
    done = restorer.carry_out(file)
    note = f"What was there before is in {done.before}. Start all brokers on the cluster that the nodes are of."
    invocation.write(_describe_restoration(found, done.written, note))


def _describe_restoration(found: NodeDifferences, written: int | None, note: str) -> Document:
    pairs = (
        ("nodes in the file", f"{found.nodes:,}"),
        ("that differ", f"{found.changed:,}"),
        ("that are gone", f"{found.gone:,}"),
        ("such as", ", ".join(found.shown[:3])),
    )
    text = note if found.total else "All are as they were saved."
    return Document(restoration_data(found, written), (Facts(pairs), Note(text)))
