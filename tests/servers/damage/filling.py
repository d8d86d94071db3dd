"""A cluster filled with topics of every kind, and the values that their nodes had meanwhile."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pulsar

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import PulsarError
from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from servers.damage.nodes import MANAGED_LEDGERS, NodeKind, ledgers_named
from servers.damage.truth import Bucket, Tree, Truth, noting_older_values, read_truth, tree_of
from servers.object_store import OFFLOAD_BUCKET, ObjectStore, running_object_store
from servers.pool import ENTRIES_PER_LEDGER, PLAIN
from servers.pulsar_topics import offload, unload
from servers.short_lived import running_until_killed
from servers.switching.open_transactions import open_transactions
from servers.topic_contents import compact, managed_ledger_of, retain, send_keyed
from servers.waiting import eventually

Say = Callable[[str], None]
#: The namespaces of the topics, of the deletion topics, and of the act with untidy topics.
FILLED, DELETIONS, UNTIDY = "damage/all", "damage/deletions", "damage/untidy"
_COPIES_ALONE: Final = "damage/copies-alone"
SUBSCRIPTION: Final = "s"
_FIRST_VERSION: Final = "damage-v1/dev/one"
_PATIENCE_S: Final = 120
_OPTIONS: Final = ClusterOptions(
    max_entries_per_ledger=ENTRIES_PER_LEDGER,
    session_seconds=60,
    offload=True,
    broker_settings={
        **PLAIN.broker_settings,
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore": "1",
        "managedLedgerDefaultMarkDeleteRateLimit": "1000",
        "transactionCoordinatorEnabled": "true",
    },
    # What the sweep deletes wrongly is put back: the bookie must not have collected it meanwhile.
    bookie_settings={
        "gcWaitTime": "86400000",
        # A bookie does not start with less.
        "minorCompactionInterval": "100000",
        "majorCompactionInterval": "200000",
    },
)


@dataclass(frozen=True)
class DamagedCluster:
    """A running cluster, its bucket, and what reads both past bookwarden."""

    cluster: DevCluster
    objects: ObjectStore
    tree: Tree
    bucket: Bucket
    admin: PulsarAdmin
    home: Path
    say: Say

    def client(self) -> pulsar.Client:
        return self.cluster.connection().client()

    def namespace(self, name: str) -> None:
        """Make a namespace and its tenant, in which nothing is trimmed."""
        tenant = name.partition("/")[0]
        if tenant not in self.admin.get_json("/tenants"):
            self.admin.put(f"/tenants/{tenant}", {"allowedClusters": [self.cluster.options.cluster_name]})
        self.admin.put(f"/namespaces/{name}")
        retain(self.admin, name)


@contextmanager
def running_damaged_cluster(home: Path, metadata: str, say: Say) -> Iterator[DamagedCluster]:
    """Run the servers for the block, with all their files in this home."""
    with running_object_store(home) as objects:
        objects.create_bucket(OFFLOAD_BUCKET)
        options = replace(
            _OPTIONS,
            metadata=metadata,
            broker_settings={**_OPTIONS.broker_settings, **objects.broker_settings(OFFLOAD_BUCKET)},
            broker_environment=objects.broker_environment,
        )
        cluster = DevCluster(home / "pulsar", options, avoid=[objects.port], progress=say)
        with (
            running_until_killed(cluster),
            closing(PulsarAdmin(cluster.connection(), timeout_s=60)) as admin,
            closing(tree_of(cluster)) as tree,
        ):
            yield DamagedCluster(cluster, objects, tree, Bucket(objects, OFFLOAD_BUCKET), admin, home, say)


def fill(site: DamagedCluster, seed: int) -> Truth:
    """Make and fill the topics; return what the healthy cluster holds then."""
    with noting_older_values(lambda: tree_of(site.cluster), [DELETIONS]) as older:
        with closing(_Filling(site, seed)) as filling:
            in_use = filling.fill()
        # The trims and deletes that brokers have begun.
        truth = _at_rest(site, in_use)
        site.bucket.keep()
    return replace(
        truth,
        nodes={
            path: replace(node, older=tuple(value for value in older.get(path, ()) if value != node.value))
            for path, node in truth.nodes.items()
        },
    )


def _at_rest(site: DamagedCluster, in_use: dict[str, int]) -> Truth:
    def read() -> Truth:
        return read_truth(site.tree, site.bucket, in_use=in_use, without=[DELETIONS])

    found = [read()]

    def unchanged() -> bool:
        found.append(read())
        return found[-1] == found[-2]

    eventually(unchanged, _PATIENCE_S, pause=1.0)
    return found[-1]


class TopicFiller:
    """Makes topics and fills them; one client for all, closed by the caller."""

    def __init__(self, site: DamagedCluster, seed: int) -> None:
        self.site, self.admin = site, site.admin
        self.chance = random.Random(seed)
        self.client = site.client()

    def topic(self, name: str, messages: int = 45, *, sizes: bool, namespace: str = FILLED) -> str:
        """Make a topic with as many messages, of several ``sizes`` or of one."""
        topic = f"persistent://{namespace}/{name}"
        self.send(topic, messages, sizes=sizes)
        return topic

    def send(self, topic: str, messages: int, *, sizes: bool = False, **options: Any) -> None:
        """Send messages that cannot be compressed, each an entry; wait until they are stored."""
        failed: list[object] = []
        producer = self.client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        for _ in range(messages):
            value = self.chance.randbytes(self.chance.randint(1, 400) if sizes else 100)
            producer.send_async(value, lambda result, _: result == pulsar.Result.Ok or failed.append(result), **options)
        producer.flush()
        producer.close()
        assert not failed, failed

    def subscribe(self, topic: str) -> pulsar.Consumer:
        shared, first = pulsar.ConsumerType.Shared, pulsar.InitialPosition.Earliest
        return self.client.subscribe(topic, SUBSCRIPTION, shared, initial_position=first)

    def read_with_holes(self, topic: str) -> None:
        """Acknowledge every second of some messages, so that the cursor has a ledger."""
        consumer = self.subscribe(topic)
        for number in range(24):
            message = consumer.receive(60_000)
            if number % 2:
                consumer.acknowledge(message)
        consumer.close()

    def add_schema(self, namespace: str, name: str, version: int) -> None:
        """Register the version of this number, from 0, of a topic's schema."""
        properties = [
            {"name": f"f{number}", "type": ["null", "string"], "default": None} for number in range(version + 1)
        ]
        schema = json.dumps({"type": "record", "name": "R", "fields": properties})
        body = {"type": "JSON", "schema": schema, "properties": {}}
        self.admin.post(f"/schemas/{namespace}/{name}/schema", body)

    def compact(self, topic: str) -> int:
        """Send to a topic with keys and compact it; return the compacted ledger."""
        send_keyed(self.client, topic, 35)
        return compact(self.admin, topic)

    def ledgers_listed(self, topic: str) -> list[int]:
        listed = self.admin.get_json(f"{topic_path(topic)}/internalStats")["ledgers"]
        return [int(one["ledgerId"]) for one in listed]

    def close(self) -> None:
        self.client.close()


