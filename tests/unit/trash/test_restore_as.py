"""Restores from the trash under another name, in memory: killed at each write, next to others that want either name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from bookwarden.clusters.pulsar.metadata.topic_policies import OWN
from bookwarden.errors import RefusedError
from bookwarden.leases import LeaseTimes
from bookwarden.ledgers.custom_metadata import custom_metadata_mismatch
from bookwarden.ledgers.kinds import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.trash import FormerNode, FormerPolicies, PolicyEvent, TrashRecord
from bookwarden.metastore.interface import Versioned
from bookwarden.trash.generations import TrashedGeneration
from bookwarden.trash.other_name import under_name
from bookwarden.trash.plan import RestoreRequest
from bookwarden.trash.restore import RestoreStep
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wire.topic_policies import decode_topic_policies
from bookwarden.wire.trash import TRASH_EVENT_SCHEMAS, TRASH_RESTORES
from bookwarden.wire.writer_schema import parse_writer_schema
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
from unit.wire.test_topic_policies import DEFINITION, WITHOUT

OTHER = "t/m/persistent/b"
NAME = TopicName.of_managed_ledger(OTHER)
OTHER_NODE, OTHER_SCHEMA = f"/managed-ledgers/{OTHER}", "/schemas/t/m/b"
LIST = listing((5, 10), (6, 10), (7, 0), owner="me")
COMPACTION = pb.ManagedCursorInfo(cursorsLedgerId=42, markDeleteLedgerId=5, markDeleteEntryId=0).SerializeToString()
BUCKETS = pb.ManagedCursorInfo(
    cursorsLedgerId=41,
    markDeleteLedgerId=5,
    markDeleteEntryId=-1,
    cursorProperties=[pb.StringProperty(name="#pulsar.internal.delayed.bucket_5_6", value="60")],
).SerializeToString()
CURSORS = {"full": cursor(40, (5, 0)), "half": cursor(-1, (5, 9), b"\x0a\x04"), "idle": BUCKETS}
CURSORS[COMPACTION_CURSOR] = COMPACTION
LOCATOR = locator((50, b"A"), (51, b"B"))
#: Of the topic that has the former name now.
LIVE_LIST, LIVE_LOCATOR = listing((20, 0)), locator((52, b"B"))
HOLDERS: dict[int, Callable[[str], Holder]] = {
    **dict.fromkeys((5, 6, 7), ManagedLedgerHolder),
    40: lambda topic: CursorHolder(topic, "full"),
    41: lambda topic: CursorHolder(topic, "idle"),
    42: lambda topic: CursorHolder(topic, COMPACTION_CURSOR),
    **dict.fromkeys((50, 51), lambda topic: SchemaHolder(TopicName.of_managed_ledger(topic).schema_id)),
    60: lambda topic: BucketHolder(topic, "idle"),
    61: CompactedHolder,
}
SOON = LeaseTimes(renew_s=0.01, lease_s=30.0, given_up_s=0.03)
STORES = [DyingStore, KeysAlone]
NAMESPACE = "/admin/policies/t/m"
WHOLE = RestoreRequest()


def deleted(store: type[DyingStore] = DyingStore, *, lives: bool = True) -> World:
    """Return a world with a topic that was deleted, and kept, whose name another one with other schemas has."""
    world = World(store)
    for ledger_id, of_topic in HOLDERS.items():
        world.ledger(ledger_id, holder=of_topic(TOPIC), last=None if ledger_id == 7 else 9)
    entry = pb.PositionInfo(ledgerId=5, entryId=0)
    entry.properties.add(name="CompactedTopicLedger", value=61)
    world.entries.by_ledger = {
        40: position_entry((6, 9)),
        41: position_entry((5, -1)),
        42: entry.SerializeToString(),
    }
    world.store.create("/managed-ledgers/t/m/persistent", b"", make_parents=True)
    world.store.create("/schemas/t/m", b"", make_parents=True)
    world.store.create("/admin/policies/t/n", b"{}", make_parents=True)
    world.store.create(NAMESPACE, b"{}")
    world.store.create(f"{TRASH_EVENT_SCHEMAS}/ab", DEFINITION.encode(), make_parents=True)
    world.topic(LIST, CURSORS, LOCATOR)
    world.delete(
        FormerPolicies(
            {"persistent://t/n/a": {"reader": ("consume",)}},
            (PolicyEvent("__G__persistent://t/n/a", WITHOUT, "ab"),),
            {f"{OWN}/{TOPIC}": b'{"own":1}'},
        )
    )
    if lives:
        world.ledger(20, last=None, holder=ManagedLedgerHolder(TOPIC))
        world.ledger(52, holder=SchemaHolder("t/n/a"))
        world.topic(LIVE_LIST, {"half": cursor(-1, (20, -1))}, LIVE_LOCATOR)
    return world


def ended(world: World) -> TrashedGeneration:
    return of_topic(world, TOPIC)


def of_topic(world: World, name: str) -> TrashedGeneration:
    """Return the life of a topic that is over."""
    found = world.records.read().generations
    return next(one for one in found if one.managed_ledger == name and one.topic is not None)


def renamed(world: World, name: TopicName = NAME) -> TrashedGeneration:
    return under_name(ended(world), name)


def owners(world: World) -> set[str]:
    """Return the topics that the ledgers of the former one name, all of its kinds."""
    found = set()
    for ledger_id, of_topic in HOLDERS.items():
        custom = world.stored(ledger_id).metadata.custom
        matches = [topic for topic in (TOPIC, OTHER) if custom_metadata_mismatch(of_topic(topic), custom) is None]
        assert matches, f"ledger {ledger_id} names {custom}"
        found.update(matches)
    return found


def nodes(world: World, path: str) -> dict[str, bytes]:
    return {name: world.value(f"{path}/{name}") for name in world.store.children_of(path)}


def require_restored(world: World) -> None:
    assert world.value(OTHER_NODE) == LIST
    assert nodes(world, OTHER_NODE) == CURSORS
    assert world.value(OTHER_SCHEMA) == LOCATOR
    assert owners(world) == {OTHER}
    assert (world.value(NODE), world.value(SCHEMA)) == (LIVE_LIST, LIVE_LOCATOR)
    assert nodes(world, NODE).keys() == {"half"}
    assert all(one.topic is None and not one.trims for one in world.records.read().generations)
    assert world.store.children_of(TRASH_RESTORES) == []
    permissions = json.loads(world.value(NAMESPACE))["auth_policies"]["destination_auth"]
    assert permissions == {str(NAME): {"reader": ["consume"]}}
    assert world.value("/admin/policies/t/n") == b"{}"
    assert world.value(f"{OWN}/{OTHER}") == b'{"own":1}'
    (event,) = world.events.values.items()
    assert event[0] == f"__G__{NAME}"
    found = decode_topic_policies(event[1], parse_writer_schema(DEFINITION))
    assert found is not None
    assert (found[0], found[1]["maxMessageSize"]) == (str(NAME), 7)


def require_not_to_be_swept(world: World) -> Callable[[], None]:
    """Look after each write: what the list names is its own, and a mark of the former name would be a mismatch."""
    whole = len(ended(world).found)

    def look() -> None:
        node = world.store.get(OTHER_NODE)
        if node is not None:
            assert owners(world) == {OTHER}
            assert nodes(world, OTHER_NODE) == CURSORS, "a list without its cursors"
            assert world.store.get(OTHER_SCHEMA) is not None, "a list without its schema"
            assert world.events.values, "a list without its policies"
        journals = [world.value(f"{TRASH_RESTORES}/{name}") for name in world.store.children_of(TRASH_RESTORES)]
        if any(b'"proven"' in journal for journal in journals):
            return
        if node is None:
            assert len(ended(world).found) == whole

    return look


@pytest.mark.parametrize("store", STORES)
def test_a_deleted_topic_comes_back_under_another_name_while_its_own_is_in_use(store: type[DyingStore]) -> None:
    world = deleted(store)
    with pytest.raises(RefusedError, match=r"trash restore persistent://t/n/a --as NAME"):
        world.restore().plan(ended(world), WHOLE)
    with pytest.raises(
        RefusedError, match=r"numbers its schemas otherwise.*trash restore persistent://t/n/a --as NAME"
    ):
        world.restore().plan(ended(world), RestoreRequest(under_live=True))
    plan = world.restore().plan(renamed(world), WHOLE)
    assert (plan.ledgers, plan.entries, plan.schema_versions, plan.lost) == ((5, 6, 7), 20, 2, ())
    assert (plan.is_live, owners(world), world.store.get(OTHER_NODE)) == (False, {TOPIC}, None)
    assert world.store.children_of(TRASH_RESTORES) == []
    result = world.restore().run(renamed(world), WHOLE)
    assert (result.gone, result.problems, result.left) == ((), (), ())
    require_restored(world)
    assert world.records.read().generations == ()
    assert world.broker.unloaded == 0


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_at_any_write_the_same_command_goes_on(store: type[DyingStore], before: bool) -> None:
    kills = 0
    while True:
        world = deleted(store)
        world.store.seen = require_not_to_be_swept(world)
        trashed = renamed(world)
        world.store.kill_at(kills, before=before)
        try:
            world.restore().run(trashed, WHOLE)
        except Killed:
            world.store.revive()
        else:
            break
        if any(one.topic is not None for one in world.records.read().generations):
            world.restore(SOON).run(renamed(world), WHOLE)
        else:
            world.restore(SOON).finish(lambda _: True)
        require_restored(world)
        kills += 1
    # At least: two locks, four steps and both ends, policies, ten ledgers and nine again, the nodes, six records.
    assert kills >= 37


@pytest.mark.parametrize("store", STORES)
def test_a_client_that_takes_the_name_keeps_it_and_the_trash_keeps_the_topic(store: type[DyingStore]) -> None:
    theirs, kills = listing((30, 0)), 0
    while True:
        world = deleted(store)
        whole = ended(world).found

        def take(step: RestoreStep, world: World = world) -> None:
            if step is RestoreStep.WRITING and world.store.get(OTHER_NODE) is None:
                world.store.left += 2
                world.store.create(OTHER_NODE, theirs)
                world.store.create(f"{OTHER_NODE}/theirs", cursor(-1, (30, -1)))

        trashed = renamed(world)
        world.store.kill_at(kills, before=False)
        was_killed = False
        try:
            with pytest.raises(RefusedError, match=r"persistent://t/m/b is there"):
                world.restore(on_step=take).run(trashed, WHOLE)
        except Killed:
            was_killed = True
        world.store.revive()
        if was_killed:
            with pytest.raises(RefusedError, match=r"persistent://t/m/b is there"):
                world.restore(SOON, on_step=take).run(renamed(world), WHOLE)
        assert world.value(OTHER_NODE) == theirs
        assert nodes(world, OTHER_NODE).keys() == {"theirs"}
        assert world.store.get(OTHER_SCHEMA) is None
        assert owners(world) == {TOPIC}
        assert ended(world).found == whole
        assert world.store.children_of(TRASH_RESTORES) == []
        kills += 1
        if not was_killed:
            break
    assert kills >= 20
    world.restore().run(renamed(world, TopicName.parse("t/m/c")), WHOLE)
    assert world.value("/managed-ledgers/t/m/persistent/c") == LIST


def test_a_name_that_is_taken_after_the_cursors_of_a_store_without_transactions_is_left_too() -> None:
    world = deleted(KeysAlone)
    trashed = renamed(world)

    def take() -> None:
        if world.store.get(f"{OTHER_NODE}/idle") is not None and world.store.get(OTHER_NODE) is None:
            world.store.seen = lambda: None
            world.store.create(OTHER_NODE, listing((30, 0)))
            # The broker has loaded one of them, and written it.
            world.store.put(f"{OTHER_NODE}/half", cursor(-1, (30, 2)), 0)

    world.store.seen = take
    with pytest.raises(RefusedError, match="all of it is in the trash again"):
        world.restore().run(trashed, WHOLE)
    left = {name: world.store.get(f"{OTHER_NODE}/{name}") for name in CURSORS}
    assert {name for name, node in left.items() if node is not None} == {"half"}
    assert (world.store.get(OTHER_SCHEMA), owners(world), world.broker.unloaded) == (None, {TOPIC}, 1)
    assert world.store.children_of(TRASH_RESTORES) == []


def test_a_sweep_that_read_before_deletes_nothing_that_the_list_names() -> None:
    world = deleted()
    read = [(one.path, one.version) for one in map(world.stored, (5, 6, 40, 50, 60, 61))]
    late: list[DeleteResult] = []

    def sweep(step: RestoreStep) -> None:
        if step is RestoreStep.WRITTEN:
            late.extend(world.store.delete_many(read))

    world.restore(on_step=sweep).run(renamed(world), WHOLE)
    assert late == [DeleteResult.LOST_RACE] * 6
    require_restored(world)


def test_what_a_sweep_deleted_before_is_off_the_list_and_named() -> None:
    world = deleted()
    read = [(world.stored(6).path, 0)]

    def sweep(step: RestoreStep) -> None:
        if step is RestoreStep.WRITING:
            assert world.store.delete_many(read) == [DeleteResult.DELETED]

    result = world.restore(on_step=sweep).run(renamed(world), WHOLE)
    assert (result.gone, result.problems) == ((6,), ())
    assert world.value(OTHER_NODE) != LIST


def killed_at(world: World, step: RestoreStep, trashed: TrashedGeneration) -> None:
    def kill(reached: RestoreStep) -> None:
        if reached is step:
            raise Killed

    with pytest.raises(Killed):
        world.restore(on_step=kill).run(trashed, WHOLE)


def keep_other(world: World, name: str, ledger_id: int) -> None:
    """Have another deleted topic in the trash."""
    world.ledger(ledger_id, holder=ManagedLedgerHolder(name))
    node = FormerNode(listing((ledger_id, 10)), 0, 5, 5)
    world.keep(TrashRecord(name, 6, 5, data=(ledger_id,), node=node))


@pytest.mark.parametrize("step", [RestoreStep.WRITING, RestoreStep.WRITTEN, RestoreStep.TOUCHED])
def test_both_names_are_locked_until_it_is_finished(step: RestoreStep) -> None:
    world = deleted()
    keep_other(world, OTHER, 80)
    keep_other(world, "t/n/persistent/c", 81)
    killed_at(world, step, renamed(world))
    assert world.restore().under_way().keys() == {TOPIC, OTHER}
    another = TopicName.parse("t/m/other")
    others = [
        of_topic(world, TOPIC),
        under_name(of_topic(world, TOPIC), another),
        of_topic(world, OTHER),
        under_name(of_topic(world, OTHER), another),
        under_name(of_topic(world, "t/n/persistent/c"), NAME),
    ]
    first = r"trash restore persistent://t/n/a --generation \d+ --as persistent://t/m/b --execute"
    for other in others:
        with pytest.raises(RefusedError, match=first):
            world.restore(SOON).run(other, RestoreRequest(under_live=other.origin is None))
    world.restore(SOON).run(under_name(of_topic(world, TOPIC), NAME), WHOLE)
    assert world.store.children_of(TRASH_RESTORES) == []
    assert world.value(OTHER_NODE) == LIST
    world.restore().run(under_name(of_topic(world, "t/n/persistent/c"), TopicName.parse("t/m/d")), WHOLE)


def test_a_restore_that_was_killed_before_it_did_anything_keeps_no_name() -> None:
    world = deleted()
    keep_other(world, OTHER, 80)
    killed_at(world, RestoreStep.BEGUN, renamed(world))
    assert world.restore().under_way().keys() == {TOPIC, OTHER}
    world.restore(SOON).run(under_name(of_topic(world, TOPIC), TopicName.parse("t/m/c")), WHOLE)
    world.restore(SOON).run(of_topic(world, OTHER), WHOLE)
    assert world.listed(OTHER_NODE) == [80]
    assert world.store.children_of(TRASH_RESTORES) == []


def test_a_restore_under_way_keeps_both_names_from_a_second_operator() -> None:
    world = deleted()
    keep_other(world, "t/n/persistent/c", 81)
    renewing = LeaseTimes(renew_s=0.05, lease_s=30.0, given_up_s=5.0)
    refused = []

    def second(step: RestoreStep) -> None:
        if step is RestoreStep.WRITING:
            other = under_name(of_topic(world, "t/n/persistent/c"), NAME)
            with pytest.raises(RefusedError, match=r"alice@a restores persistent://t/m/b now"):
                world.restore(renewing, operator="bob@b").run(other, WHOLE)
            refused.append(step)

    world.restore(renewing, on_step=second).run(renamed(world), WHOLE)
    assert len(refused) == 1
    assert of_topic(world, "t/n/persistent/c").found


def test_names_that_cannot_be_taken_are_refused_and_nothing_is_left() -> None:
    world = deleted()
    partitioned = f"/admin/partitioned-topics/{OTHER}"
    takes: list[tuple[str, bytes, str]] = [
        (OTHER_NODE, listing((30, 0)), r"persistent://t/m/b is there"),
        (partitioned, b'{"partitions":2}', r"persistent://t/m/b is there"),
        (OTHER_SCHEMA, locator((90, b"A")), r"schema of its own.*schemas delete persistent://t/m/b"),
    ]
    for path, value, why in takes:
        world.store.create(path, value, make_parents=True)
        for act in (world.restore().plan, world.restore().run):
            with pytest.raises(RefusedError, match=why):
                act(renamed(world), WHOLE)
        world.store.delete_many([(path, world.get(path).version)])
    node: Versioned = world.get(NAMESPACE)
    world.store.delete_many([(NAMESPACE, node.version)])
    with pytest.raises(RefusedError, match="namespace t/m is not there: create it"):
        world.restore().run(renamed(world), WHOLE)
    world.store.create(NAMESPACE, node.value)
    # The live topic has a ledger of it: a restore under it was not finished well.
    world.store.put(NODE, listing((5, 10), (20, 0)), world.get(NODE).version)
    with pytest.raises(RefusedError, match="has ledger 5: that does not come back under another name"):
        world.restore().run(renamed(world), WHOLE)
    world.store.put(NODE, LIVE_LIST, world.get(NODE).version)
    assert (world.store.children_of(TRASH_RESTORES), owners(world)) == ([], {TOPIC})
    world.restore().run(renamed(world), WHOLE)
    require_restored(world)


def test_what_left_a_topic_that_lives_does_not_come_back_under_another_name() -> None:
    world = deleted()
    live = world.get(NODE).created_ms
    world.keep(TrashRecord(TOPIC, live + 1, live, data=(5,), entries=(b"\x08\x05",)))
    trimmed = next(one for one in world.records.read().generations if one.topic is None)
    with pytest.raises(RefusedError, match="--as restores a topic that was deleted"):
        world.restore().plan(under_name(trimmed, NAME), WHOLE)


def test_metadata_that_cannot_be_changed_refuses_the_name_before_anything_is_done() -> None:
    world = deleted()
    found = world.stored(6)
    old = b"BookieMetadataFormatVersion\t2\n" + (
        b'quorumSize: 1 ensembleSize: 1 length: 1000 lastEntryId: 9 state: CLOSED segment { ensembleMember: "b1:3181" '
        b'firstEntryId: 0 } digestType: CRC32C password: "" ackQuorumSize: 1 customMetadata { key: "application" '
        b'value: "pulsar" } customMetadata { key: "component" value: "managed-ledger" } customMetadata { '
        b'key: "pulsar/managed-ledger" value: "t/n/persistent/a" }'
    )
    world.store.put(found.path, old, found.version)
    with pytest.raises(RefusedError, match="ledger 6 has metadata of version 2"):
        world.restore().run(renamed(world), WHOLE)
    assert (world.store.children_of(TRASH_RESTORES), owners(world)) == ([], {TOPIC})


def test_a_ledger_of_another_holder_stays_that_holders() -> None:
    world = deleted()
    found = world.stored(6)
    world.store.delete_many([(found.path, found.version)])
    # As one that was put into the list by hand, and as old releases made them.
    for ledger_id, holder in ((6, ManagedLedgerHolder("t/n/persistent/rescued")), (5, None)):
        found = world.stored(5)
        if ledger_id == 5:
            world.store.delete_many([(found.path, found.version)])
        world.ledger(ledger_id, holder=holder)
    world.restore().run(renamed(world), WHOLE)
    assert world.value(OTHER_NODE) == LIST
    assert world.stored(6).metadata.custom["pulsar/managed-ledger"] == b"t/n/persistent/rescued"
    assert world.stored(5).metadata.custom == {}


def test_compactions_stay_in_the_trash_and_the_one_in_use_is_the_new_names() -> None:
    world = deleted()
    made = ended(world).generation.created_ms
    world.ledger(62, holder=CompactedHolder(TOPIC))
    world.keep(*(TrashRecord(TOPIC, made + 1, made, compacted=(ledger_id,)) for ledger_id in (61, 62)))
    world.restore().run(renamed(world), WHOLE)
    require_restored(world)
    left = [one.record.compacted for trashed in world.records.read().generations for one in trashed.found]
    assert left == [(61,), (62,)]
    assert custom_metadata_mismatch(CompactedHolder(TOPIC), world.stored(62).metadata.custom) is None


def test_one_subscription_alone_comes_back_with_the_topic_and_the_others_stay_in_the_trash() -> None:
    world = deleted()
    world.restore().run(renamed(world), RestoreRequest("full"))
    assert nodes(world, OTHER_NODE) == {"full": CURSORS["full"]}
    left = {one.record.cursor for trashed in world.records.read().generations for one in trashed.found}
    assert left == CURSORS.keys() - {"full"}
    assert custom_metadata_mismatch(CursorHolder(TOPIC, "idle"), world.stored(41).metadata.custom) is None
    assert custom_metadata_mismatch(CursorHolder(OTHER, "full"), world.stored(40).metadata.custom) is None


@pytest.mark.parametrize("taken", [False, True], ids=["free", "a client makes the topic without partitions"])
def test_partitions_follow_the_name_of_their_topic(taken: bool) -> None:
    world = World()
    parent = "t/n/persistent/p"
    for number in range(2):
        name = f"{parent}-partition-{number}"
        world.ledger(5 + number, holder=ManagedLedgerHolder(name))
        world.keep(
            TrashRecord(name, 6 + number, 5, data=(5 + number,), node=FormerNode(listing((5 + number, 10)), 0, 5, 5))
        )
    world.ledger(50, holder=SchemaHolder("t/n/p"))
    schema = FormerNode(locator((50, b"A")), 0, 5, 5)
    world.keep(TrashRecord(parent, 5, 5, schema_id="t/n/p", schemas=(50,), node=schema))
    partitioned = f"/admin/partitioned-topics/{OTHER}"

    def look() -> None:
        written = [f"{OTHER_NODE}-partition-{number}" for number in range(2)]
        assert world.store.get(partitioned) is None or all(world.store.get_many(written))

    def found() -> list[TrashedGeneration]:
        of_partitions = sorted(world.records.read().generations, key=lambda one: one.managed_ledger)
        return [under_name(one, NAME) for one in of_partitions]

    world.store.seen = look
    if taken:

        def take(step: RestoreStep) -> None:
            if step is RestoreStep.TOUCHED and world.store.get(OTHER_NODE) is None:
                world.store.create(OTHER_NODE, listing((30, 0)), make_parents=True)

        with pytest.raises(RefusedError, match="delete it, and run the same command again"):
            world.restore(on_step=take).run_partitions(found()[:1], WHOLE, b'{"partitions":2}')
        assert world.store.get(partitioned) is None
        with pytest.raises(
            RefusedError, match="run `bookwarden trash restore persistent://t/n/p --as persistent://t/m/b -"
        ):
            world.restore(SOON).run(of_topic(world, f"{parent}-partition-0"), WHOLE)
        world.store.delete_many([(OTHER_NODE, 0)])
    world.restore(SOON).run_partitions(found(), WHOLE, b'{"partitions":2}')
    assert world.value(partitioned) == b'{"partitions":2}'
    assert [world.listed(f"{OTHER_NODE}-partition-{number}") for number in range(2)] == [[5], [6]]
    assert world.value(OTHER_SCHEMA) == schema.value
    assert custom_metadata_mismatch(SchemaHolder("t/m/b"), world.stored(50).metadata.custom) is None
    assert world.records.read().generations == ()
    assert world.store.children_of(TRASH_RESTORES) == []


def test_without_policies_nothing_is_asked_of_them() -> None:
    world = deleted()
    trashed = ended(world)
    assert trashed.topic is not None
    unseen = replace(trashed, topic=replace(trashed.topic, policies=None))
    world.restore().run(under_name(unseen, NAME), WHOLE)
    assert (world.events.values, world.value(NAMESPACE)) == ({}, b"{}")


def test_a_shadow_topic_leaves_the_ledgers_to_its_source() -> None:
    world = World()
    source = ManagedLedgerHolder("t/n/persistent/source")
    world.ledger(5, holder=source)
    world.ledger(40, holder=CursorHolder(TOPIC, "full"))
    world.store.create("/managed-ledgers/t/m/persistent", b"", make_parents=True)
    world.store.create(NAMESPACE, b"{}", make_parents=True)
    world.topic(listing((5, 10), **{"PULSAR.SHADOW_SOURCE": "persistent://t/n/source"}), {"full": cursor(40, (5, 3))})
    world.delete()
    result = world.restore().run(renamed(world), WHOLE)
    assert result.plan is not None
    (lost,) = result.plan.lost
    assert "set-shadow-topics persistent://t/n/source" in lost.why
    assert custom_metadata_mismatch(source, world.stored(5).metadata.custom) is None
    assert custom_metadata_mismatch(CursorHolder(OTHER, "full"), world.stored(40).metadata.custom) is None
    assert world.listed(OTHER_NODE) == [5]
