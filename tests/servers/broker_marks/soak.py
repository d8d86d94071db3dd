"""What brokers that mark have to stand: ordinary life, kills at their drops, a deletion topic or a store that is away.

Each ledger that left a node was in the outbox before, by ZooKeeper's own log, and after the sweep none is left: without
follow, and without a scan.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pulsar

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.paths import MANAGED_LEDGERS_ROOT
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import NotFoundError, PulsarError, ServerError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from bookwarden.wire.broker_marks import DELETION_TOPIC_NODE, MARKING_BROKERS, decode_marking_broker
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wiring.cluster import Cluster
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from servers.broker_marks.drops_in_log import DropsInLog, read_drops
from servers.broker_marks.many import compare
from servers.broker_marks.publishing import publish_without_deletion_topic
from servers.broker_marks.releases import servers_of, use_broker
from servers.deletion_site import PARTITIONS
from servers.follow.life import living
from servers.follow.site import site_of
from servers.marked_load import sweep_process
from servers.marking_brokers import nodes_in_outbox
from servers.pool import ENTRIES_PER_LEDGER, PLAIN
from servers.short_lived import running_until_killed
from servers.switching.broker_jar import broker_jar
from servers.topic_contents import managed_ledger_of, send
from servers.waiting import eventually

_ACTS: Final = {
    "life": "each ledger that left its node was in the outbox before, and none is left",
    "kills": "no ledger is left of a broker that was killed again and again, each fourth time without a deletion topic",
    "topic": "no ledger is left where the deletion topic was unloaded, terminated, deleted or unsubscribed",
    "many": "a topic of 100,000 ledgers and 10,000 topics are deleted as fast as without it, and no request fails",
    "publish": "every mark arrives though sending was denied, or the deletion topic's owner hung, under load",
    "store": "no ledger is left where ZooKeeper was killed, or the broker stood still beyond its session",
}
_SEND_AFTER_S: Final = 20
_SESSION_S: Final = 10
_HANDS: Final = 3
_TOPICS: Final = 20
# Three tries of a broker's deletes, a minute apart, and a sweep's.
_GONE_S: Final = 400.0
#: Of the sweep's deletes, where it alone deletes.
_DELAY_S: Final = 120


def _stock(version: str) -> ClusterOptions:
    return ClusterOptions(
        pulsar=servers_of(version),
        max_entries_per_ledger=ENTRIES_PER_LEDGER,
        session_seconds=_SESSION_S,
        broker_jar=str(broker_jar()),
        broker_settings={**PLAIN.broker_settings, "managedLedgerDefaultMarkDeleteRateLimit": "1000"},
    )


def _cluster(home: Path, options: ClusterOptions, version: str) -> DevCluster:
    cluster = DevCluster(home, options)
    use_broker(cluster, version)
    return cluster


def _marking(version: str, mode: str) -> ClusterOptions:
    lines = {
        "bookwardenMarks": mode,
        "managedLedgerStorageClassName": "bookwarden.broker.marks.MarkingManagedLedgerStorage",
        "bookwardenMarksSendAfterSeconds": str(_SEND_AFTER_S),
    }
    stock = _stock(version)
    return replace(stock, broker_settings={**stock.broker_settings, **lines})


class MarkingSite:
    """A cluster whose broker marks, topics that live on it, and the sweep as a process of its own."""

    def __init__(self, cluster: DevCluster, tenant: str, home: Path, delay_s: int) -> None:
        self.cluster = cluster
        self.tenant = tenant
        self.delay_s = delay_s
        #: Ledgers that went before the delay was over: where a doubt arose the broker deletes as ever.
        self.early = 0
        home.mkdir()
        self.site = site_of(cluster, tenant, home)
        delays = {"deletion.delete_delay_seconds": str(delay_s)}
        self.site.overrides = {**self.site.overrides, **delays}
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
        """Let topics live, and sweep, during the block; then AssertionError if a drop was not marked, or is left."""
        self.sweep.start()
        try:
            with living(self.cluster, f"{self.tenant}/life", seed, hands=_HANDS, topics=_TOPICS) as done:
                yield done
            with closing(open_store(self.cluster.store_url)) as store:
                self._settle(store, say)
            self.sweep.stop()
        finally:
            self.sweep.kill()

    def drops(self) -> DropsInLog:
        """What was dropped so far."""
        return read_drops(self.cluster.home / "zookeeper" / "version-2")

    def kill_between(self, number: int) -> int:
        """Kill the broker when it has dropped ledgers and could not delete them; return how many are left behind."""
        topic = f"persistent://{self.tenant}/life/left-{number}"
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

            eventually(filled, _GONE_S, 1)
            # What has a node below it cannot be deleted.
            held = [f"{ledger_path('/ledgers', ledger)}/held" for ledger in listed()[:-1]]
            for each in held:
                store.create(each, b"")
            admin.post(f"{topic_path(topic)}/subscription/s/skip_all")
            eventually(lambda: len(listed()) <= 1, 60)
            self.cluster.broker.kill()
            assert set(store.delete_many([(each, 0) for each in held])) == {DeleteResult.DELETED}
            return len(self._left(store, self.drops()))

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
        # As long as the sweep works the deletion topics drop ledgers of their own.
        eventually(self.is_swept, _GONE_S, 1)
        eventually(lambda: nodes_in_outbox(store) == 0, _GONE_S, 1)
        (broker,) = (
            decode_marking_broker(node.value)
            for name in store.list_children(MARKING_BROKERS)
            if (node := store.get(f"{MARKING_BROKERS}/{name}"))
        )
        drops = self.drops()
        say(f"dropped {len(drops.dropped)}: {dict(drops.kinds)}; {len(drops.unmarked)} of them unmarked")
        say(f"the broker since its start: {dict(broker.stored)}, gone {broker.gone}, sent {dict(broker.sent)}")
        assert not drops.unmarked, drops.unmarked
        assert broker.unmarked_writes == 0
        eventually(lambda: not self._left(store, drops), _GONE_S, 2)
        eventually(self.is_swept, _GONE_S, 1)
        drops = self.drops()
        # Those of the deletion topics the broker deletes itself.
        own = f"{MANAGED_LEDGERS_ROOT}/{managed_ledger_of(self.site.settings.deletion.topic)}"
        kept = {key: after for key, after in drops.kept_ms.items() if not drops.dropped.get(key, "").startswith(own)}
        early = sum(after < self.delay_s * 1000 for after in kept.values())
        say(f"{len(kept)} ledgers were deleted behind their drop, {early} of them within {self.delay_s} s")
        say(f"the deletion topics dropped {len(drops.kept_ms) - len(kept)} of their own")
        self.early += early

    def _left(self, store: MetadataStore, drops: DropsInLog) -> list[int]:
        ledgers = sorted(drops.ledgers)
        nodes = store.get_many([ledger_path("/ledgers", ledger) for ledger in ledgers])
        return [ledger for ledger, node in zip(ledgers, nodes, strict=True) if node is not None]


def live(site: MarkingSite, asked: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Let topics live for some minutes."""
    with site.played(asked.seed, say) as done:
        end = time.monotonic() + asked.minutes * 60
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 60))
            say(f"{dict(done)}")
    assert site.early == 0


