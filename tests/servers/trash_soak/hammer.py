"""Producers and a consumer make a topic again as soon as it is deleted, and use it while it is restored under them."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import pulsar

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import NotFoundError, PulsarError, RefusedError
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.trash.plan import RestoreRequest
from bookwarden_dev.devcluster import DevCluster
from servers.trash_soak.ground import Ground, Topic
from servers.waiting import eventually

_PRODUCERS: Final = 3
_SUBSCRIPTION: Final = "s"
_PATIENCE_S: Final = 120.0
_SEND_TIMEOUT_MS: Final = 5_000


class _Clients:
    """Producers that send as fast as they are answered, and a consumer that acknowledges each message."""

    def __init__(self, cluster: DevCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._sent = threading.Event()
        self._ended = threading.Event()
        self.confirmed: set[int] = set()
        self.acknowledged: set[int] = set()
        self.again = Counter[int]()
        self.errors = Counter[str]()
        runs = [*(lambda number=number: self._produce(number) for number in range(_PRODUCERS)), self._consume]
        self._threads = [threading.Thread(target=run, daemon=True) for run in runs]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop the producers, and the consumer when it was given everything, or nothing more for a while."""
        self._sent.set()
        for thread in self._threads[:-1]:
            thread.join(_PATIENCE_S)
        with suppress(AssertionError):
            eventually(lambda: self.confirmed <= self.acknowledged, _PATIENCE_S, 0.5)
        self._ended.set()
        self._threads[-1].join(_PATIENCE_S)

    def _produce(self, first: int) -> None:
        number = first
        with closing(self._cluster.connection().client(operation_timeout_seconds=5)) as client:
            while not self._sent.is_set():
                try:
                    with closing(
                        client.create_producer(
                            self._topic, batching_enabled=False, send_timeout_millis=_SEND_TIMEOUT_MS
                        )
                    ) as producer:
                        while not self._sent.is_set():
                            number += _PRODUCERS
                            producer.send(str(number).encode())
                            self.confirmed.add(number)
                            time.sleep(0.005)
                except pulsar.PulsarException as error:
                    self.errors[f"producer: {type(error).__name__}"] += 1

    def _consume(self) -> None:
        with closing(self._cluster.connection().client(operation_timeout_seconds=5)) as client:
            while not self._ended.is_set():
                try:
                    consumer = client.subscribe(
                        self._topic,
                        _SUBSCRIPTION,
                        consumer_type=pulsar.ConsumerType.Shared,
                        initial_position=pulsar.InitialPosition.Earliest,
                    )
                    with closing(consumer):
                        self._receive(consumer)
                except pulsar.PulsarException as error:
                    self.errors[f"consumer: {type(error).__name__}"] += 1

    def _receive(self, consumer: pulsar.Consumer) -> None:
        while not self._ended.is_set():
            with suppress(pulsar.Timeout):
                message = consumer.receive(timeout_millis=500)
                number = int(message.data())
                if number in self.acknowledged:
                    self.again[number] += 1
                consumer.acknowledge(message)
                self.acknowledged.add(number)


def _deleted(ground: Ground, topic: Topic) -> list[TrashedGeneration]:
    """Delete the topic; return its lives that are over, since clients have it again before it is seen to be gone."""
    with suppress(PulsarError, NotFoundError):
        ground.admin.delete(topic_path(topic.name), params={"force": True})
    ground.wait_until_kept()
    return [one for one in ground.trashed().get(topic.name, []) if one.topic is not None]


def hammer(cluster: DevCluster, home: Path, rounds: int, seed: int, say: Callable[[str], None]) -> Counter[str]:
    """Delete and restore a topic so many times while clients use it; return the counts."""
    chance, counts = random.Random(seed), Counter[str]()
    with closing(Ground(cluster, "hammer", home)) as ground:
        keeper = ground.keep()
        topic = ground.topic("t")
        clients = _Clients(cluster, topic.name)
        try:
            for number in range(rounds):
                keeper.run()
                before = len(clients.confirmed)
                eventually(lambda before=before: len(clients.confirmed) > before + 100, _PATIENCE_S)
                over = eventually(lambda: _deleted(ground, topic), _PATIENCE_S, 0.2)
                time.sleep(chance.uniform(0, 1))
                again = sum(clients.again.values())
                for one in over:
                    try:
                        result = ground.operations.restore.run(one, RestoreRequest())
                        counts["restored before a client had it again"] += 1
                    except RefusedError:
                        result = ground.operations.restore.run(one, RestoreRequest(under_live=True))
                        counts["restored under a live topic"] += 1
                    lost = [] if result.plan is None else result.plan.lost
                    assert not lost, lost
                    assert (result.gone, result.problems, result.left) == ((), (), ()), result
                # What the connected consumer is given again comes within a moment.
                time.sleep(1)
                say(
                    f"round {number + 1}: {len(clients.confirmed)} confirmed, "
                    f"{sum(clients.again.values()) - again} given again, {dict(clients.errors)}"
                )
        finally:
            clients.end()
        found = set(ground.read(topic.name))
        counts["written"] = len(clients.confirmed)
        counts["read"] = len(clients.confirmed & found)
        counts["lost"] = len(clients.confirmed - found)
        counts["not given"] = len(clients.confirmed - clients.acknowledged)
        counts["given again"] = sum(clients.again.values())
        topic.sent = {}
        ground.sweep_out([topic], counts)
    assert counts["lost"] == counts["not given"] == counts["expired and left"] == 0, counts
    return counts
