"""Makers of orphans: ledgers that a real Pulsar leaves in BookKeeper although nothing names them any more.

Each comes about as it does in real life, and none is written by hand. What varies there is luck; here ZooKeeper itself
refuses, by its permissions, what would have gone wrong: deletes of ledgers' metadata, or the update of one node of
Pulsar's. What the broker meant to repeat it keeps in memory only, so that it is lost when the broker is killed then.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import timedelta

import pulsar
import pytest

from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.deletion.node_check import NodeDoubt, Suspect
from bookwarden.errors import PulsarError
from bookwarden.ledgers.kinds import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.metadata import LedgerState, StoredLedger
from bookwarden.ledgers.names import TopicName
from bookwarden.orphans.classes import Cause
from bookwarden_dev.devcluster.refusals import LEDGERS_FOLDER, Refusals
from servers.orphan_grounds import Grounds
from servers.pool import ENTRIES_PER_LEDGER
from servers.waiting import eventually

SUBSCRIPTION = "s"


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
    def cursor(self) -> CursorHolder:
        return CursorHolder(self.managed_ledger, SUBSCRIPTION)

    @property
    def cursor_path(self) -> str:
        return f"/managed-ledgers/{self.cursor}"

    @abstractmethod
    def prepare(self) -> None:
        """Make what is healthy still."""

    @abstractmethod
    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        """Let it go wrong; deletes of ledgers are refused, and the broker is killed soon after."""

    def settle(self) -> None:  # noqa: B027
        """Do what an operator does then, if anything, without thinking of ledgers."""

    @property
    @abstractmethod
    def holders(self) -> tuple[Holder, ...]:
        """Whose ledgers are of our making if nothing names them."""

    def check(self, orphans: frozenset[int]) -> None:
        """Compare what nothing names now with what is known of how it came about."""
        assert orphans

    def begin_reading(self) -> int:
        """Make the subscription and let it pass some messages; return the ledger that its cursor gets then."""
        with closing(self.grounds.client()) as client:
            self.subscribe(client)
        self.pass_by(2)
        return eventually(lambda: self.grounds.cursor_ledger(self.cursor)) or -1

    def subscribe(self, client: pulsar.Client) -> None:
        earliest = pulsar.InitialPosition.Earliest
        client.subscribe(self.topic, SUBSCRIPTION, pulsar.ConsumerType.Shared, initial_position=earliest)

    def pass_by(self, count: int) -> None:
        """Let the subscription pass messages; the cursor's ledger gets one entry."""
        self.grounds.admin.post(f"{self.admin_path}/subscription/{SUBSCRIPTION}/skip/{count}")

    def pass_all_by(self) -> None:
        """Let the subscription pass all messages, also while the broker is still coming back."""
        until_taken(lambda: self.grounds.admin.post(f"{self.admin_path}/subscription/{SUBSCRIPTION}/skip_all"))


def until_taken(ask: Callable[[], object]) -> None:
    """Ask a broker that has just come back until it does what it is asked for."""

    def taken() -> bool:
        with suppress(PulsarError):
            ask()
            return True
        return False

    eventually(taken, 60)


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

    @property
    def holders(self) -> tuple[Holder, ...]:
        return (ManagedLedgerHolder(self.managed_ledger),)

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
        (left,) = self.grounds.opened.bookkeeper.catalog.read_many([self._cut_short.ledger_id])
        assert isinstance(left, StoredLedger)
        assert left.metadata.state is LedgerState.OPEN, "the compaction ended before the broker was killed"
        self.grounds.admin.delete(f"/namespaces/{self.namespace}/dispatchRate")
        self._compact()

        def only_the_newest_is_left() -> bool:
            return len(self._compacted()) == 2

        eventually(only_the_newest_is_left, 60)

    @property
    def holders(self) -> tuple[Holder, ...]:
        return (CompactedHolder(self.managed_ledger),)

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
    broker that dies in between does not try at all. Until the cursor is as far again, the new ledger may as well be the
    one that a damaged node has lost.
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
            return len(self.grounds.stored_of(self.cursor)) > 1

        eventually(rolled, 60)

    def settle(self) -> None:
        self.pass_all_by()

    @property
    def holders(self) -> tuple[Holder, ...]:
        return (self.cursor,)

    def check(self, orphans: frozenset[int]) -> None:
        assert orphans
        assert self._named not in orphans


