"""What brokers and operators do to the world; each operation draws all that it needs from its own random numbers.

A broker updates the metadata first and deletes the ledger after it, and may crash in between: that is the leak.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from uuid import UUID

from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR
from bookwarden.ledgers.names import TopicName
from bookwarden.wire.ledger_metadata import decode_ledger_metadata

from . import nodes
from .model import (
    LISTED_WITHIN_S,
    Cluster,
    Copy,
    Ledger,
    Topic,
    World,
    holder_of_bucket,
    holder_of_compacted,
    holder_of_cursor,
    holder_of_schema,
)
from .nodes import Cursor, DataLedger, Offload

_NAMES = tuple(f"topic-{number}" for number in range(5))
_SUBSCRIPTIONS = ("a", "b")
_MOST_LEDGERS = 12
_BUNDLE = "namespace/t/ns/0x00000000_0xffffffff"

Operation = Callable[[World, Random], None]


def start_broker(world: World, cluster: Cluster) -> None:
    """Let a broker of the cluster begin: what the one before had in memory is forgotten."""
    for topic in cluster.topics.values():
        topic.in_memory.clear()
        topic.compacting = None
    started = world.clock.ms + world.broker_skew_ms
    broker = {"pulsarServiceUrl": "pulsar://b", "startTimestamp": started, "loadManagerClassName": "o.a.Modular"}
    world.nodes.write(f"{cluster.root}/loadbalance/brokers/b", json.dumps(broker).encode())
    world.nodes.write(f"{cluster.root}/{_BUNDLE}", json.dumps({"nativeUrl": "pulsar://b"}).encode())


def a_topic(world: World, rng: Random) -> Topic | None:
    """Choose a topic whose broker can write its nodes."""
    topics = [topic for topic in world.topics() if not topic.damaged]
    return rng.choice(topics) if topics else None


def create_topic(world: World, rng: Random) -> None:
    """Create a topic, of one of few names: one of before may have had it."""
    cluster = rng.choice(world.clusters)
    name = TopicName("t", "ns", rng.choice(_NAMES))
    if str(name) in cluster.topics:
        roll_over_topic(world, cluster.topics[str(name)], rng)
        return
    topic = cluster.topics[str(name)] = Topic(name, cluster.root)
    # As ManagedLedgerImpl does: the node first, without a byte.
    world.nodes.write(topic.path, b"")
    roll_over_topic(world, topic, rng)
    for subscription in rng.sample(_SUBSCRIPTIONS, rng.randrange(3)):
        _subscribe(world, topic, subscription)


def roll_over(world: World, rng: Random) -> None:
    """Begin the next ledger of a topic."""
    topic = a_topic(world, rng)
    if topic is not None:
        roll_over_topic(world, topic, rng)


def roll_over_topic(world: World, topic: Topic, rng: Random) -> None:
    """Make a ledger, and list it some seconds later; or crash in between."""
    if topic.damaged or topic.creating or not topic.is_own or len(topic.ledgers) >= _MOST_LEDGERS:
        return
    ledger_id = world.make_ledger(topic.holder, None)
    if rng.random() < 0.08:
        return
    topic.creating.add(ledger_id)
    entries = 0 if rng.random() < 0.1 else rng.randrange(1, 50)
    seed = rng.randrange(2**32)
    world.later(rng.random() * LISTED_WITHIN_S, lambda: _list_ledger(world, topic, ledger_id, entries, Random(seed)))


def _list_ledger(world: World, topic: Topic, ledger_id: int, entries: int, rng: Random) -> None:
    topic.creating.discard(ledger_id)
    if topic.gone or topic.damaged:
        # The update loses the race; the broker deletes what it made, as far as it comes.
        world.drop_or_leak(ledger_id, rng)
        return
    last = topic.ledgers[-1] if topic.ledgers else None
    topic.ledgers.append(DataLedger(ledger_id))
    topic.ledgers.sort(key=lambda ledger: ledger.ledger_id)
    if last is None or last.closed_ms:
        world.write_topic(topic)
        return
    world.close_ledger(last.ledger_id, entries)
    last.entries, last.closed_ms = entries, world.clock.ms
    if not entries:
        topic.ledgers.remove(last)
    world.write_topic(topic)
    if not entries:
        world.drop_or_leak(last.ledger_id, rng)


def trim(world: World, rng: Random) -> None:
    """Take the oldest ledgers off a topic's list."""
    topic = a_topic(world, rng)
    if topic is not None:
        trim_topic(world, topic, rng)


