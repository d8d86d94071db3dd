"""Phase one: confirmed marks a second from one process.

Peer: a bare producer of the Pulsar client, set up alike, that sends the same bytes under the same keys, already
encoded, and counts the confirmations.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any

import pulsar

from benchmarks.cluster import Site, running_site
from benchmarks.options import Options
from benchmarks.results import compared, publish, say
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.pending_deletion import PendingDeletion, mark_of_holder
from bookwarden.wire.avro import PendingDeletionCodec
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import PhaseOne
from bookwarden.wiring.pulsar import connection_of

COUNT = 100_000
TOPICS = 1_000
_TOPIC = "persistent://public/default/bare"


def run(options: Options) -> None:
    """Run the benchmark."""
    count, rounds = options.scaled(options.count or COUNT), options.rounds or 5
    marks = _marks(count)
    with running_site() as site:
        site.admin.put("/persistent/public/default/bare/partitions", 4)
        ours, peer, cpu = [], [], []
        with Cluster(site.settings) as cluster:
            phase_one = PhaseOne(cluster)
            say("warming up")
            phase_one.marker.mark(marks[: count // 10])
            for number in range(1, rounds + 1):
                peer.append(count / _bare(site, marks))
                started, used = time.monotonic(), time.process_time()
                report = phase_one.marker.mark(marks)
                ours.append(count / (time.monotonic() - started))
                cpu.append((time.process_time() - used) / count * 1e6)
                if report.failed:
                    raise RuntimeError(f"{len(report.failed)} marks failed: {report.failed[0].failure}")
                say(
                    f"round {number} of {rounds}: bare producer {peer[-1]:,.0f}, marks {ours[-1]:,.0f} a second, "
                    f"{cpu[-1]:.1f} us of processor time a mark"
                )
        publish(
            f"Phase one, {count:,} marks over {TOPICS:,} topics",
            [compared("mark", "marks/s", ours, peer, count, ">= 20,000")],
        )


def _marks(count: int) -> list[PendingDeletion]:
    holders = [ManagedLedgerHolder(f"public/default/persistent/marked-{number:06d}") for number in range(TOPICS)]
    return [mark_of_holder(ledger_id, holders[ledger_id % TOPICS], "trimmed") for ledger_id in range(count)]


def _bare(site: Site, marks: Sequence[PendingDeletion]) -> float:
    codec = PendingDeletionCodec()
    messages = [(codec.encode(mark), str(mark.holder())) for mark in marks]
    client = connection_of(site.settings.pulsar).client()
    try:
        producer = client.create_producer(
            _TOPIC,
            batching_enabled=True,
            batching_max_messages=1000,
            batching_max_publish_delay_ms=10,
            max_pending_messages=20_000,
            max_pending_messages_across_partitions=160_000,
            block_if_queue_full=True,
        )
        return _send(producer, messages)
    finally:
        client.close()


def _send(producer: pulsar.Producer, messages: Sequence[tuple[bytes, str]]) -> float:
    arrived, complete, last = itertools.count(), threading.Event(), len(messages) - 1

    def confirm(result: Any, _: Any) -> None:
        if result == pulsar.Result.Ok and next(arrived) == last:
            complete.set()

    started = time.monotonic()
    for payload, key in messages:
        producer.send_async(payload, confirm, partition_key=key)
    if not complete.wait(60):
        raise RuntimeError("the bare producer's messages were not confirmed")
    return time.monotonic() - started