class SubscriptionDeleted(Maker):
    """A subscription is deleted, and the delete of its cursor's ledger is lost.

    The cursor's node goes first; nobody waits for the ledger, whose delete is repeated from memory only
    (ManagedLedgerImpl.asyncDeleteCursor, ManagedCursorImpl.asyncDeleteCursorLedger).
    """

    cause = Cause.SUBSCRIPTION_DELETED
    readable = range(5)

    def prepare(self) -> None:
        self.grounds.send(self.topic, self.readable.stop)
        self._cursor_ledger = self.begin_reading()

    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        self.grounds.admin.delete(f"{self.admin_path}/subscription/{SUBSCRIPTION}", params={"force": True})
        eventually(lambda: self.grounds.cursor_ledger(self.cursor) is None, 60)

    @property
    def holders(self) -> tuple[Holder, ...]:
        return (self.cursor,)

    def check(self, orphans: frozenset[int]) -> None:
        assert orphans == {self._cursor_ledger}


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
        eventually(lambda: self.grounds.cursor_ledger(self.cursor) is None, 60)

    def settle(self) -> None:
        def deleted() -> bool:
            # A broker that has just come back may answer that it does not own a bundle yet.
            with suppress(PulsarError):
                self._delete()
            return self.grounds.opened.store.get(f"/managed-ledgers/{self.namespace}/persistent") is None

        eventually(deleted, 60)

    @property
    def holders(self) -> tuple[Holder, ...]:
        return ManagedLedgerHolder(self.managed_ledger), self.cursor

    def check(self, orphans: frozenset[int]) -> None:
        assert orphans >= {*self._before[:3], self._cursor_ledger}

    def _delete(self) -> None:
        self.grounds.admin.delete(f"/namespaces/{self.namespace}", params={"force": True})


class SchemaMaker(Maker):
    """A topic with schemas of its own, whose ledgers go astray."""

    cause = Cause.SCHEMA_VERSION
    readable = range(5)

    def register(self, *names: str) -> None:
        """Register a version with these fields."""
        fields = [{"name": name, "type": ["null", "string"], "default": None} for name in names]
        schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
        self.grounds.admin.post(self.schema_path, {"type": "JSON", "schema": schema, "properties": {}})

    @property
    def holders(self) -> tuple[Holder, ...]:
        return (self.schema,)

    @property
    def schema(self) -> SchemaHolder:
        return SchemaHolder(TopicName.parse(self.topic).schema_id)

    @property
    def schema_path(self) -> str:
        """The schema in the admin REST."""
        return f"/schemas/{self.namespace}/{type(self).__name__}/schema"


class SchemaVersionNotRecorded(SchemaMaker):
    """A schema's new version is stored in a ledger of its own, and the schema's node cannot be updated.

    The broker deletes the ledger only if somebody else has updated the node meanwhile; after any other failure the
    ledger stays, and the client that tries again makes a further one (BookkeeperSchemaStorage.updateSchemaLocator).
    Only that one shows that no node has lost the first.
    """

    def prepare(self) -> None:
        self.grounds.send(self.topic, self.readable.stop)
        self.register("one")
        self._named = {ledger.ledger_id for ledger in self.grounds.stored_of(self.schema)}

    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        refusals.updates_of(f"/schemas/{self.schema.schema_id}")
        with pytest.raises(PulsarError):
            self.register("one", "two")

    def settle(self) -> None:
        until_taken(lambda: self.register("one", "two"))

    def check(self, orphans: frozenset[int]) -> None:
        assert orphans
        assert not orphans & self._named


