"""Messages through many small topics at a steady pace, each acknowledged: ledgers roll and go, cursors get others."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pulsar

from bookwarden.background import in_background
from bookwarden_dev.devcluster import DevCluster

_PAYLOAD = bytes(100)


@contextmanager
def steady_traffic(cluster: DevCluster, namespace: str, *, topics: int, messages_per_second: float) -> Iterator[None]:
    """Send during the block, the topics in turns; who consumes acknowledges at once."""
    client = cluster.connection().client(operation_timeout_seconds=60, io_threads=2)
    names = [f"persistent://{namespace}/busy-{number}" for number in range(topics)]
    # Kept: a consumer that nobody holds ends.
    consumers = [client.subscribe(name, "reader", message_listener=_acknowledge) for name in names]
    producers = [client.create_producer(name, batching_enabled=False, block_if_queue_full=True) for name in names]

    def send(ended: threading.Event) -> None:
        begin = time.monotonic()
        for number, producer in enumerate(itertools.cycle(producers)):
            if ended.wait(max(0.0, begin + number / messages_per_second - time.monotonic())):
                return
            with suppress(pulsar.PulsarException):
                producer.send_async(_PAYLOAD, None)

    try:
        with in_background(send, "traffic", end_seconds=60):
            yield
    finally:
        del consumers
        client.close()


def _acknowledge(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
    # One that is lost while its topic is unloaded comes again.
    with suppress(pulsar.PulsarException):
        consumer.acknowledge(message)
