"""Restores from the trash in memory: killed at each write, next to brokers, sweeps and other operators."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from bookwarden.clusters.pulsar.metadata.topic_policies import FOR_ALL, OWN
from bookwarden.errors import NotFoundError, RefusedError
from bookwarden.leases import LeaseTimes
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.offloaded_copies import CopyIndex, PresentCopy
from bookwarden.ledgers.trash import (
    ClearedCursor,
    FormerPolicies,
    NamespaceCopy,
    PolicyEvent,
    TrashLease,
    TrashRecord,
)
from bookwarden.trash.other_name import under_name
from bookwarden.trash.plan import RestoreRequest
from bookwarden.trash.restore import RestoreStep, why_gone
from bookwarden.wire.cursor import decode_cursor
from bookwarden.wire.managed_ledger import decode_managed_ledger, ledger_entries
from bookwarden.wire.pb import managed_ledger_pb2 as pb
from bookwarden.wire.trash import (
    TRASH_EVENT_SCHEMAS,
    TRASH_LEASE,
    copy_node,
    decode_records,
    encode_copy,
    encode_lease,
    encode_records,
    restore_node,
)
from unit.trash.trash_world import (
    FOLDER,
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

JOURNAL = restore_node(TOPIC)
LIST = listing((5, 10), (6, 10), (7, 0), owner="me")
CURSORS = {"full": cursor(40, (5, 0)), "half": cursor(-1, (5, 9), b"\x0a\x04"), "idle": cursor(41, (5, -1))}
LOCATOR = locator((50, b"A"), (51, b"B"))
#: A holder that does not renew its record is dead after a moment.
SOON = LeaseTimes(renew_s=0.01, lease_s=30.0, given_up_s=0.03)
STORES = [DyingStore, KeysAlone]
NAMESPACE = "/admin/policies/t/n"
POLICIES = FormerPolicies(
    {"persistent://t/n/a": {"reader": ("consume",)}},
    (PolicyEvent("persistent://t/n/a", b"\x02", "ab"), PolicyEvent("__G__persistent://t/n/a", b"\x04", "ab")),
    {f"{OWN}/{TOPIC}": b'{"own":1}', f"{FOR_ALL}/{TOPIC}": b"former"},
)


def deleted(store: type[DyingStore] = DyingStore) -> World:
    """Return a world with a topic that was deleted, and kept."""
    world = World(store)
    world.ledger(5, 6, 40, 41, 50, 51)
    world.ledger(7, last=None)
    world.entries.by_ledger = {40: position_entry((6, 9)), 41: position_entry((5, -1))}
    world.topic(LIST, CURSORS, LOCATOR)
    world.store.create(
        NAMESPACE, b'{"auth_policies":{"destination_auth":{"x":{"r":["produce"]}}},"new":1}', make_parents=True
    )
    world.store.create(f"{FOR_ALL}/{TOPIC}", b"set since", make_parents=True)
    world.store.create(f"{TRASH_EVENT_SCHEMAS}/ab", b"a definition", make_parents=True)
    # As brokers do when they delete it, and somebody has set one again.
    world.events.values = {"persistent://t/n/a": b"", "__G__persistent://t/n/a": b"\x06"}
    world.delete(POLICIES)
    return world


def has_policies(world: World) -> bool:
    """Return whether the permissions are there, and the policies that nobody has set since."""
    permissions = json.loads(world.value(NAMESPACE))
    assert permissions["auth_policies"]["destination_auth"].pop("x") == {"r": ["produce"]}
    assert permissions["new"] == 1
    assert world.events.values["__G__persistent://t/n/a"] == b"\x06"
    assert world.value(f"{FOR_ALL}/{TOPIC}") == b"set since"
    own = world.store.get(f"{OWN}/{TOPIC}")
    assert set(world.events.definitions) <= {"a definition"}
    return (
        permissions["auth_policies"]["destination_auth"] == {"persistent://t/n/a": {"reader": ["consume"]}}
        and world.events.values["persistent://t/n/a"] == b"\x02"
        and own is not None
        and own.value == b'{"own":1}'
    )


def require_restored(world: World) -> None:
    assert world.value(NODE) == LIST
    assert {name: world.value(f"{NODE}/{name}") for name in world.store.list_children(NODE)} == CURSORS
    assert world.value(SCHEMA) == LOCATOR
    assert all(world.stored(one).version > 0 for one in (5, 6, 7, 40, 41, 50, 51))
    assert world.records.read().generations == ()
    assert world.store.get(JOURNAL) is None
    assert world.topic_of_marks.marked == []
    assert has_policies(world)


def require_no_list_without_its_cursors(world: World) -> Callable[[], None]:
    """Look after each write: a broker that loads the topic then finds all of it; the trash has all until the end."""

    def look() -> None:
        nodes = world.store.get_many([NODE, SCHEMA, *(f"{NODE}/{name}" for name in CURSORS)])
        assert nodes[0] is None or all(nodes), "a list without its cursors"
        assert nodes[0] is None or has_policies(world), "a list without its policies"
        journal = world.store.get(JOURNAL)
        if journal is None or b'"proven"' not in journal.value:
            assert nodes[0] is not None or len(world.trashed().found) == 5

    return look


@pytest.mark.parametrize("store", STORES)
def test_a_deleted_topic_comes_back_as_it_was(store: type[DyingStore]) -> None:
    world = deleted(store)
    restore, trashed = world.restore(), world.trashed()
    plan = restore.plan(trashed, RestoreRequest())
    assert (plan.ledgers, plan.entries, plan.schema_versions, plan.lost) == ((5, 6, 7), 20, 2, ())
    assert [(one.cursor, one.position) for one in plan.cursors] == [
        ("full", (6, 9)),
        ("half", (5, 9)),
        ("idle", (5, -1)),
    ]
    assert world.store.get(JOURNAL) is None
    result = restore.run(trashed, RestoreRequest())
    assert (result.gone, result.problems, result.left) == ((), (), ())
    require_restored(world)
    assert world.broker.unloaded == 0


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_at_any_write_the_same_command_goes_on(store: type[DyingStore], before: bool) -> None:
    kills = 0
    while True:
        world = deleted(store)
        world.store.seen = require_no_list_without_its_cursors(world)
        trashed = world.trashed()
        world.store.kill_at(kills, before=before)
        try:
            world.restore().run(trashed, RestoreRequest())
        except Killed:
            world.store.revive()
        else:
            break
        found = world.records.read().generations
        if found:
            world.restore(SOON).run(found[0], RestoreRequest())
        elif world.store.get(JOURNAL) is not None:
            assert world.restore(SOON).finish(lambda _: True) == [TOPIC]
        require_restored(world)
        kills += 1
    # At least: the journal's five steps and its end, permissions and policies, the nodes, seven ledgers, five records.
    assert kills >= 22


def test_a_sweep_that_read_before_the_list_was_there_does_not_delete() -> None:
    world = deleted()
    read = [(one.path, one.version) for one in map(world.stored, (5, 6, 40, 50))]
    late: list[DeleteResult] = []

    def sweep(step: RestoreStep) -> None:
        if step is RestoreStep.WRITTEN:
            late.extend(world.store.delete_many(read[1:2]))
        elif step is RestoreStep.TOUCHED:
            late.extend(world.store.delete_many([read[0], *read[2:]]))

    result = world.restore(on_step=sweep).run(world.trashed(), RestoreRequest())
    assert late == [DeleteResult.DELETED, *[DeleteResult.LOST_RACE] * 3]
    assert (result.gone, world.listed()) == ((6,), [5, 7])
    assert result.problems == ()


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        # Moved to the end once, or again by a delete that was repeated; the entry before has the position.
        ([(7, 4), (6, 3), (5, 1)], (6, 3)),
        ([(7, 4), (7, 4), (6, 3)], (6, 3)),
        # It had not moved before: its node has the position.
        ([(7, 4)], (5, 0)),
        # A topic that was not loaded is deleted without a move.
        ([(5, 5), (5, 4)], (5, 5)),
    ],
)
def test_a_cursor_that_the_delete_moved_to_the_end_comes_back_where_it_was(
    entries: list[tuple[int, int]], expected: tuple[int, int]
) -> None:
    world = World()
    world.ledger(5, 6, 40, 42)
    world.ledger(7, last=None)
    last, *before = map(position_entry, entries)
    world.entries.by_ledger[42], world.entries.before[42] = last, before
    world.entries.by_ledger[40], world.entries.before[40] = last, before
    replicator = "pulsar.repl.far"
    world.topic(LIST, {replicator: cursor(42, (5, 0)), "s": cursor(40, (5, 0))})
    world.delete()
    result = world.restore().run(world.trashed(), RestoreRequest())
    assert result.plan is not None
    assert {one.cursor: one.position for one in result.plan.cursors} == {replicator: expected, "s": entries[0]}
    restored = decode_cursor(world.value(f"{NODE}/{replicator}"))
    assert (restored.cursors_ledger_id, restored.mark_delete) == (None, expected)
    assert world.value(f"{NODE}/s") == cursor(40, (5, 0))
    assert world.topic_of_marks.marked == []


@pytest.mark.parametrize(
    ("node", "entries", "ranges", "expected"),
    [
        # Its position was in its node; the ledger made to move it lacks what was acknowledged out of order.
        (cursor(-1, (5, 4), b"\x0a\x04"), [(7, 3), (5, 4)], [b"\x0a\x04"], (5, 4)),
        # It had a ledger, and had consumed all, or not all; the delete was repeated, or an acknowledgement not written.
        (None, [(7, 3), (7, 3), (5, 4)], [b"\x0a\x05"], (5, 4)),
        (None, [(7, 3), (7, 3), (5, 4)], [b"\x0a\x06"], (7, 3)),
        (None, [(7, 3), (7, 2), (5, 4)], [b"\x0a\x05"], (7, 2)),
        # Of the ledger none of the entries is left that it had before.
        (None, [(7, 3)], [], (5, 4)),
    ],
)
def test_a_subscription_that_its_delete_cleared_goes_on_where_it_was(
    node: bytes | None, entries: list[tuple[int, int]], ranges: list[bytes], expected: tuple[int, int]
) -> None:
    world = World()
    world.ledger(5, 6, 40)
    world.ledger(7, last=None)
    world.entries.by_ledger[40] = position_entry(entries[0], *ranges)
    world.entries.before[40] = [position_entry(one, *ranges) for one in entries[1:]]
    world.topic(LIST, {"s": cursor(40, (5, 0))})
    world.delete(cleared={"s": ClearedCursor(Position(*expected), node)})
    result = world.restore().run(world.trashed(), RestoreRequest())
    assert result.plan is not None
    assert (result.plan.lost, result.problems) == ((), ())
    assert [one.position for one in result.plan.cursors] == [expected]
    restored = pb.ManagedCursorInfo.FromString(world.value(f"{NODE}/s"))
    assert (restored.markDeleteLedgerId, restored.markDeleteEntryId) == expected
    assert (restored.cursorsLedgerId, list(restored.individualDeletedMessages)) == (-1, ranges)
    assert world.topic_of_marks.marked == []


@pytest.mark.parametrize("step", list(RestoreStep))
def test_what_it_does_not_name_is_marked_however_it_is_killed(step: RestoreStep) -> None:
    world = World()
    world.ledger(5, 40)
    world.ledger(6, last=-1)
    world.ledger(7, last=None)
    world.entries.by_ledger[40] = position_entry((5, 4))
    world.topic(listing((5, 10), (6, 0)), {"s": cursor(40, (5, 0))})
    entries = ledger_entries(listing((6, 0), (7, 0)))
    made = world.get(NODE).created_ms
    world.keep(TrashRecord(TOPIC, made + 5, made, data=(7,), entries=(entries[7],)))
    world.delete()

    def kill(reached: RestoreStep) -> None:
        if reached is step:
            raise Killed

    with pytest.raises(Killed):
        world.restore(on_step=kill).run(world.trashed(), RestoreRequest())
    assert world.topic_of_marks.marked == []
    world.restore(SOON).run(world.trashed(), RestoreRequest())
    assert world.topic_of_marks.marked == [6]
    assert world.leaked() == set()


def test_the_trash_keeps_what_the_deletion_topic_does_not_take() -> None:
    world = World()
    world.ledger(5, 7)
    world.ledger(6, last=-1)
    world.topic(listing((5, 10), (6, 0), (7, 10)), {"s": cursor(-1, (5, 0))})
    world.delete()
    world.topic_of_marks.failure = "no such topic"
    result = world.restore().run(world.trashed(), RestoreRequest())
    (why,) = result.left
    assert why.endswith("1 marks of t/n/persistent/a were not confirmed: no such topic")
    assert (world.listed(), world.trashed().ledger_ids) == ([5, 7], {5, 6, 7})
    world.topic_of_marks.failure = None
    assert world.restore(SOON).run(world.trashed(), RestoreRequest()).left == ()
    assert (world.topic_of_marks.marked, world.records.read().generations) == ([6], ())


def test_a_subscription_that_was_moved_and_closed_before_its_delete_was_repeated_goes_on_where_it_was() -> None:
    world = World()
    world.ledger(5, 6)
    world.ledger(7, last=None)
    # The broker that moved it was killed, and the one that came after it loaded and closed the topic.
    world.topic(LIST, {"s": cursor(-1, (7, 3))})
    world.delete(cleared={"s": ClearedCursor(Position(5, 4), cursor(39, (5, 0)))})
    plan = world.restore().plan(world.trashed(), RestoreRequest())
    assert {one.cursor: one.position for one in plan.cursors} == {"s": (5, 4)}
    assert "out of order" in {lost.what: lost.why for lost in plan.lost}["subscription 's'"]


def test_what_is_not_known_of_a_subscription_that_its_delete_cleared_is_named() -> None:
    world = World()
    world.ledger(5, 6, 40)
    world.ledger(7, last=None)
    world.entries.by_ledger[40], world.entries.before[40] = position_entry((7, 3)), [position_entry((5, 4))]
    # After a crash of the broker its position is in a ledger, which the one that is made to move it replaces.
    was = Position(5, 4)
    world.topic(LIST, {"s": cursor(40, (5, 0)), "gone": cursor(41, (5, 0))})
    world.delete(cleared={"s": ClearedCursor(was, cursor(39, (5, 0))), "gone": ClearedCursor(was, None)})
    plan = world.restore().plan(world.trashed(), RestoreRequest())
    assert {one.cursor: one.position for one in plan.cursors} == {"s": (5, 4), "gone": (5, 4)}
    named = {lost.what: lost.why for lost in plan.lost}
    assert "out of order" in named["subscription 's'"]
    assert "goes on after 5:4" in named["subscription 'gone'"]


def test_a_topic_that_a_broker_has_loaded_since_before_the_delete_is_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = deleted()
    former = {"lastConfirmedEntry": "7:-1", "ledgers": [{"ledgerId": 7, "entries": 0}], "cursors": {}}
    stats = world.broker.stats
    monkeypatch.setattr(world.broker, "stats", lambda path: stats(path) if world.broker.unloaded else former)
    assert world.restore().run(world.trashed(), RestoreRequest()).problems == ()
    assert world.broker.unloaded == 1
    require_restored(world)


def test_whatever_a_sweep_deletes_within_a_restore_is_named() -> None:
    world = deleted()
    trashed = world.trashed()

    def sweep(step: RestoreStep) -> None:
        if step is RestoreStep.WRITTEN:
            # The last one of the list, of a subscription, of the schema; a broker that loads the topic then takes the
            # first off the list by itself.
            world.store.delete_many([(world.stored(one).path, 0) for one in (7, 41, 50)])
            node = world.store.get(NODE)
            assert node is not None
            world.store.put(NODE, listing((5, 10), (6, 10), owner="me"), node.version)

    result = world.restore(on_step=sweep).run(trashed, RestoreRequest())
    assert (result.gone, world.listed()) == ((7, 41, 50), [5, 6])
    told = [why_gone(trashed, one) for one in result.gone]
    assert ["off the list" in told[0], "'idle'" in told[1], "schema" in told[2]] == [True] * 3


def test_a_ledger_that_is_deleted_while_it_is_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    world = deleted()

    def read(ledger_id: int) -> None:
        world.store.delete_many([(world.stored(ledger_id).path, 0)])
        raise NotFoundError

    trashed = world.trashed()
    monkeypatch.setattr(world.entries, "last_entry", read)
    plan = world.restore().plan(trashed, RestoreRequest())
    # Of those that are read the first is in no position.
    assert "ledger 7" in {lost.what for lost in plan.lost}


def test_what_is_gone_does_not_come_back_and_is_named() -> None:
    world = deleted()
    for one in (6, 41, 50):
        world.store.delete_many([(world.stored(one).path, 0)])
    plan = world.restore().plan(world.trashed(), RestoreRequest())
    assert {lost.what for lost in plan.lost} == {"ledger 6", "subscription 'idle'", "schema"}
    assert plan.ledgers == (5, 7)
    # Of a cluster with transactions.
    world.store.create("/managed-ledgers/t/n/persistent/__transaction_buffer_snapshot", b"")
    plan = world.restore().plan(world.trashed(), RestoreRequest())
    assert "transactions, if it had any" in {lost.what for lost in plan.lost}
    world.restore().run(world.trashed(), RestoreRequest())
    assert world.listed() == [5, 7]
    idle = decode_cursor(world.value(f"{NODE}/idle"))
    assert (idle.cursors_ledger_id, idle.mark_delete) == (None, (5, -1))


def test_what_was_taken_off_the_list_by_the_delete_comes_back_with_it() -> None:
    world = World()
    world.ledger(5, 6)
    world.ledger(7, last=None)
    world.topic(listing((7, 0)), {})
    entries = ledger_entries(LIST)
    made = world.get(NODE).created_ms
    world.keep(TrashRecord(TOPIC, made + 5, made, data=(5, 6), entries=(entries[5], entries[6])))
    world.delete()
    world.restore().run(world.trashed(), RestoreRequest())
    assert world.listed() == [5, 6, 7]
    assert world.records.read().generations == ()


@pytest.mark.parametrize("store", STORES)
def test_a_ledger_that_only_an_offloaded_copy_has_comes_back_if_the_store_has_it_whole(
    store: type[DyingStore],
) -> None:
    world = World(store)
    world.ledger(7, 8)
    value = pb.ManagedLedgerInfo()
    value.ParseFromString(listing((5, 10), (6, 10), (7, 10), (8, 10), (9, 10)))
    for entry in value.ledgerInfo[:4]:
        context = entry.offloadContext
        context.uidMsb, context.uidLsb, context.complete = 1, entry.ledgerId, True
        context.driverMetadata.name = "aws-s3" if entry.ledgerId == 8 else "S3"
        context.driverMetadata.properties.add(key="serviceEndpoint", value="http://s3")
    world.topic(value.SerializeToString(), {})
    world.delete()
    whole = PresentCopy(TOPIC, 1000, CopyIndex(1000, 9, 1000))
    world.copies.by_ledger = {5: whole, 6: replace(whole, data_bytes=999), 7: whole, 8: whole}
    trashed = world.trashed()
    plan = world.restore().plan(trashed, RestoreRequest())
    assert [(lost.what, lost.why.rpartition(": ")[2]) for lost in plan.lost] == [
        ("ledger 6", "its data has 999 bytes, and the ledger 1,000"),
        ("ledger 9", "BookKeeper does not have it any more; it had 10 entries by its list"),
    ]
    other = world.restore().plan(under_name(trashed, TopicName.parse("persistent://t/n/b")), RestoreRequest())
    assert [lost.what for lost in other.lost] == ["ledger 5", "ledger 6", "ledger 9"]
    # What BookKeeper has, a broker offloads again.
    result = world.restore().run(trashed, RestoreRequest())
    assert (result.gone, result.problems) == ((), ())
    listed = {one.ledger_id: one.offload for one in decode_managed_ledger(world.value(NODE)).ledgers}
    assert listed.keys() == {5, 7, 8}
    assert listed[7] is None
    assert listed[5] is not None
    assert listed[5].bookkeeper_deleted


def anew(world: World, ledger: int = 20, position: tuple[int, int] = (20, 3)) -> None:
    """Make the topic anew, with a subscription of a former name and one of its own."""
    world.ledger(ledger, 60, last=None)
    world.entries.by_ledger[60] = position_entry(position, b"\x0a\x02")
    world.topic(listing((ledger, 0)), {"half": cursor(60, (ledger, -1)), "own": cursor(-1, (ledger, 1))}, LOCATOR)


@pytest.mark.parametrize("store", STORES)
def test_a_topic_comes_back_under_one_that_was_made_anew(store: type[DyingStore]) -> None:
    world = deleted(store)
    anew(world)
    trashed = next(one for one in world.records.read().generations if one.topic is not None)
    with pytest.raises(RefusedError, match="--under-live"):
        world.restore().run(trashed, RestoreRequest())
    assert world.store.get(JOURNAL) is None

    def loaded_again() -> None:
        node = world.get(NODE)
        world.ledger(21, last=None)
        world.store.put(NODE, listing((20, 4), (21, 0)), node.version)

    plan = world.restore().plan(trashed, RestoreRequest(under_live=True))
    assert (plan.to_close, plan.is_live) == ((7,), True)
    world.restore(on_step=lambda _: None)
    tried = world.restore()

    def once(write: Callable[..., None] = world.store.write_together) -> None:
        """Have a client load the topic between the read and the write."""

        def written(writes: object) -> None:
            world.store.write_together = write  # type: ignore[method-assign]
            loaded_again()
            write(writes)

        world.store.write_together = written  # type: ignore[method-assign,assignment]

    once()
    result = tried.run(trashed, RestoreRequest(under_live=True))
    assert (result.problems, world.recovered, world.broker.unloaded) == ((), [7], 2)
    assert world.listed() == [5, 6, 7, 20, 21]
    # The live topic keeps its own.
    assert not has_policies(world)
    # The open one has its end now: it is not the last.
    assert ledger_entries(world.value(NODE))[7] != ledger_entries(LIST)[7]
    half = decode_cursor(world.value(f"{NODE}/half"))
    assert (half.cursors_ledger_id, half.mark_delete) == (None, (5, 9))
    # Its own, all of 20 up to 3, and what the live one had beyond.
    assert half.acknowledged[0] == b"\x0a\x04"
    assert half.acknowledged[-1] == b"\x0a\x02"
    assert len(half.acknowledged) == 3
    assert decode_cursor(world.value(f"{NODE}/own")).mark_delete == (20, 1)
    assert world.value(f"{NODE}/full") == CURSORS["full"]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_under_a_live_topic_it_is_killed_at_any_write_too(store: type[DyingStore], before: bool) -> None:
    kills = 0
    while True:
        world = deleted(store)
        anew(world)
        trashed = next(one for one in world.records.read().generations if one.topic is not None)
        world.store.kill_at(kills, before=before)
        try:
            world.restore().run(trashed, RestoreRequest(under_live=True))
        except Killed:
            world.store.revive()
        else:
            break
        found = [one for one in world.records.read().generations if one.topic is not None]
        if found:
            world.restore(SOON).run(found[0], RestoreRequest(under_live=True))
        elif world.store.get(JOURNAL) is not None:
            assert world.restore(SOON).finish(lambda _: True) == [TOPIC]
        assert world.listed() == [5, 6, 7, 20]
        half = decode_cursor(world.value(f"{NODE}/half"))
        assert (half.mark_delete, len(half.acknowledged)) == ((5, 9), 3)
        assert world.leaked() == set()
        assert world.records.read().generations == ()
        assert world.store.get(JOURNAL) is None
        kills += 1
    assert kills >= 19


@pytest.mark.parametrize(
    ("live", "is_left"),
    [
        (locator((50, b"A")), False),
        (locator((50, b"A"), (51, b"B"), (52, b"C")), True),
        (locator((52, b"B")), None),
    ],
    ids=["its beginning", "more of it", "another numbering"],
)
def test_schemas_are_joined_where_one_goes_on_from_the_other(live: bytes, is_left: bool | None) -> None:
    world = deleted()
    world.ledger(52)
    anew_without = world.store.create(NODE, listing((20, 0)))
    world.ledger(20, last=None)
    world.store.create(SCHEMA, live)
    assert anew_without is None
    trashed = next(one for one in world.records.read().generations if one.topic is not None)
    if is_left is None:
        with pytest.raises(RefusedError, match="numbers its schemas otherwise"):
            world.restore().run(trashed, RestoreRequest(under_live=True))
        assert world.value(SCHEMA) == live
        assert world.store.get(JOURNAL) is None
        # A schema that a client registered without the topic is no reason.
        world.remove(NODE)
        result = world.restore().run(trashed, RestoreRequest())
        assert result.plan is not None
        assert [lost.what for lost in result.plan.lost] == ["schema"]
        assert world.value(SCHEMA) == LOCATOR
        return
    world.restore().run(trashed, RestoreRequest(under_live=True))
    assert world.value(SCHEMA) == (live if is_left else LOCATOR)


def test_a_removed_subscription_comes_back_on_a_live_topic() -> None:
    world = World()
    world.ledger(5, 6, 40)
    world.entries.by_ledger = {40: position_entry((5, 9))}
    world.topic(listing((5, 10), (6, 0)), {"gone": cursor(40, (5, 0)), "stays": cursor(-1, (5, 1))})
    world.keep(world.remove(f"{NODE}/gone", "gone"))
    trashed = world.trashed()
    with pytest.raises(NotFoundError, match="gone"):
        world.restore().plan(trashed, RestoreRequest("other"))
    with pytest.raises(RefusedError, match="--under-live"):
        world.restore().run(trashed, RestoreRequest())
    before = world.value(NODE)
    result = world.restore().run(trashed, RestoreRequest("gone"))
    assert (result.problems, world.broker.unloaded) == ((), 1)
    assert world.value(f"{NODE}/gone") == cursor(40, (5, 0))
    assert world.value(NODE) == before
    assert world.records.read().generations == ()


def test_trimmed_ledgers_come_back_before_the_live_list() -> None:
    world = World()
    world.ledger(5, 6, 7)
    world.topic(listing((7, 0)), {"s": cursor(-1, (7, -1))})
    entries = ledger_entries(LIST)
    world.keep(TrashRecord(TOPIC, 9, world.get(NODE).created_ms, data=(5, 6), entries=(entries[5], entries[6])))
    result = world.restore().run(world.trashed(), RestoreRequest(under_live=True))
    assert (world.listed(), result.problems) == ([5, 6, 7], ())
    assert decode_cursor(world.value(f"{NODE}/s")).mark_delete == (7, -1)


def test_a_second_operator_is_refused_by_name() -> None:
    world = deleted()
    refused = []

    def second(step: RestoreStep) -> None:
        if step is RestoreStep.WRITING:
            restore = world.restore(LeaseTimes(renew_s=0.01, lease_s=30.0, given_up_s=5.0), operator="bob@b")
            with pytest.raises(RefusedError, match=r"alice@a restores persistent://t/n/a") as error:
                restore.run(world.trashed(), RestoreRequest())
            refused.append(str(error.value))

    renewing = LeaseTimes(renew_s=0.05, lease_s=30.0, given_up_s=5.0)
    world.restore(renewing, on_step=second).run(world.trashed(), RestoreRequest())
    assert len(refused) == 1
    require_restored(world)


def test_what_was_begun_is_finished_before_another_restore_of_the_topic() -> None:
    world = deleted()
    world.store.kill_at(3, before=True)
    with pytest.raises(Killed):
        world.restore().run(world.trashed(), RestoreRequest())
    world.store.revive()
    with pytest.raises(RefusedError, match=r"--generation \d+ --execute"):
        world.restore(SOON).run(world.trashed(), RestoreRequest("half"))
    world.restore(SOON).run(world.trashed(), RestoreRequest())
    require_restored(world)


def test_a_loaded_topic_that_differs_keeps_its_records() -> None:
    world = deleted()

    def lost() -> None:
        world.remove(f"{NODE}/half", "half")

    world.broker.loads = [lost]
    result = world.restore().run(world.trashed(), RestoreRequest())
    assert result.problems == ("the broker has no subscription 'half'",)
    assert len(world.records.read().generations) == 1
    assert world.store.get(JOURNAL) is not None


def test_policies_that_are_not_there_afterwards_keep_the_records() -> None:
    world = deleted()

    def taken_away() -> None:
        node = world.get(NAMESPACE)
        world.store.put(NAMESPACE, b"{}", node.version)
        world.store.delete_many([(f"{OWN}/{TOPIC}", 0)])
        world.events.values.clear()

    world.broker.loads = [taken_away]
    result = world.restore().run(world.trashed(), RestoreRequest())
    assert result.problems == (
        "the permissions of persistent://t/n/a are not there",
        "/admin/topic-policies/local/t/n/persistent/a is not there",
        "the policies of __G__persistent://t/n/a are not there",
        "the policies of persistent://t/n/a are not there",
    )
    assert len(world.records.read().generations) == 1


def test_policies_that_are_not_there_when_a_killed_restore_goes_on_keep_the_records_too() -> None:
    world = deleted()

    def kill(step: RestoreStep) -> None:
        if step is RestoreStep.TOUCHED:
            raise Killed

    with pytest.raises(Killed):
        world.restore(on_step=kill).run(world.trashed(), RestoreRequest())
    world.events.values.clear()
    result = world.restore(SOON).run(world.trashed(), RestoreRequest())
    assert result.problems[0] == "the policies of __G__persistent://t/n/a are not there"


def test_a_restore_waits_for_the_sweep_to_look_for_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.topic(LIST, {})
    world.delete()
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        path = f"{FOLDER}/0"
        if len(waited) == 3:
            (record,) = decode_records(world.value(path))
            world.store.put(path, encode_records([replace(record, policies=POLICIES)]), 0)

    class Clock:
        time = staticmethod(lambda: world.now)
        monotonic = staticmethod(lambda: 100.0 + len(waited))
        sleep = staticmethod(wait)

    monkeypatch.setattr("bookwarden.trash.records.time", Clock)
    # Without a sweep, and for one of long ago, it does not.
    assert world.records.with_policies([world.trashed()], 10)[0].topic == world.trashed().topic
    lease = TrashLease(int(world.now * 1000) + 60_000, "sweep", 1, ())
    world.store.create(TRASH_LEASE, encode_lease(lease), make_parents=True)
    trashed = world.trashed()
    assert trashed.topic is not None
    long_ago = replace(trashed, topic=replace(trashed.topic, time_ms=1))
    world.records.with_policies([long_ago], 10)
    assert waited == []
    assert world.records.with_policies([trashed], 2)[0].topic == trashed.topic
    assert len(waited) == 2
    (found,) = world.records.with_policies([trashed], 10)
    assert found.topic is not None
    assert (found.topic.policies, len(waited)) == (POLICIES, 3)


def test_permissions_are_put_back_next_to_others_that_are_given_meanwhile() -> None:
    world = deleted()
    lose, put = [True], world.store.put

    def given(path: str, value: bytes, version: int) -> int:
        if path == NAMESPACE and lose.pop():
            put(path, b'{"auth_policies":{"destination_auth":{"x":{"r":["produce"]}}},"new":1}', version)
            lose.append(False)
        return put(path, value, version)

    world.store.put = given  # type: ignore[method-assign]
    world.restore().run(world.trashed(), RestoreRequest())
    require_restored(world)


def test_without_its_namespace_nothing_is_written() -> None:
    world = deleted()
    world.store.delete_many([(NAMESPACE, 0)])
    with pytest.raises(RefusedError, match="--namespace t/n"):
        world.restore().run(world.trashed(), RestoreRequest())
    assert world.store.get(NODE) is None
    assert set(world.events.values.values()) == {b"", b"\x06"}
    # Also one that had no permissions, if its namespace is known to have been here.
    world = World()
    world.topic(LIST, {})
    world.ledger(5, 6, 7)
    world.delete(FormerPolicies())
    copy = NamespaceCopy("t/n", 1, b"{}", None, 2, 2)
    world.store.create(copy_node(copy), encode_copy(copy), make_parents=True)
    with pytest.raises(RefusedError, match="--namespace t/n"):
        world.restore().run(world.trashed(), RestoreRequest())
    assert world.store.get(NODE) is None
    world.store.delete_many([(copy_node(copy), 0)])
    world.restore(SOON).run(world.trashed(), RestoreRequest())
    assert world.listed() == [5, 6, 7]


def test_nothing_is_put_under_a_terminated_topic() -> None:
    world = deleted()
    node = pb.ManagedLedgerInfo.FromString(listing((20, 4)))
    node.terminatedPosition.ledgerId, node.terminatedPosition.entryId = 20, 3
    world.store.create(NODE, node.SerializeToString())
    trashed = next(one for one in world.records.read().generations if one.topic is not None)
    with pytest.raises(RefusedError, match="is terminated"):
        world.restore().run(trashed, RestoreRequest(under_live=True))


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_topic_is_a_partitioned_one_when_its_partitions_are_written_and_before_they_are_loaded(before: bool) -> None:
    kills, partitioned = 0, f"/admin/partitioned-topics/{TOPIC}"
    while True:
        world = deleted()

        def look(world: World = world) -> None:
            assert world.store.get(partitioned) is None or world.store.get(NODE) is not None

        def loaded(world: World = world) -> None:
            assert world.value(partitioned) == b'{"partitions":3}'

        world.store.seen, world.broker.loads = look, [loaded]
        world.store.kill_at(kills, before=before)
        try:
            world.restore().run_partitions([world.trashed()], RestoreRequest(), b'{"partitions":3}')
        except Killed:
            world.store.revive()
        else:
            break
        if found := world.records.read().generations:
            world.restore(SOON).run_partitions([found[0]], RestoreRequest(), b'{"partitions":3}')
        world.restore().finish(lambda _: True)
        require_restored(world)
        assert world.value(partitioned) == b'{"partitions":3}'
        kills += 1
    assert kills >= 19