def trim_topic(world: World, topic: Topic, rng: Random) -> None:
    """Update the list, then delete; a crash leaves all or some of it."""
    closed = [ledger for ledger in topic.ledgers[:-1] if ledger.closed_ms]
    if topic.damaged or not closed or not topic.is_own:
        return
    leaving = closed[: rng.randrange(1, 1 + (len(closed) if rng.random() < 0.3 else min(2, len(closed))))]
    topic.ledgers = [ledger for ledger in topic.ledgers if ledger not in leaving]
    world.write_topic(topic)
    share = rng.choice((0.0, 0.3, 1.0))
    for ledger in leaving:
        if ledger.offload is None or not ledger.offload.bookkeeper_deleted:
            world.drop_or_leak(ledger.ledger_id, rng, share)
        if ledger.offload is not None and rng.random() >= share:
            world.copies.pop(ledger.offload.uuid, None)


def _subscribe(world: World, topic: Topic, subscription: str) -> None:
    cursor = topic.cursors[subscription] = Cursor(subscription)
    cursor.ledger_id = world.make_ledger(holder_of_cursor(topic, cursor), 1)
    world.entries[cursor.ledger_id] = nodes.cursor_entry(None)
    world.write_cursor(topic, cursor)


def subscribe(world: World, rng: Random) -> None:
    """Make a subscription with a ledger of its own."""
    topic = a_topic(world, rng)
    subscription = rng.choice(_SUBSCRIPTIONS)
    if topic is not None and subscription not in topic.cursors:
        _subscribe(world, topic, subscription)


def switch_cursor(world: World, rng: Random) -> None:
    """Move a cursor to its next ledger: the node says then what was true until now."""
    topic = a_topic(world, rng)
    if topic is None or not topic.cursors:
        return
    cursor = topic.cursors[rng.choice(sorted(topic.cursors))]
    before = cursor.ledger_id
    cursor.ledger_id = None
    if rng.random() < 0.8:
        cursor.ledger_id = world.make_ledger(holder_of_cursor(topic, cursor), 1)
    if cursor.name == COMPACTION_CURSOR:
        cursor.recorded = topic.compacted
        if cursor.ledger_id is not None:
            world.entries[cursor.ledger_id] = nodes.cursor_entry(topic.compacted)
    world.write_cursor(topic, cursor)
    if before is not None:
        world.drop_or_leak(before, rng, 0.3)


def unsubscribe(world: World, rng: Random) -> None:
    """Delete a subscription, with its ledger and buckets."""
    topic = a_topic(world, rng)
    names = [] if topic is None else [name for name in sorted(topic.cursors) if name != COMPACTION_CURSOR]
    if topic is not None and names:
        _drop_cursor(world, topic, topic.cursors.pop(rng.choice(names)), rng)


def _drop_cursor(world: World, topic: Topic, cursor: Cursor, rng: Random) -> None:
    world.nodes.remove(topic.cursor_path(cursor))
    # What only the broker's memory has of the subscription goes with it, and is leaked.
    topic.in_memory -= {one for one in topic.in_memory if world.ledgers[one].holder == holder_of_bucket(topic, cursor)}
    left = [*cursor.buckets.values()] + ([] if cursor.ledger_id is None else [cursor.ledger_id])
    for ledger_id in left:
        world.drop_or_leak(ledger_id, rng, 0.3)


def make_bucket(world: World, rng: Random) -> None:
    """Write a bucket of delayed messages; where its property cannot be put the broker goes on with it from memory."""
    topic = a_topic(world, rng)
    names = [] if topic is None else [name for name in sorted(topic.cursors) if name != COMPACTION_CURSOR]
    if topic is None or not names:
        return
    cursor = topic.cursors[rng.choice(names)]
    ledger_id = world.make_ledger(holder_of_bucket(topic, cursor), rng.randrange(1, 20))
    if rng.random() < 0.3:
        topic.in_memory.add(ledger_id)
        return
    cursor.buckets[f"{ledger_id}_{ledger_id}"] = ledger_id
    world.write_cursor(topic, cursor)


def drop_bucket(world: World, rng: Random) -> None:
    """Take a bucket off a cursor, when its messages were delivered."""
    topic = a_topic(world, rng)
    cursors = [] if topic is None else [cursor for cursor in topic.cursors.values() if cursor.buckets]
    if topic is not None and cursors:
        cursor = rng.choice(cursors)
        ledger_id = cursor.buckets.pop(rng.choice(sorted(cursor.buckets)))
        world.write_cursor(topic, cursor)
        world.drop_or_leak(ledger_id, rng)


def restart_broker(world: World, rng: Random) -> None:
    """Kill the brokers of a cluster and start others: what they had in memory alone is leaked."""
    start_broker(world, rng.choice(world.clusters))


