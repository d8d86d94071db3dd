"""Missing ledgers of one topic, as after a loss of BookKeeper's metadata: references looked up again a second.

There is no peer; in its place stand half as many ledgers, of which each must not be looked up faster. A node of 38,000
ledgers is three quarters of what ZooKeeper takes.
"""

from __future__ import annotations

import time
from statistics import median

from benchmarks.lone_store import LoneStore, lone_zookeeper
from benchmarks.options import Options
from benchmarks.results import Result, publish, say
from bookwarden.config import load_settings
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.listing import ListedReference
from bookwarden.wire.pb import managed_ledger_pb2
from bookwarden.wiring.scan import ScanSources

COUNT = 38_000
_TOPICS = {"half": "public/default/persistent/half", "whole": "public/default/persistent/whole"}


def run(options: Options) -> None:
    """Run the benchmark."""
    count, rounds = options.scaled(options.count or COUNT), options.rounds or 3
    with lone_zookeeper() as store:
        counts = {"half": max(count // 2, 1), "whole": count}
        for name, topic in _TOPICS.items():
            node = managed_ledger_pb2.ManagedLedgerInfo()
            for ledger_id in range(counts[name]):
                node.ledgerInfo.add(ledgerId=10**6 + ledger_id, entries=10, size=1_000, timestamp=1)
            store.create([(f"/managed-ledgers/{topic}", node.SerializeToString())])
        store.create([("/ledgers/available", b"")])
        speeds: dict[str, list[float]] = {name: [] for name in _TOPICS}
        for number in range(1, rounds + 1):
            for name, found in speeds.items():
                found.append(_look_up(store, _TOPICS[name], counts[name]))
            told = ", ".join(f"{name} {found[-1]:,.0f}" for name, found in speeds.items())
            say(f"round {number} of {rounds}: {told} references/s")
    publish(
        f"Looking for {count:,} missing ledgers of one topic",
        [
            Result("missing", "references/s", median(speeds["whole"]), median(speeds["half"]), count, "ratio >= 0.7"),
        ],
    )


def _look_up(store: LoneStore, topic: str, count: int) -> float:
    """Look for the ledgers, then for the place that names them; return the references a second."""
    path, kind = f"/managed-ledgers/{topic}", PlaceKind.MANAGED_LEDGER.value
    references = [ListedReference(10**6 + ledger_id, kind, topic, topic, path, store.url) for ledger_id in range(count)]
    with ScanSources(load_settings(store.settings_file)) as context:
        started = time.monotonic()
        for at in range(0, count, 1_000):
            ids = [one.ledger_id for one in references[at : at + 1_000] if one.ledger_id is not None]
            context.cluster.bookkeeper.catalog.read_many(ids)
        if len(context.still_named(references)) != count:
            raise RuntimeError("a place no longer names its ledgers")
        return count / (time.monotonic() - started)
