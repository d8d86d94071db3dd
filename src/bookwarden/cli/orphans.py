"""The commands of the orphan scan: scan, show plans and reports, apply."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bookwarden.cli.orphans_output import describe_applied, describe_plan, describe_plans
from bookwarden.cli.shell.invocation import Invocation, max_reads_option, pass_invocation, with_limit
from bookwarden.cli.shell.output import Document, Note
from bookwarden.cli.shell.steps import stage_progress
from bookwarden.config import Settings
from bookwarden.errors import BookwardenError, FileError, FormatError, NotFoundError, RefusedError
from bookwarden.metrics.findings import of_apply, of_scan
from bookwarden.metrics.names import Program
from bookwarden.metrics.runs import Run, published_run
from bookwarden.orphans.apply import ApplyCopies
from bookwarden.orphans.applying import ApplyResult
from bookwarden.orphans.plan import check_id
from bookwarden.preflight import STARTING_SPARK, require_folder, require_marking, require_spark, require_stores
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.scan import OrphanApply

if TYPE_CHECKING:
    from bookwarden.pipelines.plan_files import PlanFiles

_EPILOG = """\b
Examples:
  bookwarden orphans scan                    list, compare, make a plan; changes nothing
  bookwarden orphans plan show               what the newest plan has in it
  bookwarden orphans report --html FILE      the same as a page to mail, with charts
  bookwarden orphans apply --plan PLAN       what would be marked; changes nothing
  bookwarden orphans apply --plan PLAN --execute

