"""The orphan scan of a ZooKeeper snapshot: ledgers a second from opening the file to the plan, and of listing alone.

The account of disk use of the same snapshot is measured in turn with it: its peer is the scan.

The snapshot is of our own making: ledgers in the bytes that brokers and bookies write, the managed ledgers that name
most of them, each with a cursor. There is no peer; the aim is 100,000 ledgers a second. Spark is warm: a scan of the
same snapshot comes first, as the peers of other benchmarks run before they are measured.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.options import Options
from benchmarks.population import managed_ledger_of, metadata_of
from benchmarks.processes import MAPPED, Usage, measured, scan_process, told_stages
from benchmarks.results import Result, compared, publish, say
from benchmarks.zookeeper_files import node, write_snapshot
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.listing import LedgerListing, ListingPiece
from bookwarden.clusters.pulsar.metadata.paths import MANAGED_LEDGERS_ROOT, cursor_path, managed_ledger_path
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.references import ReferenceIndex
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.pipelines.columns.snapshots import read_ledgers
from bookwarden.pipelines.workers import collect_seldom
from bookwarden.signals import sigterm_unwinds
from bookwarden.wire.pb import managed_ledger_pb2
from bookwarden_dev.devcluster.temporary import temporary_files_in

COUNT = 1_000_000
LEDGERS_PER_TOPIC = 50
# A topic names all but the oldest tenth of its ledgers, as after trims: what is younger than a listed one was lost.
_ORPHANS_AMONG = 10
_ROOT = "/ledgers"
_FIRST_ID = 100_000_000
_ZXID = 0x100000000
_TAKEN_MS = 1_750_000_000_000
_NAMESPACE = "retail-emea/order-processing/persistent"
_MIB = 1 << 20


class _Read(NamedTuple):
    ledgers: int
    cpu_seconds: float
    memory_bytes: int


class _Work(NamedTuple):
    """Of each round the ledgers a second, and what it took of the machine."""

    speeds: list[float]
    usages: list[Usage]


def run(options: Options) -> None:
    """Run the benchmark."""
    count, rounds = options.scaled(options.count or COUNT), options.rounds or 3
    with tempfile.TemporaryDirectory(prefix="bookwarden-") as folder:
        file = scanned_snapshot(Path(folder), count)
        say(f"its ledgers are read by {os.cpu_count()} processes")
        topics = _topics_of(count)
        scans, disks = _whole_scans(file, Path(folder), count, rounds)
        speeds, opened, references, reads = [], [], [], []
        for number in range(1, rounds + 1):
            # A folder of its own, so that each round checks the file anew.
            url = f"zk-snapshot:{file}?work={folder}/{number}"
            speed, seconds, read = _scan(url, count)
            speeds.append(speed)
            opened.append(seconds)
            reads.append(read)
            references.append(_read_references(url, topics))
            say(
                f"round {number} of {rounds}: {speed:,.0f} ledgers/s, {seconds:.2f} s until the file was checked; "
                f"{references[-1]:,.0f} topics/s by one process"
            )
    kinds = {"driver": "< 2,048", "JVM": "< 2,048", "workers": "< 2,048", MAPPED: ""}
    largest, of_disk = (
        {kind: max(usage.memory.get(kind, 0) for usage in work.usages) / _MIB for kind in kinds}
        for work in (scans, disks)
    )
    publish(
        f"The orphan scan of a snapshot of {count:,} ledgers",
        [
            Result(
                *("scan-snapshot", "ledgers/s", statistics.median(scans.speeds), None, count, ">= 100,000"),
                f"{rounds} rounds, {min(scans.speeds):,.0f} to {max(scans.speeds):,.0f}; warm",
            ),
            compared("disk of a snapshot; the scan", "ledgers/s", disks.speeds, scans.speeds, count, ">= 0.83 of it"),
            *(
                Result(f"its memory, {kind}; the scan's", "MiB", of_disk[kind], largest[kind], count, "<= 1 of it")
                for kind in kinds
            ),
            *(
                Result(
                    *(f"scan-snapshot memory, {kind}", "MiB", held, None, count, kinds[kind]),
                    "of all processes" if kind == MAPPED else "without mapped files; the workers together",
                )
                for kind, held in largest.items()
            ),
            Result("scan-snapshot listing", "ledgers/s", max(speeds), None, count, "", "the best round"),
            Result("scan-snapshot check", "s", min(opened), None, count, "", "one process, before anything is read"),
            Result(
                "scan-snapshot processor",
                "us/ledger",
                min(read.cpu_seconds for read in reads) / count * 1e6,
                None,
                count,
                note="all processes, from opening on",
            ),
            Result(
                *("scan-snapshot listing memory", "MiB", max(read.memory_bytes for read in reads) / _MIB, None, count),
                *("< 2,048", "the largest process, with what it mapped of the file"),
            ),
            Result("scan-snapshot references", "topics/s", max(references), None, topics, "", "one process"),
        ],
    )


def scanned_snapshot(folder: Path, count: int) -> Path:
    """Write a snapshot of so many ledgers into the folder; return the file."""
    file, topics = folder / f"snapshot.{_ZXID:x}", _topics_of(count)
    say(f"writing a snapshot of {count:,} ledgers and {topics:,} topics")
    size = write_snapshot(file, _nodes(count, topics), last_zxid=_ZXID, digest_zxid=_ZXID)
    say(f"its size is {size / _MIB:,.0f} MiB")
    return file


def _topics_of(count: int) -> int:
    return max(count // LEDGERS_PER_TOPIC, 1)


def _whole_scans(file: Path, folder: Path, count: int, rounds: int) -> tuple[_Work, _Work]:
    """Scan with Spark, and add up the disk use; return what each round of either took."""
    settings_file = folder / "bookwarden.yaml"
    settings = {
        "metadata_store": {"urls": ["zk:127.0.0.1:1"]},
        "orphans": {"folder": str(folder / "orphans")},
        "disk": {"folder": str(folder / "disk")},
        "spark": {"master": "local[2]"},
    }
    settings_file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    scans, disks = _Work([], []), _Work([], [])
    with sigterm_unwinds(), temporary_files_in(folder / "tmp"), scan_process(settings_file) as process:
        for number in range(rounds + 1):
            # A folder of its own for each, so that it checks the file anew.
            with measured(process.pid, scans.usages):
                found = process.scan(f"zk-snapshot:{file}?work={folder}/scan-{number}")
            if found["ledgers"] != count or found["orphans"] != count // _ORPHANS_AMONG:
                raise RuntimeError(f"the scan found {found['ledgers']} ledgers and {found['orphans']} orphans")
            with measured(process.pid, disks.usages):
                added_up = process.disk(f"zk-snapshot:{file}?work={folder}/disk-{number}")
            if added_up["ledgers"] != count:
                raise RuntimeError(f"{added_up['ledgers']} ledgers were added up")
            scans.speeds.append(count / found["seconds"])
            disks.speeds.append(count / added_up["seconds"])
            name = f"round {number} of {rounds}" if number else "warming up"
            say(f"{name}: whole scan {scans.speeds[-1]:,.0f} ledgers/s; {told_stages(found['stages'])}")
            say(f"{name}: disk use {disks.speeds[-1]:,.0f} ledgers/s")
    return _Work(scans.speeds[1:], scans.usages[1:]), _Work(disks.speeds[1:], disks.usages[1:])


def _nodes(count: int, topics: int) -> Iterator[bytes]:
    names = [f"{_NAMESPACE}/orders-by-region-{number:06d}" for number in range(topics)]
    values = [metadata_of(ManagedLedgerHolder(name)) for name in names]
    # The snapshot is of a later time than its ledgers, so that what is not named is an orphan.
    yield node("", created_ms=_TAKEN_MS)
    yield node(_ROOT)
    yield node(f"{_ROOT}/LAYOUT", b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1")
    seen = {_ROOT}
    for ledger_id in range(_FIRST_ID, _FIRST_ID + count):
        path = ledger_path(_ROOT, ledger_id)
        directory = path.rpartition("/")[0]
        if directory not in seen:
            top = directory.rpartition("/")[0]
            yield from [node(above) for above in (top, directory) if above not in seen]
            seen.update((top, directory))
        yield node(path, values[ledger_id % topics], version=2, zxid=_ZXID)
    parts = f"{MANAGED_LEDGERS_ROOT}/{_NAMESPACE}".split("/")
    for depth in range(2, len(parts) + 1):
        yield node("/".join(parts[:depth]))
    for number, name in enumerate(names):
        ids = range(_FIRST_ID + number, _FIRST_ID + count, topics)
        oldest = _FIRST_ID + count // _ORPHANS_AMONG
        yield node(managed_ledger_path(name), managed_ledger_of([one for one in ids if one >= oldest]))
        cursor = managed_ledger_pb2.ManagedCursorInfo(
            cursorsLedgerId=-1, markDeleteLedgerId=_FIRST_ID + number, markDeleteEntryId=7
        )
        yield node(cursor_path(name, "billing"), cursor.SerializeToString())


def _scan(url: str, count: int) -> tuple[float, float, _Read]:
    """List all ledgers; return how many a second, the seconds until the file was checked, and what it took."""
    # Processes that wait for work are what a scan has; starting Python is no part of it.
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        list(pool.map(_wait, range(2 * (os.cpu_count() or 1))))
        started, cpu = time.monotonic(), time.process_time()
        with closing(open_store(url)) as store:
            store.sync()
            checked = time.monotonic() - started
            pieces = LedgerListing(store, _ROOT).pieces()
            cpu = time.process_time() - cpu
            read = list(pool.map(_read, [url] * len(pieces), pieces))
        seconds = time.monotonic() - started
    found = sum(one.ledgers for one in read)
    if found != count:
        raise RuntimeError(f"{found} ledgers were listed, not {count}")
    cpu += sum(one.cpu_seconds for one in read)
    return count / seconds, checked, _Read(found, cpu, max(one.memory_bytes for one in read))


_stores: dict[str, MetadataStore] = {}


def _wait(_: int) -> None:
    time.sleep(0.1)


def _read(url: str, piece: ListingPiece) -> _Read:
    before = time.process_time()
    if url not in _stores:
        _stores[url] = open_store(url)
        collect_seldom()
    rows = read_ledgers(_stores[url], LedgerListing(_stores[url], _ROOT), piece).table
    if rows.column("holder").null_count:
        raise RuntimeError(f"a ledger of {piece} could not be understood")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return _Read(len(rows), time.process_time() - before, peak)


def _read_references(url: str, topics: int) -> float:
    """Read what all topics name; return the topics a second."""
    with closing(open_store(url)) as store:
        store.sync()
        started = time.monotonic()
        index = ReferenceIndex()
        ReferencePieces({url: store}).read_into(index)
        return topics / (time.monotonic() - started)
