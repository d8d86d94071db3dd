"""Topics that lost their nodes without a trash, put together from their ledgers and restored, in memory."""

from __future__ import annotations

from hashlib import sha256

import pytest

from bookwarden.clusters.bookkeeper.ledger_paths import LedgerLayout, ledger_path
from bookwarden.errors import NotFoundError, RefusedError
from bookwarden.ledgers.custom_metadata import OWNER_KEY, expected_custom_metadata
from bookwarden.ledgers.kinds import BucketHolder, CursorHolder, Holder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.ledgers.names import TopicName
from bookwarden.metastore.interface import Write
from bookwarden.trash.from_ledgers import FromLedgers, RebuiltTopic
from bookwarden.trash.generations import FROM_LEDGERS
from bookwarden.trash.plan import RestoreRequest
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden.wire.managed_ledger import decode_managed_ledger
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wire.pb import schema_locator_pb2
from bookwarden.wire.schema_locator import decode_schema_entry
from bookwarden.wire.trash import restore_node
from unit.trash.test_restore import SOON
from unit.trash.trash_world import (
    NODE,
    SCHEMA,
    TOPIC,
    DyingStore,
    KeysAlone,
    Killed,
    World,
    cursor,
    listing,
    locator,
    position_entry,
)

NAME = TopicName.of_managed_ledger(TOPIC)
DATA, HALF, FULL, SCHEMAS = (
    ManagedLedgerHolder(TOPIC),
    CursorHolder(TOPIC, "half"),
    CursorHolder(TOPIC, "fu%2Fll"),
    SchemaHolder("t/n/a"),
)
STORES = [DyingStore, KeysAlone]
VERSIONS = (b"first", b"second")


class Ground(World):
    """A world whose ledgers name their holders."""

    def made(self, ledger_id: int, holder: Holder, last: int | None = 9, **more: bytes) -> None:
        state = LedgerState.OPEN if last is None else LedgerState.CLOSED
        custom = {name: value.encode() for name, value in expected_custom_metadata(holder).items()}
        owner = {OWNER_KEY: more["owner"]} if "owner" in more else {}
        metadata = LedgerMetadata(
            *(3, state, 1, 1, 1, (Segment(0, ("b1:3181",)),), 0 if last is None else (last + 1) * 100, last),
            digest_type="CRC32C",
            custom={**custom, **owner},
        )
        path = ledger_path("/ledgers", ledger_id, LedgerLayout.HIERARCHICAL)
        self.store.create(path, encode_ledger_metadata(metadata), make_parents=True)

    def find(
        self,
        name: TopicName = NAME,
        *,
        under_live: bool = False,
        under_way: tuple[str, ...] = (),
        owner: str | None = None,
    ) -> list[RebuiltTopic]:
        finder = FromLedgers(
            *(self.store, lambda: [(self.store, "/ledgers")], lambda: owner, self.catalog, self.entries)
        )
        return finder.find(name, under_live=under_live, under_way=under_way)

    def found(self, **options: bool) -> RebuiltTopic:
        (only,) = self.find(**options)
        return only


def schema_entry(data: bytes, earlier: bytes | None) -> bytes:
    """Return the entry of a version; ``earlier`` is the node before it, None for the first."""
    info = schema_locator_pb2.SchemaInfo(schema=data)
    entry = schema_locator_pb2.SchemaEntry(schema_data=info.SerializeToString())
    if earlier is None:
        nowhere = entry.index.add(version=0, hash=sha256(data).digest())
        nowhere.position.ledgerId = nowhere.position.entryId = -1
    else:
        entry.index.extend(schema_locator_pb2.SchemaLocator.FromString(earlier).index)
    return entry.SerializeToString()


@pytest.fixture
def locators() -> list[bytes]:
    hashes = [sha256(data).digest() for data in VERSIONS]
    return [locator((50, hashes[0])), locator((50, hashes[0]), (51, hashes[1]))]


def lost(store: type[DyingStore] = DyingStore) -> Ground:
    """Return a world of a topic of which nothing but its ledgers is left."""
    world = Ground(store)
    for ledger_id, last in ((5, 9), (6, -1), (7, 4), (8, None)):
        world.made(ledger_id, DATA, last)
    world.made(9, ManagedLedgerHolder("t/n/persistent/other"))
    world.made(10, CursorHolder("t/n/persistent/other", "half"))
    world.made(40, HALF, None)
    world.made(41, HALF, None)
    world.made(42, FULL)
    world.made(43, CursorHolder(TOPIC, "bare"), -1)
    world.made(44, BucketHolder(TOPIC, "half"))
    world.made(50, SCHEMAS, 0)
    world.made(51, SCHEMAS, 0)
    # The newest of a cursor may have no entry yet.
    world.entries.by_ledger = {40: position_entry((5, 7), b"\x0a\x04"), 42: position_entry((7, 4))}
    first = locator((50, sha256(VERSIONS[0]).digest()))
    world.entries.by_ledger |= {50: schema_entry(VERSIONS[0], None), 51: schema_entry(VERSIONS[1], first)}
    return world