\b
When to do what, and what to do when it refuses: docs/orphans.md."""


def _parse_id(text: str) -> str:
    try:
        return check_id(text)
    except FormatError as error:
        raise click.BadParameter(str(error)) from error


@click.group(epilog=_EPILOG)
def orphans() -> None:
    """Find ledgers that nothing refers to, and reclaim them."""


@orphans.command()
@click.option("--from", "snapshot", metavar="URL", help="Read a snapshot of the metadata store: zk-snapshot:FILE.")
@click.option(
    "--resume",
    metavar="SCAN",
    type=_parse_id,
    help="Go on with a scan that was paused or killed, or plan again from what it read.",
)
@max_reads_option("from the metadata stores in a second, by all processes. Default: the setting.")
@pass_invocation
def scan(
    invocation: Invocation,
    snapshot: str | None,
    resume: str | None,
    limit: float | None,
) -> None:
    """Find the ledgers that nothing refers to, and plan what to do.

    Changes nothing. Ends with 0 where nothing is wrong, with 20 where there are orphans or ledgers that were left
    behind, and with 21 where data is lost: ledgers are missing, or their topics' lists lost them. Ctrl-C pauses it, and
    --resume goes on.
    """
    if snapshot is not None and resume is not None:
        raise click.UsageError("--from belongs to a new scan; the one that is resumed reads what it was begun with")
    settings = with_limit(invocation.settings, limit)
    with published_run(settings.metrics, Program.SCAN) as run:
        require_spark()
        require_folder("orphans.folder", settings.orphans.folder)
        if resume is not None:
            _require_scan(settings, resume)
        elif snapshot is None:
            with Cluster(settings) as cluster:
                require_stores(cluster)
        invocation.set_up_logging()
        invocation.say(STARTING_SPARK)
        click.get_current_context().exit(_scan(invocation, settings, snapshot, resume, run))


def _require_scan(settings: Settings, scan_id: str) -> None:
    from bookwarden.pipelines.scan.folder import scan_ids

    if scan_id not in scan_ids(settings):
        raise NotFoundError(
            f"there is no scan {scan_id} in {settings.orphans.folder}: `bookwarden orphans list` has them"
        )


def _scan(invocation: Invocation, settings: Settings, snapshot: str | None, resume: str | None, run: Run) -> int:
    from bookwarden.pipelines.scan.driver import run_scan

    with stage_progress(invocation) as tell:
        result = run_scan(settings, snapshot=snapshot, resume=resume, progress=tell, say=invocation.say, local=True)
    run.show(of_scan(result.plan, result.summary))
    invocation.write(describe_plan(result.plan, result.summary, notes=result.notes))
    return result.exit_code


@orphans.group()
def plan() -> None:
    """Look at the plans that scans made."""


@plan.command("show")
@click.argument("plan_id", metavar="[PLAN]", required=False, type=_parse_id)
@click.option(
    "--candidates", type=click.IntRange(min=0), default=20, show_default=True, help="Ledgers, and copies, to list."
)
@pass_invocation
def show(invocation: Invocation, plan_id: str | None, candidates: int) -> None:
    """Show what a plan has in it; the newest one unless it is named."""
    plans = _plans(invocation.settings)
    found = plans.manifest(plan_id or _newest(plans))
    plans.verify(found)
    first = next(plans.candidates(found, candidates), []) if candidates else []
    copies = next(plans.copies(found, candidates), []) if candidates else []
    applied = (plans.progress(found), plans.copy_progress(found))
    invocation.write(describe_plan(found, plans.summary(found), first, copies, applied))


@orphans.command("list")
@pass_invocation
def list_plans(invocation: Invocation) -> None:
    """List the plans, and the scans that have none yet."""
    _list(invocation)


@orphans.command()
@click.option(
    "--plan",
    "plan_id",
    metavar="PLAN",
    type=_parse_id,
    help="The plan to report on; the newest one unless it is named.",
)
@click.option(
    "--html",
    "page",
    metavar="FILE",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page to write; one that is there is replaced.",
)
@pass_invocation
def report(invocation: Invocation, plan_id: str | None, page: Path) -> None:
    """Write what a scan found as one HTML page, to look at and to mail.

    It is the page that `bookwarden serve` shows at /scan, in a file that needs nothing else.
    """
    # Imported late, as all that needs the extra `executor`.
    from bookwarden.server.page.reading import read_report
    from bookwarden.server.page.scan import render_report

    plan_id = plan_id or _newest(_plans(invocation.settings))
    text = render_report(read_report(invocation.settings, plan_id), int(time.time() * 1000))
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"the report of plan {plan_id} cannot be written to {page}: {error.strerror}") from error
    invocation.write(Document({"plan_id": plan_id, "page": page}, (Note(f"plan {plan_id} is reported in {page}"),)))


@plan.command("list", hidden=True)
@pass_invocation
def list_plans_here(invocation: Invocation) -> None:
    """List the plans, and the scans that have none yet."""
    _list(invocation)


@orphans.command()
@click.option("--plan", "plan_id", metavar="PLAN", required=True, type=_parse_id, help="The plan to apply.")
@click.option("--execute", is_flag=True, help="Mark the ledgers; without it the command only says which it would.")
@click.option(
    "--allow-emptied",
    "allowed",
    metavar="NAME",
    multiple=True,
    help="A topic (its managed ledger) or namespace that may be left without ledgers. May be repeated.",
)
@pass_invocation
def apply(invocation: Invocation, plan_id: str, execute: bool, allowed: tuple[str, ...]) -> None:
    """Mark the orphans of a plan for deletion.

    The sweep verifies each again and deletes it. Without --execute the command only checks the plan and says what it
    would do. A run that was killed goes on where it was.
    """
    settings = invocation.settings
    with published_run(settings.metrics, Program.APPLY, publishes=execute) as run:
        _apply(invocation, settings, plan_id, execute, allowed, run)


def _apply(
    invocation: Invocation, settings: Settings, plan_id: str, execute: bool, allowed: tuple[str, ...], run: Run
) -> None:
    plans = _plans(settings)
    with Cluster(settings) as cluster, stage_progress(invocation) as tell:
        if execute:
            require_marking(cluster)

        def report(result: ApplyResult) -> None:
            tell("marking" if execute else "looking", result.candidates - result.left, result.candidates)

        with _to_itself(settings, plans, plan_id, execute):
            operation = OrphanApply(cluster, plans, on_batch=report)
            result = operation.ledgers.run(plan_id, execute=execute, allow_emptied=allowed)
            copies, problem = _apply_copies(operation.copies, plans, plan_id, execute, allowed)
    run.show(of_apply(plans.manifest(plan_id), result, copies))
    invocation.write(describe_applied(result, copies, str(problem or "")))
    for one in (result, *([copies] if copies else [])):
        if execute and not one.done:
            raise BookwardenError(
                f"{len(one.failed):,} marks of plan {plan_id} were not confirmed and {one.left:,} candidates were "
                "not come to: run the same command again"
            )
    if problem is not None:
        raise problem


@contextmanager
def _to_itself(settings: Settings, plans: PlanFiles, plan_id: str, execute: bool) -> Iterator[None]:
    """Keep other processes from applying the plan meanwhile; RefusedError if one does."""
    if not execute:
        yield
        return
    from bookwarden.pipelines.scan.folder import plan_folder
    from bookwarden.pipelines.scan.lock import alone

    # An absent plan must not get a folder.
    plans.manifest(plan_id)
    with alone(plan_folder(settings, plan_id)):
        yield


def _apply_copies(
    apply: ApplyCopies, plans: PlanFiles, plan_id: str, execute: bool, allowed: tuple[str, ...]
) -> tuple[ApplyResult | None, RefusedError | None]:
    """Apply the plan's offloaded copies, if it has any; a refusal leaves the ledgers applied."""
    if not plans.manifest(plan_id).copy_candidates:
        return None, None
    try:
        return apply.run(plan_id, execute=execute, allow_emptied=allowed), None
    except RefusedError as error:
        return None, error


def _list(invocation: Invocation) -> None:
    from bookwarden.pipelines.scan.folder import scan_ids

    plans = _plans(invocation.settings)
    found, damaged = [], []
    for plan_id in plans.plan_ids():
        try:
            manifest = plans.manifest(plan_id)
            found.append((manifest, plans.progress(manifest)))
        except FormatError as error:
            damaged.append((plan_id, str(error)))
    planned = {manifest.scan_id for manifest, _ in found}
    scans = [scan_id for scan_id in scan_ids(invocation.settings) if scan_id not in planned]
    invocation.write(describe_plans(found, scans, damaged))


def _plans(settings: Settings) -> PlanFiles:
    from bookwarden.pipelines.scan.folder import plans_of

    return plans_of(settings)


def _newest(plans: PlanFiles) -> str:
    ids = plans.plan_ids()
    if not ids:
        raise NotFoundError(f"there is no plan in {plans.folder.location}: `bookwarden orphans scan` makes one")
    return ids[-1]