def kill(site: MarkingSite, asked: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Kill the broker again and again, every fourth time while it knows no deletion topic."""
    chance = random.Random(asked.seed)
    with site.played(asked.seed, say) as done:
        for number in range(asked.kills):
            with ExitStack() as stack:
                if number % 4 == 3:
                    stack.enter_context(site.without_deletion_topic())
                time.sleep(chance.uniform(2, 15))
                leaked = site.kill_between(number)
                site.cluster.broker.start()
                say(f"kill {number + 1} of {asked.kills} left {leaked} ledgers behind; {dict(done)}")
                if number % 4 == 3:
                    time.sleep(_SEND_AFTER_S)


def lose_topic(site: MarkingSite, asked: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Do to the deletion topic whatever keeps marks from it, and set it up again each time."""
    deletion = site.site.settings.deletion
    partitions = [f"{deletion.topic}-partition-{number}" for number in range(PARTITIONS)]
    with site.played(asked.seed, say) as done, closing(PulsarAdmin(site.cluster.connection(), timeout_s=60)) as admin:

        def each(call: Callable[[str], object]) -> None:
            for partition in partitions:
                call(topic_path(partition))

        def unloaded() -> None:
            each(lambda path: admin.put(f"{path}/unload"))

        def terminated() -> None:
            each(lambda path: admin.post(f"{path}/terminate"))

        def deleted() -> None:
            admin.delete(f"{topic_path(deletion.topic)}/partitions", params={"force": True})

        def unsubscribed() -> None:
            each(lambda path: admin.delete(f"{path}/subscription/{deletion.subscription}", params={"force": True}))

        for number, fault in enumerate((unloaded, terminated, deleted, unsubscribed)):
            with site.without_deletion_topic():
                # What was confirmed and not swept would go with the topic.
                eventually(site.is_swept, _GONE_S, 1)
                site.sweep.stop()
                fault()
            leaked = site.kill_between(number)
            site.cluster.broker.start()
            time.sleep(2 * _SEND_AFTER_S)
            if fault is not unloaded:
                with suppress(NotFoundError):
                    deleted()
                site.set_up()
            site.sweep.start()
            say(f"{fault.__name__}, {leaked} ledgers left behind meanwhile; {dict(done)}")


def shake_store(site: MarkingSite, asked: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Kill ZooKeeper, and have the broker stand still for longer than its session, by turns."""
    chance = random.Random(asked.seed)
    with site.played(asked.seed, say) as done:
        for number in range(max(2, asked.kills // 3)):
            time.sleep(chance.uniform(2, 15))
            if number % 2:
                with site.cluster.broker.paused(2 * _SESSION_S):
                    pass
                if not site.cluster.broker.is_running():
                    # One that lost its session ends itself.
                    site.cluster.broker.start()
            else:
                site.cluster.zookeeper.kill()
                site.cluster.zookeeper.start()
            say(f"fault {number + 1}; {dict(done)}")


def refuse(cluster: DevCluster, say: Callable[[str], None]) -> None:
    """See that a broker of a release without what the jar needs does not start, and says why."""
    try:
        with suppress(ServerError):
            cluster.up()
        (reason, *_) = [line for line in cluster.broker.log_since_start().splitlines() if "broker marks need" in line]
        assert not cluster.broker.is_running()
    finally:
        cluster.kill()
    say(f"it does not start: {reason}")


def main() -> int:
    """Play the acts, as `make soak STORM=broker-marks` does; AssertionError if a drop is not marked, or is left."""
    parser = argparse.ArgumentParser(prog="python -m servers.broker_marks.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of the broker; a third as many faults of the store")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--minutes", type=float, default=10.0, help="of ordinary life")
    parser.add_argument("--ledgers", type=int, default=100_000, help="of a topic that is deleted")
    parser.add_argument("--topics", type=int, default=10_000, help="that are made, unloaded and deleted")
    parser.add_argument("--version", default=PLAIN.pulsar, help="of the broker; before 4.0.4 it is to be refused")
    parser.add_argument("--mode", choices=["mark", "two-phase"], default="mark", help="of the brokers")
    parser.add_argument("--acts", nargs="+", choices=_ACTS, default=list(_ACTS))
    asked = parser.parse_args()
    # What stores and clients say while their servers are away.
    for name in ("pulsar", "bookwarden", "kazoo"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # It stays if anything fails, with all logs.
    home = Path(tempfile.mkdtemp(prefix="bookwarden-soak-"))
    _say(f"seed {asked.seed}, servers in {home}")
    delay_s = _DELAY_S if asked.mode == "two-phase" else 0
    if asked.version.startswith("3.") or asked.version in ("4.0.0", "4.0.1", "4.0.2", "4.0.3"):
        refuse(_cluster(home / "pulsar", _marking(asked.version, asked.mode), asked.version), _say)
        shutil.rmtree(home)
        return 0
    plays = {"life": live, "kills": kill, "topic": lose_topic, "store": shake_store}
    for act in asked.acts:
        if act == "many":
            brokers = {"stock": _stock(asked.version), asked.mode: _marking(asked.version, asked.mode)}
            compare(home, brokers, asked.ledgers, asked.topics, _say)
            continue
        if act == "publish":
            # In this mode each drop is sent.
            publish_without_deletion_topic(home, _marking(asked.version, "two-phase"), _say)
            continue
        options = _marking(asked.version, asked.mode)
        with running_until_killed(_cluster(home / f"pulsar-{act}", options, asked.version)) as cluster:
            plays[act](MarkingSite(cluster, act, home / act, delay_s), asked, _say)
        _say(f"{act}: {_ACTS[act]}")
    shutil.rmtree(home)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
