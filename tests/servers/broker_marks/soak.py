"""What brokers that mark have to stand: ordinary life, kills at their drops, a deletion topic or a store that is away.

Each ledger that left a node was in the outbox before, by the store's own log, and after the sweep none is left: without
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.java_peer import java_peer

from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import NotFoundError, ServerError
from bookwarden_dev.devcluster import ClusterOptions, DevCluster
from bookwarden_dev.devcluster.servers.settings import METADATA_STORES, PULSAR_VERSIONS
from bookwarden_dev.devcluster.servers.specs import load_runtime
from servers.broker_marks.beside_stock import live_beside_stock
from servers.broker_marks.many import compare
from servers.broker_marks.publishing import publish_without_deletion_topic
from servers.broker_marks.releases import servers_of, use_broker
from servers.broker_marks.site import GONE_S, MarkingSite
from servers.broker_marks.store_leader import kill_leaders
from servers.deletion_site import PARTITIONS
from servers.object_store import OFFLOAD_BUCKET, ObjectStore
from servers.pool import ENTRIES_PER_LEDGER, PLAIN
from servers.short_lived import running_until_killed, soaked
from servers.switching.broker_jar import broker_jar
from servers.waiting import eventually

_ACTS: Final = {
    "life": "each ledger that left its node was in the outbox before, and none is left",
    "kills": "no ledger is left of a broker that was killed again and again, each fourth time without a deletion topic",
    "topic": "no ledger is left where the deletion topic was unloaded, terminated, deleted or unsubscribed",
    "leader": "no ledger is left where ZooKeeper's leader was killed between the put into the outbox and the node's",
    "many": "a topic of 100,000 ledgers and 10,000 topics are deleted as fast as without it, and no request fails",
    "publish": "every mark arrives though sending was denied, or the deletion topic's owner hung, under load",
    "side": "what the marking one of two brokers drops is in an outbox before, what the other one drops follow finds",
    "store": "no ledger is left where the metadata store was killed, or the broker stood still beyond its session",
}
#: What they do is done to ZooKeeper alone.
_ON_ZOOKEEPER: Final = ("leader", "many")
_TRANSACTIONS: Final = Path(__file__).parents[2] / "java/LivingTransactions.java"
_SEND_AFTER_S: Final = 20
_SESSION_S: Final = 10
#: Of the sweep's deletes, where it alone deletes.
_DELAY_S: Final = 120


def _stock(version: str, metadata: str) -> ClusterOptions:
    return ClusterOptions(
        pulsar=servers_of(version),
        metadata=metadata,
        max_entries_per_ledger=ENTRIES_PER_LEDGER,
        session_seconds=_SESSION_S,
        broker_jar=str(broker_jar()),
        broker_settings={**PLAIN.broker_settings, "managedLedgerDefaultMarkDeleteRateLimit": "1000"},
    )


def _cluster(home: Path, options: ClusterOptions, version: str, oxia: str | None = None) -> DevCluster:
    """Make a cluster whose broker is of a release."""
    cluster = soaked(home, options, oxia)
    use_broker(cluster, version)
    return cluster


def _transacting(options: ClusterOptions) -> ClusterOptions:
    return replace(options, broker_settings={**options.broker_settings, "transactionCoordinatorEnabled": "true"})


def _offloading(options: ClusterOptions, store: ObjectStore) -> ClusterOptions:
    store.create_bucket(OFFLOAD_BUCKET)
    return replace(
        options,
        offload=True,
        broker_settings={**options.broker_settings, **store.broker_settings(OFFLOAD_BUCKET)},
        broker_environment=store.broker_environment,
    )


@contextmanager
def transactions(cluster: DevCluster, namespace: str, say: Callable[[str], None]) -> Iterator[None]:
    """Have a Java client make transactions in the block; any error that it sees is one of the block."""
    release = load_runtime(cluster.options.pulsar).release
    with java_peer(_TRANSACTIONS, [cluster.service_url, namespace], release=release, heap_mb=256) as peer:
        yield
        say(f"{peer.ask('stop')}, and no other error")


def _marking(version: str, mode: str, metadata: str) -> ClusterOptions:
    lines = {
        "bookwardenMarks": mode,
        "managedLedgerStorageClassName": "bookwarden.broker.marks.MarkingManagedLedgerStorage",
        "bookwardenMarksSendAfterSeconds": str(_SEND_AFTER_S),
    }
    stock = _stock(version, metadata)
    return replace(stock, broker_settings={**stock.broker_settings, **lines})


def live(site: MarkingSite, asked: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Let topics live for some minutes."""
    with site.played(asked.seed, say) as done, transactions(site.cluster, f"{site.tenant}/life", say):
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
                leaked = len(site.kill_between(number))
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
                # What was confirmed and not swept would go with the topic. Whenever the topic of a bucket is loaded the
                # sweep doubts that nothing has it in memory, and its delay begins again.
                eventually(site.is_swept, GONE_S + 5 * site.delay_s, 1)
                site.sweep.stop()
                fault()
            leaked = len(site.kill_between(number))
            site.cluster.broker.start()
            time.sleep(2 * _SEND_AFTER_S)
            if fault is not unloaded:
                with suppress(NotFoundError):
                    deleted()
                site.set_up()
            site.sweep.start()
            say(f"{fault.__name__}, {leaked} ledgers left behind meanwhile; {dict(done)}")


