"""A cluster whose broker marks, on which topics live and are swept, and what is asserted of it in the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import pulsar

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.paths import MANAGED_LEDGERS_ROOT
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import FormatError, NotFoundError, PulsarError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.snapshot.transaction_log import Transaction
from bookwarden.metastore.urls import open_store
from bookwarden.wire.broker_marks import DELETION_TOPIC_NODE, MARKING_BROKERS, decode_marking_broker
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import DevCluster, ServerProcess
from bookwarden_dev.devcluster.servers.oxia import oxia_address
from servers.broker_marks.drops_in_log import DropsInLog, read_drops, read_zookeeper_log
from servers.broker_marks.oxia_log import read_oxia_log
from servers.follow.life import living
from servers.follow.site import site_of
from servers.marked_load import sweep_process
from servers.marking_brokers import nodes_in_outbox, release
from servers.object_store import OFFLOAD_BUCKET, ObjectStore
from servers.pool import ENTRIES_PER_LEDGER
from servers.topic_contents import managed_ledger_of, send
from servers.waiting import eventually

#: Three tries of a broker's deletes, a minute apart, and a sweep's.
GONE_S: Final = 400.0
_HANDS: Final = 3
_TOPICS: Final = 20
_UUID_LENGTH: Final = 36


class MarkingSite:
    """A cluster whose broker marks, topics that live on it, and the sweep as a process of its own."""

    def __init__(
        self,
        cluster: DevCluster,
        tenant: str,
        home: Path,
        delay_s: int,
        *,
        offloaded: ObjectStore | None = None,
        log: Callable[[], Iterable[Transaction]] | None = None,
        stock: str = "",
    ) -> None:
        """Make what is missing; ``log`` reads the log of the metadata store, if that is not the cluster's own.

        Where there is a store for what is offloaded some topics are. ``stock`` names a broker that does not mark.
        """
        self.cluster = cluster
        self.tenant = tenant
        self.delay_s = delay_s
        self._offloaded = offloaded
        self._stock = stock
        self._lost_session = False
        self._killed = False
        self._log = log or partial(_log_of, cluster)
        #: Ledgers that went before the delay was over: where a doubt arose the broker deletes as ever.
        self.early = 0
        home.mkdir()
        self.site = site_of(cluster, tenant, home)
        self.site.overrides = {**self.site.overrides, "deletion.delete_delay_seconds": str(delay_s)}
        if offloaded:
            stores = json.dumps([offloaded.sweep_settings(OFFLOAD_BUCKET)])
            self.site.overrides = {**self.site.overrides, "offload.stores": stores}
        self.sweep = sweep_process(self.site, home)
        self.set_up()

    def set_up(self) -> None:
        """Create what is missing of the deletion topics, and tell brokers of them, as `init` does."""
        with Cluster(self.site.settings) as opened:
            topics = opened.deletion_topics
            topics.setup().run()
            topics.publish()

    def is_swept(self) -> bool:
        """Say whether nothing is in flight; False while the topic cannot be asked."""
        with Cluster(self.site.settings) as opened, suppress(PulsarError, NotFoundError):
            return opened.deletion_topics.in_flight().messages == 0
        return False

    @contextmanager
    def played(self, seed: int, say: Callable[[str], None]) -> Iterator[Counter[str]]:
        """Let topics live, and sweep, during the block.

        Then AssertionError if a drop was not marked, or is left, or if anything that is named is lost.
        """
        self.sweep.start()
        try:
            with living(
                self.cluster,
                f"{self.tenant}/life",
                seed,
                hands=_HANDS,
                topics=_TOPICS,
                offload=self._offloaded is not None,
                namespaces=True,
            ) as done:
                yield done
            with closing(open_store(self.cluster.store_url)) as store:
                self._settle(store, say)
            self.sweep.stop()
        finally:
            self.sweep.kill()

    def drops(self) -> DropsInLog:
        """What was dropped so far."""

        def read() -> DropsInLog | None:
            try:
                return read_drops(self._log(), self._stock)
            except FormatError:
                # The server writes the log: a record may come behind what was the end a moment ago.
                return None

        found = eventually(read, 60, 1)
        assert found is not None
        return found

    def kill_between(
        self,
        number: int,
        *,
        broker: ServerProcess | None = None,
        namespace: str = "life",
        is_known: Callable[[str, set[int]], bool] = lambda _path, _ledgers: True,
    ) -> list[int]:
        """Kill the broker when it has dropped ledgers and could not delete them; return what is left behind.

        It does not drop them before ``is_known`` says so of the topic's node and these ledgers.
        """
        topic = f"persistent://{self.tenant}/{namespace}/left-{number}"
        path = f"{MANAGED_LEDGERS_ROOT}/{managed_ledger_of(topic)}"
        with (
            closing(open_store(self.cluster.store_url)) as store,
            closing(PulsarAdmin(self.cluster.connection(), timeout_s=60)) as admin,
            closing(self.cluster.connection().client()) as client,
        ):

            def listed() -> list[int]:
                node = store.get(path)
                return [ledger.ledger_id for ledger in decode_managed_ledger(node.value).ledgers] if node else []

            def filled() -> bool:
                try:
                    client.subscribe(topic, "s").close()
                    send(client, topic, 5 * ENTRIES_PER_LEDGER)
                except pulsar.PulsarException:
                    # A broker that recovers buckets of delayed messages may answer nobody for minutes (findings.md).
                    return False
                return True

            eventually(filled, GONE_S, 1)
            # What has a node below it cannot be deleted.
            held = [f"{ledger_path('/ledgers', ledger)}/held" for ledger in listed()[:-1]]
            for each in held:
                store.create(each, b"")
            named = set(listed()[:-1])
            eventually(lambda: is_known(path, named), 60, 0.5)
            admin.post(f"{topic_path(topic)}/subscription/s/skip_all")
            eventually(lambda: len(listed()) <= 1, 60)
            (broker or self.cluster.broker).kill()
            self._killed = True
            release(store, held)
            return self._left(store, self.drops())

    def lose_session(self, seconds: float) -> None:
        """Have the broker stand still for longer than its session, and wait until it has another one.

        One of a release that ends itself then is started again. A bundle whose unload begins before the broker knows
        of the end of its session is *being unloaded* for ever.
        """
        self._lost_session = True
        broker = self.cluster.broker
        with closing(open_store(self.cluster.store_url)) as store:
            before = _sessions(store)
            with broker.paused(seconds):
                pass
            eventually(lambda: not broker.is_running() or _sessions(store) - before, GONE_S, 0.5)
        if not broker.is_running():
            broker.start()

    @contextmanager
    def without_deletion_topic(self) -> Iterator[None]:
        """Let brokers know no deletion topic during the block."""
        with closing(open_store(self.cluster.store_url)) as store:
            node = store.get(DELETION_TOPIC_NODE)
            assert node is not None
            store.delete_many([(DELETION_TOPIC_NODE, node.version)])
            yield
            if store.get(DELETION_TOPIC_NODE) is None:
                store.create(DELETION_TOPIC_NODE, node.value)

    def _settle(self, store: MetadataStore, say: Callable[[str], None]) -> None:
        if self.delay_s:
            self._use_topics_again()
            # Once they are unloaded the sweep may doubt that the node of a subscription is its newest value: if one was
            # deleted, and made again at an earlier position, and its node names no ledger.
            before = self.drops()
            self._wait_until_gone(store, before, but=before.buckets)
        # The sweep keeps a bucket of delayed messages for as long as its topic's owner may have it in memory.
        eventually(self._unload, GONE_S, 1)
        # As long as the sweep works the deletion topics drop ledgers of their own.
        eventually(self.is_swept, GONE_S, 1)
        eventually(lambda: nodes_in_outbox(store) == 0, GONE_S, 1)
        (broker,) = (
            decode_marking_broker(node.value)
            for name in store.list_children(MARKING_BROKERS)
            if (node := store.get(f"{MARKING_BROKERS}/{name}"))
        )
        drops = self.drops()
        say(f"dropped {len(drops.dropped)}: {dict(drops.kinds)}; {len(drops.unmarked)} of them unmarked")
        if self._stock:
            say(f"the stock broker dropped {len(drops.unmarked_by_stock)} more that are in no outbox")
        say(f"the broker since its start: {dict(broker.stored)}, gone {broker.gone}, sent {dict(broker.sent)}")
        assert not drops.unmarked, drops.unmarked
        # Without a session a write goes on unmarked, and fails as its mark did.
        assert broker.unmarked_writes == 0 or self._lost_session
        self._wait_until_gone(store, drops)
        eventually(lambda: not self._left_copies(drops), GONE_S, 2)
        eventually(self.is_swept, GONE_S, 1)
        drops = self.drops()
        self._assert_that_nothing_is_lost(store, drops)
        # Those of the deletion topics the broker deletes itself.
        own = f"{MANAGED_LEDGERS_ROOT}/{managed_ledger_of(self.site.settings.deletion.topic)}"
        kept = {key: after for key, after in drops.kept_ms.items() if not drops.dropped.get(key, "").startswith(own)}
        early = sum(after < self.delay_s * 1000 for after in kept.values())
        say(f"{len(kept)} ledgers were deleted behind their drop, {early} of them within {self.delay_s} s")
        say(f"the deletion topics dropped {len(drops.kept_ms) - len(kept)} of their own")
        self.early += early

    def _unload(self) -> bool:
        """Unload the topics; False while the broker is about to end itself, as one that lost its session does."""
        if not self.cluster.broker.is_running():
            self.cluster.broker.start()
        with closing(PulsarAdmin(self.cluster.connection(), timeout_s=60)) as admin, suppress(PulsarError):
            admin.put(f"/namespaces/{self.tenant}/life/unload")
            return True
        return False

    def _use_topics_again(self) -> None:
        """Acknowledge a message on each topic, so that the node of its subscription names a ledger."""
        with (
            closing(PulsarAdmin(self.cluster.connection(), timeout_s=60)) as admin,
            closing(self.cluster.connection().client(operation_timeout_seconds=60)) as client,
        ):
            for number in range(_TOPICS):
                topic = f"persistent://{self.tenant}/life/living-{number}"
                send(client, topic, 1)
                with suppress(NotFoundError):
                    admin.post(f"{topic_path(topic)}/subscription/s/skip/1")

    def _assert_that_nothing_is_lost(self, store: MetadataStore, drops: DropsInLog) -> None:
        """Check what is named in the end; of the deletion topics it may have been dropped since the log was read."""
        lost = drops.named - _present(store, drops.named)
        lost &= self.drops().named
        if self._killed:
            # A broker deletes the last ledgers of a topic that is deleted, and then its node.
            lost &= {row["ledger_id"] for row in self.site.outcomes() if row["outcome"] == "deleted"}
        assert not lost, sorted(lost)
        if self._offloaded is None:
            return
        nodes = [node for node in store.get_many(drops.topics) if node is not None]
        copies = {
            f"{ledger.offload.uuid}-ledger-{ledger.ledger_id}"
            for node in nodes
            for ledger in decode_managed_ledger(node.value).ledgers
            if ledger.offload is not None and ledger.offload.complete
        }
        lost_copies = copies - self._offloaded.keys(OFFLOAD_BUCKET)
        assert not lost_copies, sorted(lost_copies)

    def _wait_until_gone(self, store: MetadataStore, drops: DropsInLog, but: Collection[int] = ()) -> None:
        """Wait for what was dropped to be deleted; AssertionError names what is left, and what it left."""
        try:
            eventually(lambda: set(self._left(store, drops)) <= drops.unseen.union(but), GONE_S, 2)
        except AssertionError as error:
            left = set(self._left(store, drops)).difference(but, drops.unseen)
            raise AssertionError(f"left: { {one: drops.dropped.get(one) for one in sorted(left)} }") from error

    def _left(self, store: MetadataStore, drops: DropsInLog) -> list[int]:
        return sorted(_present(store, drops.ledgers))

    def _left_copies(self, drops: DropsInLog) -> list[str]:
        """List the objects of offloaded copies among what was dropped."""
        if self._offloaded is None:
            return []
        dropped = {str(key) for key in drops.dropped if isinstance(key, UUID)}
        return [name for name in self._offloaded.keys(OFFLOAD_BUCKET) if name[:_UUID_LENGTH] in dropped]


def _log_of(cluster: DevCluster) -> Iterable[Transaction]:
    if cluster.options.metadata == "zookeeper":
        return read_zookeeper_log(cluster.home / "zookeeper" / "version-2")
    return read_oxia_log(cluster.home / "oxia" / "wal", oxia_address(cluster.ports.oxia))


def _sessions(store: MetadataStore) -> set[int | str | None]:
    """Return the sessions of brokers that mark."""
    nodes = store.get_many([f"{MARKING_BROKERS}/{name}" for name in store.children_of(MARKING_BROKERS)])
    return {node.keeper for node in nodes if node is not None}


def _present(store: MetadataStore, ledgers: set[int]) -> set[int]:
    """Return those of the ledgers that BookKeeper has."""
    listed = sorted(ledgers)
    nodes = store.get_many([ledger_path("/ledgers", ledger) for ledger in listed])
    return {ledger for ledger, node in zip(listed, nodes, strict=True) if node is not None}