class _Filling(TopicFiller):
    """The topics, kind by kind; every second one has messages of one size, as those of a machine are."""

    def __init__(self, site: DamagedCluster, seed: int) -> None:
        super().__init__(site, seed)
        self._in_use: dict[str, int] = {}

    def fill(self) -> dict[str, int]:
        """Make all; return the compacted ledgers in use, by the path of their cursor."""
        site = self.site
        for namespace in (FILLED, _COPIES_ALONE):
            site.namespace(namespace)
        self.admin.put(f"/namespaces/{_COPIES_ALONE}/offloadDeletionLagMs", 0)
        tenant = _FIRST_VERSION.partition("/")[0]
        self.admin.put(f"/tenants/{tenant}", {"allowedClusters": [site.cluster.options.cluster_name]})
        self.admin.put(f"/admin/namespaces/{_FIRST_VERSION}")
        policy = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        self.admin.post(f"/admin/namespaces/{_FIRST_VERSION}/retention", policy)
        kinds: dict[str, tuple[int, Callable[[int], None]]] = {
            "plain": (10, lambda n: self.read_with_holes(self.topic(f"plain-{n}", sizes=n % 2 > 0))),
            "partitioned": (4, lambda n: self._partitioned(f"partitioned-{n}")),
            "of the first version": (4, self._of_the_first_version),
            "with schemas": (6, lambda n: self._with_schemas(f"schemas-{n}")),
            "compacted": (4, lambda n: self._compacted(f"compacted-{n}")),
            "delayed": (4, lambda n: self._delayed(f"delayed-{n}")),
            "offloaded": (4, lambda n: self._offloaded(f"offloaded-{n}", bookkeeper_too=n < 2)),
            "shadowed": (2, lambda n: self._shadowed(f"source-{n}", f"shadow-{n}")),
            "with transactions": (1, lambda _: self._with_transactions()),
        }
        for name, (count, make) in kinds.items():
            for number in range(count):
                make(number)
            site.say(f"topics {name}: made")
        self._load_again()
        return self._in_use

    def _load_again(self) -> None:
        """Kill and start the broker, so that no ledger is kept as one that it may use from memory; load most topics."""
        names = self.admin.get_json(f"/persistent/{FILLED}")
        for name in names:
            # Of the others the last ledger is open, and cursors have ledgers, until they are loaded again.
            if "compacted" not in name and self.chance.random() < 0.5:
                unload(self.admin, name)
        self.site.cluster.broker.kill()
        self.site.cluster.broker.start()

        def load(name: str) -> bool:
            # A broker that has just come back may answer that it does not own a bundle yet.
            with suppress(PulsarError):
                self.ledgers_listed(name)
                return True
            return False

        for name in names:
            # A loaded topic has an open ledger without an entry. Which compacted ledger is used a broker tells.
            if "compacted" in name or self.chance.random() < 0.7:
                eventually(lambda name=name: load(name), _PATIENCE_S, pause=0.5)

    def _partitioned(self, name: str) -> None:
        self.admin.put(f"/persistent/{FILLED}/{name}/partitions", 4)
        self.read_with_holes(self.topic(name, 160, sizes=False))

    def _of_the_first_version(self, number: int) -> None:
        self.read_with_holes(self.topic(f"old-{number}", namespace=_FIRST_VERSION, sizes=number % 2 > 0))

    def _with_schemas(self, name: str) -> None:
        for version in range(3):
            self.add_schema(FILLED, name, version)
        # By a producer of bytes, which brokers let pass.
        self.send(f"persistent://{FILLED}/{name}", 25)

    def _compacted(self, name: str) -> None:
        topic = f"persistent://{FILLED}/{name}"
        path = f"{MANAGED_LEDGERS}/{managed_ledger_of(topic)}/{COMPACTION_CURSOR}"
        for _ in range(2):
            self._in_use[path] = self.compact(topic)

    def _delayed(self, name: str) -> None:
        topic = f"persistent://{FILLED}/{name}"
        consumer = self.subscribe(topic)
        self.send(topic, 25, deliver_after=timedelta(hours=6))
        path = f"{MANAGED_LEDGERS}/{managed_ledger_of(topic)}/{SUBSCRIPTION}"

        def has_bucket() -> bool:
            (node,) = self.site.tree.get([path])
            return node is not None and bool(ledgers_named(path, NodeKind.CURSOR, node))

        eventually(has_bucket, _PATIENCE_S)
        consumer.close()

    def _offloaded(self, name: str, *, bookkeeper_too: bool) -> None:
        """Offload all ledgers but the last; without ``bookkeeper_too`` the copies are the only ones in the end."""
        topic = self.topic(name, sizes=True, namespace=FILLED if bookkeeper_too else _COPIES_ALONE)
        path = topic_path(topic)
        *offloaded, last = self.ledgers_listed(topic)
        offload(self.admin, topic, last, _PATIENCE_S)

        def gone() -> bool:
            self.admin.post(f"{path}/trim")
            return not set(offloaded) & set(self.site.tree.ledgers())

        if not bookkeeper_too:
            eventually(gone, _PATIENCE_S, pause=0.5)

    def _shadowed(self, source: str, shadow: str) -> None:
        topic, copy = f"persistent://{FILLED}/{source}", f"persistent://{FILLED}/{shadow}"
        self.admin.put(topic_path(topic))
        self.send(topic, 25)
        self.admin.put(topic_path(copy), {"PULSAR.SHADOW_SOURCE": topic})
        self.admin.put(f"{topic_path(topic)}/shadowTopics", [copy])
        reader = self.client.create_reader(copy, pulsar.MessageId.earliest)
        reader.read_next(timeout_millis=60_000)
        reader.close()

    def _with_transactions(self) -> None:
        topics = [f"persistent://{FILLED}/transactions-{number}" for number in range(3)]
        log = self.site.home / "transactions.log"
        with open_transactions(self.site.cluster.service_url, topics, log) as transactions:
            transactions.wait_for(1)
            transactions.go_on(2)
