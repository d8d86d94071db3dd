"""What 10,000,000 dropped ledgers that wait for their look cost follow's driver: memory, and time to keep and load.

Each left a node of its own, of a topic or a cursor, which is the most that one can cost. No server takes part, and no
Spark, which has a JVM of its own: the figures are of the Python process alone. No peer does this.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence

from benchmarks.options import Options
from benchmarks.results import Result, publish, say
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.follow.checking import CheckedDrop, DropCheck
from bookwarden.follow.following import DroppedLedgers, FollowTally
from bookwarden.follow.table import FollowedNodes, NodeNow
from bookwarden.ledgers.naming import pack, pack_ids
from bookwarden.metastore.memory import MemoryStore
from bookwarden.pipelines.follow.state import KeptState

COUNT = 10_000_000
ROOT = "zk:zoo1:2181,zoo2:2181,zoo3:2181"
_GRACE_MS = 600_000
_IN_A_BATCH = 20_000


def run(options: Options) -> None:
    """Fill the table, keep it, load it."""
    count = options.count or options.scaled(COUNT)
    with tempfile.TemporaryDirectory(prefix="bookwarden-pending-") as folder:
        say(f"{count:,} drops, each of a node of its own")
        filled = _in_own_process("fill", folder, count)
        say("loading what was kept")
        loaded = _in_own_process("load", folder, count)
    publish(
        "dropped ledgers that wait for their look",
        [
            Result("pending drops, bytes each", "B", filled["bytes"], None, count, "200"),
            Result("driver's Python, all at once", "MiB", filled["peak"], None, count, "2,048"),
            Result("to note and keep them", "s", filled["seconds"], None, count),
            Result("to keep everything in one file", "s", filled["whole"], None, count),
            Result("driver's Python that loads them", "MiB", loaded["peak"], None, count, "2,048"),
            Result("to load them", "s", loaded["seconds"], None, count),
        ],
    )


def _in_own_process(what: str, folder: str, count: int) -> dict[str, float]:
    line = [sys.executable, "-m", "benchmarks.pending", what, folder, str(count)]
    done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _fill(folder: str, count: int) -> dict[str, float]:
    nodes, state = FollowedNodes(_GRACE_MS), KeptState(folder)
    begun_s = time.time()

    def keep(told: Sequence[CheckedDrop]) -> None:
        state.keep(nodes)

    store = MemoryStore()
    check = DropCheck(nodes, BookKeeperCatalog(store), MetadataReferences([store]), OffloadStores(), None)
    # Its time stands still: nothing is due.
    dropped = DroppedLedgers(nodes, check, lambda *_: [], lambda: begun_s, keep, most_pending=count)
    before, started = _resident(), time.monotonic()
    for at in range(0, count, _IN_A_BATCH):
        dropped.take(_drops(at, min(at + _IN_A_BATCH, count)), FollowTally())
        keep(())
    seconds, each = time.monotonic() - started, (_resident() - before) / count
    if len(nodes.timers) != count:
        raise RuntimeError(f"{len(nodes.timers)} of {count} drops are pending")
    started = time.monotonic()
    state.keep_all(nodes)
    return {"bytes": each, "peak": _peak(), "seconds": seconds, "whole": time.monotonic() - started}


def _drops(begin: int, end: int) -> Iterator[NodeNow]:
    """Yield for each ledger a node that names it, and the same node gone."""
    for number in range(begin, end):
        topic = f"/managed-ledgers/tenant-{number % 97}/events-{number % 13}/persistent/orders-{number // 2 * 7919:x}"
        path, kind = (f"{topic}/billing-{number * 31:x}", "cursor") if number % 2 else (topic, "topic")
        yield NodeNow(ROOT, path, pack(kind, pack_ids([2**31 + number])), number)
        yield NodeNow(ROOT, path, None, number)


def _load(folder: str, count: int) -> dict[str, float]:
    nodes, started = FollowedNodes(_GRACE_MS), time.monotonic()
    KeptState(folder).load(nodes, {ROOT: ROOT})
    if len(nodes.timers) != count:
        raise RuntimeError(f"{len(nodes.timers)} of {count} drops were loaded")
    return {"peak": _peak(), "seconds": time.monotonic() - started}


def _resident() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: Iterable[str]) -> None:
    """Do one part, and print its figures as JSON."""
    what, folder, count = arguments
    print(json.dumps((_fill if what == "fill" else _load)(folder, int(count))))


if __name__ == "__main__":
    main(sys.argv[1:])
