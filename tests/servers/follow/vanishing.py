"""A namespace of many topics that is deleted at once, and of each topic one ledger is left behind.

The nodes are in a ZooKeeper of their own and written in transactions, as no broker on a test's machine could delete so
many at once; marks go to a broker that has its metadata elsewhere.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.population import create_nodes, zookeeper_at
from benchmarks.processes import Usage, measured
from kazoo.client import KazooClient

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden_dev.devcluster import DevCluster
from servers.follow.site import LATE_S, FollowingSite, site_of
from servers.lone_zookeeper import running_zookeeper
from servers.population import ROOT, closed_ledger, node_of, tags_of
from servers.waiting import eventually

_GRACE_S = 30.0
_NAMESPACE = "vanish/life"
# Far above those that brokers get.
_FIRST = 8_000_000_000
_AT_ONCE = 500
_MARK_S = 0.05
# Topics that are not deleted.
_STAYING = 100
_MIB = 1 << 20
_MOST_BYTES = 4 << 30
# It has all nodes in memory, twice as many as topics.
_MEMORY = ("-Xmx512m",)


def vanish(cluster: DevCluster, home: Path, count: int, say: Callable[[str], None]) -> None:
    """Delete so many topics; AssertionError unless one ledger of each is marked, once, a batch at a time."""
    site = site_of(cluster, "vanish", home / "vanish")
    usages: list[Usage] = []
    with (
        running_zookeeper(_made(home / "vanished"), java_options=_MEMORY) as server,
        zookeeper_at(f"zk:{server.hosts}") as client,
    ):
        site.store_url = f"zk:{server.hosts}"
        following = FollowingSite(site, grace_s=_GRACE_S)
        _plant(client, count + _STAYING)
        try:
            following.start()
            with measured(following.process.pid, usages):
                begin = time.monotonic()
                _delete(client, count)
                took = time.monotonic() - begin
                eventually(lambda: following.told("is marked") >= count, count * _MARK_S + LATE_S, pause=2)
                eventually(following.is_settled, LATE_S, pause=1)
        finally:
            following.process.stop()
    rows = following.outcomes()
    say(f"{count:,} topics deleted in {took:.1f} s; {_told(rows)}; looked at: {dict(following.looked_at())}")
    (usage,) = usages
    held = ", ".join(f"{kind} {size / _MIB:.0f}" for kind, size in usage.memory.items())
    say(f"memory at most {usage.peak_bytes / _MIB:.0f} MiB: {held}")
    assert usage.peak_bytes < _MOST_BYTES
    assert following.marked() == [_left(number) for number in range(count)]
    assert {row["outcome"] for row in rows} == {"marked"}
    assert max(Counter(row["batch"] for row in rows).values()) <= following.site.settings.follow.ledgers_per_batch


def _told(rows: Sequence[dict[str, Any]]) -> str:
    batches = Counter(row["batch"] for row in rows)
    times: list[datetime] = [row["decided_at"] for row in rows]
    late = max((row["decided_at"] - row["published_at"]).total_seconds() for row in rows)
    return (
        f"{len(rows):,} rows in {len(batches)} batches of at most {max(batches.values()):,}, within "
        f"{(max(times) - min(times)).total_seconds():.1f} s, the last {late:.1f} s after its drop with a grace of "
        f"{_GRACE_S:.0f} s"
    )


def _node(number: int) -> tuple[str, bytes]:
    """Give the path and the value of a topic's node: the broker deletes the ledger before the one that it leaves."""
    return node_of(_holder(number), [_left(number) - 1, _left(number)])


def _holder(number: int) -> ManagedLedgerHolder:
    return ManagedLedgerHolder(f"{_NAMESPACE}/persistent/some-topic-of-its-own-{number:06d}")


def _left(number: int) -> int:
    return _FIRST + 2 * number + 1


def _plant(client: KazooClient, count: int) -> None:
    ledgers = [(ledger_path(ROOT, _left(number)), closed_ledger(tags_of(_holder(number)))) for number in range(count)]
    create_nodes(client, [*ledgers, *map(_node, range(count))])


def _delete(client: KazooClient, count: int) -> None:
    for at in range(0, count, _AT_ONCE):
        request = client.transaction()
        for number in range(at, min(at + _AT_ONCE, count)):
            request.delete(_node(number)[0])
        failed = [found for found in request.commit() if isinstance(found, Exception)]
        assert not failed, failed[0]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
