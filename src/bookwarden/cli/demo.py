"""The demo: the main job from end to end on a real Pulsar, and a table of what became of each ledger."""

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

from bookwarden.cli.dev import settings_of
from bookwarden.cli.invocation import Invocation, pass_invocation
from bookwarden.cli.output import Column, Document, Facts, Note, Table
from bookwarden.config import load_settings
from bookwarden.demo.fates import Ending
from bookwarden.demo.story import Finale, Story
from bookwarden.demo.topics import ENTRIES_PER_LEDGER
from bookwarden.devcluster import ClusterOptions, DevCluster
from bookwarden.devcluster.interruption import sigterm_unwinds
from bookwarden.errors import BookwardenError


class DemoError(BookwardenError):
    """A ledger of the demo did not end as it should have."""


# Waiting times for people who watch; conf/bookwarden.yaml has those for clusters.
_QUICK = {
    "two_phase_deletion_reconsume_later_in_seconds": 3.0,
    "two_phase_deletion_max_retry_delete_count": 2,
    "still_referenced_grace_seconds": 120.0,
    "unlisted_grace_seconds": 1.0,
}
_OPTIONS = ClusterOptions(max_entries_per_ledger=ENTRIES_PER_LEDGER, bookie_settings={"gcWaitTime": "2000"})


@click.command()
@click.option("--keep", is_flag=True, help="Keep the folder with data, logs and outcome table.")
@pass_invocation
def demo(invocation: Invocation, keep: bool) -> None:
    """Show the main job on a real Pulsar on this machine.

    Starts ZooKeeper, bookie and broker, fills topics, trims and deletes, sends a forged mark, one that comes before
    its metadata update and one that cannot be carried out, sweeps, and then looks in ZooKeeper and on the bookie
    what became of each ledger. Ends with 0 only if that is what should have. Everything is stopped at the end.
    """
    started = time.monotonic()

    def say(line: str) -> None:
        invocation.say(f"[{time.monotonic() - started:5.1f} s] {line}")

    with _home(keep) as home, sigterm_unwinds(), DevCluster(home, _OPTIONS, progress=say) as cluster:
        file = _write_settings(cluster)
        finale = Story(cluster, load_settings(file), file, say).play()
        say("stopping everything")
    invocation.write(_describe(finale, time.monotonic() - started))
    if not finale.as_it_should:
        raise DemoError("not every ledger ended as it should; run again with --keep and look into the logs")


@contextmanager
def _home(keep: bool) -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="bookwarden-demo-"))
    try:
        yield home
    finally:
        if keep:
            click.echo(f"kept: {home}", err=True)
        else:
            shutil.rmtree(home, ignore_errors=True)


def _write_settings(cluster: DevCluster) -> Path:
    for variable in [name for name in os.environ if name.startswith("BOOKWARDEN_") and name != "BOOKWARDEN_CACHE"]:
        # The demo's cluster is its own: what was exported for another one must not reach it.
        del os.environ[variable]
    path = cluster.home / "bookwarden.yaml"
    path.write_text(yaml.safe_dump({**settings_of(cluster), "deletion": _QUICK}), encoding="utf-8")
    return path


def _describe(finale: Finale, seconds: float) -> Document:
    columns = (
        Column("ledger", right=True),
        Column("holder", whole=False),
        Column("kind"),
        Column("what happened", whole=False),
        Column("before"),
        Column("outcome", whole=False),
        Column("after"),
        Column("ok"),
    )
    table = Table(columns, tuple(_row(ending) for ending in finale.endings), title="Every ledger of the demo")
    readable = ", ".join(f"{name} {found} of {expected}" for name, (found, expected) in finale.readable.items())
    letters = "; ".join(f"ledger {ledger_id}: {reason}" for ledger_id, reason in finale.dead_letters) or "none"
    facts = Facts(
        (
            ("in flight", f"{finale.in_flight} messages"),
            ("dead letters", letters),
            ("read back", f"{readable} messages"),
        )
    )
    verdict = "Each ledger ended as it should" if finale.as_it_should else "NOT every ledger ended as it should"
    return Document(finale, (table, facts, Note(f"{verdict}; {seconds:.0f} s.")))


def _row(ending: Ending) -> tuple[str, ...]:
    ledger = ending.ledger
    return (
        str(ledger.ledger_id),
        ledger.holder,
        ledger.kind,
        ending.fate.story,
        _where(True, ledger.on_bookie),
        ", ".join(ending.outcomes) or "-",
        _where(ending.in_metadata, ending.on_bookie),
        "yes" if ending.as_it_should else "NO",
    )


def _where(in_metadata: bool, on_bookie: bool) -> str:
    places = [name for name, there in (("ZooKeeper", in_metadata), ("bookie", on_bookie)) if there]
    return " + ".join(places) or "gone"
