"""Makers of orphans: ledgers that a real Pulsar leaves in BookKeeper although nothing names them any more.

Each comes about as it does in real life, and none is written by hand. What varies there is luck; here ZooKeeper itself
refuses, by its permissions, what would have gone wrong: deletes of ledgers' metadata, or the update of one node of
Pulsar's. What the broker meant to repeat it keeps in memory only, so that it is lost when the broker is killed then.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import pulsar
import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from bookwarden.clusters.bookkeeper.bookie import Bookie
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.admin import PulsarAdmin
from bookwarden.clusters.pulsar.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.topic_positions import topic_path
from bookwarden.context import MetadataContext
from bookwarden.demo.census import list_ledger_ids
from bookwarden.devcluster import DevCluster
from bookwarden.errors import PulsarError
from bookwarden.ledgers.custom_metadata import identify_holder
from bookwarden.ledgers.holders import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.metadata import LedgerState, StoredLedger
from bookwarden.ledgers.names import TopicName, encode_local_name
from bookwarden.ledgers.references import ReferenceIndex
from bookwarden.orphans.classes import Cause
from servers.waiting import eventually

ENTRIES_PER_LEDGER = 10
# Cursors' ledgers roll after a few entries, each acknowledgement is one, and delayed messages are kept in buckets.
BROKER_SETTINGS = {
    "managedLedgerCursorMaxEntriesPerLedger": "10",
    "managedLedgerDefaultMarkDeleteRateLimit": "1000",
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    "delayedDeliveryMinIndexCountPerBucket": "5",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "2",
}
SUBSCRIPTION = "s"
_LEDGERS_ROOT = "/ledgers"
# That of the first ten thousand ids, as many as no test gets.
_LEDGERS_FOLDER = ledger_path(_LEDGERS_ROOT, 0).rpartition("/")[0]


class Refusals:
    """What ZooKeeper refuses everybody until it is lifted: a node cannot be deleted from, or cannot be updated."""

    def __init__(self, store_url: str) -> None:
        self._client = KazooClient(store_url.removeprefix("zk:"))
        self._client.start()
        self._paths: list[str] = []

    def deletes_in(self, path: str) -> None:
        """Refuse to delete what is directly below the node."""
        self._allow(path, read=True, write=True, create=True, admin=True)

    def updates_of(self, path: str) -> None:
        """Refuse to change the node's value."""
        self._allow(path, read=True, create=True, delete=True, admin=True)

    def lift(self) -> None:
        """Allow everything again."""
        for path in self._paths:
            self._client.set_acls(path, OPEN_ACL_UNSAFE)
        self._paths.clear()

    def close(self) -> None:
        self.lift()
        self._client.stop()
        self._client.close()

    def _allow(self, path: str, **permissions: bool) -> None:
        self._client.set_acls(path, [make_acl("world", "anyone", **permissions)])
        self._paths.append(path)


