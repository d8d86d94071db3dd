"""`bookwarden bookie-clusters promote`: topics are unloaded, so that brokers read copies in the active cluster."""

from __future__ import annotations

import click

from bookwarden.bookie_clusters.documents import promoted_data
from bookwarden.bookie_clusters.inventory import UnloadResult
from bookwarden.bookie_clusters.moving.promotion import ATTRIBUTION_KEY, PromotionPass, PromotionPlan
from bookwarden.cli.bookie_clusters.unload import per_second_option
from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Note, Part, Table, counted
from bookwarden.cli.shell.questions import confirm, yes_option
from bookwarden.errors import PulsarError
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.moving import MoveOperations

_EPILOG = """\b
What it changes, and what it cannot promote: docs/moving-ledgers.md, "Promote"."""


@click.command("promote", epilog=_EPILOG)
@per_second_option()
@click.option("--stamp", is_flag=True, help="Also write PIP-477's key to the subscriptions of loaded topics.")
@click.option("--dry-run", is_flag=True, help="Only count what would be promoted.")
@yes_option
@pass_invocation
def promote(invocation: Invocation, per_second: float, stamp: bool, dry_run: bool, yes: bool) -> None:
    """Have brokers read copies in the active cluster.

    What they open from now on they read there at once. For what they have open, topics are unloaded that are loaded and
    have a ledger that the active cluster has, whole, and another one too: their clients reconnect. Cleanup takes what
    is promoted. Interrupted, it has promoted nothing; run it again.
    """
    with Cluster(invocation.settings) as cluster:
        operations = MoveOperations(cluster)

        def ask(plan: PromotionPlan) -> None:
            if plan.topics or stamp:
                confirm(_question(plan, stamp=stamp), yes=yes)

        result = operations.promoter.promote(
            per_second,
            stamping=operations.stamper if stamp else None,
            dry_run=dry_run,
            confirm=ask,
            tell=lambda one: _tell(invocation, one),
        )
        plan, done, stamped, _ = result
        notes = [_would_be(plan) if dry_run else _nothing(plan) if done is None else _was(plan, done)]
        if stamped is not None:
            notes.append(f"Stamped: {counted(stamped.written, 'subscription')}; {stamped.right:,} were before.")
        invocation.write(Document(promoted_data(result), (*_tables(plan), *map(Note, notes))))
        if result.failures:
            raise PulsarError(f"{counted(len(result.failures), 'failure')}, such as: {result.failures[0]}")


def _question(plan: PromotionPlan, *, stamp: bool) -> str:
    unload = f"Unload {_topics(plan)}, for {counted(plan.ledgers.total(), 'ledger')}? Clients reconnect."
    write = f"Write {ATTRIBUTION_KEY} to the properties of all subscriptions of loaded topics?"
    return " ".join([*([unload] if plan.topics else []), *([write] if stamp else [])])


def _would_be(plan: PromotionPlan) -> str:
    total = plan.ledgers.total()
    return f"{counted(total, 'ledger')} would be promoted, and {_topics(plan)} unloaded." if total else _nothing(plan)


def _was(plan: PromotionPlan, done: PromotionPass) -> str:
    if done.failed:
        return f"Promoted, but for what {counted(len(done.failed), 'topic')} not unloaded may read: run it again."
    unloaded = counted(len(done.unloaded), "topic")
    return f"Promoted: {counted(plan.ledgers.total(), 'ledger')}, by unloading {unloaded}."


def _topics(plan: PromotionPlan) -> str:
    return counted(len(plan.topics), "loaded topic")


def _nothing(plan: PromotionPlan) -> str:
    return f"Nothing to do: {counted(plan.promoted, 'ledger')} promoted before."


def _tell(invocation: Invocation, one: UnloadResult) -> None:
    invocation.say(f"{one.topic}: {one.error or 'unloaded'}")


def _tables(plan: PromotionPlan) -> tuple[Part, ...]:
    columns = Column("former cluster"), Column("ledgers of"), Column("to be promoted", right=True)
    rows = tuple((*key, f"{plan.ledgers[key]:,}") for key in sorted(plan.ledgers))
    stays = tuple((one.cluster, f"{plan.stays[one]:,}", one.reason) for one in sorted(plan.stays))
    return (
        Table(columns, rows, empty=f"No ledger that {plan.active.name} has whole is to be promoted."),
        Table((Column("former cluster"), Column("not", right=True), Column("because", whole=False)), stays),
    )
