"""Policies and permissions that the sweep's driver keeps for the trash, on a store in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from bookwarden.clusters.pulsar.metadata.topic_policies import FOR_ALL, OWN
from bookwarden.clusters.pulsar.trash import TrashNodes
from bookwarden.errors import StoreError
from bookwarden.ledgers.trash import FormerNode, FormerPolicies, KeepRule, NamespaceCopy, PolicyEvent, TrashRecord
from bookwarden.metastore.changes import ChangeFeed
from bookwarden.trash.policy_keeper import NOT_SEEN_PERMISSIONS, NOT_SEEN_POLICIES, PolicyKeeper
from bookwarden.wire.trash import (
    TRASH_EVENT_SCHEMAS,
    TRASH_NAMESPACES,
    decode_copy,
    decode_records,
    encode_records,
    with_policies,
)
from unit.trash.trash_world import FOLDER, DyingStore, Killed

POLICIES = "/admin/policies/t/n"
LOCAL = "/admin/local-policies/t/n"
TOPIC = "persistent://t/n/a"
RULES = (KeepRule("t/*", 3600, 0),)
READER = {"r": ("consume",)}
DEFINITION = "a definition"
SCHEMA = hashlib.sha256(DEFINITION.encode()).hexdigest()


class Events:
    """``__change_events`` of the namespaces."""

    def __init__(self) -> None:
        self.followed: Collection[str] = ()
        self.since: dict[str, int] = {}
        self.unread: dict[str, str] = {}
        self.of_topics: dict[str, list[tuple[str, bytes, str]]] = {}
        self.clock_ms = lambda: 0

    def follow(self, namespaces: Collection[str]) -> dict[str, str]:
        self.followed = namespaces
        for name in set(namespaces) - set(self.unread):
            self.since.setdefault(name, self.clock_ms())
        return self.unread

    def seen_since_ms(self, namespace: str) -> int | None:
        return self.since.get(namespace)

    def last(self, topic: str) -> list[tuple[str, bytes, str]]:
        return self.of_topics.get(topic, [])


class Polled(DyingStore):
    """Reports no changes."""

    def follow_below(self, prefixes: Any) -> ChangeFeed:
        raise StoreError("no changes are reported")


def policies(*topics: str, deleted: bool = False, **more: Any) -> bytes:
    auth = {"destination_auth": {topic: {"r": ["consume"]} for topic in topics}}
    return json.dumps({"auth_policies": auth, "deleted": deleted, **more}, separators=(",", ":")).encode()


class World:
    """Two namespaces, one of which is kept, and the keeper of one sweep after the other."""

    def __init__(self, store: type[DyingStore] = DyingStore) -> None:
        self.now_s = 10_000.0
        self.store = store(lambda: self.now_s)
        self.store.create(POLICIES, policies(TOPIC), make_parents=True)
        self.store.create(LOCAL, b"bundles", make_parents=True)
        self.store.create("/admin/policies/x/n", policies("persistent://x/n/a"), make_parents=True)
        self.events = Events()
        self.events.clock_ms = lambda: int(self.now_s * 1000)
        self.nodes = TrashNodes(self.store, tuple)
        self._number = 0
        self.restart()

    def restart(self, rules: tuple[KeepRule, ...] = RULES) -> None:
        self.keeper = PolicyKeeper(self.store, self.events, rules, lambda: self.now_s)

    def set(self, value: bytes, path: str = POLICIES) -> None:
        node = self.store.get(path)
        assert node is not None
        self.store.put(path, value, node.version)

    def delete(self, path: str) -> None:
        node = self.store.get(path)
        assert node is not None
        self.store.delete_many([(path, node.version)])

    def copies(self) -> list[NamespaceCopy]:
        paths = [f"{TRASH_NAMESPACES}/{name}" for name in self.store.children_of(TRASH_NAMESPACES)]
        found = [decode_copy(node.value) for node in self.store.get_many(paths) if node is not None]
        return sorted(found, key=lambda copy: copy.created_ms)

    def record(self, topic: str = "t/n/persistent/a", created_ms: int = 9_000_000) -> TrashRecord:
        """Have the trash get the record of a topic that is deleted now."""
        now_ms = int(self.now_s * 1000)
        record = TrashRecord(topic, now_ms, created_ms, node=FormerNode(b"", 0, created_ms, created_ms))
        self.store.create(f"{FOLDER}/{self._number}", encode_records([record]), make_parents=True)
        self._number += 1
        return record

    def kept(self) -> list[FormerPolicies | None]:
        paths = [f"{FOLDER}/{number}" for number in range(self._number)]
        self.keeper.keep(self.nodes, paths)
        return [decode_records(node.value)[0].policies for node in self.store.get_many(paths) if node is not None]


def look(world: World, after_s: float = 15) -> None:
    world.now_s += after_s
    world.keeper.look()


@pytest.mark.parametrize("store", [DyingStore, Polled])
def test_a_deleted_topic_keeps_what_was_seen_of_it(store: type[DyingStore]) -> None:
    world = World(store)
    look(world)
    assert world.events.followed == ["t/n"]
    world.events.of_topics[TOPIC] = [(TOPIC, b"\x02", DEFINITION)]
    world.now_s += 100
    world.set(policies())
    world.now_s += 0.2
    world.record()
    # It looks after its record came, and before.
    for _ in range(2):
        look(world)
        (found,) = world.kept()
        assert found == FormerPolicies({TOPIC: READER}, (PolicyEvent(TOPIC, b"\x02", SCHEMA),))
    definition = world.store.get(f"{TRASH_EVENT_SCHEMAS}/{SCHEMA}")
    assert definition is not None
    assert definition.value == DEFINITION.encode()


@pytest.mark.parametrize("store", [DyingStore, Polled])
def test_policies_in_nodes_are_kept_as_they_were_last(store: type[DyingStore]) -> None:
    world = World(store)
    own, for_all = f"{OWN}/t/n/persistent/a", f"{FOR_ALL}/t/n/persistent/a"
    world.store.create(own, b"1", make_parents=True)
    look(world)
    world.store.create(for_all, b"2", make_parents=True)
    world.store.create(f"{OWN}/x/n/persistent/a", b"3", make_parents=True)
    world.set(b"4", own)
    look(world)
    world.delete(own)
    world.delete(for_all)
    look(world)
    world.record("t/n/persistent/a-partition-0")
    (found,) = world.kept()
    assert found is not None
    assert found.nodes == {own: b"4", for_all: b"2"}
    look(world, 2 * 86_400)
    world.record()
    assert world.kept()[1] == FormerPolicies()


def test_a_partition_has_those_of_its_topic_too() -> None:
    world = World()
    partition = f"{TOPIC}-partition-1"
    world.set(policies(TOPIC, partition, f"{TOPIC}-partition-0"))
    world.events.of_topics[TOPIC] = [(TOPIC, b"\x02", DEFINITION)]
    look(world)
    world.set(policies())
    look(world)
    # Brokers take the permissions of all of them before they delete one after the other.
    world.now_s += 200
    world.record("t/n/persistent/a-partition-1")
    (found,) = world.kept()
    assert found is not None
    assert found.permissions == {TOPIC: READER, partition: READER}
    assert [event.key for event in found.events] == [TOPIC]


def test_permissions_that_were_taken_away_before_do_not_come_back() -> None:
    world = World()
    look(world)
    world.set(policies())
    look(world)
    look(world, 120)
    world.record()
    assert world.kept() == [FormerPolicies()]


def test_what_changed_while_the_sweep_was_down_is_seen_from_the_last_copy() -> None:
    world = World()
    look(world)
    world.now_s += 5_000
    world.set(policies())
    world.record()
    world.now_s += 5_000
    world.restart()
    world.events.since.clear()
    look(world)
    (found,) = world.kept()
    assert found == FormerPolicies({TOPIC: READER}, unseen=(NOT_SEEN_POLICIES,))


def test_what_was_deleted_before_the_first_sweep_was_not_seen() -> None:
    world = World()
    world.set(policies())
    world.record()
    look(world)
    assert world.kept() == [FormerPolicies(unseen=(NOT_SEEN_POLICIES, NOT_SEEN_PERMISSIONS))]


def test_a_namespace_that_cannot_be_read_is_tried_again() -> None:
    world = World()
    world.events.unread = {"t/n": "no broker"}
    look(world)
    world.record()
    assert world.kept() == [None]
    world.events.unread = {}
    look(world)
    assert world.kept() == [FormerPolicies({}, unseen=(NOT_SEEN_POLICIES,))]


@pytest.mark.parametrize("seen", [True, False], ids=["seen while it is deleted", "gone at once"])
def test_a_deleted_namespace_keeps_its_policies(seen: bool) -> None:
    world = World()
    look(world)
    (before,) = world.copies()
    assert (before.policies, before.local, before.gone_ms) == (policies(TOPIC), b"bundles", 0)
    look(world, 300)
    alive_ms = int(world.now_s * 1000)
    world.now_s += 10
    if seen:
        # With what was changed a moment ago; the permissions of its topics go one by one.
        world.set(policies(TOPIC, retention=5))
        world.set(policies(deleted=True, retention=5))
        alive_ms = int(world.now_s * 1000)
        look(world)
    world.record()
    world.delete(POLICIES)
    world.delete(LOCAL)
    look(world)
    (copy,) = world.copies()
    assert json.loads(copy.policies) == json.loads(policies(TOPIC, **({"retention": 5} if seen else {})))
    assert (copy.local, copy.alive_ms) == (b"bundles", alive_ms)
    assert copy.gone_ms > 0
    assert world.kept() == [FormerPolicies({TOPIC: READER})]
    assert world.events.followed == []
    # It is made again, and deleted again: each life has a copy of its own.
    world.store.create(POLICIES, policies())
    look(world)
    world.delete(POLICIES)
    look(world)
    assert [json.loads(one.policies) for one in world.copies()] == [json.loads(copy.policies), json.loads(policies())]
    look(world, 3600)
    assert len(world.copies()) == 2
    look(world, 700)
    assert world.copies() == []


def test_without_a_rule_nothing_is_kept() -> None:
    world = World()
    look(world)
    assert len(world.copies()) == 1
    world.restart(())
    look(world)
    assert world.copies() == []


def test_without_a_rule_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.restart(())
    watched: list[object] = []
    monkeypatch.setattr(world.store, "follow_below", watched.append)
    look(world)
    look(world)
    assert watched == []


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_at_any_write_the_next_sweep_does_the_rest(before: bool) -> None:
    kills = 0
    while True:
        world = World()
        world.store.kill_at(1_000_000, before=before)
        look(world)
        world.set(policies())
        world.events.of_topics[TOPIC] = [(TOPIC, b"\x02", DEFINITION)]
        world.record()
        world.store.kill_at(kills, before=before)
        try:
            look(world)
            world.kept()
        except Killed:
            world.store.revive()
        else:
            break
        world.restart()
        look(world)
        assert world.kept() == [FormerPolicies({TOPIC: READER}, (PolicyEvent(TOPIC, b"\x02", SCHEMA),))]
        kills += 1
    # The copy, the definition, the record.
    assert kills >= 3


def test_what_a_node_has_no_room_for_is_said() -> None:
    records = [TrashRecord(f"t/n/persistent/{one}", 1, 1, node=FormerNode(b"", 0, 1, 1)) for one in range(3)]
    large = FormerPolicies(events=(PolicyEvent("k", bytes(300_000), "s"),))
    raw = with_policies(encode_records(records), dict.fromkeys(records, large))
    first, *others = decode_records(raw)
    assert first.policies == large
    assert [one.policies.unseen for one in others if one.policies is not None] == [
        ("there was no room for its policies and permissions",)
    ] * 2
    assert [replace(one, policies=None) for one in decode_records(raw)] == records