@dataclass
class Grounds:
    """Where the makers work: a cluster with BROKER_SETTINGS, its metadata, and how to get a fresh namespace."""

    cluster: DevCluster
    metadata: MetadataContext
    make_namespace: Callable[[], str]
    padding: bytes = bytes(range(256)) * 80

    @cached_property
    def admin(self) -> PulsarAdmin:
        return PulsarAdmin(self.cluster.connection(), timeout_s=60)

    def fresh_namespace(self) -> str:
        """Make a namespace in which the broker trims nothing by itself."""
        namespace = self.make_namespace()
        self.keep_all(namespace)
        return namespace

    def keep_all(self, namespace: str) -> None:
        self._retain(namespace, -1)

    def keep_nothing(self, namespace: str) -> None:
        self._retain(namespace, 0)

    def message(self, number: int) -> bytes:
        """Give the message of this number."""
        return b"%d " % number + self.padding

    def send(self, topic: str, count: int, *, first: int = 0, **options: Any) -> None:
        """Send numbered messages, each an entry of its own, with their number as key; wait until they are stored."""
        failed: list[pulsar.Result] = []

        def sent(result: pulsar.Result, _id: object) -> None:
            if result != pulsar.Result.Ok:
                failed.append(result)

        with closing(self.client()) as client:
            producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
            for number in range(first, first + count):
                producer.send_async(self.message(number), sent, partition_key=str(number), **options)
            producer.flush()
        assert not failed, failed

    def client(self) -> pulsar.Client:
        return self.cluster.connection().client()

    def ledgers_of(self, topic: str) -> list[int]:
        """List the ledgers that the topic's node names."""
        read = ManagedLedgers(self.metadata.store).read(TopicName.parse(topic).managed_ledger)
        return [ledger.ledger_id for ledger in read.info.ledgers] if read else []

    def cursor_ledger(self, topic: str) -> int | None:
        """Return the ledger that the node of the topic's subscription names."""
        cursors = ManagedLedgers(self.metadata.store).cursors(TopicName.parse(topic).managed_ledger)
        found = cursors.get(SUBSCRIPTION)
        return found.info.cursors_ledger_id if found else None

    def stored(self) -> list[tuple[StoredLedger, Holder | None]]:
        """Read all ledgers that have metadata, each with the holder that it names itself."""
        self.metadata.store.sync()
        readings = self.metadata.catalog.read_many(list_ledger_ids(self.metadata.store))
        return [
            (found, identify_holder(found.metadata.custom)) for found in readings if isinstance(found, StoredLedger)
        ]

    def stored_of(self, holder: Holder) -> list[StoredLedger]:
        return [ledger for ledger, found in self.stored() if found == holder]

    def unnamed(self) -> dict[int, Holder | None]:
        """Find all ledgers that nothing names, each with its holder."""
        stored = self.stored()
        index = ReferenceIndex()
        self.metadata.reference_scan.read_into(index)
        assert not index.doubts, index.doubts
        return {
            ledger.ledger_id: holder
            for ledger, holder in stored
            if index.is_referenced(ledger.ledger_id, holder) is False
        }

    def on_bookie(self, ledger_ids: Collection[int]) -> set[int]:
        """Say which of the ledgers the bookie has the first entry of."""
        bookie = Bookie(f"127.0.0.1:{self.cluster.ports.bookie}", self.metadata.bookies)
        return {number for number, held in bookie.holds(list(ledger_ids)).items() if held}

    def close(self) -> None:
        self.admin.close()

    def _retain(self, namespace: str, limit: int) -> None:
        policy = {"retentionTimeInMinutes": limit, "retentionSizeInMB": limit}
        self.admin.post(f"/namespaces/{namespace}/retention", policy)


class Maker(ABC):
    """Makes orphans of one kind: prepare, strike while ZooKeeper refuses, and settle when the broker is back."""

    cause: Cause
    # The numbers of the messages that can still be read in the end.
    readable: range

    def __init__(self, grounds: Grounds) -> None:
        self.grounds = grounds
        self.namespace = grounds.fresh_namespace()
        self.topic = f"persistent://{self.namespace}/{type(self).__name__}"
        self.managed_ledger = TopicName.parse(self.topic).managed_ledger

    @property
    def admin_path(self) -> str:
        return topic_path(self.topic)

    @property
    def cursor_path(self) -> str:
        return f"/managed-ledgers/{self.managed_ledger}/{SUBSCRIPTION}"

    @abstractmethod
    def prepare(self) -> None:
        """Make what is healthy still."""

    @abstractmethod
    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        """Let it go wrong; deletes of ledgers are refused, and the broker is killed soon after."""

    def settle(self) -> None:  # noqa: B027
        """Do what an operator does then, if anything, without thinking of ledgers."""

    @abstractmethod
    def owns(self, holder: Holder | None) -> bool:
        """Whether a ledger of this holder that nothing names is of our making."""

    def check(self, orphans: frozenset[int]) -> None:
        """Compare what nothing names now with what is known of how it came about."""
        assert orphans

    def begin_reading(self) -> int:
        """Make the subscription and let it pass some messages; return the ledger that its cursor gets then."""
        with closing(self.grounds.client()) as client:
            self.subscribe(client)
        self.pass_by(2)
        return eventually(lambda: self.grounds.cursor_ledger(self.topic)) or -1

    def subscribe(self, client: pulsar.Client) -> None:
        earliest = pulsar.InitialPosition.Earliest
        client.subscribe(self.topic, SUBSCRIPTION, pulsar.ConsumerType.Shared, initial_position=earliest)

    def pass_by(self, count: int) -> None:
        """Let the subscription pass messages; the cursor's ledger gets one entry."""
        self.grounds.admin.post(f"{self.admin_path}/subscription/{SUBSCRIPTION}/skip/{count}")


