"""What topics of a test hold on a real broker: messages, compacted or with keys, and the ledgers of them."""

from __future__ import annotations

from typing import Any

import pulsar

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.ledgers.names import TopicName
from servers.sweeping_site import SweepingSite
from servers.waiting import eventually


def send(client: pulsar.Client, topic: str, count: int, **options: Any) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(count):
        producer.send(str(number).encode(), **options)
    producer.close()


def read_back(client: pulsar.Client, topic: str) -> list[bytes]:
    """Read the topic from its beginning to its end."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(timeout_millis=60_000).data())
    return found


def managed_ledger_of(topic: str) -> str:
    return TopicName.parse(topic).managed_ledger


def listed(site: SweepingSite, topic: str) -> list[int]:
    read = ManagedLedgers(site.opened.store).read(managed_ledger_of(topic))
    return [ledger.ledger_id for ledger in read.info.ledgers] if read else []


def retain(admin: PulsarAdmin, namespace: str) -> None:
    admin.post(f"/namespaces/{namespace}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})


def acknowledge_each(admin: PulsarAdmin, namespace: str) -> None:
    """Let each acknowledgement be an entry of its cursor's ledger, and not one a second."""
    quorums = dict.fromkeys(("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum"), 1)
    admin.post(f"/namespaces/{namespace}/persistence", {**quorums, "managedLedgerMaxMarkDeleteRate": 1000})


def send_keyed(client: pulsar.Client, topic: str, count: int, keys: int = 5, size: int = 1) -> None:
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(b"x" * size, lambda *_: None, partition_key=str(number % keys))
    producer.flush()
    producer.close()


def compact(admin: PulsarAdmin, topic: str) -> int:
    """Run a compaction to its end; return the compacted ledger in use then."""
    before = compacted_in_use(admin, topic)
    admin.put(f"{topic_path(topic)}/compaction")

    def in_use() -> int:
        ended = admin.get_json(f"{topic_path(topic)}/compaction")["status"] == "SUCCESS"
        found = compacted_in_use(admin, topic)
        return found if ended and found != before else 0

    return eventually(in_use, 120)


def compacted_in_use(admin: PulsarAdmin, topic: str) -> int:
    return int(admin.get_json(f"{topic_path(topic)}/internalStats")["compactedLedger"]["ledgerId"])
