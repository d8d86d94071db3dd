"""The command line's entry: the global options and the list of commands."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from pathlib import Path

import click

from bookwarden.cli.shell.failures import TranslatingGroup
from bookwarden.cli.shell.invocation import Invocation
from bookwarden.cli.shell.late import LateCommand
from bookwarden.cli.shell.placeholders import PlaceholderError, only_helps, placeholders

# In the order of their use. Each imports its command when it is called.
COMMANDS: tuple[LateCommand, ...] = (
    LateCommand("dev", "entry point dev", "Run a small real Pulsar on this machine."),
    LateCommand("config", "bookwarden.cli.config:config", "Check the settings, and show where they come from."),
    LateCommand("init", "bookwarden.cli.init:init", "Create and check the deletion topics."),
    LateCommand("mark", "bookwarden.cli.mark:mark", "Phase one: mark ledgers, then have them removed."),
    LateCommand("sweep", "bookwarden.cli.sweep:sweep", "Phase two: verify the marks, delete the ledgers."),
    LateCommand("orphans", "bookwarden.cli.orphans:orphans", "Find ledgers that nothing refers to, and reclaim them."),
    LateCommand("disk", "bookwarden.cli.disk.commands:disk", "Show who uses the disks of the bookies."),
    LateCommand("follow", "bookwarden.cli.follow:follow", "Mark what brokers dereference and leave behind."),
    LateCommand(
        "broker-marks",
        "bookwarden.cli.broker_marks:broker_marks",
        "See which brokers mark, and turn that off or on.",
    ),
    LateCommand("undo", "bookwarden.cli.undo:undo", "Put back what the sweep deleted."),
    LateCommand("trash", "bookwarden.cli.trash:trash", "Bring deleted topics and trimmed ledgers back."),
    LateCommand("inflight", "bookwarden.cli.inflight:inflight", "Count the pending deletions that wait."),
    LateCommand("no-shadow", "bookwarden.cli.no_shadow:no_shadow", "Take an unreadable node as no shadow topic."),
    LateCommand("dlq", "bookwarden.cli.dlq:dlq", "Look at dead letters, send them back, or drop them."),
    LateCommand("ledger", "bookwarden.cli.ledger:ledger", "Look at single ledgers."),
    LateCommand(
        "metadata-migration",
        "bookwarden.cli.metadata_migration.commands:metadata_migration",
        "Prepare, follow and verify a move of metadata (PIP-454).",
    ),
    LateCommand(
        "bookie-clusters",
        "bookwarden.cli.bookie_clusters.commands:bookie_clusters",
        "Register bookie clusters, and switch between them.",
    ),
    LateCommand(
        "cluster-migration",
        "bookwarden.cli.cluster_migration.commands:cluster_migration",
        "Move clients to another cluster (PIP-188).",
    ),
    LateCommand("serve", "bookwarden.cli.serve:serve", "Serve bookie-clusters by REST, and a web page."),
    LateCommand("docs", "bookwarden.cli.docs:docs", "Show a page of the documents, or where they are."),
    LateCommand("demo", "entry point demo", "Show the main job on a real Pulsar on this machine."),
)

_EPILOG = """\b
Try it on this machine:
  bookwarden dev up                      start a small real Pulsar
  export BOOKWARDEN_CONFIG=~/.local/share/bookwarden/dev/bookwarden.yaml
  bookwarden init                        create the deletion topics
  bookwarden mark topic TOPIC            delete a topic, its ledgers marked first
  bookwarden sweep --once                verify the marks, delete the ledgers

\b
On your own cluster, looking only:
  bookwarden --config bookwarden.yaml config check
  bookwarden --config bookwarden.yaml init --dry-run
  bookwarden --config bookwarden.yaml ledger explain 4711
  bookwarden --config bookwarden.yaml inflight

\b
Documents and settings, which messages name as docs/... and conf/...:
  bookwarden docs                        where they are, and every page
  bookwarden docs cli                    exit codes, output, shell completion
  bookwarden docs conf/bookwarden.yaml   every setting"""


@click.group(cls=TranslatingGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Settings file (YAML). Default: what BOOKWARDEN_CONFIG names.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Override one setting, such as sweep.dry_run=true. May be repeated.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How results are written.")
@click.option("-v", "--verbose", is_flag=True, help="Log what is being done.")
@click.option("--debug", is_flag=True, help="Log everything, and show stack traces.")
@click.version_option(package_name="bookwarden")
@click.pass_context
def cli(
    ctx: click.Context, config: Path | None, assignments: tuple[str, ...], output: str, verbose: bool, debug: bool
) -> None:
    """Delete, account for and move the ledgers of Apache Pulsar, safely.

    Pulsar forgets ledgers: it updates its metadata first and deletes the bytes after, and a crash between the two
    leaves a ledger in BookKeeper that nothing refers to. bookwarden closes the gap in two phases. First a ledger is
    MARKED: a pending deletion is sent to a topic before the ledger leaves the metadata. Then the SWEEP checks each
    mark against the live references and the ledger's own metadata, deletes what is proven dead, retries what is in
    doubt, and hands what it cannot settle to a dead letter queue (DLQ).
    """
    invocation = Invocation(config, _parse(assignments), output, debug, verbose)
    invocation.set_up_logging()
    ctx.obj = invocation


def _parse(assignments: tuple[str, ...]) -> dict[str, str]:
    parsed = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise click.BadParameter(f"{assignment!r} is not NAME=VALUE", param_hint="--set")
        parsed[name.strip()] = value
    return parsed


for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Run the command line; the console script."""
    if only_helps(sys.argv[1:], os.environ):
        with suppress(PlaceholderError), placeholders():
            cli(prog_name="bookwarden")
    try:
        cli(prog_name="bookwarden")
    except SystemExit as ended:
        # The native Pulsar client aborts the process now and then if one of its threads logs, or a thread waits in it,
        # while Python is torn down (pulsar-client-python, issue 256). So all that is registered for the end is done,
        # and nothing is torn down.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1)