def require_restored(world: Ground, locators: list[bytes]) -> None:
    ledgers = decode_managed_ledger(world.value(NODE)).ledgers
    assert [(one.ledger_id, one.entries, one.size, one.timestamp_ms > 0) for one in ledgers] == [
        (5, 10, 1000, True),
        (7, 5, 500, True),
        (8, 0, 0, False),
    ]
    cursors = {name: decode_cursor(world.value(f"{NODE}/{name}")) for name in world.store.children_of(NODE)}
    assert {name: (one.cursors_ledger_id, one.mark_delete, one.acknowledged) for name, one in cursors.items()} == {
        "half": (None, (5, 7), (b"\x0a\x04",)),
        "fu%2Fll": (None, (7, 4), ()),
    }
    assert world.value(SCHEMA) == locators[1]
    assert all(world.stored(one).version > 0 for one in (5, 7, 8, 50, 51))
    assert world.store.get(restore_node(TOPIC)) is None


@pytest.mark.parametrize("store", STORES)
def test_a_topic_comes_back_from_its_ledgers(store: type[DyingStore], locators: list[bytes]) -> None:
    world = lost(store)
    rebuilt = world.found()
    assert rebuilt.trashed.generation == (TOPIC, FROM_LEDGERS)
    assert [one.what for one in rebuilt.lost][:2] == ["subscription 'bare'", "the index of delayed messages"]
    assert {"properties", "other subscriptions", "what was removed before"} <= {one.what for one in rebuilt.lost}
    result = world.restore().run(rebuilt.trashed, RestoreRequest())
    assert (result.gone, result.problems, result.left) == ((), (), ())
    require_restored(world, locators)
    # A broker that has it loaded goes on by the nodes that are there now.
    assert world.broker.unloaded == 1


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_at_any_write_it_is_found_again_and_goes_on(
    store: type[DyingStore], before: bool, locators: list[bytes]
) -> None:
    kills = 0
    while True:
        world = lost(store)
        world.store.kill_at(kills, before=before)
        try:
            world.restore().run(world.found().trashed, RestoreRequest())
        except Killed:
            world.store.revive()
        else:
            break
        # A broker that has loaded it meanwhile makes a ledger of its own.
        if world.store.get(NODE) is not None:
            world.made(100, DATA, None)
        restore = world.restore(SOON)
        if world.store.get(restore_node(TOPIC)) is not None or world.store.get(NODE) is None:
            (again,) = world.find(under_way=tuple(restore.under_way()))
            assert 100 not in again.trashed.records[0].data
            restore.run(again.trashed, RestoreRequest())
        require_restored(world, locators)
        kills += 1
    # At least: the journal's five steps and its end, the nodes, five ledgers.
    assert kills >= 12


def test_under_a_topic_that_was_made_again_only_what_is_older_comes_back() -> None:
    world = lost()
    world.topic(listing((20, 0)), {"half": cursor(60, (20, -1))})
    world.made(20, DATA, None)
    world.made(60, HALF, None)
    world.entries.by_ledger[60] = position_entry((20, 3))
    with pytest.raises(RefusedError, match="--under-live"):
        world.find()
    rebuilt = world.found(under_live=True)
    assert rebuilt.trashed.records[0].data == (5, 6, 7, 8)
    restored = world.restore().run(rebuilt.trashed, RestoreRequest(under_live=True))
    assert restored.problems == ()
    assert world.listed() == [5, 7, 8, 20]
    assert decode_cursor(world.value(f"{NODE}/half")).mark_delete == (5, 7)
    # It was written as it is, so there is nothing that is older and not named.
    with pytest.raises(RefusedError, match="its node is a copy"):
        world.find(under_live=True)


def emptied(*listed: tuple[int, int], store: type[DyingStore] = DyingStore) -> Ground:
    """Return a world of a topic that is there, and whose list lost some ledgers, or all."""
    world = Ground(store)
    world.topic(listing(*listed), {"half": cursor(60, (20, -1))})
    for ledger_id, last in ((5, 9), (6, -1), (7, 4)):
        world.made(ledger_id, DATA, last)
    world.made(60, HALF, None)
    world.entries.by_ledger[60] = position_entry((20, -1))
    for ledger_id, entries in listed:
        world.made(ledger_id, DATA, entries - 1 if entries else None)
    return world


