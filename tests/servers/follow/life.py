"""The ordinary life of topics on a real broker: whatever takes ledgers off the metadata, and deletes them."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta

import pulsar

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import NotFoundError, PulsarError
from bookwarden_dev.devcluster import DevCluster
from servers.topic_contents import acknowledge_each

_TOPICS = 6
# A few are enough, and each split unloads one.
_BUNDLES = 9
_MESSAGES = 15
_SUBSCRIPTION = "s"
_PAYLOAD = bytes(2000)


class OrdinaryLife:
    """Topics that live: each step does one thing to one of them, and a broker in trouble is no matter.

    ``alone`` is held by what ends the life of a topic on a broker. With ``offload`` ledgers are offloaded, with
    ``namespaces`` some more namespaces live, too, and are deleted with their topics.
    """

    def __init__(
        self,
        cluster: DevCluster,
        namespace: str,
        seed: int,
        *,
        topics: int,
        bundles: int,
        done: Counter[str],
        alone: threading.Lock,
        offload: bool = False,
        namespaces: bool = False,
    ) -> None:
        self._namespace = namespace
        self._random = random.Random(seed)
        self._topics = topics
        self._bundles = bundles
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
            self._add_schema: 2,
            self._delete_schema: 1,
            self._delay: 1,
        }
        if offload:
            self._actions[self._offload] = 3
        if namespaces:
            self._actions[self._delete_namespace] = 1
        self._namespaces = (f"{namespace}-{seed}-{number}" for number in itertools.count())
        self._done = done
        self._alone = alone
        self._client = cluster.connection().client(operation_timeout_seconds=20)
        policy = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        self._admin.post(f"/namespaces/{namespace}/retention", policy)
        acknowledge_each(self._admin, namespace)
        if offload:
            # What is offloaded goes from BookKeeper with the next trim.
            self._admin.put(f"/namespaces/{namespace}/offloadDeletionLagMs", 0)

    def step(self) -> None:
        """Do one thing."""
        topic = f"persistent://{self._namespace}/living-{self._random.randrange(self._topics)}"
        (action,) = self._random.choices(list(self._actions), weights=list(self._actions.values()))
        name = action.__name__.strip("_")
        try:
            action(topic)
            self._done[name] += 1
        except (PulsarError, NotFoundError, pulsar.PulsarException) as error:
            self._done[f"{name}: {type(error).__name__}"] += 1

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
        with self._alone:
            self._admin.put(f"{topic_path(topic)}/unload")

    def _delete_topic(self, topic: str) -> None:
        # Of a topic that is not loaded brokers leave ledgers behind (servers.follow.dropping), so it is loaded first.
        with self._alone:
            self._admin.get_json(f"{topic_path(topic)}/stats")
            self._admin.delete(topic_path(topic), params={"force": True})

    def _delete_namespace(self, _topic: str) -> None:
        namespace = next(self._namespaces)
        self._admin.put(f"/namespaces/{namespace}")
        acknowledge_each(self._admin, namespace)
        for number in range(2):
            topic = f"persistent://{namespace}/short-{number}"
            self._send(topic)
            self._acknowledge(topic)
        with self._alone:
            self._admin.delete(f"/namespaces/{namespace}", params={"force": True})

    def _offload(self, topic: str) -> None:
        last = self._admin.get_json(f"{topic_path(topic)}/internalStats")["ledgers"][-1]["ledgerId"]
        self._admin.put(f"{topic_path(topic)}/offload", {"ledgerId": last, "entryId": 0, "partitionIndex": -1})

    def _delete_subscription(self, topic: str) -> None:
        self._admin.delete(f"{topic_path(topic)}/subscription/{_SUBSCRIPTION}", params={"force": True})

    def _split(self, topic: str) -> None:
        with self._alone:
            bundles = self._admin.get_json(f"/namespaces/{self._namespace}/bundles")["boundaries"]
            if len(bundles) < self._bundles:
                at = self._random.randrange(len(bundles) - 1)
                self._admin.put(f"/namespaces/{self._namespace}/{bundles[at]}_{bundles[at + 1]}/split")

    def _add_schema(self, topic: str) -> None:
        names = [f"f{self._random.randrange(1000)}" for _ in range(2)]
        fields = [{"name": name, "type": ["null", "string"], "default": None} for name in sorted(set(names))]
        schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
        self._admin.post(_schema_path(topic), {"type": "JSON", "schema": schema, "properties": {}})

    def _delete_schema(self, topic: str) -> None:
        self._admin.delete(_schema_path(topic), params={"force": True})

    def _delay(self, topic: str) -> None:
        """Have messages delivered later: they are kept in buckets, which go when the messages have come."""
        shared = pulsar.ConsumerType.Shared
        with ExitStack() as stack:
            consumer = stack.enter_context(closing(self._client.subscribe(topic, "later", shared)))
            producer = stack.enter_context(closing(self._client.create_producer(topic, batching_enabled=False)))
            for _ in range(_MESSAGES):
                producer.send_async(_PAYLOAD, None, deliver_after=timedelta(seconds=3))
            producer.flush()
            for _ in range(_MESSAGES):
                consumer.acknowledge(consumer.receive(10_000))
            consumer.unsubscribe()


def _schema_path(topic: str) -> str:
    return f"/schemas/{topic.removeprefix('persistent://')}/schema"


@contextmanager
def living(
    cluster: DevCluster,
    namespace: str,
    seed: int = 1,
    *,
    hands: int = 1,
    topics: int = _TOPICS,
    bundles: int = _BUNDLES,
    offload: bool = False,
    namespaces: bool = False,
) -> Iterator[Counter[str]]:
    """Let topics live during the block, so many things at a time; count what was done, and what failed by error."""
    done, alone, ended = Counter[str](), threading.Lock(), threading.Event()
    lives = [
        OrdinaryLife(
            cluster,
            namespace,
            each,
            topics=topics,
            bundles=bundles,
            done=done,
            alone=alone,
            offload=offload,
            namespaces=namespaces,
        )
        for each in range(seed, seed + hands)
    ]

    def go_on(life: OrdinaryLife) -> None:
        while not ended.is_set():
            life.step()

    threads = [threading.Thread(target=go_on, args=(life,), name="life", daemon=True) for life in lives]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        ended.set()
        for thread in threads:
            thread.join(120)
        for life in lives:
            life.close()