def compact(world: World, rng: Random) -> None:
    """Begin a compaction, or end the one under way: with its ledger in use from then on, or in vain."""
    topic = a_topic(world, rng)
    if topic is None or not topic.is_own:
        return
    if topic.compacting is None:
        if COMPACTION_CURSOR not in topic.cursors:
            _subscribe(world, topic, COMPACTION_CURSOR)
        topic.compacting = world.make_ledger(holder_of_compacted(topic), None)
        return
    made, topic.compacting = topic.compacting, None
    cursor = topic.cursors[COMPACTION_CURSOR]
    if cursor.ledger_id is None or rng.random() < 0.2:
        world.drop_or_leak(made, rng)
        return
    world.close_ledger(made, 5)
    before, topic.compacted = topic.compacted, made
    world.entries[cursor.ledger_id] = nodes.cursor_entry(made)
    if before is not None:
        world.drop_or_leak(before, rng, 0.5 if "leaked compactions" in world.features else 0.0)


def add_schema(world: World, rng: Random) -> None:
    """Write the next version of a topic's schema; one that lost a race is recorded nowhere."""
    topic = a_topic(world, rng)
    if topic is None:
        return
    cluster = _cluster_of(world, topic)
    schema_id = topic.name.schema_id
    if schema_id in cluster.damaged_schemas:
        return
    ledger_id = world.make_ledger(holder_of_schema(schema_id), 1)
    if rng.random() < 0.2:
        return
    cluster.schemas.setdefault(schema_id, []).append(ledger_id)
    world.write_schema(cluster, schema_id)


def delete_schema(world: World, rng: Random) -> None:
    """Delete a schema with all its versions."""
    cluster = rng.choice(world.clusters)
    whole = sorted(cluster.schemas.keys() - cluster.damaged_schemas)
    if whole:
        _drop_schema(world, cluster, rng.choice(whole), rng)


def _drop_schema(world: World, cluster: Cluster, schema_id: str, rng: Random) -> None:
    versions = cluster.schemas.pop(schema_id)
    world.nodes.remove(cluster.schema_path(schema_id))
    for ledger_id in versions:
        world.drop_or_leak(ledger_id, rng, 0.3)


def delete_topic(world: World, rng: Random) -> None:
    """Delete a topic with all that it holds."""
    topic = a_topic(world, rng)
    if topic is not None:
        delete_this(world, topic, rng)


def delete_this(world: World, topic: Topic, rng: Random) -> None:
    """Take its nodes away, then delete its ledgers, as far as the broker comes."""
    cluster = _cluster_of(world, topic)
    del cluster.topics[str(topic.name)]
    topic.gone = True
    for cursor in topic.cursors.values():
        _drop_cursor(world, topic, cursor, rng)
    topic.cursors.clear()
    world.nodes.remove(topic.path)
    share = rng.choice((0.0, 0.3, 1.0))
    if topic.is_own:
        for ledger in topic.ledgers:
            # As a trim, it passes over what an offload is said to have deleted.
            if ledger.offload is None or not ledger.offload.bookkeeper_deleted:
                world.drop_or_leak(ledger.ledger_id, rng, share)
    for ledger_id in (topic.compacted, topic.compacting):
        if ledger_id is not None:
            world.drop_or_leak(ledger_id, rng, share)
    schema_id = topic.name.schema_id
    if schema_id in cluster.schemas and schema_id not in cluster.damaged_schemas and rng.random() < 0.7:
        _drop_schema(world, cluster, schema_id, rng)


def offload(world: World, rng: Random) -> None:
    """Take an offload one step further: begun, complete, the bookies' copy said to be deleted, and deleted."""
    topic = a_topic(world, rng)
    closed = [] if topic is None else [ledger for ledger in topic.ledgers[:-1] if ledger.closed_ms]
    if topic is None or not closed or not topic.is_own:
        return
    ledger = rng.choice(closed)
    if ledger.offload is None:
        uuid = UUID(int=rng.getrandbits(128))
        ledger.offload = Offload(uuid, since_ms=world.clock.ms)
        world.write_topic(topic)
        world.copies[uuid] = Copy(
            topic.managed_ledger, ledger.ledger_id, ledger.entries * 100, index=rng.random() < 0.8
        )
    elif not ledger.offload.complete:
        copy = world.copies.get(ledger.offload.uuid)
        if copy is not None:
            copy.index = True
            ledger.offload.complete = True
            world.write_topic(topic)
    elif not ledger.offload.bookkeeper_deleted:
        ledger.offload.bookkeeper_deleted = True
        world.write_topic(topic)
        world.drop_or_leak(ledger.ledger_id, rng)