@pytest.mark.parametrize("listed", [(), ((20, 0),), ((19, 3), (20, 0))])
@pytest.mark.parametrize("store", STORES)
def test_what_left_the_list_of_a_live_topic_comes_back_however_often_it_is_killed(
    store: type[DyingStore], listed: tuple[tuple[int, int], ...]
) -> None:
    request = RestoreRequest(under_live=True)
    for kills in range(40):
        world = emptied(*listed, store=store)
        world.store.kill_at(kills // 2, before=kills % 2 == 0)
        try:
            world.restore().run(world.found(under_live=True).trashed, request)
        except Killed:
            world.store.revive()
            restore = world.restore(SOON)
            if world.store.get(restore_node(TOPIC)) is not None or world.listed() == [one for one, _ in listed]:
                (again,) = world.find(under_live=True, under_way=tuple(restore.under_way()))
                restore.run(again.trashed, request)
        else:
            assert kills > 10
        assert world.listed() == [5, 7, *(one for one, _ in listed)]
        assert [one.entries for one in decode_managed_ledger(world.value(NODE)).ledgers][:2] == [10, 5]
        assert decode_cursor(world.value(f"{NODE}/half")).cursors_ledger_id == 60
        assert all(world.stored(one).version > 0 for one in (5, 7))
        assert world.store.get(restore_node(TOPIC)) is None
    with pytest.raises(NotFoundError, match="none that left its list"):
        world.find(under_live=True)


def test_what_may_be_of_the_live_list_is_named_and_left() -> None:
    world = emptied((10, 3), (20, 0))
    world.made(8, DATA, None)
    world.made(15, DATA, 4)
    with pytest.raises(RefusedError, match="those that left its list"):
        world.find()
    rebuilt = world.found(under_live=True)
    assert rebuilt.trashed.records[0].data == (5, 7)
    assert [(one.what, one.why.partition(",")[0]) for one in rebuilt.lost][:2] == [
        ("ledger 8", "it is open"),
        ("ledger 15", "it is not on the list of the topic that is there"),
    ]
    world.restore().run(rebuilt.trashed, RestoreRequest(under_live=True))
    assert world.listed() == [5, 7, 10, 20]
    # A broker that loads it writes its list only once it has a ledger.
    world = Ground()
    world.topic(listing(), {})
    world.made(5, DATA, None)
    with pytest.raises(RefusedError, match=r"ledger 5: it is open.*topics stats"):
        world.find(under_live=True)


def test_cursors_that_are_there_without_their_topic_stay() -> None:
    world = lost(KeysAlone)
    value = cursor(41, (7, 2))
    assert isinstance(world.store, KeysAlone)
    world.store._make(Write(f"{NODE}/half", value, None))
    assert set(world.found().trashed.cursors) == {"fu%2Fll"}
    world.restore().run(world.found().trashed, RestoreRequest())
    assert world.value(f"{NODE}/half") == value


def test_partitions_are_found_by_the_name_of_their_topic() -> None:
    world = Ground()
    for partition in (0, 10, 2):
        world.made(5 + partition, ManagedLedgerHolder(f"{TOPIC}-partition-{partition}"))
    world.made(30, ManagedLedgerHolder(f"{TOPIC}-partition-x"))
    world.made(50, SCHEMAS, 0)
    world.entries.by_ledger[50] = schema_entry(VERSIONS[0], None)
    found = world.find()
    assert [one.trashed.records[0].data for one in found] == [(5,), (7,), (15,)]
    assert all(one.trashed.schema is not None for one in found)
    (one,) = world.find(TopicName.of_managed_ledger(f"{TOPIC}-partition-2"))
    assert one.trashed.records[0].data == (7,)


def test_what_another_pulsar_cluster_made_is_none_of_it() -> None:
    world = Ground()
    world.made(5, DATA)
    world.made(6, DATA, owner=b"other")
    world.made(7, DATA, owner=b"mine")
    assert [one.trashed.records[0].data for one in world.find(owner="mine")] == [(5, 7)]
    with pytest.raises(NotFoundError, match="no ledger"):
        world.find(TopicName.parse("persistent://t/n/nothing"))


def test_a_cursor_names_its_ledger_where_its_acknowledgements_fit_no_node() -> None:
    world = lost()
    # In a form that no broker writes: a range before the position.
    entry = pb.PositionInfo(ledgerId=5, entryId=7)
    entry.individualDeletedMessageRanges.append(pb.LongListMap(key=5, values=[1]).SerializeToString())
    world.entries.by_ledger[40] = entry.SerializeToString()
    world.restore().run(world.found().trashed, RestoreRequest())
    half = decode_cursor(world.value(f"{NODE}/half"))
    assert (half.cursors_ledger_id, half.mark_delete) == (40, (5, 7))
    assert world.stored(40).version > 0


def test_the_locator_is_that_of_the_newest_entry(locators: list[bytes]) -> None:
    world = lost()
    assert decode_schema_entry(world.entries.by_ledger[51]).version == 1
    schema = world.found().trashed.schema
    assert schema is not None
    assert schema.node is not None
    assert schema.node.value == locators[1]
    # The newest ledger has no entry where its writer died.
    world.made(52, SCHEMAS, -1)
    del world.entries.by_ledger[51]
    schema = world.found().trashed.schema
    assert schema is not None
    assert schema.node is not None
    assert schema.node.value == locators[0]
    # One that is there stays.
    world.store.create(SCHEMA, locators[1])
    assert world.found().trashed.schema is None


def test_a_last_ledger_that_is_closed_and_empty_is_left_out() -> None:
    world = Ground()
    world.made(5, DATA)
    world.made(6, DATA, -1)
    plan = world.restore().plan(world.found().trashed, RestoreRequest())
    assert (plan.ledgers, plan.entries) == ((5,), 10)
