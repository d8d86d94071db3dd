"""Verify and delete on Oxia: read, parse, check the custom metadata, delete with the version that was read.

Peers, warm: Oxia's bare Java client, which reads, parses, checks and deletes with the version, 1,000 in flight; and
BookKeeper's Java client with Pulsar's driver, in rounds of their own, since it is told of every change of the store.
All of them write to the one shard through one stream, in turns.
"""

from __future__ import annotations

from benchmarks.deletion import contest, delete_peer, versus
from benchmarks.lone_store import lone_oxia
from benchmarks.options import Options
from benchmarks.results import publish

_OXIA, _PULSAR = "Oxia's client", "BookKeeper with Pulsar's driver"


def run(options: Options) -> None:
    """Run the benchmark."""
    with lone_oxia() as store, contest(store, options) as turns:
        with delete_peer("oxia", store.address) as client:
            ours, bare = turns.hold({_OXIA: client})
            grown = turns.grown("delete-oxia", ours, {_OXIA: client})
        with delete_peer("bookkeeper", f"metadata-store:{store.url}") as bookkeeper:
            told, telling = turns.hold({_PULSAR: bookkeeper})
        results = [
            versus("delete-oxia", ours, bare[_OXIA], turns.count, "ratio >= 1.4"),
            versus("delete-oxia, BookKeeper's client", told, telling[_PULSAR], turns.count, "ratio >= 1.4"),
            *turns.processor("delete-oxia processor", ours, bare[_OXIA]),
            *grown,
        ]
    publish(f"Verify and delete {turns.count:,} ledgers on Oxia", results)
