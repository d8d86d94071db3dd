"""Topics whose ledgers are of every kind, what they must hold wherever these are, and what changes them meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import pulsar

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden_dev.demo.ledger_places import ledgers_of_topic
from servers.pulsar_topics import offload, unload
from servers.switching.site import SwitchingSite
from servers.topic_contents import compact, compacted_in_use, read_back, send
from servers.waiting import eventually

#: Of the brokers: small ledgers, buckets of delayed messages, cursors with holes in ledgers.
BROKER_SETTINGS: Final = {
    "managedLedgerMaxEntriesPerLedger": "40",
    "managedLedgerMaxUnackedRangesToPersistInMetadataStore": "1",
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    "delayedDeliveryMinIndexCountPerBucket": "5",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "2",
    "transactionCoordinatorEnabled": "true",
}
_COUNT: Final = 100
_KEYS: Final = 7
_STEP: Final = 5
_FAR: Final = timedelta(hours=1)
_PATIENCE_S: Final = 120


class TopicsOfAllKinds:
    """A backlog with holes, two versions of a schema, a compacted topic, delayed messages, and two that go."""

    def __init__(self, site: SwitchingSite, client: pulsar.Client, *, offload: bool = False) -> None:
        """Make and fill them; with `offload` the last one is offloaded when they change."""
        self._site, self._client = site, client
        self._offloaded = site.new_topics(int(offload))
        for topic in self._offloaded:
            send(client, topic, _COUNT)
        # One goes with each change, of two at most.
        self.backlog, self.versioned, self.compacted, self.delayed, *self.doomed = site.new_topics(6)
        # In a namespace of its own, whose retention ends.
        (self.trimmed,) = site.new_topics(1)
        self._namespace = self.trimmed.removeprefix("persistent://").rpartition("/")[0]
        self._schemas = 0
        self._keyed = 0
        self._sent = [str(number).encode() for number in range(_COUNT)]
        self._left = self._sent
        # What was named once, and no more: it must be nowhere in the end.
        self._gone = frozenset[int]()
        for topic in (self.backlog, self.trimmed, *self.doomed):
            send(client, topic, _COUNT)
        self._leave_holes()
        self._add_schema()
        self._add_schema()
        self.compact()
        self._waiting = client.subscribe(self.delayed, "s", consumer_type=pulsar.ConsumerType.Shared)
        send(client, self.delayed, _COUNT, deliver_after=_FAR)

    @property
    def names(self) -> tuple[str, ...]:
        """All that are to stay."""
        return self.backlog, self.versioned, self.compacted, self.delayed, self.trimmed, *self._offloaded

    def change(self) -> None:
        """Delete, trim, roll a cursor, add a schema and compact; what nothing names then must be nowhere in the end."""
        site = self._site
        doomed = self.doomed.pop()
        gone = ledgers_of_topic(site.store, doomed) | {compacted_in_use(site.admin, self.compacted)}
        site.admin.delete(topic_path(doomed), params={"force": "true"})
        before = ledgers_of_topic(site.store, self.trimmed)
        retention = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        site.admin.post(f"/namespaces/{self._namespace}/retention", retention)

        def trimmed() -> bool:
            unload(site.admin, self.trimmed)
            send(self._client, self.trimmed, 1)
            # By themselves brokers trim every two minutes.
            site.admin.post(f"{topic_path(self.trimmed)}/trim")
            return not before & ledgers_of_topic(site.store, self.trimmed)

        eventually(trimmed, _PATIENCE_S, pause=1.0)
        self._leave_holes()
        unload(site.admin, self.backlog)
        self._add_schema()
        self.compact()
        self._gone = self._gone | gone | before
        for topic in self._offloaded:
            self._gone |= self._offload(topic)

    def compact(self) -> int:
        """Send to the compacted topic, and compact it; return the ledger."""
        producer = self._client.create_producer(self.compacted, batching_enabled=False)
        for _ in range(_COUNT):
            producer.send(str(self._keyed).encode(), partition_key=str(self._keyed % _KEYS))
            self._keyed += 1
        producer.close()
        return compact(self._site.admin, self.compacted)

    def check(self) -> None:
        """Check that brokers serve all that was sent, and that nothing came back."""
        site, client = self._site, self._client
        assert read_back(client, self.backlog) == self._sent
        for topic in (self.delayed, *self._offloaded):
            assert read_back(client, topic) == self._sent
        assert self._versions() == list(range(self._schemas))
        assert read_back(client, self.versioned) == [str(number).encode() for number in range(self._schemas)]
        # A reader finds what is newest only once the topic was loaded anew.
        unload(site.admin, self.compacted)
        newest = [str(number).encode() for number in range(self._keyed - _KEYS, self._keyed)]
        assert self._read_compacted() == newest
        consumer = self._subscribed()
        found = [consumer.receive(60_000).data() for _ in self._left]
        assert found == self._left, f"{found} instead of {self._left}"
        consumer.close()
        places = site.places()
        assert places.astray == ()

    def check_gone(self) -> None:
        """Check that no cluster has what nothing names since the changes."""

        def nowhere() -> bool:
            return not self._gone & self._everywhere()

        eventually(nowhere, _PATIENCE_S)

    def _offload(self, topic: str) -> frozenset[int]:
        """Offload a topic but for its last ledger, and let brokers delete what bookies have of that."""
        admin, path, ledgers = self._site.admin, topic_path(topic), ledgers_of_topic(self._site.store, topic)
        offload(admin, topic, max(ledgers), _PATIENCE_S)
        admin.put(f"/namespaces/{topic.removeprefix('persistent://').rpartition('/')[0]}/offloadDeletionLagMs", 0)
        offloaded = ledgers - {max(ledgers)}

        active = self._site.registry().active

        def left_the_source() -> bool:
            admin.post(f"{path}/trim")
            places = self._site.places().by_cluster
            return all(name == active or not offloaded & ids for name, ids in places.items())

        eventually(left_the_source, _PATIENCE_S, pause=1.0)
        return offloaded

    def _everywhere(self) -> frozenset[int]:
        """List the ledgers of all clusters."""
        return frozenset[int]().union(*self._site.places().by_cluster.values())

    def _leave_holes(self) -> None:
        """Acknowledge each message in some of what the subscription has left, so that its cursor is written anew."""
        consumer = self._subscribed()
        left = []
        for number, wanted in enumerate(self._left):
            message = consumer.receive(60_000)
            assert message.data() == wanted, f"{message.data()} instead of {wanted}"
            # Never the first: a broker may forget the position that a cursor moves on to, if it is unloaded just then.
            if number % _STEP == _STEP // 2:
                consumer.acknowledge(message)
            else:
                left.append(wanted)
        consumer.close()
        self._left = left

    def _subscribed(self) -> pulsar.Consumer:
        first = pulsar.InitialPosition.Earliest
        return self._client.subscribe(self.backlog, "s", initial_position=first)

    def _add_schema(self) -> None:
        """Add a version of the schema, and a message."""
        more = "".join(
            f', {{"name": "y{number}", "type": ["null", "int"], "default": null}}' for number in range(self._schemas)
        )
        text = f'{{"type": "record", "name": "R", "fields": [{{"name": "x", "type": "int"}}{more}]}}'
        self._site.admin.post(f"{self._schemas_path}/schema", {"type": "JSON", "schema": text, "properties": {}})
        producer = self._client.create_producer(self.versioned, batching_enabled=False)
        producer.send(str(self._schemas).encode())
        producer.close()
        self._schemas += 1

    def _versions(self) -> list[int]:
        found: dict[str, Any] = self._site.admin.get_json(f"{self._schemas_path}/schemas")
        assert all(each["data"] for each in found["getSchemaResponses"])
        return sorted(each["version"] for each in found["getSchemaResponses"])

    @property
    def _schemas_path(self) -> str:
        return f"/schemas{topic_path(self.versioned).removeprefix('/persistent')}"

    def _read_compacted(self) -> list[bytes]:
        reader = self._client.create_reader(self.compacted, pulsar.MessageId.earliest, is_read_compacted=True)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=60_000).data())
        reader.close()
        return found
