"""The process that a benchmark lets follow: `python -m benchmarks.follower SETTINGS_FILE`.

It starts Spark, reports `{"ready": true}`, and takes orders on its standard input: `follow` begins, and reports once
all nodes are known; `wait N` reports once so many ledgers were seen dropped. The end of the input ends it.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from functools import partial

from bookwarden.config import load_settings
from bookwarden.follow.table import FollowedNodes
from bookwarden.pipelines.follow.driver import follow_session
from bookwarden.pipelines.follow.metrics import FollowMetrics
from bookwarden.pipelines.follow.query import FollowRecord, ReferenceChanges
from bookwarden.pipelines.follow.state import KeptState
from bookwarden.pipelines.metadata_source.columns import read_now
from bookwarden.pipelines.streams.supervisor import Pulse
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.following import dropped_ledgers_of

_LOOK_SECONDS = 0.02


def main(settings_file: str) -> None:
    """Carry out orders until the input ends."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    settings = load_settings(settings_file)
    with (
        follow_session(settings) as spark,
        Cluster(settings) as cluster,
    ):
        _report({"ready": True})
        nodes = FollowedNodes(int(settings.follow.grace_seconds * 1000))
        state = KeptState(settings.follow.checkpoint)
        record = FollowRecord(settings, nodes, state)
        dropped = dropped_ledgers_of(cluster, nodes, partial(read_now, cluster.stores), record.keep)
        query = ReferenceChanges(spark, settings, Pulse(), FollowMetrics(), dropped)
        running = None
        for order in sys.stdin:
            started = time.monotonic()
            word, _, number = order.strip().partition(" ")
            if word == "follow":
                state.load(nodes, {url: url for url in settings.metadata_store.urls})
                known = time.monotonic() - started
                running = query.start()
                _wait(lambda: bool(nodes.listed))
                seconds = time.monotonic() - started
                _report({"seconds": seconds, "loaded": known, "nodes": len(nodes)})
            else:
                _wait(lambda wanted=int(number): len(nodes.timers) >= wanted)  # type: ignore[misc]  # bound here
                _report({"seconds": time.monotonic() - started})
        if running is not None:
            running.stop()


def _wait(is_done: Callable[[], bool]) -> None:
    while not is_done():
        time.sleep(_LOOK_SECONDS)


def _report(fields: dict[str, object]) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
