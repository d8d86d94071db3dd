"""Nodes of a real cluster damaged in every way, and swept and scanned: nothing that lives goes, and every leak does."""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from bookwarden_dev.devcluster.servers.settings import METADATA_STORES
from servers.damage.filling import DELETIONS, DamagedCluster, fill, running_damaged_cluster
from servers.damage.fuzz import Fuzz, settings_of
from servers.damage.scans import DamagedScans
from servers.damage.untidy import UntidyCluster
from servers.local_spark import local_spark

_ACTS = ("fuzz", "scan", "untidy")


def main() -> int:
    """Play the acts, as `make soak STORM=damage` does; 1 if anything that lives is lost, or a leak is left."""
    parser = argparse.ArgumentParser(prog="python -m servers.damage.soak", description=__doc__)
    parser.add_argument("--variants", type=int, default=4000, help="damaged values, each swept twice")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--metadata", choices=METADATA_STORES, default=METADATA_STORES[0])
    parser.add_argument("--acts", nargs="+", choices=_ACTS, default=list(_ACTS))
    asked = parser.parse_args()
    # What is said of damaged nodes, thousands of times.
    for name in ("pulsar", "bookwarden", "kazoo"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # As an interrupt does, SIGTERM ends the servers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # It stays if anything fails, with all logs.
    home = Path(tempfile.mkdtemp(prefix="bookwarden-soak-"))
    _say(f"seed {asked.seed}, servers in {home}")
    try:
        with running_damaged_cluster(home, asked.metadata, _say) as site:
            failed = _play(site, asked.acts, asked.variants, asked.seed)
    except KeyboardInterrupt:
        _say(f"interrupted: the servers are stopped, their files are in {home}")
        return 130
    if failed:
        _say(f"the servers' files are in {home}")
    else:
        shutil.rmtree(home)
    return int(failed)


def _play(site: DamagedCluster, acts: Sequence[str], variants: int, seed: int) -> bool:
    """Fill the cluster and play the acts; return whether one of them failed."""
    begun = time.monotonic()
    site.namespace(DELETIONS)
    settings_of(site, site.home).create_topics()
    truth = fill(site, seed)
    for line in truth.lines():
        _say(line)
    _say(f"filled in {time.monotonic() - begun:.0f} s")
    failed = False
    if "fuzz" in acts:
        fuzz = Fuzz(site, truth, seed)
        try:
            fuzz.run(variants)
        finally:
            _say_all(fuzz.losses.lines())
        failed |= fuzz.losses.failed
        truth = fuzz.truth
    if "scan" in acts:
        with local_spark() as spark:
            scans = DamagedScans(site, spark, truth, seed)
            scans.run()
        _say_all(scans.planned.lines())
        failed |= scans.planned.failed
    if "untidy" in acts:
        untidy = UntidyCluster(site, seed)
        untidy.run()
        _say_all(untidy.leaks.lines())
        failed |= untidy.leaks.failed
    return failed


def _say_all(lines: Iterable[str]) -> None:
    for line in lines:
        _say(line)


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
