"""Run benchmarks: `python -m benchmarks [NAME...]`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from benchmarks import (
    broker_marks,
    copy,
    delete_oxia,
    delete_zookeeper,
    follow,
    journal,
    latency,
    ledger_read,
    mark,
    missing,
    offload,
    page,
    pending,
    scan,
    scan_snapshot,
    source,
    start,
    sweep,
    switch,
    verify,
)
from benchmarks.options import Options
from benchmarks.results import OUTPUT, say
from bookwarden.errors import BookwardenError

BENCHMARKS: dict[str, Callable[[Options], None]] = {
    "source": source.run,
    "sweep": sweep.run,
    "latency": latency.run,
    "mark": mark.run,
    "missing": missing.run,
    "ledger-read": ledger_read.run,
    "journal": journal.run,
    "offload": offload.run,
    "scan": scan.run,
    "scan-snapshot": scan_snapshot.run,
    "page": page.run,
    "delete-zookeeper": delete_zookeeper.run,
    "delete-oxia": delete_oxia.run,
    "verify": verify.run,
    "switch": switch.run,
    "broker-marks": broker_marks.run,
    "copy": copy.run,
    "follow": follow.run,
    "pending": pending.run,
    "start": start.run,
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--scale", default=1.0, show_default=True, help="Fraction of the work, for a quick look.")
@click.option("--count", type=click.IntRange(min=1), help="Messages, ledgers or marks, instead of the benchmark's own.")
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds, instead of the benchmark's own.")
def main(names: tuple[str, ...], scale: float, count: int | None, rounds: int | None) -> None:
    """Run all benchmarks, or those named, each on servers of its own that are stopped at the end."""
    options = Options(scale, count, rounds)
    try:
        for name in names or BENCHMARKS:
            say(f"== {name}")
            BENCHMARKS[name](options)
    except (KeyboardInterrupt, SystemError) as error:
        # An interrupt within a call of the Pulsar client comes out of it as the cause of a SystemError.
        if not isinstance(error, KeyboardInterrupt) and not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        say("interrupted; everything is stopped")
        sys.exit(130)
    except BookwardenError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
    say(f"figures appended to {OUTPUT}")


main()