def shadow(world: World, rng: Random) -> None:
    """Make a shadow topic, which lists the ledgers of its source."""
    source = a_topic(world, rng)
    if source is None or not source.is_own or not source.ledgers:
        return
    cluster = _cluster_of(world, source)
    name = TopicName("t", "ns", f"shadow-{rng.randrange(2)}")
    if str(name) not in cluster.topics:
        closed = [DataLedger(one.ledger_id, one.entries, one.closed_ms) for one in source.ledgers if one.closed_ms]
        readable = [one for one in closed if one.ledger_id in world.ledgers]
        topic = Topic(name, cluster.root, readable, properties={"PULSAR.SHADOW_SOURCE": str(source.name)})
        cluster.topics[str(name)] = topic
        world.write_topic(topic)


def _as_closed(ledger: Ledger, world: World) -> DataLedger:
    last_entry_id = decode_ledger_metadata(ledger.raw).last_entry_id
    # Who lists one that is open counts its entries.
    return DataLedger(ledger.ledger_id, 9 if last_entry_id is None else last_entry_id + 1, world.clock.ms)


def rescue(world: World, rng: Random) -> None:
    """List what is left of a topic's ledgers under another name, as after an undo of a topic deleted by mistake."""
    # One that another rescue lists is that topic's, whose broker deletes it; one that an undo put back may be listed.
    needed = {ledger_id for ledger_id, _ in world.needed_by_clusters()}
    # What a topic says is gone is read from its offloaded copy.
    needed |= {one.ledger_id for topic in world.topics() for one in topic.ledgers if one.offload is not None}
    left = [
        ledger
        for ledger in world.ledgers.values()
        if ledger.ledger_id not in needed and ledger.has_data and ledger.ledger_id in world.bookies
        if type(ledger.holder).__name__ == "ManagedLedgerHolder" and not ledger.damaged
    ]
    own = [cluster for cluster in world.clusters if cluster.configured]
    name = TopicName("t", "ns", f"rescued-{rng.randrange(3)}")
    cluster = rng.choice(own)
    if left and str(name) not in cluster.topics:
        of = rng.choice(left).holder
        chosen = [one for one in left if one.holder == of]
        ledgers = [_as_closed(one, world) for one in sorted(chosen, key=lambda one: one.ledger_id)]
        topic = cluster.topics[str(name)] = Topic(name, cluster.root, ledgers)
        world.write_topic(topic)


def count_back(world: World, rng: Random) -> None:
    """Begin ids anew, as a metadata migration without its counters does."""
    world.next_id = rng.randrange(1, world.next_id + 1)
    world.write_counter()


def count_on(world: World) -> None:
    """Put the counter behind all ledgers, as an operator does with `metadata-migration counters`."""
    world.next_id = max([world.next_id, *(ledger_id + 1 for ledger_id in world.ledgers)])
    world.write_counter()


def jump_broker_clock(world: World, rng: Random) -> None:
    """Set the brokers' clocks wrong, or right again."""
    world.broker_skew_ms = rng.choice((0, 0, -600_000, -20_000, 20_000, 600_000))


def collect(world: World, rng: Random) -> None:
    """Let the bookies drop the entries of ledgers without metadata."""
    world.bookies &= set(world.ledgers)
    world.half_lost &= set(world.ledgers)


def collect_half(world: World, rng: Random) -> None:
    """Let the bookies of the last entries drop these, of ledgers without metadata."""
    for ledger_id in sorted(world.bookies - set(world.ledgers)):
        deleted = world.deleted.get(ledger_id)
        world.bookies.discard(ledger_id)
        if deleted is not None and deleted.has_data:
            world.half_lost.add(ledger_id)


def replicate_again(world: World, rng: Random) -> None:
    """Write a ledger's metadata anew, as whoever replaces a bookie that is gone does."""
    whole = [one for one in world.ledgers.values() if not one.damaged and world.nodes.has(one.path)]
    if whole:
        ledger = rng.choice(whole)
        world.nodes.write(ledger.path, ledger.raw)


def lose_copy(world: World, rng: Random) -> None:
    """Lose an offloaded copy, or its index, by no fault of ours, while the bookies may still have the ledger."""
    leaked = [
        ledger.offload.uuid
        for topic in world.topics()
        for ledger in topic.ledgers
        if ledger.offload is not None and ledger.offload.bookkeeper_deleted and ledger.ledger_id in world.ledgers
    ]
    found = [uuid for uuid in leaked if uuid in world.copies]
    if found:
        copy = world.copies[rng.choice(found)]
        copy.index = False
        copy.data = rng.random() < 0.5


def _cluster_of(world: World, topic: Topic) -> Cluster:
    return next(cluster for cluster in world.clusters if topic in cluster.topics.values())
