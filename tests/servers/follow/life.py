"""The ordinary life of topics on a real broker: whatever takes ledgers off the metadata, and deletes them."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pulsar

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.devcluster import DevCluster
from bookwarden.errors import NotFoundError, PulsarError

_TOPICS = 6
_MESSAGES = 15
_SUBSCRIPTION = "s"
_PAYLOAD = bytes(2000)


class OrdinaryLife:
    """Topics that live: each step does one thing to one of them, and a broker in trouble is no matter."""

    def __init__(self, cluster: DevCluster, namespace: str, seed: int) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._random = random.Random(seed)
        self._admin = PulsarAdmin(cluster.connection(), timeout_s=60)
        self._actions: dict[Callable[[str], object], int] = {
            self._send: 10,
            self._acknowledge: 4,
            self._trim: 6,
            self._compact: 2,
            self._unload: 1,
            self._delete_topic: 2,
            self._delete_subscription: 2,
            self._split: 1,
        }
        self.done: Counter[str] = Counter()
        self._client = cluster.connection().client(operation_timeout_seconds=20)
        policy = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        self._admin.post(f"/namespaces/{namespace}/retention", policy)

    def step(self) -> None:
        """Do one thing."""
        topic = f"persistent://{self._namespace}/living-{self._random.randrange(_TOPICS)}"
        (action,) = self._random.choices(list(self._actions), weights=list(self._actions.values()))
        with suppress(PulsarError, NotFoundError, pulsar.PulsarException):
            action(topic)
            self.done[action.__name__.strip("_")] += 1

    def close(self) -> None:
        self._client.close()
        self._admin.close()

    def _send(self, topic: str) -> None:
        with closing(self._client.create_producer(topic, batching_enabled=False)) as producer:
            for number in range(_MESSAGES):
                producer.send_async(_PAYLOAD, None, partition_key=str(number % 3))
            producer.flush()
        self._subscribe(topic)

    def _subscribe(self, topic: str) -> None:
        with suppress(PulsarError):
            self._admin.put(f"{topic_path(topic)}/subscription/{_SUBSCRIPTION}", "earliest")

    def _acknowledge(self, topic: str) -> None:
        self._admin.post(f"{topic_path(topic)}/subscription/{_SUBSCRIPTION}/skip/{_MESSAGES}")

    def _trim(self, topic: str) -> None:
        self._admin.post(f"{topic_path(topic)}/trim")

    def _compact(self, topic: str) -> None:
        self._admin.put(f"{topic_path(topic)}/compaction")

    def _unload(self, topic: str) -> None:
        self._admin.put(f"{topic_path(topic)}/unload")

    def _delete_topic(self, topic: str) -> None:
        self._admin.delete(topic_path(topic), params={"force": True})

    def _delete_subscription(self, topic: str) -> None:
        self._admin.delete(f"{topic_path(topic)}/subscription/{_SUBSCRIPTION}", params={"force": True})

    def _split(self, topic: str) -> None:
        bundles = self._admin.get_json(f"/namespaces/{self._namespace}/bundles")["boundaries"]
        # A few are enough, and each split unloads one.
        if len(bundles) < 9:
            at = self._random.randrange(len(bundles) - 1)
            self._admin.put(f"/namespaces/{self._namespace}/{bundles[at]}_{bundles[at + 1]}/split")


@contextmanager
def living(cluster: DevCluster, namespace: str, seed: int = 1) -> Iterator[OrdinaryLife]:
    """Let topics live during the block."""
    life, ended = OrdinaryLife(cluster, namespace, seed), threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            life.step()

    thread = threading.Thread(target=go_on, name="life", daemon=True)
    thread.start()
    try:
        yield life
    finally:
        ended.set()
        thread.join(120)
        life.close()
