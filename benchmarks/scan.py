"""The orphan scan of a ZooKeeper: ledgers a second from its first read to its plan, and of the listing alone.

Peer: BookKeeper's own Java client, warm, in a process of its own, on the same ZooKeeper: LedgerManager.getLedgerRanges
and readLedgerMetadata, 256 in flight. It is run with BookKeeper's driver for ZooKeeper, as the shell and the bookies
of most clusters have it, and with Pulsar's, which gathers reads into batches of its own; the second only up to
300,000 ledgers, because it takes minutes to warm up over more. The peer lists; a whole scan also reads
what names the ledgers, lists both again, compares, and writes the plan. Both are warm.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.cluster import Site, running_site
from benchmarks.java_peer import JavaPeer, java_peer
from benchmarks.options import Options
from benchmarks.population import create_nodes, managed_ledger_of, metadata_of, zookeeper_of
from benchmarks.processes import ScanProcess, Usage, measured, scan_process, told_stages
from benchmarks.results import Result, compared, publish, say
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.listing import LedgerListing, ListingPiece
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.metastore.urls import open_store
from bookwarden.pipelines.columns.ledgers import ledger_table
from bookwarden.pipelines.workers import collect_seldom

COUNT = 100_000
LEDGERS_PER_TOPIC = 50
# A topic names all but the oldest tenth of its ledgers, as after trims: what is younger than a listed one was lost.
_ORPHANS_AMONG = 10
_ROOT = "/ledgers"
# Far above the ids that the cluster itself gives out.
_FIRST_ID = 100_000_000
_READS_IN_FLIGHT = 256
_WARM_UP_LEDGERS = 300_000
_MIB = 1 << 20
# The site's bookie makes none, and BookKeeper's driver for ZooKeeper asks for it.
_LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"


class _Scan(NamedTuple):
    ledgers: int
    cpu_seconds: float
    memory_bytes: int


def run(options: Options) -> None:
    """Run the benchmark."""
    count, rounds = options.scaled(options.count or COUNT), options.rounds or 3
    with running_site() as site, ExitStack() as stack:
        say(f"creating {count:,} ledgers of {max(count // LEDGERS_PER_TOPIC, 1):,} topics")
        _create_ledgers(site, count)
        address = site.cluster.store_url.removeprefix("zk:")
        uris = [f"zk+hierarchical://{address}{_ROOT}"]
        if count <= _WARM_UP_LEDGERS:
            uris.append(f"metadata-store:{site.cluster.store_url}")
        peers = [stack.enter_context(java_peer("ScanPeer.java", [uri, str(_READS_IN_FLIGHT)])) for uri in uris]
        with _listers(site) as listers, scan_process(_settings_file(site)) as scanner:
            say("warming up")
            for _ in range(max(1, _WARM_UP_LEDGERS // count)):
                for peer in peers:
                    _scan_in_java(peer, count)
            _scan(site, listers, count)
            say(f"a whole scan, to warm up: {_whole_scan(scanner, count)[1]}")
            ours: list[float] = []
            whole: list[float] = []
            scanning: list[Usage] = []
            scans: list[_Scan] = []
            java: list[list[float]] = [[] for _ in peers]
            usages: list[list[Usage]] = [[] for _ in peers]
            for number in range(1, rounds + 1):
                for peer, found, usage in zip(peers, java, usages, strict=True):
                    with measured(peer.pid, usage):
                        found.append(_scan_in_java(peer, count))
                started = time.monotonic()
                scans.append(_scan(site, listers, count))
                ours.append(scans[-1].ledgers / (time.monotonic() - started))
                with measured(scanner.pid, scanning):
                    speed, told = _whole_scan(scanner, count)
                whole.append(speed)
                by_pulsar = f", with Pulsar's driver {java[1][-1]:,.0f}" if len(java) > 1 else ""
                say(
                    f"round {number} of {rounds}: Java {java[0][-1]:,.0f}{by_pulsar}, "
                    f"our listing {ours[-1]:,.0f} ledgers/s; {told}"
                )
    cpu = min(scan.cpu_seconds / scan.ledgers for scan in scans) * 1e6
    java_cpu = [min(usage.cpu_seconds for usage in found) / count * 1e6 for found in usages]
    memory = max(scan.memory_bytes for scan in scans) / _MIB
    held = {kind: max(usage.memory.get(kind, 0) for usage in scanning) / _MIB for kind in ("driver", "JVM", "workers")}
    publish(
        f"The orphan scan of {count:,} ledgers",
        [
            compared("scan", "ledgers/s", whole, java[0], count, "ratio >= 4"),
            *(
                Result(f"scan memory, {kind}", "MiB", most, None, count, "< 2,048", "the workers together")
                for kind, most in held.items()
            ),
            compared("scan listing", "ledgers/s", ours, java[0], count),
            Result("scan processor", "us/ledger", cpu, java_cpu[0], count, "", "without ZooKeeper's; best rounds"),
            *(compared("scan listing, Pulsar's driver", "ledgers/s", ours, found, count) for found in java[1:]),
            *(Result("scan processor, Pulsar's driver", "us/ledger", cpu, its, count) for its in java_cpu[1:]),
            Result("scan listing memory", "MiB", memory, None, count, "< 2,048", "the largest process"),
        ],
    )


def _create_ledgers(site: Site, count: int) -> None:
    topics = max(count // LEDGERS_PER_TOPIC, 1)
    names = [f"public/default/persistent/scanned-{number:06d}" for number in range(topics)]
    values = [metadata_of(ManagedLedgerHolder(name)) for name in names]
    ids = range(_FIRST_ID, _FIRST_ID + count)
    named: dict[str, list[int]] = {name: [] for name in names}
    for ledger_id in ids[count // _ORPHANS_AMONG :]:
        named[names[ledger_id % topics]].append(ledger_id)
    with zookeeper_of(site) as client:
        if client.exists(f"{_ROOT}/LAYOUT") is None:
            client.create(f"{_ROOT}/LAYOUT", _LAYOUT)
        create_nodes(client, [(ledger_path(_ROOT, ledger_id), values[ledger_id % topics]) for ledger_id in ids])
        create_nodes(client, [(managed_ledger_path(name), managed_ledger_of(its)) for name, its in named.items()])


def _settings_file(site: Site) -> Path:
    """Write the settings of the scan: ledgers of a minute ago are old enough."""
    path = site.settings_file.with_name("scan.yaml")
    settings = yaml.safe_load(site.settings_file.read_text(encoding="utf-8"))
    folder = str(site.settings_file.with_name("orphans"))
    settings["orphans"] = {"folder": folder, "min_age_days": 0.0, "longest_compaction_hours": 0.0}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def _whole_scan(scanner: ScanProcess, count: int) -> tuple[float, str]:
    """Scan; return the ledgers a second, and what to tell of it."""
    found = scanner.scan()
    _check(found["ledgers"], count)
    _check(found["orphans"], count // _ORPHANS_AMONG)
    speed = found["ledgers"] / found["seconds"]
    return speed, f"whole scan {speed:,.0f} ledgers/s; {told_stages(found['stages'])}"


def _scan_in_java(peer: JavaPeer, count: int) -> float:
    """Let the peer scan; return the ledgers a second."""
    seconds, read, failed = peer.ask("scan").split()
    _check(int(read), count)
    if int(failed):
        raise RuntimeError(f"the Java client could not read {failed} ledgers")
    return int(read) / float(seconds)


def _check(found: int, count: int) -> None:
    # The cluster has a few of its own.
    if not count <= found <= count + 1000:
        raise RuntimeError(f"{found} ledgers were listed, not {count} and a few")


@contextmanager
def _listers(site: Site) -> Iterator[ProcessPoolExecutor]:
    """As many listing processes as there are processors, each with a session of its own."""
    processes = os.cpu_count() or 1
    with ProcessPoolExecutor(processes, get_context("spawn"), _open_listing, (site.cluster.store_url,)) as pool:
        yield pool


def _scan(site: Site, listers: ProcessPoolExecutor, count: int) -> _Scan:
    store = open_store(site.cluster.store_url)
    try:
        pieces = LedgerListing(store, _ROOT).pieces()
    finally:
        store.close()
    found = list(listers.map(_read, pieces))
    _check(sum(scan.ledgers for scan in found), count)
    return _Scan(
        sum(scan.ledgers for scan in found),
        sum(scan.cpu_seconds for scan in found),
        max(scan.memory_bytes for scan in found),
    )


_listing: list[LedgerListing] = []


def _open_listing(store_url: str) -> None:
    _listing.append(LedgerListing(open_store(store_url), _ROOT))


def _read(piece: ListingPiece) -> _Scan:
    # As Spark's workers do it.
    collect_seldom()
    before = time.process_time()
    rows = ledger_table(_listing[0].read(piece))
    if rows.column("problem").null_count < len(rows):
        raise RuntimeError(f"a ledger of {piece} could not be understood")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return _Scan(len(rows), time.process_time() - before, peak)
