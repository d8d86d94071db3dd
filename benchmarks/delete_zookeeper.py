"""Verify and delete on ZooKeeper: sync, read, parse, check the custom metadata, delete with the version that was read.

Peers, warm: BookKeeper's own Java client with its driver for ZooKeeper (readLedgerMetadata, the check,
asyncDeleteLedger; 1,000 in flight); the same with Pulsar's driver, in rounds of their own, since its session watches
every node of the store; and ZooKeeper's bare client, which deletes unread in multis of 100, 8 in flight: the limit.
One row is ours beside ours: with the nodes of the holders demanded in each transaction, as the sweep does, and without.
"""

from __future__ import annotations

from benchmarks.deletion import contest, delete_peer, versus
from benchmarks.lone_store import lone_zookeeper
from benchmarks.options import Options
from benchmarks.results import publish

_BOOKKEEPER, _MULTI, _PULSAR = "BookKeeper", "multis unread", "Pulsar's driver"


def run(options: Options) -> None:
    """Run the benchmark."""
    with lone_zookeeper() as store, contest(store, options) as turns:
        own_driver = f"zk+hierarchical://{store.address}/ledgers"
        with delete_peer("bookkeeper", own_driver) as bookkeeper, delete_peer("multi", store.address) as multi:
            ours, peers = turns.hold({_BOOKKEEPER: bookkeeper, _MULTI: multi})
        with delete_peer("bookkeeper", f"metadata-store:{store.url}") as pulsar:
            watched, watching = turns.hold({_PULSAR: pulsar})
        with_nodes, without = turns.as_read()
        results = [
            versus("delete-zookeeper", ours, peers[_BOOKKEEPER], turns.count, "ratio >= 8"),
            versus("delete-zookeeper, multi limit", ours, peers[_MULTI], turns.count, "ratio >= 0.2"),
            versus("delete-zookeeper, Pulsar's driver", watched, watching[_PULSAR], turns.count),
            versus(
                "delete-zookeeper, holders' nodes in the transaction", with_nodes, without, turns.count, "ratio >= 0.85"
            ),
            *turns.processor("delete-zookeeper processor", ours, peers[_BOOKKEEPER]),
            *turns.grown("delete-zookeeper", ours),
        ]
    publish(f"Verify and delete {turns.count:,} ledgers on ZooKeeper", results)
