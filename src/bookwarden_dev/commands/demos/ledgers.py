"""The demo: the main job from end to end on a real Pulsar, and a table of each ledger's end."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import yaml

from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Column, Document, Facts, Note, Table
from bookwarden.config import load_settings
from bookwarden.errors import BookwardenError
from bookwarden.signals import sigterm_unwinds
from bookwarden_dev.commands.demos.blue_green import describe_move, play_move
from bookwarden_dev.commands.demos.switch import describe_switch, play_switch
from bookwarden_dev.commands.demos.trash import describe_trash, play_trash
from bookwarden_dev.commands.dev import settings_of
from bookwarden_dev.demo.fates import Ending
from bookwarden_dev.demo.finale import Finale
from bookwarden_dev.demo.stage import Stage, running_stage
from bookwarden_dev.demo.story import Story
from bookwarden_dev.devcluster.servers.settings import METADATA_STORES
from bookwarden_dev.devcluster.temporary import temporary_files_in


class DemoError(BookwardenError):
    """A ledger of the demo did not end as it should have."""


# Short waiting times, for people who watch; conf/bookwarden.yaml has those for clusters.
_QUICK = {
    "two_phase_deletion_reconsume_later_in_seconds": 3.0,
    "two_phase_deletion_max_retry_delete_count": 2,
    # Longer than a slow start of Spark: the early mark must have some of it left.
    "still_referenced_grace_seconds": 3600.0,
    "unlisted_grace_seconds": 1.0,
}
_FOREIGN = ("BOOKWARDEN_", "AWS_")


@click.command()
@click.option("--keep", is_flag=True, help="Keep the folder with data, logs and outcome table.")
@click.option(
    "--metadata",
    type=click.Choice(METADATA_STORES),
    default=METADATA_STORES[0],
    show_default=True,
    help="Where broker and bookie keep their metadata; the switch needs zookeeper.",
)
@click.option(
    "--story",
    type=click.Choice(["deletion", "switch", "blue-green", "trash"]),
    default="deletion",
    show_default=True,
    help="The deletion of ledgers, the live switch to another bookie cluster, the move to another Pulsar cluster, "
    "or topics that come back from the trash.",
)
@pass_invocation
def demo(invocation: Invocation, keep: bool, metadata: str, story: str) -> None:
    """Show the main job on a real Pulsar on this machine.

    Starts ZooKeeper or Oxia, bookie, broker and an object store, fills topics, offloads, trims and deletes, sends a
    forged mark, one that comes before its metadata update and one that cannot be carried out, kills the broker between
    its metadata update and its deletes (on ZooKeeper), once with its own marks and once followed, sweeps, undoes a
    deletion, and then looks in the metadata store, on the bookie and in the bucket what became of each ledger. Ends
    with 0 only if that is what should have. Everything is stopped at the end.

    With --story switch, two brokers with bookwarden's jar are switched from one bookie cluster to another and back
    while producers and consumers run, and each message is counted. With --story blue-green the clients of one Pulsar
    cluster are moved to another one, and each message is counted. With --story trash, topics are deleted under their
    consumers and restored from the trash, each message and each position is counted, and another topic expires.
    """
    if story != "deletion" and metadata != METADATA_STORES[0]:
        raise click.UsageError(f"--story {story} runs on zookeeper alone")
    started = time.monotonic()

    def say(line: str) -> None:
        invocation.say(f"[{time.monotonic() - started:5.1f} s] {line}")

    _forget_environment()
    if story == "switch":
        with _home(keep) as home, sigterm_unwinds():
            switched = play_switch(home, say)
        invocation.write(describe_switch(switched, time.monotonic() - started))
        if not switched.as_it_should:
            raise DemoError("the switch did not end as it should; run again with --keep and look into the logs")
        return
    if story == "blue-green":
        with _home(keep) as home, sigterm_unwinds():
            moved = play_move(home, say)
        invocation.write(describe_move(moved, time.monotonic() - started))
        if not moved.as_it_should:
            raise DemoError("the move did not end as it should; run again with --keep and look into the logs")
        return
    if story == "trash":
        with _home(keep) as home, sigterm_unwinds():
            restored = play_trash(home, say)
        invocation.write(describe_trash(restored, time.monotonic() - started))
        if not restored.as_it_should:
            raise DemoError("not all came back, or not all expired; run again with --keep and look into the logs")
        return
    with _home(keep) as home, sigterm_unwinds(), running_stage(home, say, metadata) as stage:
        file = _write_settings(stage)
        finale = Story(stage, load_settings(file), file, say).play()
        say("stopping everything")
    invocation.write(describe(finale, time.monotonic() - started))
    if not finale.as_it_should:
        raise DemoError("not every ledger ended as it should; run again with --keep and look into the logs")


@contextmanager
def _home(keep: bool) -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="bookwarden-demo-"))
    try:
        with temporary_files_in(home / "tmp"):
            yield home
    finally:
        if keep:
            click.echo(f"kept: {home}", err=True)
        else:
            shutil.rmtree(home, ignore_errors=True)


def _forget_environment() -> None:
    """Remove variables that were exported for other clusters and stores, before the demo's own start."""
    for variable in [name for name in os.environ if name.startswith(_FOREIGN) and name != "BOOKWARDEN_CACHE"]:
        del os.environ[variable]
    # boto3 would go through a proxy even to this machine.
    os.environ["no_proxy"] = "127.0.0.1"


