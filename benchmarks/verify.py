"""A migrated metadata store verified: persistent nodes a second, a ZooKeeper compared with its copy on Oxia.

There is no peer: Pulsar does not check its copy. Seven nodes of eight are ledgers, the rest topics, empty here, with
two cursors each, which cost a list of each store beside the reads. The copy has Oxia's own versions.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Iterator
from contextlib import closing

from benchmarks.doomed import FIRST_ID, DoomedLedgers
from benchmarks.lone_store import lone_oxia, lone_zookeeper
from benchmarks.options import Options
from benchmarks.results import Result, publish, say
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.metadata_migration.comparison import Comparison
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store

COUNT = 200_000
_LEDGERS_PER_TOPIC = 20
_CURSOR = b"\x08\x01\x10\x02\x18\x03"


def run(options: Options) -> None:
    """Run the benchmark."""
    count, rounds = options.scaled(options.count or COUNT), options.rounds or 3
    with lone_zookeeper() as zookeeper, lone_oxia() as oxia:
        for store in (zookeeper, oxia):
            say(f"creating {count:,} ledgers and {count // _LEDGERS_PER_TOPIC:,} topics in {store.url}")
            store.create(DoomedLedgers(FIRST_ID, count).nodes())
            store.create(_cursors(count // _LEDGERS_PER_TOPIC))
        with closing(open_store(zookeeper.url)) as source, closing(open_store(oxia.url)) as target:
            found = [_round(source, target) for _ in range(rounds + 1)][1:]
    nodes = found[0][0]
    speeds = [compared / seconds for compared, seconds, _ in found]
    note = f"{rounds} rounds, {min(speeds):,.0f} to {max(speeds):,.0f}"
    processor = statistics.median(cpu / compared * 1e6 for compared, _, cpu in found)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    results = [
        Result("verify", "nodes/s", statistics.median(speeds), None, nodes, ">= 20,000", note),
        Result("verify processor", "us/node", processor, None, nodes),
        Result("verify memory", "MiB", memory, None, nodes, note="this process, the making of the nodes included"),
    ]
    publish(f"Verify {nodes:,} nodes of a ZooKeeper and their copy on Oxia", results)


def _round(source: MetadataStore, target: MetadataStore) -> tuple[int, float, float]:
    """Compare once; return nodes, seconds, and seconds of processor time of this process."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    report = Comparison(source, target, passed_over=("/zookeeper",)).run()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    if report.faults:
        raise RuntimeError(f"the copy differs: {report.counts}")
    say(f"compared {report.compared:,} nodes in {seconds:.1f} s")
    return report.compared, seconds, cpu


def _cursors(topics: int) -> Iterator[tuple[str, bytes]]:
    for number in range(topics):
        path = managed_ledger_path(f"public/default/persistent/compared-{number:06d}")
        yield from ((f"{path}/{cursor}", _CURSOR) for cursor in ("one", "two"))
