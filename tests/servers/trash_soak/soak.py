"""What the trash has to stand: sweeps at their deletes, kills of brokers and restores, clients at names.

Of each topic every message is counted that was written, and every one that its subscriptions are given; what expired is
gone in the end.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from bookwarden_dev.devcluster.servers.settings import METADATA_STORES, PULSAR_VERSIONS
from servers.blue_green.further_broker import SHARING, further_broker
from servers.marking_brokers import marking
from servers.short_lived import running_until_killed, soaked
from servers.trash_soak import kinds, many
from servers.trash_soak.hammer import hammer
from servers.trash_soak.kills import kill_brokers_and_restores
from servers.trash_soak.kinds import restore_each_kind
from servers.trash_soak.many import restore_many
from servers.trash_soak.operators import operate_at_once
from servers.trash_soak.rows import restore_each_row
from servers.trash_soak.sweeps import sweep_at_restores

_Play = Callable[[DevCluster, Path, int, int, Callable[[str], None]], Counter[str]]


class _Act(NamedTuple):
    play: _Play
    rounds: int
    promise: str
    settings: Mapping[str, str] = {}  #: More lines of broker.conf.


_ACTS: Final = {
    "rows": _Act(
        restore_each_row,
        1,
        "everything that a topic can lose comes back next to a sweep and follow, and what expired is gone",
    ),
    "sweep": _Act(
        sweep_at_restores,
        1000,
        "what a sweep deleted within a restore is off the list and named, all else comes back",
    ),
    "kills": _Act(
        kill_brokers_and_restores, 14, "whatever was killed, the same command brings back all of a deleted topic"
    ),
    "hammer": _Act(hammer, 20, "a topic that clients use all the time comes back under them, whole"),
    "kinds": _Act(
        restore_each_kind,
        3,
        "transactions, delayed messages, acknowledged parts of batches, shadows and replicated topics are as they were",
        kinds.SETTINGS,
    ),
    "many": _Act(
        restore_many, 1000, "a namespace of as many topics comes back, and a topic of 100,000 ledgers", many.SETTINGS
    ),
    "operators": _Act(
        operate_at_once, 100, "of two operators one restores, and what another purged stays if it is named"
    ),
}


def _options(version: str, metadata: str, settings: Mapping[str, str]) -> ClusterOptions:
    """Return the options of a broker that keeps what it drops, and writes each acknowledgement at once."""
    stock = ClusterOptions(pulsar=version, metadata=metadata, session_seconds=20, throughput=settings is many.SETTINGS)
    return marking(
        stock,
        bookwardenMarks="two-phase",
        managedLedgerDefaultMarkDeleteRateLimit="1000",
        managedLedgerCursorPositionFlushSeconds="1",
        **{"managedLedgerCursorMaxEntriesPerLedger": "1000", **settings},
    )


def main() -> int:
    """Play the acts, as `make soak STORM=trash` does; AssertionError if anything is lost, or stays that expired."""
    parser = argparse.ArgumentParser(prog="python -m servers.trash_soak.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, help="of each act; by default as many as each needs")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--version", choices=PULSAR_VERSIONS, help="of all servers; on Oxia the newest unless given")
    parser.add_argument("--metadata", choices=METADATA_STORES, default=METADATA_STORES[0], help="where that is")
    parser.add_argument("--oxia", metavar="PROGRAM", help="of 0.14.2 or newer; the one of tests may stop for good")
    parser.add_argument("--brokers", type=int, choices=(1, 2), default=1, help="that share the topics")
    parser.add_argument("--acts", nargs="+", choices=_ACTS, default=list(_ACTS))
    asked = parser.parse_args()
    version = asked.version or PULSAR_VERSIONS[-1 if asked.metadata == "oxia" else 0]
    # What stores and clients say while their servers are away.
    for name in ("pulsar", "bookwarden", "kazoo"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # It stays if anything fails, with all logs.
    home = Path(tempfile.mkdtemp(prefix="bookwarden-soak-"))
    _say(f"seed {asked.seed}, servers in {home}")
    for act in asked.acts:
        play, rounds, promise, settings = _ACTS[act]
        options = _options(version, asked.metadata, settings)
        if asked.brokers > 1:
            options = replace(options, broker_settings={**options.broker_settings, **SHARING})
        cluster = soaked(home / f"pulsar-{act}", options, asked.oxia)
        with (
            running_until_killed(cluster),
            further_broker(cluster, home / f"broker-{act}") if asked.brokers > 1 else nullcontext(),
        ):
            counts = play(cluster, home / act, asked.rounds or rounds, asked.seed, _say)
        _say(f"{act}: {promise}: {dict(sorted(counts.items()))}")
    shutil.rmtree(home)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
