"""The bookie wire client: entries a second of one ledger, read from a real bookie and checked by their digests.

Peer: BookKeeper's own Java client, warm, in a process of its own, that reads the same ledger in chunks of 1,000
entries, two at once.
"""

from __future__ import annotations

import time

from benchmarks.cluster import running_site
from benchmarks.java_peer import JavaPeer, java_peer
from benchmarks.options import Options
from benchmarks.results import compared, publish, say
from bookwarden.clusters.bookkeeper.bookies.reader import open_ledger
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.wiring.cluster import Cluster

COUNT = 100_000
_SIZE = 1024


def run(options: Options) -> None:
    """Run the benchmark."""
    count, rounds = options.scaled(options.count or COUNT), options.rounds or 3
    with (
        running_site() as site,
        java_peer("LedgerPeer.java", [f"metadata-store:{site.cluster.store_url}"]) as peer,
        Cluster(site.settings) as cluster,
    ):
        say(f"writing a ledger of {count:,} entries of {_SIZE} bytes")
        ledger_id = int(peer.ask(f"write {count} {_SIZE}"))
        (ledger,) = cluster.bookkeeper.catalog.read_many([ledger_id])
        assert isinstance(ledger, StoredLedger)
        say("warming up")
        for _ in range(3):
            _read_in_java(peer, ledger_id, count)
        _read(cluster, ledger, count)
        ours, cpu, java = [], [], []
        for number in range(1, rounds + 1):
            java.append(_read_in_java(peer, ledger_id, count))
            used = time.process_time()
            ours.append(_read(cluster, ledger, count))
            cpu.append((time.process_time() - used) / count * 1e6)
            say(
                f"round {number} of {rounds}: Java {java[-1]:,.0f}, ours {ours[-1]:,.0f} entries/s, {cpu[-1]:.1f} us "
                f"of processor time an entry"
            )
        publish(
            f"Reading a ledger of {count:,} entries of {_SIZE} bytes from one bookie",
            [compared("ledger-read", "entries/s", ours, java, count, "ratio >= 0.3")],
        )


def _read(cluster: Cluster, ledger: StoredLedger, count: int) -> float:
    """Read the ledger; return the entries a second."""
    started, size = time.monotonic(), 0
    for entry in open_ledger(ledger, cluster.bookkeeper.bookies).read():
        size += len(entry.payload)
    _check(size, count)
    return count / (time.monotonic() - started)


def _check(size: int, count: int) -> None:
    if size != count * _SIZE:
        raise RuntimeError(f"{size} bytes were read, not {count * _SIZE}")


def _read_in_java(peer: JavaPeer, ledger_id: int, count: int) -> float:
    """Let the peer read the ledger; return the entries a second."""
    seconds, size = peer.ask(f"read {ledger_id}").split()
    _check(int(size), count)
    return count / float(seconds)
