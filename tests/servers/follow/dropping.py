"""Makers of drops: ledgers that a node named, and that a broker took off it without deleting them.

Brokers take the ledgers of schemas and the buckets of delayed messages off their nodes after their deletes, and not
before. So a kill in between leaves nothing of these behind, but what the broker does not do, or does not wait for.
"""

from __future__ import annotations

from contextlib import closing, suppress

import pulsar

from bookwarden.errors import PulsarError
from bookwarden.ledgers.kinds import CompactedHolder, Holder
from bookwarden.orphans.classes import Cause
from bookwarden_dev.devcluster.refusals import Refusals
from servers.orphan_makers import SUBSCRIPTION, BucketMaker, Maker, SchemaMaker
from servers.topic_contents import compact
from servers.waiting import eventually


class SchemaDeleted(SchemaMaker):
    """A schema is deleted, and the deletes of its ledgers fail.

    The broker logs that, and removes the schema's node all the same (BookkeeperSchemaStorage.deleteSchema).
    """

    def prepare(self) -> None:
        self.grounds.send(self.topic, self.readable.stop)
        self.register("one")
        self.register("one", "two")
        self._named = frozenset(ledger.ledger_id for ledger in self.grounds.stored_of(self.schema))

    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        self.grounds.admin.delete(self.schema_path, params={"force": True})
        eventually(lambda: self.grounds.opened.store.get(f"/schemas/{self.schema.schema_id}") is None, 60)

    def check(self, orphans: frozenset[int]) -> None:
        assert len(orphans) == 2
        assert orphans == self._named


class CompactedLedgerReplaced(Maker):
    """A topic is compacted again, and the delete of the compacted ledger of before is lost.

    Nobody waits for it, or repeats it (CompactedTopicImpl.tryDeleteCompactedLedger). The cursor's last entry names the
    new one at once, and its node when the topic is closed.
    """

    cause = Cause.COMPACTION
    readable = range(20)

    def prepare(self) -> None:
        self.grounds.send(self.topic, 10)
        self._before = compact(self.grounds.admin, self.topic)
        self._unload()
        self.grounds.send(self.topic, 10, first=10)

    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        self._after = compact(self.grounds.admin, self.topic)

    def settle(self) -> None:
        self.grounds.read_back(self.topic)
        self._unload()

    @property
    def holders(self) -> tuple[Holder, ...]:
        return (CompactedHolder(self.managed_ledger),)

    def check(self, orphans: frozenset[int]) -> None:
        assert orphans == {self._before}
        assert {ledger.ledger_id for ledger in self.grounds.stored_of(self.holders[0])} == {self._before, self._after}

    def _unload(self) -> None:
        self.grounds.admin.put(f"{self.admin_path}/unload")


class SubscriptionWithBucketsDeleted(BucketMaker):
    """A subscription is deleted after delayed delivery was turned off: its buckets go with its node, and stay.

    The broker deletes buckets only where it is on (PersistentTopic.asyncDeleteCursorWithClearDelayedMessage).
    """

    def prepare(self) -> None:
        self.grounds.send(self.topic, 1)
        with closing(self.grounds.client()) as client:
            self.subscribe(client)
            self.delay()

            def named() -> frozenset[int]:
                buckets = self.grounds.buckets(self.bucket)
                return buckets & {ledger.ledger_id for ledger in self.grounds.stored_of(self.bucket)}

            self._before = eventually(named, 60)

    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        self.grounds.admin.post(f"/namespaces/{self.namespace}/delayedDelivery", {"active": False, "tickTime": 1000})

        self.grounds.admin.delete(f"{self.admin_path}/subscription/{SUBSCRIPTION}", params={"force": True})
        eventually(lambda: self.grounds.opened.store.get(self.cursor_path) is None, 60)

    def settle(self) -> None:
        """Let a broker load and unload the topic, so that its last ledger is closed: none uses the buckets then."""
        self.grounds.read_back(self.topic)
        self.grounds.admin.put(f"{self.admin_path}/unload")

    def check(self, orphans: frozenset[int]) -> None:
        assert orphans >= self._before


class UnloadedTopicDeleted(Maker):
    """A topic that no broker has loaded is deleted: its compacted ledger stays, and nothing went wrong.

    The broker deletes what the nodes of the topic and its cursors name as their own, and no more
    (BrokerService.deleteTopicInternal).
    """

    cause = Cause.COMPACTION
    readable = range(0)

    def prepare(self) -> None:
        self.grounds.send(self.topic, 10)
        self._compacted = compact(self.grounds.admin, self.topic)
        self.grounds.admin.put(f"{self.admin_path}/unload")

    def strike(self, refusals: Refusals, client: pulsar.Client) -> None:
        """Do nothing: a broker that is well does it, after its restart."""

    def settle(self) -> None:
        def deleted() -> bool:
            # A broker that has just come back may answer that it does not own a bundle yet.
            with suppress(PulsarError):
                self.grounds.admin.delete(self.admin_path, params={"force": True})
            return self.grounds.opened.store.get(f"/managed-ledgers/{self.managed_ledger}") is None

        eventually(deleted, 60)

    @property
    def holders(self) -> tuple[Holder, ...]:
        return (CompactedHolder(self.managed_ledger),)

    def check(self, orphans: frozenset[int]) -> None:
        assert orphans == {self._compacted}


DROPPING = (SchemaDeleted, CompactedLedgerReplaced, SubscriptionWithBucketsDeleted, UnloadedTopicDeleted)
