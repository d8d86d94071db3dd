"""`bookwarden cluster-migration preflight`: what would lose messages or stand still, found before anything is begun."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import click

from bookwarden.blue_green.readiness.findings import Judged, Override, Severity, blocking
from bookwarden.blue_green.readiness.judging import judge
from bookwarden.blue_green.sides.values import NamespaceSeen, Observations
from bookwarden.cli.cluster_migration.scope import accept_option, chosen_namespaces_argument
from bookwarden.cli.shell.findings import findings_table
from bookwarden.cli.shell.invocation import Invocation, output_option, pass_invocation, show_option
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Part, Table, counted, table_of
from bookwarden.findings import Verdict
from bookwarden.wiring.blue_green_readiness import ReadinessContext

#: The exit code of every command that is refused by the pre-flight.
NOT_READY: Final = 23

_EPILOG = """\b
Examples:
  bookwarden cluster-migration preflight
  bookwarden cluster-migration preflight shop/orders shop/returns
  bookwarden cluster-migration preflight shop/orders --accept compacted-topics -o json

\b
Exit codes: 0 no check blocks it; 23 one does.
What to do about each line: docs/cluster-migration.md."""


@click.command(epilog=_EPILOG)
@chosen_namespaces_argument
@accept_option
@show_option("Maximum number of topics to list whose clients do not follow.")
@output_option
@pass_invocation
def preflight(invocation: Invocation, namespaces: list[str], accepted: frozenset[Override], show: int) -> None:
    """Check what would lose messages or stand still.

    Looks at both clusters: their brokers, flags and settings, the addresses that clients are to be given, and of each
    NAMESPACE (default: all of blue's) its policies, topics, schemas, subscriptions and clients on either side. Changes
    nothing; each topic of the namespaces is loaded.
    """
    with ReadinessContext(invocation.settings) as context:
        scope = namespaces or context.namespaces()
        seen = context.observe(scope, lambda name: invocation.say(f"reading {name}"))
    findings = judge(seen)
    invocation.write(describe_preflight(seen, findings, accepted, show))
    click.get_current_context().exit(NOT_READY if blocking(findings, accepted) else 0)


def describe_preflight(
    seen: Observations, findings: Sequence[Judged], accepted: Collection[Override], show: int = 20
) -> Document:
    """Describe all lines, the namespaces with what each one has, and the clients that do not follow."""
    bad = blocking(findings, accepted)
    warnings = [one for one in findings if one.verdict(accepted) is Verdict.WARNING]
    note = (
        f"{counted(len(bad), 'line')} stand{'s' if len(bad) == 1 else ''} in the way, "
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
        table_of(rows, _COLUMNS, title="namespaces", empty="blue has none that could be moved"),
        *_clients(findings, show),
        Note(note),
    ]
    return Document(data, tuple(parts))


def _row(seen: Observations, name: str, findings: Sequence[Judged], accepted: Collection[Override]) -> dict[str, Any]:
    own = [one for one in findings if one.namespace == name]
    bad = blocking(own, accepted)
    found = seen.blue.namespaces.get(name, NamespaceSeen(name, {}))
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


_COLUMNS: Final = {
    Column("namespace"): lambda row: str(row["namespace"]),
    Column("ready"): lambda row: "yes" if row["ready"] else "no",
    Column("topics", right=True): lambda row: f"{row['topics']:,}",
    Column("partitions", right=True): lambda row: f"{row['partitions']:,}",
    Column("subscriptions", right=True): lambda row: f"{row['subscriptions']:,}",
    Column("backlog", right=True): lambda row: f"{row['backlog']:,}",
    Column("would lose by", whole=False): lambda row: ", ".join(row["loses"]),
    Column("would stand still by", whole=False): lambda row: ", ".join(row["stands_still"]),
    Column("warnings", right=True): lambda row: str(row["warnings"]),
}


def _clients(findings: Sequence[Judged], show: int) -> list[Part]:
    told = [line for one in findings if one.override is Override.OLD_CLIENTS for line in one.evidence]
    if not told:
        return []
    rows = [tuple(line.rpartition(" on ")[::2]) for line in told[:show]]
    title = f"clients that do not follow ({len(told)})"
    return [Table((Column("version"), Column("topic")), tuple((first, last) for first, last in rows), title)]