class TrimCutShort(Maker):
    """A broker dies between a trim's update of the metadata and its deletes in BookKeeper.

    The broker first writes the topic's node without the ledgers and then deletes them, one after the other; a delete
    that fails is tried three times a minute apart, and what is left to do is in its memory alone
    (ManagedLedgerImpl.internalTrimLedgers, asyncDeleteLedgerWithRetry). A crash, a restart for a new release, or a
    store that does not answer for three minutes leave the ledgers behind.
    """

    cause = Cause.TRIM
    readable = range(4 * ENTRIES_PER_LEDGER, 4 * ENTRIES_PER_LEDGER + 5)

    def prepare(self) -> None:
        self.grounds.send(self.topic, self.readable.stop)
        self._before = frozenset(self.grounds.ledgers_of(self.topic))

    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        self.grounds.keep_nothing(self.namespace)

        def trimmed() -> bool:
            self.grounds.admin.post(f"{self.admin_path}/trim")
            return len(self.grounds.ledgers_of(self.topic)) == 1

        eventually(trimmed, 60)
        self._after = frozenset(self.grounds.ledgers_of(self.topic))
        self.grounds.keep_all(self.namespace)

    def owns(self, holder: Holder | None) -> bool:
        return holder == ManagedLedgerHolder(self.managed_ledger)

    def check(self, orphans: frozenset[int]) -> None:
        assert len(orphans) == 4
        assert orphans == self._before - self._after


