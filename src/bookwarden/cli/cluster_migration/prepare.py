"""`bookwarden cluster-migration preflight` and `prepare`: what would lose messages or stall, and green made ready."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import click

from bookwarden.cli.cluster_migration.options import accept_option, namespaces_argument
from bookwarden.cli.shell.invocation import Invocation, pass_invocation, show_option
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table, counted, findings_table, table_of
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.cluster_migration.preparing.operation import Preparation, PreparationResult
from bookwarden.cluster_migration.preparing.plan import PreparationPlan, PreparationStep, Side
from bookwarden.cluster_migration.readiness.checks import evaluate
from bookwarden.cluster_migration.readiness.findings import CheckResult, Override, Severity, blocking
from bookwarden.cluster_migration.sides.observing import still_moving
from bookwarden.cluster_migration.sides.policies import AUTO_CREATION
from bookwarden.cluster_migration.sides.values import NamespaceInfo, Observations
from bookwarden.errors import RefusedError
from bookwarden.exit_codes import FAILED, NOT_DONE, WOULD_FAIL
from bookwarden.findings import Verdict
from bookwarden.records import record_fields
from bookwarden.wiring.cluster_migration import ClusterMigration

_KEPT: Final = (
    "its namespace is flagged: a late client with blue's URL would make a second topic on green; once no application "
    "has blue's URL, delete the namespace on blue, or `cluster-migration abort` and run this again"
)

#: Checks whose remedies are in broker.conf, or in our own settings: no step can be taken for them.
BY_HAND: Final = frozenset(
    {
        "broker versions",
        "check interval",
        "cluster names",
        "green's addresses",
        "flags",
        "replication between both",
        "client versions",
        "load balancer",
    }
)

_EPILOG = """\b
Examples:
  bookwarden cluster-migration prepare shop/orders              show what would be done
  bookwarden cluster-migration prepare shop/orders --execute
  bookwarden cluster-migration prepare shop/orders --verify     is anything missing still?
  bookwarden cluster-migration prepare shop/orders --take-back  afterwards: the policies from before

