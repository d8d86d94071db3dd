"""Much at once: a namespace of many topics that is deleted, and a topic of very many ledgers."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import cycle
from pathlib import Path
from typing import Final

import pulsar
from benchmarks.population import create_nodes, managed_ledger_of, metadata_of, zookeeper_at

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import BookwardenError, NotFoundError, PulsarConflictError, PulsarUnavailableError
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.metastore.urls import open_store
from bookwarden.trash.namespace_restore import deleted_with
from bookwarden.trash.plan import RestoreRequest
from bookwarden.wire.managed_ledger import ledger_entries
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import policy_keeper_of
from bookwarden.wiring.trash import TrashOperations
from bookwarden_dev.devcluster import DevCluster
from servers.marking_brokers import nodes_in_outbox
from servers.topic_contents import managed_ledger_of as name_of
from servers.trash_soak.ground import Ground, Topic
from servers.waiting import eventually

#: Of the broker: beyond the limit of what no sweep deletes it would delete by itself.
SETTINGS: Final = {"bookwardenMarksMaxBytes": str(2**60)}
#: Requests and restores of so many ledgers in one.
_ROOM: Final = 10 * 2**20
_LEDGERS: Final = 100_000
_FIRST_LEDGER: Final = 100_000_000
_HANDS: Final = 8
_MESSAGES: Final = 3
#: What the subscription of a topic has acknowledged: the first message, one out of order, all.
_ACKNOWLEDGED: Final = ({0}, {1}, set(range(_MESSAGES)))
_PATIENCE_S: Final = 1200.0
_SHARED: Final = pulsar.ConsumerType.Shared


def restore_many(cluster: DevCluster, home: Path, rounds: int, _seed: int, say: Callable[[str], None]) -> Counter[str]:
    """Delete and restore a namespace of so many topics, and, on ZooKeeper, a topic of 100,000 ledgers."""
    counts = Counter[str]()
    with closing(Ground(cluster, "many", home)) as ground:
        _restore_namespace(ground, rounds, counts, say)
        if cluster.options.metadata == "zookeeper":
            _restore_long_list(ground, counts, say)
    return counts


def _restore_namespace(ground: Ground, topics: int, counts: Counter[str], say: Callable[[str], None]) -> None:
    opened, namespace = ground.opened, f"{ground.namespace.partition('/')[0]}/doomed"
    ground.admin.put(f"/namespaces/{namespace}", {"bundles": {"numBundles": 8}})
    ground.prepare(namespace)
    keeper = ground.keep(namespace)
    rules = [{"namespaces": f"{ground.namespace.partition('/')[0]}/*", "keep_deleted_hours": 1}]
    ground.site.overrides = {**ground.site.overrides, "trash.rules": json.dumps(rules)}
    filled = [Topic(f"persistent://{namespace}/t-{number}", acknowledged={"s": set()}) for number in range(topics)]

    def fill(topic: Topic, acknowledged: set[int]) -> None:
        ground.client.subscribe(topic.name, "s", consumer_type=_SHARED).close()
        ground.send(topic, _MESSAGES)
        ground.acknowledge(topic, "s", acknowledged)

    with ThreadPoolExecutor(_HANDS) as pool, Cluster(ground.site.settings) as ruled:
        policies = policy_keeper_of(ruled)
        list(pool.map(fill, filled, cycle(_ACKNOWLEDGED)))
        say(f"{topics} topics are filled")
        keeper.keep_policies(policies)
        # What was acknowledged is written within a second, and a consumer that closes waits for it.
        ground.admin.put(f"/namespaces/{namespace}/unload")
        began = time.monotonic()
        # Of a topic that is deleted while it is loaded the broker moves the subscriptions to the end first.
        loads = [pool.submit(_load, ground, topic) for topic in filled]
        _delete(ground, f"/namespaces/{namespace}")
        for each in loads:
            each.result()
        eventually(lambda: nodes_in_outbox(opened.store) == 0, _PATIENCE_S, 1)
        say(f"the namespace was deleted in {time.monotonic() - began:.0f} s")
        keeper.run()
        operations = TrashOperations(opened, operator="soak")

        def is_seen() -> bool:
            keeper.keep_policies(policies)
            return any(copy.namespace == namespace for copy in operations.namespaces.absent())

        eventually(is_seen, 120, 1)
        began = time.monotonic()
        copy = operations.namespaces.find(namespace)
        found = deleted_with(copy, operations.records.read().generations)
        operations.namespaces.write(copy)
        counts["subscriptions that the delete moved to the end"] = sum(
            1 for one in found for record in one.cursors.values() if record.cleared is not None
        )
        counts["topics restored"] = 0
        for one in found:
            result = operations.restore.run(one, RestoreRequest())
            assert result.plan is not None
            assert (result.plan.lost, result.gone, result.problems, result.left) == ((), (), (), ()), result
            counts["topics restored"] += 1
        say(f"{counts['topics restored']} topics were restored in {time.monotonic() - began:.0f} s")
        counted = [Counter[str]() for _ in filled]
        wrong = [bad for each in pool.map(ground.count, filled, counted) for bad in each]
    for each in counted:
        counts.update(each)
    say(f"the namespace: {dict(sorted(counts.items()))}")
    # What live topics trim is in the trash for ten minutes.
    left = [
        one.managed_ledger for one in operations.records.read().generations if one.topic and "/t-" in one.managed_ledger
    ]
    counts["topics left in the trash"] = len(left)
    assert not wrong, "\n".join(wrong[:20])
    assert counts["topics restored"] >= topics, counts
    assert counts["topics left in the trash"] == 0, left


def _load(ground: Ground, topic: Topic) -> None:
    """Have a broker load a topic, if it is there."""
    with suppress(BookwardenError):
        ground.admin.get_json(f"{topic_path(topic.name)}/internalStats")


def _delete(ground: Ground, path: str) -> None:
    """Delete a topic or a namespace, however often brokers refuse it, and however long it takes them."""

    def is_deleted() -> bool:
        try:
            ground.admin.delete(path, params={"force": True})
        except (PulsarConflictError, PulsarUnavailableError):
            # A bundle has no owner after an unload, or a topic is being loaded.
            return False
        except NotFoundError:
            pass
        return True

    eventually(is_deleted, _PATIENCE_S, 0.2)


def _restore_long_list(ground: Ground, counts: Counter[str], say: Callable[[str], None]) -> None:
    topic = f"persistent://{ground.namespace}/long"
    holder, ids = ManagedLedgerHolder(name_of(topic)), range(_FIRST_LEDGER, _FIRST_LEDGER + _LEDGERS)
    with zookeeper_at(ground.cluster.store_url) as client:
        create_nodes(client, [(ledger_path("/ledgers", one), metadata_of(holder, b"")) for one in ids])
        create_nodes(client, [(managed_ledger_path(holder.name), managed_ledger_of(ids))])
    ground.admin.put(f"{topic_path(topic)}/subscription/s", "earliest")
    ground.site.overrides = {**ground.site.overrides, "metadata_store.jute_maxbuffer": str(_ROOM)}
    with Cluster(ground.site.settings) as opened, closing(open_store(ground.cluster.store_url)) as store:
        began = time.monotonic()
        _delete(ground, topic_path(topic))
        eventually(lambda: nodes_in_outbox(store) == 0, _PATIENCE_S, 1)
        say(f"a topic of {_LEDGERS:,} ledgers was deleted in {time.monotonic() - began:.0f} s")
        operations = TrashOperations(opened, operator="soak")
        (one,) = [each for each in operations.records.read().generations if each.managed_ledger == holder.name]
        began = time.monotonic()
        result = operations.restore.run(one, RestoreRequest())
        took = time.monotonic() - began
        assert result.plan is not None
        assert (result.plan.lost, result.gone, result.problems, result.left) == ((), (), (), ()), result.plan.lost[:5]
        node = opened.store.get(managed_ledger_path(holder.name))
        assert node is not None
        listed = ledger_entries(node.value).keys()
        counts["ledgers of one topic"] = len(set(ids))
        counts["ledgers of one topic, listed again"] = len(set(ids) & listed)
        counts["ledgers of one topic, gone"] = len(ground.missing(ids))
        say(f"it was restored in {took:.0f} s")
        assert set(ids) <= listed
        assert counts["ledgers of one topic, gone"] == 0
        _delete(ground, topic_path(topic))
        eventually(lambda: nodes_in_outbox(store) == 0, _PATIENCE_S, 1)
        began = time.monotonic()
        found = [each for each in operations.records.read().generations if each.managed_ledger == holder.name]
        ground.purge([record for each in found for record in each.found], opened)
        marks = {mark.ledger_id: mark for each in found for one in each.found for mark in one.record.marks("soak")}
        rows = ground.swept.sweep(*marks.values())
        counts["ledgers of one topic, expired"] = len(marks)
        counts["ledgers of one topic, expired and left"] = len(marks) - len(ground.missing(marks))
        say(f"it was let go in {time.monotonic() - began:.0f} s: {Counter(row.outcome.value for row in rows)}")
    assert {row.outcome for row in rows} <= {Outcome.DELETED, Outcome.ALREADY_GONE}
    assert counts["ledgers of one topic, expired and left"] == 0
