"""What `bookwarden follow` has to stand: ordinary life, kills, a namespace that goes, other leaders, another store.

Every ledger that was left behind is marked in the end, and nothing of what lives.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bookwarden_dev.devcluster import DevCluster
from servers.follow.kills import storm
from servers.follow.leaders import change_leaders
from servers.follow.moving import OPTIONS, move
from servers.follow.ordinary import live
from servers.follow.vanishing import vanish
from servers.pool import PLAIN
from servers.short_lived import running_until_killed

_ACTS = {
    "life": "no mark, and no ledger lost",
    "kills": "every drop that was left behind is marked, and nothing else",
    "leaders": "every drop is marked, once",
    "vanish": "each ledger of a namespace that went at once is marked, once",
    "move": "what was dropped before the move, on its way and after it is marked, once",
}
_CLUSTERS = (
    (
        replace(
            PLAIN,
            session_seconds=10,
            broker_settings={**PLAIN.broker_settings, "managedLedgerDefaultMarkDeleteRateLimit": "1000"},
        ),
        frozenset({"life", "kills", "leaders", "vanish"}),
    ),
    (OPTIONS, frozenset({"move"})),
)


def main() -> int:
    """Play the acts, as `make soak STORM=follow` does; AssertionError if a drop is missed, or anything else marked."""
    parser = argparse.ArgumentParser(prog="python -m servers.follow.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of follow; every third comes with one of ZooKeeper")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--minutes", type=float, default=10.0, help="of ordinary life; the kills take half as long")
    parser.add_argument("--topics", type=int, default=100_000, help="of the namespace that goes at once")
    parser.add_argument("--leaders", type=int, default=6, help="so often an Oxia's shards get other leaders")
    parser.add_argument("--acts", nargs="+", choices=_ACTS, default=list(_ACTS))
    asked = parser.parse_args()
    # What stores and clients say while their servers are away.
    for name in ("pulsar", "bookwarden", "kazoo"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # It stays if anything fails, with all logs.
    home = Path(tempfile.mkdtemp(prefix="bookwarden-soak-"))
    _say(f"seed {asked.seed}, servers in {home}")
    for number, (options, acts) in enumerate(_CLUSTERS):
        if acts & set(asked.acts):
            with running_until_killed(DevCluster(home / f"pulsar-{number}", options)) as cluster:
                _play(cluster, home, asked, acts)
    shutil.rmtree(home)
    return 0


def _play(cluster: DevCluster, home: Path, asked: argparse.Namespace, acts: frozenset[str]) -> None:
    plays: dict[str, Callable[[], None]] = {
        "life": lambda: live(cluster, home, asked.seed, asked.minutes * 60, _say),
        "kills": lambda: storm(cluster, home, asked.kills, asked.seed, asked.minutes * 30, _say),
        "leaders": lambda: change_leaders(cluster, home, asked.leaders, _say),
        "vanish": lambda: vanish(cluster, home, asked.topics, _say),
        "move": lambda: move(cluster, home, _say),
    }
    for act, play in plays.items():
        if act in acts and act in asked.acts:
            play()
            _say(f"{act}: {_ACTS[act]}")


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
