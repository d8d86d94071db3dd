"""`bookwarden demo`: a story that is played on real servers on this machine, and its verdict."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from bookwarden.cli.shell.invocation import Invocation, pass_invocation
from bookwarden.cli.shell.output import Document
from bookwarden.errors import BookwardenError
from bookwarden.signals import sigterm_unwinds
from bookwarden_dev.commands.demos.blue_green import describe_move, play_move
from bookwarden_dev.commands.demos.deletion import describe_deletion, play_deletion
from bookwarden_dev.commands.demos.switch import describe_switch, play_switch
from bookwarden_dev.commands.demos.trash import describe_trash, play_trash
from bookwarden_dev.devcluster import ClusterOptions
from bookwarden_dev.devcluster.servers.settings import METADATA_STORES
from bookwarden_dev.devcluster.temporary import temporary_files_in

_FOREIGN = ("BOOKWARDEN_", "AWS_")


class DemoError(BookwardenError):
    """A demo that did not end as it should have."""


@dataclass(frozen=True, slots=True)
class _Story:
    play: Callable[[Path, Callable[[str], None], str], Any]  # In a home, with the metadata in this kind of store.
    describe: Callable[[Any, float], Document]  # What it returned, and the seconds that it took.
    failure: str


_STORIES: Final[dict[str, _Story]] = {
    "deletion": _Story(
        lambda home, say, metadata: play_deletion(home, say, ClusterOptions(metadata=metadata)),
        describe_deletion,
        "not every ledger ended as it should",
    ),
    "switch": _Story(
        lambda home, say, _: play_switch(home, say), describe_switch, "the switch did not end as it should"
    ),
    "blue-green": _Story(lambda home, say, _: play_move(home, say), describe_move, "the move did not end as it should"),
    "trash": _Story(
        lambda home, say, _: play_trash(home, say), describe_trash, "not all came back, or not all expired"
    ),
}


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
    type=click.Choice(list(_STORIES)),
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
    played = _STORIES[story]
    with _home(keep) as home, sigterm_unwinds():
        finale = played.play(home, say, metadata)
    invocation.write(played.describe(finale, time.monotonic() - started))
    if not finale.as_it_should:
        raise DemoError(f"{played.failure}; run again with --keep and look into the logs")


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