class CompactionCutShort(Maker):
    """A broker dies in phase two of a compaction, or the compaction fails there.

    The compacted ledger is created at the begin of phase two, which may take hours, and is named by nothing until its
    end (AbstractTwoPhaseCompactor.phaseTwo). The next compaction makes a ledger of its own. Here a dispatch rate makes
    phase two last, so that the broker is killed in the midst of it, and the compaction is repeated afterwards.
    """

    cause = Cause.COMPACTION
    readable = range(260)
    # Messages a second: four seconds for each phase.
    _RATE = 60

    def prepare(self) -> None:
        rate = {"dispatchThrottlingRateInMsg": self._RATE, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
        self.grounds.admin.post(f"/namespaces/{self.namespace}/dispatchRate", rate)
        self.grounds.send(self.topic, 20)
        self._compact()
        self.grounds.send(self.topic, self.readable.stop - 20, first=20)

    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        before = {ledger.ledger_id for ledger in self._compacted()}
        self.grounds.admin.put(f"{self.admin_path}/compaction")

        def begun() -> list[StoredLedger]:
            return [ledger for ledger in self._compacted() if ledger.ledger_id not in before]

        (self._cut_short,) = eventually(begun, 120)
        eventually(lambda: self.grounds.on_bookie([self._cut_short.ledger_id]), 60)

    def settle(self) -> None:
        (left,) = self.grounds.metadata.catalog.read_many([self._cut_short.ledger_id])
        assert isinstance(left, StoredLedger)
        assert left.metadata.state is LedgerState.OPEN, "the compaction ended before the broker was killed"
        self.grounds.admin.delete(f"/namespaces/{self.namespace}/dispatchRate")
        self._compact()

        def only_the_newest_is_left() -> bool:
            return len(self._compacted()) == 2

        eventually(only_the_newest_is_left, 60)

    def owns(self, holder: Holder | None) -> bool:
        return holder == CompactedHolder(self.managed_ledger)

    def check(self, orphans: frozenset[int]) -> None:
        assert orphans == {self._cut_short.ledger_id}

    def _compacted(self) -> list[StoredLedger]:
        return self.grounds.stored_of(CompactedHolder(self.managed_ledger))

    def _compact(self) -> None:
        self.grounds.admin.put(f"{self.admin_path}/compaction")

        def ended() -> bool:
            status = self.grounds.admin.get_json(f"{self.admin_path}/compaction")
            assert status["status"] != "ERROR", status
            return bool(status["status"] == "SUCCESS")

        eventually(ended, 120)


class CursorRolloverAborted(Maker):
    """A cursor's ledger is full; the new one is created and written, and the cursor's node never names it.

    The node is updated after the new ledger has its first entry; if the update fails, the broker tries once to delete
    the ledger, and only logs it if that fails too (ManagedCursorImpl.createNewMetadataLedger, switchToNewLedger). A
    broker that dies in between does not try at all.
    """

    cause = Cause.CURSOR_ROLLOVER
    readable = range(3 * ENTRIES_PER_LEDGER)

    def prepare(self) -> None:
        self.grounds.send(self.topic, self.readable.stop)
        self._named = self.begin_reading()

    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        refusals.updates_of(self.cursor_path)

        def rolled() -> bool:
            # The one that meets the failure fails too.
            with suppress(PulsarError):
                self.pass_by(1)
            return len(self.grounds.stored_of(self._holder)) > 1

        eventually(rolled, 60)

    def owns(self, holder: Holder | None) -> bool:
        return holder == self._holder

    def check(self, orphans: frozenset[int]) -> None:
        assert orphans
        assert self._named not in orphans

    @property
    def _holder(self) -> CursorHolder:
        return CursorHolder(self.managed_ledger, encode_local_name(SUBSCRIPTION))


class NamespaceDeletedByHalves(Maker):
    """A namespace is deleted by force, fails half-way, the broker is restarted, and the deletion is repeated.

    The deletion of a topic first truncates it, which takes its ledgers from its node before they are deleted, then
    removes the cursors' nodes before their ledgers are deleted, and only the last ledger's delete must succeed
    (ManagedLedgerImpl.asyncDelete). The repeated deletion knows only what the nodes still name.
    """

    cause = Cause.NAMESPACE_DELETED
    readable = range(0)

    def prepare(self) -> None:
        self.grounds.send(self.topic, 3 * ENTRIES_PER_LEDGER + 5)
        self._cursor_ledger = self.begin_reading()
        self._before = self.grounds.ledgers_of(self.topic)

    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        with pytest.raises(PulsarError):
            self._delete()
        eventually(lambda: not set(self._before[:3]) & set(self.grounds.ledgers_of(self.topic)), 60)
        eventually(lambda: self.grounds.cursor_ledger(self.topic) is None, 60)

    def settle(self) -> None:
        def deleted() -> bool:
            # A broker that has just come back may answer that it does not own a bundle yet.
            with suppress(PulsarError):
                self._delete()
            return self.grounds.metadata.store.get(f"/managed-ledgers/{self.namespace}/persistent") is None

        eventually(deleted, 60)

    def owns(self, holder: Holder | None) -> bool:
        return holder in (
            ManagedLedgerHolder(self.managed_ledger),
            CursorHolder(self.managed_ledger, encode_local_name(SUBSCRIPTION)),
        )

    def check(self, orphans: frozenset[int]) -> None:
        assert orphans >= {*self._before[:3], self._cursor_ledger}

    def _delete(self) -> None:
        self.grounds.admin.delete(f"/namespaces/{self.namespace}", params={"force": True})


class SchemaVersionNotRecorded(Maker):
    """A schema's new version is stored in a ledger of its own, and the schema's node cannot be updated.

    The broker deletes the ledger only if somebody else has updated the node meanwhile; after any other failure the
    ledger stays, and the client that tries again makes a further one (BookkeeperSchemaStorage.updateSchemaLocator).
    """

    cause = Cause.SCHEMA_VERSION
    readable = range(5)

    def prepare(self) -> None:
        self.grounds.send(self.topic, self.readable.stop)
        self._register("one")
        self._named = {ledger.ledger_id for ledger in self.grounds.stored_of(self._holder)}

    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        refusals.updates_of(f"/schemas/{self._holder.schema_id}")
        with pytest.raises(PulsarError):
            self._register("one", "two")

    def owns(self, holder: Holder | None) -> bool:
        return holder == self._holder

    def check(self, orphans: frozenset[int]) -> None:
        assert orphans
        assert not orphans & self._named

    @property
    def _holder(self) -> SchemaHolder:
        return SchemaHolder(TopicName.parse(self.topic).schema_id)

    def _register(self, *names: str) -> None:
        fields = [{"name": name, "type": ["null", "string"], "default": None} for name in names]
        schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
        path = f"/schemas/{self.namespace}/{type(self).__name__}/schema"
        self.grounds.admin.post(path, {"type": "JSON", "schema": schema, "properties": {}})


class BucketNotRecorded(Maker):
    """A bucket of delayed messages is stored in a ledger, and the cursor's node cannot take its property.

    The broker logs that and uses the bucket from memory (Bucket.asyncSaveBucketSnapshot). After a restart nobody knows
    of it: the messages are read again, into new buckets. Here nobody loads the topic again, so that it is certain at
    once that no broker uses the bucket.
    """

    cause = Cause.DELAYED_DELIVERY
    readable = range(26)

    def prepare(self) -> None:
        self.grounds.send(self.topic, 1)
        with closing(self.grounds.client()) as client:
            self.subscribe(client)

    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        self.subscribe(client)
        refusals.updates_of(self.cursor_path)
        self.grounds.send(self.topic, self.readable.stop - 1, first=1, deliver_after=timedelta(hours=1))
        eventually(lambda: self.grounds.stored_of(self._holder), 60)

    def owns(self, holder: Holder | None) -> bool:
        return holder == self._holder

    @property
    def _holder(self) -> BucketHolder:
        return BucketHolder(self.managed_ledger, encode_local_name(SUBSCRIPTION))


# Compaction last: it must be under way when the broker dies.
ALL_MAKERS: Sequence[type[Maker]] = (
    TrimCutShort,
    CursorRolloverAborted,
    NamespaceDeletedByHalves,
    SchemaVersionNotRecorded,
    BucketNotRecorded,
    CompactionCutShort,
)


def make_orphans(makers: Sequence[Maker]) -> dict[Maker, frozenset[int]]:
    """Let all go wrong in one life of the broker; return the ledgers that exist and that nothing names, by maker."""
    grounds = makers[0].grounds
    for maker in makers:
        maker.prepare()
    with _deletes_refused(grounds) as refusals, closing(grounds.client()) as client:
        for maker in makers:
            maker.strike(refusals, client)
        grounds.cluster.broker.kill()
    grounds.cluster.broker.start()
    for maker in makers:
        maker.settle()
    unnamed = grounds.unnamed()
    made = {maker: frozenset(number for number, holder in unnamed.items() if maker.owns(holder)) for maker in makers}
    for maker, orphans in made.items():
        maker.check(orphans)
    return made


@contextmanager
def _deletes_refused(grounds: Grounds) -> Iterator[Refusals]:
    with closing(Refusals(grounds.cluster.store_url)) as refusals:
        refusals.deletes_in(_LEDGERS_FOLDER)
        yield refusals