class BucketMaker(Maker):
    """A topic with delayed messages, whose buckets go astray."""

    cause = Cause.DELAYED_DELIVERY
    readable = range(26)

    def delay(self) -> None:
        """Send 25 messages behind the first, to be delivered in an hour."""
        self.grounds.send(self.topic, 25, first=1, deliver_after=timedelta(hours=1))

    @property
    def holders(self) -> tuple[Holder, ...]:
        return (self.bucket,)

    @property
    def bucket(self) -> BucketHolder:
        return BucketHolder(self.managed_ledger, SUBSCRIPTION)


class BucketNotRecorded(BucketMaker):
    """A bucket of delayed messages is stored in a ledger, and the cursor's node cannot take its property.

    The broker logs that and uses the bucket from memory (Bucket.asyncSaveBucketSnapshot). After a restart nobody knows
    of it: the messages are read again, into new buckets. That no broker uses the bucket is certain when one has loaded
    and unloaded the topic: a broker that lost its session alone would look as if it had died.
    """

    readable = range(27)

    def prepare(self) -> None:
        self.grounds.send(self.topic, 1)
        with closing(self.grounds.client()) as client:
            self.subscribe(client)

    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        self.subscribe(client)
        refusals.updates_of(self.cursor_path)
        self.delay()
        eventually(lambda: self.grounds.stored_of(self.bucket), 60)

    def settle(self) -> None:
        # Into the ledger that the broker made when it loaded the topic: the cursor is past those of the buckets then.
        self.grounds.send(self.topic, 1, first=self.readable.stop - 1)

        self.pass_all_by()


# Compaction last: it must be under way when the broker dies.
ALL_MAKERS: Sequence[type[Maker]] = (
    TrimCutShort,
    CursorRolloverAborted,
    SubscriptionDeleted,
    NamespaceDeletedByHalves,
    SchemaVersionNotRecorded,
    BucketNotRecorded,
    CompactionCutShort,
)


def make_orphans(makers: Sequence[Maker], prepared: Callable[[], None] = lambda: None) -> dict[Maker, frozenset[int]]:
    """Let all go wrong in one life of the broker; return the ledgers that exist and that nothing names, by maker.

    ``prepared`` is called while everything is still healthy.
    """
    grounds = makers[0].grounds
    for maker in makers:
        maker.prepare()
    prepared()
    with closing(Refusals(grounds.cluster.store_url)) as refusals, closing(grounds.client()) as client:
        refusals.deletes_in(LEDGERS_FOLDER)
        for maker in makers:
            maker.strike(refusals, client)
        grounds.cluster.broker.kill()
    grounds.cluster.broker.start()
    for maker in makers:
        maker.settle()
    unnamed = grounds.unnamed()
    made = {}
    for maker in makers:
        made[maker] = frozenset(number for number, holder in unnamed.items() if holder in maker.holders)
        maker.check(made[maker])
    owners = {number: holder for number, holder in unnamed.items() if holder in {h for m in makers for h in m.holders}}
    # Brokers record positions and buckets a moment later.
    eventually(lambda: not undecided(grounds, owners), 60)
    return made


def undecided(grounds: Grounds, owners: Mapping[int, Holder | None]) -> list[NodeDoubt]:
    """Find the doubts about nodes that may have lost these ledgers."""
    opened = grounds.opened
    readings = opened.bookkeeper.catalog.read_many(list(owners))
    suspects = [
        Suspect(holder, reading)
        for reading, holder in zip(readings, owners.values(), strict=True)
        if holder is not None and isinstance(reading, StoredLedger)
    ]
    doubts = opened.references.node_check.doubts_now(suspects, opened.references.live)
    return [doubt for doubt in doubts if doubt is not None]
