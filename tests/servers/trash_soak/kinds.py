"""Topics of the kinds that have more than messages and positions: deleted, restored, and counted."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import pulsar

from bookwarden.clusters.pulsar.metadata.paths import cursor_path, managed_ledger_path
from bookwarden.clusters.pulsar.rest.topic_positions import topic_path
from bookwarden.errors import PulsarConflictError
from bookwarden.ledgers.names import TopicName
from bookwarden.trash.generations import TrashedGeneration, logs_of
from bookwarden.trash.other_name import under_name
from bookwarden.trash.plan import RestoreRequest
from bookwarden.wire.cursor import decode_cursor
from bookwarden_dev.devcluster import DevCluster
from servers.marking_brokers import BUCKETS
from servers.switching.open_transactions import open_transactions
from servers.topic_contents import managed_ledger_of, read_back, send
from servers.trash_soak.ground import Ground, Topic
from servers.waiting import eventually

#: Of the broker.
SETTINGS: Final = {
    **BUCKETS,
    "transactionCoordinatorEnabled": "true",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
}
_MESSAGES: Final = 30
_BATCH: Final = 10
_LATER: Final = timedelta(seconds=25)
_PATIENCE_S: Final = 120.0
_SHARED: Final = pulsar.ConsumerType.Shared
_FAR: Final = "far"


def restore_each_kind(
    cluster: DevCluster, home: Path, rounds: int, _seed: int, say: Callable[[str], None]
) -> Counter[str]:
    """Delete and restore topics of each kind, so many of each; return the counts."""
    counts, wrong = Counter[str](), list[str]()
    with closing(Ground(cluster, "kinds", home)) as ground:
        tenant = ground.namespace.partition("/")[0]
        far = f"{tenant}/{_FAR}"
        nowhere = {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1"}
        ground.admin.put(f"/clusters/{_FAR}", nowhere)
        ground.admin.post(f"/tenants/{tenant}", {"allowedClusters": ["dev", _FAR]})
        ground.admin.put(f"/namespaces/{far}", {"replication_clusters": ["dev"]})
        ground.prepare(far)
        keeper = ground.keep(far)
        kinds = (_replicated, _deduplicated, _batches, _delayed, _shadow, _transactions)
        for kind in (*kinds, _renamed_shadow, _renamed_source, _renamed_transactions):
            for number in range(rounds):
                keeper.run()
                before = Counter(counts)
                bad = kind(ground, number, counts)
                wrong += bad
                say(f"{kind.__name__.strip('_')} {number + 1}: {dict(counts - before)} {bad}")
    assert not wrong, "\n".join(wrong)
    return counts


def _restored(ground: Ground, topic: str, name: str | None = None) -> TrashedGeneration:
    """Restore the newest life of a topic, under another name if one is given; see that nothing is named as missing."""
    trashed = ground.trashed()
    (one, *_) = [one for one in trashed[topic] if one.topic is not None]
    if name is not None:
        one = under_name(one, TopicName.parse(name))
    for log in logs_of([one], [each for found in trashed.values() for each in found]) if name is None else ():
        # As the command does.
        ground.operations.restore.run(log, RestoreRequest())
    result = ground.operations.restore.run(one, RestoreRequest())
    assert (result.gone, result.problems, result.left) == ((), (), ()), result
    assert result.plan is not None
    lost = {one.what for one in result.plan.lost if name is None or "is sent from now on" not in one.what}
    assert lost <= {"transactions, if it had any"}, result.plan.lost
    return one


def _batches(ground: Ground, number: int, counts: Counter[str]) -> list[str]:
    """Acknowledge some messages of each batch. What a broker has written into the cursor's ledger comes back.

    When it closes a topic it writes them into the cursor's node, and does not read them from there: so as many are
    given again of a topic that was unloaded and deleted as of one that was only unloaded.
    """
    kinds = ("deleted", "unloaded-and-deleted", "unloaded")
    loaded, deleted, control = (f"persistent://{ground.namespace}/batches-{number}-{kind}" for kind in kinds)
    acknowledged = {each for each in range(_MESSAGES) if each < _BATCH or each % 3}
    for topic in (loaded, deleted, control):
        _subscribe_to_batches(ground, topic).close()
        producer = ground.client.create_producer(
            topic, batching_enabled=True, batching_max_messages=_BATCH, batching_max_publish_delay_ms=1000
        )
        for each in range(_MESSAGES):
            producer.send_async(str(each).encode(), lambda *_: None)
        producer.flush()
        producer.close()
        with closing(_subscribe_to_batches(ground, topic)) as consumer:
            messages = {}
            for _ in range(_MESSAGES):
                message = consumer.receive(timeout_millis=30_000)
                messages[int(message.data())] = message
            # Brokers write what is acknowledged within a batch with the next position: the whole batch comes last.
            for each in sorted(acknowledged - set(range(_BATCH))):
                consumer.acknowledge(messages[each])
            eventually(partial(_is_counted, ground, topic), _PATIENCE_S)
            for each in range(_BATCH):
                consumer.acknowledge(messages[each])
            eventually(partial(_is_behind_first_batch, ground, topic), _PATIENCE_S)
        if topic != loaded:
            ground.admin.put(f"{topic_path(topic)}/unload")
    ground.delete([Topic(loaded), Topic(deleted)])
    given: dict[str, list[int]] = {}
    for topic in (loaded, deleted, control):
        if topic != control:
            _restored(ground, topic)
        given[topic] = []
        with closing(_subscribe_to_batches(ground, topic)) as consumer, suppress(pulsar.Timeout):
            while True:
                message = consumer.receive(timeout_millis=3_000)
                given[topic].append(int(message.data()))
                consumer.acknowledge(message)
    wanted = sorted(set(range(_MESSAGES)) - acknowledged)
    counts["batches: written"] += 2 * _MESSAGES
    counts["batches: lost"] += sum(len(set(wanted) - set(given[topic])) for topic in (loaded, deleted))
    counts["batches: lost"] += sum(_MESSAGES - len(set(read_back(ground.client, topic))) for topic in (loaded, deleted))
    counts["batches: given again"] += len(set(given[loaded]) & acknowledged)
    counts["batches: given again after an unload"] += len(set(given[deleted]) & acknowledged)
    counts["batches: given again after a mere unload"] += len(set(given[control]) & acknowledged)
    expected = {loaded: wanted, deleted: sorted(given[control])}
    return [
        f"{topic}: given {sorted(given[topic])}, not {numbers}"
        for topic, numbers in expected.items()
        if sorted(given[topic]) != numbers
    ]


def _is_counted(ground: Ground, topic: str) -> bool:
    """Return whether the broker has had an acknowledgement."""
    stats = ground.admin.get_json(f"{topic_path(topic)}/stats")
    return int(stats["subscriptions"]["s"]["unackedMessages"]) != _MESSAGES


def _is_behind_first_batch(ground: Ground, topic: str) -> bool:
    """Return whether the subscription is, as the broker has written it."""
    cursor = ground.admin.get_json(f"{topic_path(topic)}/internalStats")["cursors"]["s"]
    return str(cursor["markDeletePosition"]).endswith(":0") and int(cursor["cursorLedgerLastEntry"]) > 0


def _subscribe_to_batches(ground: Ground, topic: str) -> pulsar.Consumer:
    return ground.client.subscribe(topic, "s", consumer_type=_SHARED, batch_index_ack_enabled=True)


def _delayed(ground: Ground, number: int, counts: Counter[str]) -> list[str]:
    """Delete it while messages of it wait in buckets for their time."""
    topic = f"persistent://{ground.namespace}/delayed-{number}"
    consumer = ground.client.subscribe(topic, "s", consumer_type=_SHARED)
    begin = time.monotonic()
    send(ground.client, topic, _MESSAGES, deliver_after=_LATER)

    def has_buckets() -> bool:
        node = ground.opened.store.get(cursor_path(managed_ledger_of(topic), "s"))
        return node is not None and bool(decode_cursor(node.value).delayed_bucket_ids)

    eventually(has_buckets, _PATIENCE_S, 0.2)
    counts["delayed: topics with buckets"] += 1
    consumer.close()
    ground.delete([Topic(topic)])
    _restored(ground, topic)
    given, early = [], 0
    with closing(ground.client.subscribe(topic, "s", consumer_type=_SHARED)) as consumer:
        while len(given) < _MESSAGES and time.monotonic() < begin + _PATIENCE_S:
            with suppress(pulsar.Timeout):
                message = consumer.receive(timeout_millis=1_000)
                early += time.monotonic() < begin + _LATER.total_seconds() - 2
                given.append(int(message.data()))
                consumer.acknowledge(message)
        with suppress(pulsar.Timeout):
            given.append(int(consumer.receive(timeout_millis=2_000).data()))
    counts["delayed: written"] += _MESSAGES
    counts["delayed: lost"] += _MESSAGES - len(set(given))
    counts["delayed: given again"] += len(given) - len(set(given))
    counts["delayed: given before their time"] += early
    return [] if sorted(given) == list(range(_MESSAGES)) and not early else [f"{topic}: given {sorted(given)}"]


def _deduplicated(ground: Ground, number: int, counts: Counter[str]) -> list[str]:
    """Delete and restore a topic whose producer sends its last messages again then."""
    topic, again = f"persistent://{ground.namespace}/deduplicated-{number}", range(_MESSAGES // 2, _MESSAGES)
    ground.admin.post(f"/namespaces/{ground.namespace}/deduplication", True)
    try:
        for numbers in (range(_MESSAGES), again):
            producer = ground.client.create_producer(topic, producer_name="p", batching_enabled=False)
            for each in numbers:
                producer.send(str(each).encode(), sequence_id=each)
            producer.close()
            if numbers is not again:
                ground.delete([Topic(topic)])
                _restored(ground, topic)
    finally:
        ground.admin.post(f"/namespaces/{ground.namespace}/deduplication", False)
    found = [int(each) for each in read_back(ground.client, topic)]
    counts["deduplicated: written"] += _MESSAGES
    counts["deduplicated: lost"] += _MESSAGES - len(set(found))
    counts["deduplicated: written twice"] += len(found) - len(set(found))
    return [] if found == list(range(_MESSAGES)) else [f"{topic} has {found}"]


def _with_shadow(ground: Ground, name: str) -> tuple[Topic, str]:
    """Make a topic and its shadow, of which somebody has read a half."""
    source = ground.topic(f"{name}-source")
    ground.fill(source)
    ground.wait_until_written(source)
    shadow = f"persistent://{ground.namespace}/{name}"
    ground.admin.put(topic_path(shadow), {"PULSAR.SHADOW_SOURCE": source.name})
    reader = ground.client.subscribe(shadow, "s", initial_position=pulsar.InitialPosition.Earliest)
    for _ in range(len(source.sent) // 2):
        reader.acknowledge(reader.receive(timeout_millis=30_000))
    reader.close()
    path = managed_ledger_path(managed_ledger_of(shadow))
    eventually(lambda: ground.opened.store.get(path) is not None, _PATIENCE_S)
    return source, shadow


def _renamed_shadow(ground: Ground, number: int, counts: Counter[str]) -> list[str]:
    """The same under another name."""
    return _shadow(ground, number, counts, name=f"persistent://{ground.namespace}/renamed-shadow-{number}")


def _renamed_source(ground: Ground, number: int, counts: Counter[str]) -> list[str]:
    """Delete the source of a shadow, restore it under another name, and let the shadow go: its ledgers stay."""
    source, shadow = _with_shadow(ground, f"left-{number}")
    ground.delete([source])
    renamed = Topic(f"persistent://{ground.namespace}/renamed-source-{number}", source.sent, source.acknowledged)
    _restored(ground, source.name, renamed.name)
    before = ground.named(renamed)
    own = Counter[str]()
    ground.sweep_out([Topic(shadow)], own)
    missing = ground.missing(one for ids in before.values() for one in ids)
    wrong = [f"{renamed.name} has lost {sorted(missing)} as the trash let go of its shadow"] if missing else []
    return wrong + ground.count(renamed, counts)


def _shadow(ground: Ground, number: int, counts: Counter[str], name: str | None = None) -> list[str]:
    """Delete the shadow of a topic, restore it, and let it go: its list names the ledgers of its source."""
    source, shadow = _with_shadow(ground, f"shadow-{number}{'' if name is None else '-former'}")
    before = ground.named(source)
    ground.delete([Topic(shadow)])
    wrong: list[str] = []

    def check(when: str) -> None:
        if missing := ground.missing(one for ids in before.values() for one in ids):
            wrong.append(f"{source.name} has lost {sorted(missing)} {when}")

    check("with the delete of its shadow")
    _restored(ground, shadow, name)
    shadow = name or shadow
    found = [int(each) for each in read_back(ground.client, shadow)]
    counts["shadow: read"] += len(set(found))
    if set(found) != set(source.sent):
        wrong.append(f"{shadow} has {found}")
    check("with the restore of its shadow")
    # Deleted again, and let go before its time: its marks name the ledgers of the source.
    own = Counter[str]()
    ground.sweep_out([Topic(shadow)], own)
    counts["shadow: ledgers of the trash that are its source's, kept"] += own["expired and left"]
    check("as the trash let go of its shadow")
    listed = before["list"] - ground.named(source)["list"]
    if listed:
        wrong.append(f"{source.name} lists {sorted(listed)} no more")
    wrong += ground.count(source, counts)
    return wrong


def _renamed_transactions(ground: Ground, number: int, counts: Counter[str]) -> list[str]:
    """Delete a topic while transactions of it are open, and restore it under another name: that has all messages."""
    topic, name = (f"persistent://{ground.namespace}/{kind}-{number}" for kind in ("forgotten", "renamed"))
    ground.admin.put(topic_path(topic))
    with open_transactions(ground.cluster.service_url, [topic], ground.folder / f"renamed-{number}.log") as client:
        client.wait_for(1)
    ground.delete([Topic(topic)])
    _restored(ground, topic, name)
    given = set()
    with closing(ground.client.subscribe(name, "s")) as consumer, suppress(pulsar.Timeout):
        while True:
            message = consumer.receive(timeout_millis=3_000)
            given.add(message.data().decode())
            consumer.acknowledge(message)
    found = {each.decode() for each in read_back(ground.client, name)}
    counts["transactions, renamed: read"] += len(found)
    # What was acknowledged in one that was open is given again.
    counts["transactions, renamed: given"] += len(given)
    everything = {"first", "second", "never"}
    return [] if found == given == everything else [f"{name} is given {given}, has {found}"]


def _transactions(ground: Ground, number: int, counts: Counter[str]) -> list[str]:
    """Delete a topic while transactions of it are open, restore it, and end them."""
    topic = f"persistent://{ground.namespace}/transactions-{number}"
    ground.admin.put(topic_path(topic))
    automatic = f"/namespaces/{ground.namespace}/autoTopicCreation"
    # Else its connected clients make it again at once.
    ground.admin.post(automatic, {"allowAutoTopicCreation": False})
    try:
        with open_transactions(ground.cluster.service_url, [topic], ground.folder / f"{number}.log") as client:
            client.wait_for(1)
            pending = [name for name in _topics(ground) if name.startswith(topic) and name != topic]
            counts["transactions: logs of acknowledgements"] += len(pending)
            ground.delete([Topic(topic)])
            for name in pending:
                found = [one for one in ground.trashed().get(name, []) if one.topic is not None]
                counts["transactions: logs in the trash"] += bool(found)
            _restored(ground, topic)
            # They commit "second", and the acknowledgement of "first"; "never" is aborted.
            client.go_on(2)
        given = set()
        with closing(ground.client.subscribe(topic, "s")) as consumer, suppress(pulsar.Timeout):
            while True:
                message = consumer.receive(timeout_millis=3_000)
                given.add(message.data().decode())
                consumer.acknowledge(message)
        found = {each.decode() for each in read_back(ground.client, topic)}
        counts["transactions: written"] += 2
        counts["transactions: lost"] += len({"first", "second"} - found) + len({"second"} - given)
        counts["transactions: given again"] += "first" in given
        # Brokers forget the snapshot of a topic's transactions: the plan says so.
        counts["transactions: aborted and read"] += "never" in found
        return [] if {"second"} <= given <= {"second", "never"} else [f"{topic} is given {given}, has {found}"]
    finally:
        ground.admin.delete(automatic)


def _topics(ground: Ground) -> list[str]:
    tree = managed_ledger_path(f"{ground.namespace}/persistent")
    return [f"persistent://{ground.namespace}/{name}" for name in ground.opened.store.children_of(tree)]


def _replicated(ground: Ground, number: int, counts: Counter[str]) -> list[str]:
    """Delete a topic that is replicated to a cluster that does not answer: its cursor has everything to send."""
    tenant, _, _ = ground.namespace.partition("/")
    namespace = f"{tenant}/{_FAR}"
    topic = Topic(f"persistent://{namespace}/t-{number}")
    ground.fill(topic)
    ground.admin.post(f"/namespaces/{namespace}/replication", ["dev", _FAR])
    cursor = cursor_path(managed_ledger_of(topic.name), f"pulsar.repl.{_FAR}")
    eventually(lambda: ground.opened.store.get(cursor) is not None, _PATIENCE_S, 0.2)
    ground.send(topic, 10, pulsar.schema.StringSchema())
    ground.wait_until_written(topic)
    backlog = _to_replicate(ground, topic.name)
    deleting = threading.Thread(target=_delete_replicated, args=(ground, topic.name))
    deleting.start()
    deleting.join(_PATIENCE_S)
    ground.wait_until_kept()
    _restored(ground, topic.name)
    wrong = ground.count(topic, counts)
    left = eventually(lambda: _to_replicate(ground, topic.name), _PATIENCE_S, 0.5)
    counts["replicated: to be sent before"] += backlog
    counts["replicated: to be sent after"] += left
    if left != backlog:
        wrong.append(f"{topic.name} has {left} messages to replicate, and had {backlog}")
    ground.admin.post(f"/namespaces/{namespace}/replication", ["dev"])
    return wrong


def _delete_replicated(ground: Ground, topic: str) -> None:
    def delete() -> bool:
        # A replicator that cannot connect closes in its own time.
        try:
            ground.admin.delete(topic_path(topic), params={"force": True})
        except PulsarConflictError:
            return False
        return True

    eventually(delete, _PATIENCE_S, 0.5)


def _to_replicate(ground: Ground, topic: str) -> int:
    stats = ground.admin.get_json(f"{topic_path(topic)}/stats", params={"getPreciseBacklog": True})
    return int(stats["replication"].get(_FAR, {}).get("replicationBacklog", 0))
