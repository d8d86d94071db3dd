"""`bookwarden bookie-clusters drain`: everything leaves a former bookie cluster, and then the cluster the registry."""

from __future__ import annotations

from math import ceil

import click

from bookwarden.bookie_clusters.documents import left_data
from bookwarden.bookie_clusters.moving.build import Build
from bookwarden.bookie_clusters.moving.draining import DrainResult, RemainingLedgers
from bookwarden.bookie_clusters.moving.scope import EVERYTHING
from bookwarden.bookie_clusters.unregistering import UnregistrationPlan
from bookwarden.cli.bookie_clusters.build import bytes_option, ledgers_option, show_build
from bookwarden.cli.bookie_clusters.output import describe_registry
from bookwarden.cli.bookie_clusters.unload import per_second_option
from bookwarden.cli.bookie_clusters.unregister import note_of_ids, of_others
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table, counted
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.exit_codes import MORE_LATER, SOME_FAILED
from bookwarden.findings import size_text
from bookwarden.preflight import require_spark
from bookwarden.wiring.bookie_clusters import unregistration_of
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.moving import MoveOperations

# For brokers, and until a switch is long enough ago.
_WAIT_S = 60.0

_EPILOG = """\b
Examples:
  bookwarden bookie-clusters drain --from a --dry-run    what is left there, and why
  bookwarden bookie-clusters drain --from a --yes        as often as it takes, from cron too

\b
Exit codes: 0 nothing is left, and it is unregistered; 25 more can be done later; 27 some ledgers failed.
docs/moving-ledgers.md, "Drain"."""


@click.command("drain", epilog=_EPILOG)
@click.option("--from", "source", metavar="NAME", required=True, help="The former bookie cluster.")
@click.option("--dry-run", is_flag=True, help="Only count what is left there.")
@bytes_option
@ledgers_option
@per_second_option()
@click.option("--force", is_flag=True, help="Within the rollback window too: for testing only.")
@yes_option
@pass_invocation
def drain(
    invocation: Invocation,
    source: str,
    dry_run: bool,
    max_bytes_per_second: float | None,
    max_ledgers_per_second: float | None,
    per_second: float,
    force: bool,
    yes: bool,
) -> None:
    """Empty a former bookie cluster.

    Copies everything to the active one, unloads topics that still write or read there, and marks for deletion what
    brokers read elsewhere; what the sweep has not deleted yet, or must wait, the next run goes on with. Once nothing
    is left the cluster is unregistered.
    """
    with Cluster(invocation.settings) as cluster:
        operations = MoveOperations(cluster, looks_only=dry_run)
        left = operations.drainer.left(source)
        if dry_run:
            invocation.write(Document(left_data(left), (*_parts(left), Note(_verdict(left)))))
            return
        if not left.total:
            _leave(invocation, cluster, source, yes=yes)
            return
        require_spark()
        from bookwarden.pipelines.copying.driver import BuildRequest, run_build

        limits = CopyLimits(max_bytes_per_second, max_ledgers_per_second)
        request = BuildRequest(source=source, scope=EVERYTHING, limits=limits)
        confirm(_question(left), yes=yes, look="--dry-run")

        def build() -> Build:
            with show_build(invocation) as (listed, updated):
                return run_build(
                    cluster, request, progress=listed, on_update=updated, say=invocation.say, local=True
                ).build

        done = operations.drainer.carry_out(source, build, per_second=per_second, force=force, say=invocation.say)
        notes = [*_notes(done), _verdict(done.left)]
        data = {**left_data(done.left), "marked": 0 if done.marked is None else done.marked.sent, "failed": done.failed}
        invocation.write(Document(data, (*_parts(done.left), *map(Note, notes))))
        click.get_current_context().exit(SOME_FAILED if done.failed else MORE_LATER)


def _leave(invocation: Invocation, cluster: Cluster, name: str, *, yes: bool) -> None:
    """Unregister a cluster in which nothing of ours is left, as is proven once more."""

    def ask(plan: UnregistrationPlan) -> None:
        others = f" {of_others(plan)}" if plan.foreign else ""
        confirm(f"Nothing of ours is left in {name}.{others} Unregister it?", yes=yes)

    plan = unregistration_of(cluster).unregister(name, wait_s=_WAIT_S, confirm=ask, say=invocation.say)
    done = of_others(plan) if plan.foreign else "Its bookies can be stopped."
    notes = [
        f"Nothing of ours is left in {name}, and it is unregistered. {done}",
        "See that metadata_store.bookkeeper_url and ledgers_root name a registered cluster: commands and the sweep "
        "do nothing otherwise.",
        *note_of_ids(plan, cluster),
    ]
    invocation.write(describe_registry(cluster, plan.after, *notes))


def _question(left: RemainingLedgers) -> str:
    topics = f" Unload topics that write or read there ({len(left.topics):,} write)?" if left.topics else ""
    return f"Move {counted(left.total, 'ledger')} from {left.cluster} to {left.active}?{topics}"


def _parts(left: RemainingLedgers) -> tuple[Part, ...]:
    kinds = tuple((kind, f"{left.ledgers[kind]:,}") for kind in sorted(left.ledgers))
    why = tuple((f"{number:,}", reason) for reason, number in sorted(left.stays.items()))
    facts = (
        ("in", left.cluster),
        ("closed", size_text(left.size)),
        ("open", f"{len(left.open):,}"),
        ("to be copied", _to_copy(left)),
        ("may go", f"{left.may_go:,}"),
        ("rollback window", f"{left.window_left_s / 3600:.1f} h left" if left.window_left_s else "over"),
    )
    return (
        Facts(facts),
        Table((Column("ledgers of"), Column("left", right=True)), kinds, empty=f"Nothing is left in {left.cluster}."),
        Table((Column("stay", right=True), Column("because", whole=False)), why),
    )


def _to_copy(left: RemainingLedgers) -> str:
    text = f"{counted(left.to_copy, 'closed ledger')}, {size_text(left.to_copy_size)}"
    if not left.to_copy or left.copying_s is None:
        return text
    return f"{text}: about {_about(left.copying_s)} at the pace of the newest build"


def _about(seconds: float) -> str:
    if seconds < 90:
        return f"{ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _notes(done: DrainResult) -> list[str]:
    notes = []
    failed = [one for one in done.unloaded if one.failed]
    if failed:
        notes.append(f"{counted(len(failed), 'topic')} not unloaded, such as {failed[0].topic}: {failed[0].error}")
    if done.failed:
        notes.append(f"{counted(done.failed, 'ledger')} not copied: `bookie-clusters build --all` lists them.")
    if done.marked is not None:
        notes.append(f"{counted(done.marked.sent, 'ledger')} marked: the sweep proves each copy, and deletes them.")
        if done.marked.failed:
            ledger_id, reason = done.marked.failed[0]
            notes.append(f"{counted(len(done.marked.failed), 'ledger')} not marked, such as {ledger_id}: {reason}")
    return notes


def _verdict(left: RemainingLedgers) -> str:
    if not left.total:
        return f"Nothing of ours is left in {left.cluster}: drain unregisters it."
    if left.window_left_s:
        return (
            f"The switch to {left.active} can be rolled back for another {left.window_left_s / 3600:.1f} h: nothing is "
            "deleted before. Run drain again then."
        )
    return f"Run drain again: it goes on until nothing is left in {left.cluster}."
