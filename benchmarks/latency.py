"""From publish to metadata gone, at 20 messages a second.

Each ledger's node is watched in ZooKeeper from before its mark is sent. Peer: a plain consumer that receives a
message, deletes the one node it names, and acknowledges.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pulsar
from kazoo.client import KazooClient
from kazoo.protocol.states import WatchedEvent

from benchmarks.cluster import Site, running_site
from benchmarks.options import Options
from benchmarks.population import Population, zookeeper_of
from benchmarks.processes import sweep_process
from benchmarks.results import Result, publish, quantile, say
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.messages.mark_sender import PendingDeletionSender
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.wire.avro import PendingDeletionCodec
from bookwarden.wiring.pulsar import connection_of

COUNT = 1_200
PEER_COUNT = 300
PER_SECOND = 20
_TOPICS = 100
_WARM_UP = 60
# A task for each partition at once: tasks of a few marks wait for brokers and ZooKeeper much more than they compute.
_SECTIONS = {"spark": {"master": "local[4]"}}
_PLAIN_TOPIC = "persistent://public/default/plain"
_DEADLINE_S = 60.0


def run(options: Options) -> None:
    """Run the benchmark."""
    count = max(options.scaled(options.count or COUNT), 20)
    peer_count = min(count, PEER_COUNT)
    with running_site(_SECTIONS) as site, zookeeper_of(site) as zookeeper:
        population = Population(site, _TOPICS)
        population.create_holders()
        say(f"plain consumer, {peer_count} messages at {PER_SECOND} a second")
        peer = _plain(site, zookeeper, population.create_ledgers(peer_count))
        say("starting Spark")
        with sweep_process(site.settings_file) as process, _sender(site) as sender:
            process.begin()
            marks = population.create_ledgers(_WARM_UP + count)
            say(f"warming up with {_WARM_UP} marks")
            _timed(zookeeper, marks[:_WARM_UP], sender)
            say(f"sweep, {count} marks at {PER_SECOND} a second")
            ours = _timed(zookeeper, marks[_WARM_UP:], sender)
        publish(
            f"From publish to metadata gone, {PER_SECOND} messages a second",
            [
                Result(f"latency p{share}", "s", quantile(ours, share), quantile(peer, share), count, target, note)
                for share, target, note in ((50, "< 0.5", ""), (95, "< 1", ""), (100, "", "the slowest"))
            ],
        )


Send = Callable[[PendingDeletion], None]


def _timed(zookeeper: KazooClient, marks: Sequence[PendingDeletion], send: Send) -> list[float]:
    """Send at the given rate; return for each mark the seconds from before its send until its ledger was gone."""
    gone: dict[str, float] = {}
    complete = threading.Event()

    def note(event: WatchedEvent) -> None:
        gone[event.path] = time.monotonic()
        if len(gone) == len(marks):
            complete.set()

    paths = [ledger_path("/ledgers", mark.ledger_id) for mark in marks]
    for path in paths:
        if zookeeper.exists(path, watch=note) is None:
            raise RuntimeError(f"{path} is not there before its mark is sent")
    sent = [_send_at(send, mark, number) for number, mark in zip(_ticks(), marks, strict=False)]
    if not complete.wait(_DEADLINE_S):
        raise RuntimeError(f"{len(marks) - len(gone)} ledgers were not deleted in {_DEADLINE_S:.0f} s")
    return [gone[path] - at for path, at in zip(paths, sent, strict=True)]


def _ticks() -> Iterator[float]:
    start, number = time.monotonic(), 0
    while True:
        yield start + number / PER_SECOND
        number += 1


def _send_at(send: Send, mark: PendingDeletion, at: float) -> float:
    time.sleep(max(at - time.monotonic(), 0))
    now = time.monotonic()
    send(mark)
    return now


@contextmanager
def _sender(site: Site) -> Iterator[Send]:
    with PendingDeletionSender(
        connection_of(site.settings.pulsar), site.settings.deletion.topic, PendingDeletionCodec()
    ) as sender:

        def send(mark: PendingDeletion) -> None:
            (failure,) = sender.send_all([mark])
            if failure:
                raise RuntimeError(f"ledger {mark.ledger_id} was not marked: {failure}")

        yield send


def _plain(site: Site, zookeeper: KazooClient, marks: Sequence[PendingDeletion]) -> list[float]:
    site.admin.put("/persistent/public/default/plain/partitions", 4)
    client = connection_of(site.settings.pulsar).client()
    ended = threading.Event()
    try:
        consumer = client.subscribe(_PLAIN_TOPIC, "plain")
        thread = threading.Thread(target=_consume, args=(consumer, zookeeper, ended))
        thread.start()
        producer = client.create_producer(_PLAIN_TOPIC)
        try:
            return _timed(
                zookeeper, marks, lambda mark: producer.send(ledger_path("/ledgers", mark.ledger_id).encode())
            )
        finally:
            ended.set()
            thread.join()
    finally:
        client.close()


def _consume(consumer: pulsar.Consumer, zookeeper: KazooClient, ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            continue
        zookeeper.delete(message.data().decode())
        consumer.acknowledge(message)