\b
Exit codes: 0 planned, or nothing is missing; 1 with --execute something could not be done;
22 with --verify something is missing."""


@click.command(epilog=_EPILOG)
@namespaces_argument
@click.option("--execute", is_flag=True, help="Do it; without this it is only planned.")
@click.option("--verify", is_flag=True, help="Say by the exit code whether anything is missing.")
@click.option("--take-back", is_flag=True, help="Give policies that keep topics their values from before, at once.")
@click.option("--dry-run", is_flag=True, help="With --take-back: only list them.")
@yes_option
@show_option("Maximum number of steps to list.")
@pass_invocation
def prepare(
    invocation: Invocation,
    namespaces: list[str],
    execute: bool,
    verify: bool,
    take_back: bool,
    dry_run: bool,
    yes: bool,
    show: int,
) -> None:
    """Make green ready, and keep blue from deleting.

    On green: tenants, namespaces with their policies, topics with their partitions, schemas in the order of their
    versions, policies of topics, rights, and each durable subscription from the first message on. On both, inactive
    topics are not deleted any more; on blue none is created by asking for it. What green has otherwise is left as it
    is. Each change is noted before, with the value until then; it may be killed at any moment, and run again.
    """
    if sum((execute, verify, take_back)) > 1:
        raise click.UsageError("--execute, --verify and --take-back exclude each other")
    if dry_run and not take_back:
        raise click.UsageError("--dry-run is for --take-back: without --execute nothing is changed")
    with ClusterMigration(invocation.settings) as migration:
        if take_back:
            code = _take_back(invocation, migration, namespaces, dry_run=dry_run, yes=yes, show=show)
        else:
            scope = namespaces or migration.preflight.namespaces()
            code = _prepare(invocation, migration, scope, execute=execute, verify=verify, yes=yes, show=show)
    click.get_current_context().exit(code)


def _prepare(
    invocation: Invocation,
    migration: ClusterMigration,
    scope: Sequence[str],
    *,
    execute: bool,
    verify: bool,
    yes: bool,
    show: int,
) -> int:
    seen = migration.preflight.observe(scope, lambda name: invocation.say(f"reading {name}"))
    preparation = Preparation(migration.preflight, scope, migration.journal)
    wanted = preparation.plan_from(seen)
    by_hand = [one for one in evaluate(seen) if one.check in BY_HAND and one.blocks]
    if not execute:
        invocation.write(_describe_plan(wanted, by_hand, show))
        return NOT_DONE if verify and (wanted.steps or wanted.manual) else 0
    if wanted.steps:
        confirm(f"Carry out {counted(len(wanted.steps), 'step')} on blue and green?", yes=yes, look="no --execute")
    with migration.alone(scope):
        done = preparation.execute(wanted, lambda step: invocation.say(str(step)))
    invocation.write(_describe_done(done, by_hand, show))
    return 0 if done.is_complete else FAILED


def _take_back(
    invocation: Invocation, migration: ClusterMigration, scope: Sequence[str], *, dry_run: bool, yes: bool, show: int
) -> int:
    preparation = Preparation(migration.preflight, scope, migration.journal)
    steps, kept = _part_held(migration, preparation.held(scope))
    if dry_run:
        data = {"would_take_back": [record_fields(one) for one in steps], "kept": [record_fields(one) for one in kept]}
        table = _steps_table(steps, "would be given their values from before", "nothing was changed", show)
        invocation.write(
            Document(data, (table, *_failed_table(PreparationResult((), tuple((step, _KEPT) for step in kept)))))
        )
        return 0
    if steps:
        confirm(f"Give {counted(len(steps), 'policy', 'policies')} their values from before?", yes=yes)
    with migration.alone({step.namespace for step in steps}):
        if _part_held(migration, [*steps, *kept]) != (steps, kept):
            raise RefusedError("a namespace was flagged, or its flag taken off, since the question: run this again")
        done = preparation.take_back(steps, lambda step: invocation.say(f"back: {step}"))
    done = replace(done, failed=(*done.failed, *((step, _KEPT) for step in kept)))
    parts: list[Part] = [_steps_table(done.done, "given their values from before", "nothing was changed", show)]
    parts += _failed_table(done)
    invocation.write(
        Document({"taken_back": [record_fields(one) for one in done.done], **_failed_json(done)}, tuple(parts))
    )
    return 0 if done.is_complete else FAILED


def _part_held(
    migration: ClusterMigration, held: Sequence[PreparationStep]
) -> tuple[list[PreparationStep], list[PreparationStep]]:
    """Part steps by whether they may be taken back now; RefusedError while a namespace of them moves.

    With topic creation on blue a late client of a partitioned topic would be sent on without its partitions, and make
    another topic on green.
    """
    blue = migration.blue
    flagged = {name for name in {step.namespace for step in held} if blue.nodes.is_flagged(name)}
    kept = [step for step in held if step.side is Side.BLUE and step.key == AUTO_CREATION and step.namespace in flagged]
    steps = [step for step in held if step not in kept]
    moving = still_moving(blue.admin, sorted({step.namespace for step in steps}))
    if moving:
        raise RefusedError(
            f"{', '.join(moving)} is on its way, and blue still has topics of it: it would delete those that are "
            "drained, and green those that are not in use yet; `finish` or `abort` first"
        )
    return steps, kept


def _describe_plan(wanted: PreparationPlan, by_hand: Sequence[CheckResult], show: int) -> Document:
    title = f"to be done ({len(wanted.steps)})"
    note = "Nothing was changed; --execute does it." if wanted.steps else "Nothing is missing."
    if wanted.manual:
        note = f"{note} What is left to you keeps green from being complete."
    manual = _left_to_you(wanted, by_hand)
    data = {"steps": [record_fields(one) for one in wanted.steps], "left_to_you": manual}
    steps = _steps_table(wanted.steps, title, "nothing is missing", show)
    return Document(data, (steps, *_manual_part(manual), Note(note)))


def _describe_done(done: PreparationResult, by_hand: Sequence[CheckResult], show: int) -> Document:
    manual, left = _left_to_you(done.left, by_hand), len(done.left.steps)
    data = {
        "done": [record_fields(one) for one in done.done],
        "left": [record_fields(one) for one in done.left.steps],
        **_failed_json(done),
        "left_to_you": manual,
    }
    note = (
        "Nothing is missing any more."
        if done.is_complete
        else f"{counted(left, 'step')} left: see to what failed and what is left to you, then prepare again."
    )
    parts: list[Part] = [_steps_table(done.done, f"done ({len(done.done)})", "nothing was to be done", show)]
    parts += [*_failed_table(done), *_manual_part(manual), Note(note)]
    return Document(data, tuple(parts))


def _steps_table(steps: Sequence[PreparationStep], title: str, empty: str, show: int) -> Table:
    columns = (Column("where"), Column("what"), Column("of"), Column("which", whole=False))
    rows = [(one.side.value, one.action.value, one.target, one.key) for one in steps[:show]]
    if len(steps) > show:
        rows.append(("...", f"{len(steps) - show:,} more: --show", "", ""))
    return Table(columns, tuple(rows), title, empty)


def _failed_table(done: PreparationResult) -> list[Part]:
    rows = tuple((str(step), why) for step, why in done.failed)
    return [Table((Column("failed"), Column("why", whole=False)), rows, "failed")] if rows else []


def _failed_json(done: PreparationResult) -> dict[str, Any]:
    return {"failed": [{**record_fields(step), "why": why} for step, why in done.failed]}


def _manual_part(rows: Sequence[Mapping[str, str]]) -> list[Part]:
    columns = (Column("namespace"), Column("what was seen", whole=False), Column("what to do", whole=False))
    return [Table(columns, tuple(tuple(row.values()) for row in rows), "left to you")] if rows else []


def _left_to_you(wanted: PreparationPlan, by_hand: Sequence[CheckResult]) -> list[dict[str, str]]:
    rows = [(one.namespace, one.seen, one.advice) for one in wanted.manual]
    rows += [(one.namespace, one.seen, one.advice) for one in by_hand]
    return [{"namespace": where, "seen": seen, "advice": advice} for where, seen, advice in rows]


_PREFLIGHT_EPILOG = """\b
Examples:
  bookwarden cluster-migration preflight
  bookwarden cluster-migration preflight shop/orders shop/returns
  bookwarden cluster-migration preflight shop/orders --accept compacted-topics -o json

