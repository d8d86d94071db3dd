"""The command that follows what brokers drop."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import click

from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Document, Note, counted
from bookwarden.config import Settings
from bookwarden.errors import BookwardenError
from bookwarden.preflight import (
    STARTING_SPARK,
    require_folder,
    require_marking,
    require_spark,
    require_stores,
    unless_away,
)
from bookwarden.wiring.cluster import Cluster

if TYPE_CHECKING:
    from bookwarden.pipelines.follow.driver import FollowEnd

_EPILOG = """\b
Examples:
  bookwarden follow --once --dry-run    what was dropped since the last run and is still there
  bookwarden follow --once              compare with the last run, mark what is due, end
  bookwarden follow                     go on until SIGTERM"""


@click.command(epilog=_EPILOG)
@click.option("--once", is_flag=True, help="Compare with what was known, look at what is due, and end.")
@click.option("--dry-run", is_flag=True, help="Mark nothing, and keep nothing.")
@pass_invocation
def follow(invocation: Invocation, once: bool, dry_run: bool) -> None:
    """Mark what brokers dereference and leave behind.

    Starts Spark in this process, but with --once, which reads the nodes by itself; streaming/reference_changes.py is
    the same job for spark-submit. SIGTERM finishes the running batch and ends it.
    """
    settings = invocation.settings
    if dry_run:
        settings = settings.model_copy(update={"follow": settings.follow.model_copy(update={"dry_run": True})})
    require_spark(java=not once)
    # It may wait for a broker.
    invocation.set_up_logging(logging.WARNING)
    with Cluster(settings) as cluster:
        if not settings.follow.dry_run:
            require_folder("follow.checkpoint", settings.follow.checkpoint)
            unless_away(partial(require_marking, cluster), waits=not once)
        if once:
            # The stream itself waits for a store that is away.
            require_stores(cluster)
    # From here on it may run for months: each batch is logged.
    invocation.set_up_logging(logging.INFO)
    if not once:
        invocation.say(STARTING_SPARK)
    end = _follow(settings, once)
    looked = ", ".join(f"{number:,} {outcome}" for outcome, number in sorted(end.counts.items())) or "nothing was due"
    text = f"{counted(end.nodes, 'node')} followed; of what was dropped: {looked}; {end.pending:,} to be looked at."
    data = {"through": end.through, "nodes": end.nodes, "pending": end.pending, "counts": dict(end.counts)}
    invocation.write(Document(data, (Note(text),)))
    if once and not end.through:
        raise BookwardenError("stopped before all nodes were compared: start it again")


def _follow(settings: Settings, once: bool) -> FollowEnd:
    from bookwarden.pipelines.follow.driver import follow_session, run_follow

    if once:
        return run_follow(None, settings, once=True)
    with follow_session(settings) as spark:
        return run_follow(spark, settings)