def _write_settings(stage: Stage) -> Path:
    path = stage.cluster.home / "bookwarden.yaml"
    home = stage.cluster.home
    follow = {"checkpoint": str(home / "follow"), "outcomes": str(home / "follow-outcomes"), "grace_seconds": 3.0}
    settings = {**settings_of(stage.cluster), "offload": stage.offload_settings, "deletion": _QUICK, "follow": follow}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def describe(finale: Finale, seconds: float) -> Document:
    """Make the table of every ledger, the other findings, and the verdict."""
    columns = (
        Column("ledger", right=True),
        Column("holder", whole=False),
        Column("kind"),
        Column("what happened", whole=False),
        Column("before", whole=False),
        Column("outcome", whole=False),
        Column("after", whole=False),
        Column("ok"),
    )
    rows = tuple(_row(ending, finale.store) for ending in finale.endings)
    table = Table(columns, rows, title="Every ledger of the demo")
    readable = ", ".join(f"{name} {found} of {expected}" for name, (found, expected) in finale.readable.items())
    letters = "; ".join(f"ledger {ledger_id}: {reason}" for ledger_id, reason in finale.dead_letters) or "none"
    facts = Facts(
        (
            ("in flight", f"{finale.in_flight} messages"),
            ("dead letters", letters),
            ("undone", _restored(finale)),
            ("read back", f"{readable} messages"),
        )
    )
    verdict = "Each ledger ended as it should" if finale.as_it_should else "NOT every ledger ended as it should"
    return Document(finale, (table, facts, Note(f"{verdict}; {seconds:.0f} s.")))


def _restored(finale: Finale) -> str:
    return "; ".join(
        f"ledger {ledger_id}: {found} of {expected} entries read from the bookie"
        for ledger_id, (found, expected) in finale.restored.items()
    )


def _row(ending: Ending, store: str) -> tuple[str, ...]:
    ledger = ending.ledger
    return (
        str(ledger.ledger_id),
        ledger.holder,
        ledger.kind,
        ending.fate.story,
        _where(store, True, ledger.on_bookie, ledger.in_bucket),
        ", ".join(_outcomes(ending)) or "-",
        _where(store, ending.in_metadata, ending.on_bookie, ending.in_bucket),
        "yes" if ending.as_it_should else "NO",
    )


def _outcomes(ending: Ending) -> list[str]:
    undone = [ending.undone] if ending.undone else []
    return [*ending.outcomes, *(f"copy {outcome}" for outcome in ending.copy_outcomes), *undone]


def _where(store: str, in_metadata: bool, on_bookie: bool, in_bucket: bool) -> str:
    found = ((store, in_metadata), ("bookie", on_bookie), ("bucket", in_bucket))
    return " + ".join(name for name, there in found if there) or "gone"