\b
Exit codes: 0 no check blocks it; 23 one does.
What to do about each line: docs/cluster-migration.md."""


@click.command(epilog=_PREFLIGHT_EPILOG)
@namespaces_argument
@accept_option
@show_option("Maximum number of topics to list whose clients do not follow.")
@pass_invocation
def preflight(invocation: Invocation, namespaces: list[str], accepted: frozenset[Override], show: int) -> None:
    """Check what would lose messages or stall.

    Looks at both clusters: their brokers, flags and settings, the addresses that clients are to be given, and of each
    NAMESPACE (default: all of blue's) its policies, topics, schemas, subscriptions and clients on either side. Changes
    nothing; each topic of the namespaces is loaded.
    """
    with ClusterMigration(invocation.settings) as migration:
        scope = namespaces or migration.preflight.namespaces()
        seen = migration.preflight.observe(scope, lambda name: invocation.say(f"reading {name}"))
    findings = evaluate(seen)
    invocation.write(describe_preflight(seen, findings, accepted, show))
    click.get_current_context().exit(WOULD_FAIL if blocking(findings, accepted) else 0)


def describe_preflight(
    seen: Observations, findings: Sequence[CheckResult], accepted: Collection[Override], show: int = 20
) -> Document:
    """Describe all lines, the namespaces with what each one has, and the clients that do not follow."""
    bad = blocking(findings, accepted)
    warnings = [one for one in findings if one.verdict(accepted) is Verdict.WARNING]
    note = (
        f"{counted(len(bad), 'line')} block{'s' if len(bad) == 1 else ''}, "
        f"{counted(len(warnings), 'warning')}. What to do about each: docs/cluster-migration.md."
        if bad
        else f"No check blocks it; {counted(len(warnings), 'warning')}."
    )
    rows = [_row(seen, name, findings, accepted) for name in seen.scope]
    data = {
        "blue": seen.blue.cluster,
        "green": seen.green.cluster,
        "would_fail": bool(bad),
        "accepted": sorted(one.value for one in accepted),
        "namespaces": rows,
        "findings": [one.as_json(accepted) for one in findings],
    }
    parts: list[Part] = [
        Facts((("blue", seen.blue.cluster), ("green", seen.green.cluster))),
        findings_table(one.as_finding(accepted) for one in findings),
        table_of(rows, _PREFLIGHT_COLUMNS, title="namespaces", empty="blue has none that could be moved"),
        *_clients(findings, show),
        Note(note),
    ]
    return Document(data, tuple(parts))


def _row(
    seen: Observations, name: str, findings: Sequence[CheckResult], accepted: Collection[Override]
) -> dict[str, Any]:
    own = [one for one in findings if one.namespace == name]
    bad = blocking(own, accepted)
    found = seen.blue.namespaces.get(name, NamespaceInfo(name, {}))
    return {
        "namespace": name,
        "ready": not bad,
        "topics": len(found.whole_topics),
        "partitions": len(found.topics),
        "subscriptions": sum(len(one.copied) for one in found.topics.values()),
        "backlog": sum(each.backlog for one in found.topics.values() for each in one.copied),
        "loses": sorted({one.check for one in bad if one.severity is Severity.LOSES}),
        "stands_still": sorted({one.check for one in bad if one.severity is Severity.FAILS}),
        "warnings": sum(one.verdict(accepted) is Verdict.WARNING for one in own),
        "accept": sorted({one.override.value for one in bad if one.override is not None}),
    }


_PREFLIGHT_COLUMNS: Final = {
    Column("namespace"): lambda row: str(row["namespace"]),
    Column("ready"): lambda row: "yes" if row["ready"] else "no",
    Column("topics", right=True): lambda row: f"{row['topics']:,}",
    Column("partitions", right=True): lambda row: f"{row['partitions']:,}",
    Column("subscriptions", right=True): lambda row: f"{row['subscriptions']:,}",
    Column("backlog", right=True): lambda row: f"{row['backlog']:,}",
    Column("would lose by", whole=False): lambda row: ", ".join(row["loses"]),
    Column("would stall by", whole=False): lambda row: ", ".join(row["stands_still"]),
    Column("warnings", right=True): lambda row: str(row["warnings"]),
}


def _clients(findings: Sequence[CheckResult], show: int) -> list[Part]:
    old = [line for one in findings if one.override is Override.OLD_CLIENTS for line in one.evidence]
    if not old:
        return []
    rows = [tuple(line.rpartition(" on ")[::2]) for line in old[:show]]
    title = f"clients that do not follow ({len(old)})"
    return [Table((Column("version"), Column("topic")), tuple((first, last) for first, last in rows), title)]