def shake_store(site: MarkingSite, asked: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Kill the metadata store, and have the broker stand still for longer than its session, by turns."""
    chance = random.Random(asked.seed)
    with site.played(asked.seed, say) as done:
        for number in range(max(2, asked.kills // 3)):
            time.sleep(chance.uniform(2, 15))
            if number % 2:
                site.lose_session(2 * _SESSION_S)
            else:
                site.cluster.store.kill()
                site.cluster.store.start()
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
    parser.add_argument("--metadata", choices=METADATA_STORES, default=METADATA_STORES[0], help="where that is")
    parser.add_argument("--oxia", metavar="PROGRAM", help="of 0.14.2 or newer; the one of tests may stop for good")
    parser.add_argument("--acts", nargs="+", choices=_ACTS)
    asked = parser.parse_args()
    acts = asked.acts or [act for act in _ACTS if asked.metadata == "zookeeper" or act not in _ON_ZOOKEEPER]
    if asked.metadata != "zookeeper" and not set(acts).isdisjoint(_ON_ZOOKEEPER):
        parser.error(f"{' and '.join(_ON_ZOOKEEPER)} are played on ZooKeeper alone")
    # What stores and clients say while their servers are away.
    for name in ("pulsar", "bookwarden", "kazoo"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # It stays if anything fails, with all logs.
    home = Path(tempfile.mkdtemp(prefix="bookwarden-soak-"))
    _say(f"seed {asked.seed}, servers in {home}")
    delay_s = _DELAY_S if asked.mode == "two-phase" else 0
    if asked.version.startswith("3.") or asked.version in ("4.0.0", "4.0.1", "4.0.2", "4.0.3"):
        refuse(_cluster(home / "pulsar", _marking(asked.version, asked.mode, asked.metadata), asked.version), _say)
        shutil.rmtree(home)
        return 0
    stock, marking = _stock(asked.version, asked.metadata), _marking(asked.version, asked.mode, asked.metadata)
    make = partial(_cluster, version=asked.version, oxia=asked.oxia)
    plays = {"life": live, "kills": kill, "topic": lose_topic, "store": shake_store}
    for act in acts:
        if act == "many":
            # The second stock broker shows the noise.
            brokers = {"stock": stock, "stock-again": stock, asked.mode: marking}
            compare(home, brokers, asked.ledgers, asked.topics, _say)
            continue
        if act == "publish":
            # In this mode each drop is sent.
            publish_without_deletion_topic(home, make, _marking(asked.version, "two-phase", asked.metadata), _say)
            _say(f"{act}: {_ACTS[act]}")
            continue
        if act == "side":
            live_beside_stock(home / act, make, marking, stock, asked.seed, asked.minutes, delay_s, _say)
            _say(f"{act}: {_ACTS[act]}")
            continue
        if act == "leader":
            kill_leaders(home / act, marking, stock, max(2, asked.kills // 3), asked.seed, delay_s, _say)
            _say(f"{act}: {_ACTS[act]}")
            continue
        with ExitStack() as stack:
            store = None
            options = _transacting(marking) if act == "life" else marking
            if act == "life" and asked.version == PULSAR_VERSIONS[0]:
                store = stack.enter_context(ObjectStore(home))
                options = _offloading(options, store)
            cluster = make(home / f"pulsar-{act}", options)
            stack.enter_context(running_until_killed(cluster))
            plays[act](MarkingSite(cluster, act, home / act, delay_s, offloaded=store), asked, _say)
        _say(f"{act}: {_ACTS[act]}")
    shutil.rmtree(home)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
