"""The check of holders' nodes before a delete: through the sweep, `ledger explain` and `mark trim --store`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.deletion.node_check import NodeCheck, NodeDoubt, Suspect
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.phase_one.trimming import StoreTrim
from bookwarden.errors import BookieUnavailableError, RefusedError
from bookwarden.ledgers.kinds import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.metadata import StoredLedger
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import PendingDeletion, Waiver
from bookwarden.ledgers.received import waiving
from bookwarden.wire.pb import managed_ledger_pb2, pulsar_api_pb2
from servers.population import closed_ledger, tags_of
from servers.recorded_entries import RecordedEntries, position_entry, schema_entry
from servers.sweep_parts import explain_with
from unit.deletion.test_sweeping import CURSOR, DATA, NOW, POLICY, SCHEMA, World, mark
from unit.ledgers.test_list_gaps import opened

OTHER = ManagedLedgerHolder("t/ns/persistent/other")
DOUBTED = POLICY.max_retries


def listing(*entries: tuple[int, int]) -> bytes:
    """Make a list of (ledger, entries) of 100 bytes an entry, closed one after another, or not without entries."""
    node = managed_ledger_pb2.ManagedLedgerInfo()
    for at, (ledger_id, number) in enumerate(entries):
        closed = {"entries": number, "size": 100 * number, "timestamp": 1000 + at} if number else {}
        node.ledgerInfo.add(ledgerId=ledger_id, **closed)
    return node.SerializeToString()


def world_of(*entries: tuple[int, int], entries_of: RecordedEntries | None = None) -> World:
    """Make a topic with this list, whose ledgers are all there, with 10 entries each."""
    world = World(entries=entries_of)
    world.store.create(f"/managed-ledgers/{DATA.name}", listing(*entries), make_parents=True)
    for ledger_id, _ in entries:
        world.population.ledger(ledger_id, DATA)
    return world


def write(world: World, path: str, value: bytes) -> None:
    node = world.store.get(path)
    assert node is not None
    world.store.put(path, value, node.version)


def reason(world: World) -> str:
    ((_, text),) = world.recorder.retried
    return text


def test_a_ledger_whose_id_was_damaged_is_kept_until_the_list_is_repaired() -> None:
    world = world_of((88, 10), (91, 10), (95, 0))
    path = f"/managed-ledgers/{DATA.name}"
    # One bit of 88; they are read in the order of their ids.
    write(world, path, listing((92, 10), (91, 10), (95, 0)))
    assert world.outcomes(mark(88)) == [Outcome.RETRY]
    assert reason(world) == (
        f"the node {path} may be damaged: it lists ledger 92 with 10 entries, which BookKeeper does not have"
    )
    assert world.outcomes(mark(88, attempts=DOUBTED)) == [Outcome.DAMAGED_HOLDER]
    ((outcome, text),) = world.recorder.given_up
    assert outcome is Outcome.DAMAGED_HOLDER
    assert path in text
    write(world, path, listing((88, 10), (91, 10), (95, 0)))
    assert world.outcomes(mark(88)) == [Outcome.STILL_REFERENCED]
    assert world.recorder.journaled == []


def test_what_the_damaged_entry_cannot_have_been_goes() -> None:
    world = world_of((91, 10), (95, 0))
    write(world, f"/managed-ledgers/{DATA.name}", listing((90, 11), (91, 10), (95, 0)))
    world.population.ledger(88, DATA)
    assert world.outcomes(mark(88)) == [Outcome.DELETED]


def test_the_list_of_another_topic_is_a_doubt_about_every_ledger() -> None:
    world = world_of((1, 10))
    for ledger_id in (7, 8):
        world.population.ledger(ledger_id, OTHER)
    write(world, f"/managed-ledgers/{DATA.name}", listing((7, 10), (8, 0)))
    assert world.outcomes(mark(1)) == [Outcome.RETRY]
    ((_, text),) = world.recorder.retried
    assert "its last ledger is 8, which is another holder's" in text
    # Also where the list says that it has another size than the ledger in question.
    write(world, f"/managed-ledgers/{DATA.name}", listing((7, 11), (8, 11)))
    assert world.outcomes(mark(1)) == [Outcome.RETRY]
    # Loaded once, the topic has a ledger of its own at the end.
    world.population.ledger(9, DATA)
    write(world, f"/managed-ledgers/{DATA.name}", listing((7, 11), (8, 11), (9, 0)))
    assert world.outcomes(mark(1)) == [Outcome.DELETED]


def test_an_operator_deletes_in_spite_of_a_doubt() -> None:
    world = world_of((91, 10), (95, 0))
    write(world, f"/managed-ledgers/{DATA.name}", listing((90, 10), (91, 10), (95, 0)))
    world.population.ledger(88, DATA)
    received = mark(88)
    allowed = replace(received, properties={**received.properties, **waiving({Waiver.INSIDE_LIST})})
    assert world.outcomes(received, allowed) == [Outcome.RETRY, Outcome.DELETED]


def test_an_empty_ledger_above_the_list_of_a_loaded_topic_is_kept() -> None:
    world = world_of((2, 10), (4, 0), entries_of=RecordedEntries({}))
    opened(world, 5)
    owners = ["broker-1:8080"]
    asked: list[str] = []

    def owner(topic: str) -> str | None:
        asked.append(topic)
        return owners[0] if owners else None

    world.sweep_object = world.swept_by(nodes=NodeCheck(world.catalog, RecordedEntries({}), owner=owner))
    assert world.outcomes(mark(5)) == [Outcome.RETRY]
    assert "above the last one of its list, 4, and may be the one that broker broker-1:8080 writes to" in reason(world)
    opened(world, 3)
    assert world.outcomes(mark(3)) == [Outcome.DELETED]
    assert asked == ["persistent://t/ns/orders"]
    # Nor is anybody asked for it where another entry is wrong that it cannot have been.
    world.population.ledger(40, DATA)
    write(world, f"/managed-ledgers/{DATA.name}", listing((2, 12), (40, 0)))
    opened(world, 30)
    world.population.empty_ledger(31, DATA)
    assert world.outcomes(mark(30), mark(31)) == [Outcome.RETRY, Outcome.DELETED]
    owners.clear()
    write(world, f"/managed-ledgers/{DATA.name}", listing((2, 10), (4, 0)))
    assert world.outcomes(mark(5)) == [Outcome.DELETED]


def test_an_empty_ledger_above_a_list_that_ends_with_a_closed_one_is_kept() -> None:
    world = world_of((2, 10), (4, 10), entries_of=RecordedEntries({}))
    opened(world, 5)
    assert world.outcomes(mark(5)) == [Outcome.RETRY]
    assert "its last ledger 4 is recorded as closed" in reason(world)


@pytest.mark.parametrize(
    ("last", "expected"),
    [((7, 3), Outcome.DELETED), ((7, 4), Outcome.RETRY), (None, Outcome.DELETED)],
    ids=["settled", "ahead", "empty"],
)
def test_a_cursors_newer_ledger_goes_if_its_position_is_settled(
    last: tuple[int, int] | None, expected: Outcome
) -> None:
    entries = RecordedEntries({2: position_entry(7, 3), **({3: position_entry(*last)} if last else {})})
    world = World(entries=entries)
    for ledger_id in (1, 2, 3):
        world.population.ledger(ledger_id, CURSOR)
    world.population.names(CURSOR, [2])
    assert world.outcomes(mark(3, CURSOR)) == [expected]
    # An older one is let go by every switch of the cursor's ledger; nobody needs to read it.
    entries.asked.clear()
    assert world.outcomes(mark(1, CURSOR)) == [Outcome.DELETED]
    assert entries.asked == []


def test_a_bucket_that_its_cursor_lost_is_kept_until_the_cursor_is_past_it() -> None:
    holder = BucketHolder(DATA.name, "s")
    entries = RecordedEntries({7: position_entry(3, 9)})
    world = World(entries=entries)
    world.population.ledger(7, CursorHolder(DATA.name, "s"))
    world.population.names(CursorHolder(DATA.name, "s"), [7])
    key = {"pulsar/delayedIndexBucketKey": b"#pulsar.internal.delayed.bucket_2_3"}
    world.population.tagged_ledger(9, {**tags_of(holder), **key})
    (reading,) = world.catalog.read_many([9])
    check = NodeCheck(world.catalog, entries)
    (found,) = check.doubts_now([Suspect(holder, reading)], world.references)
    assert found is not None
    assert "the bucket indexes the ledgers 2 to 3" in found.reason
    entries.entries[7] = position_entry(4, 0)
    assert check.doubts_now([Suspect(holder, reading)], world.references) == [None]
    entries.entries[7] = BookieUnavailableError("silence")
    assert check.doubts_now([Suspect(holder, reading)], world.references) != [None]


def test_a_compacted_ledger_is_kept_while_the_cursors_node_may_be_an_earlier_one() -> None:
    holder, cursor = CompactedHolder(DATA.name), CursorHolder(DATA.name, "__compaction")
    entries = RecordedEntries({})
    world = World(entries=entries)
    reached = pulsar_api_pb2.MessageIdData(ledgerId=3, entryId=9).SerializeToString()
    world.population.tagged_ledger(9, {**tags_of(holder), "pulsar/compactedTo": reached})
    world.population.names(holder, [])
    (reading,) = world.catalog.read_many([9])

    def doubt(check: NodeCheck) -> NodeDoubt | None:
        (found,) = check.doubts_now([Suspect(holder, reading)], world.references)
        return found

    check = NodeCheck(world.catalog, entries)
    found = doubt(check)
    assert found is not None
    assert found.path.endswith("/__compaction")
    assert "reaches to 3:9, and the cursor is at no position" in found.reason
    assert doubt(NodeCheck(world.catalog)) is not None
    # What the node says is of before the cursor had a ledger.
    world.population.ledger(7, cursor)
    world.population.names(cursor, [7])
    for position, is_kept in (((3, 8), True), ((3, 9), False), ((4, 0), False)):
        entries.entries[7] = position_entry(*position)
        assert (doubt(check) is not None) is is_kept
    entries.entries[7] = BookieUnavailableError("silence")
    assert doubt(check) is not None


def test_a_cursor_that_names_another_ones_ledger_keeps_its_own() -> None:
    world = World(entries=RecordedEntries({}))
    world.population.ledger(1, CURSOR)
    world.population.ledger(2, CursorHolder(DATA.name, "another"))
    world.population.names(CURSOR, [2])
    assert world.outcomes(mark(1, CURSOR)) == [Outcome.RETRY]
    assert "it names ledger 2, which is another holder's" in reason(world)


def test_bookies_that_do_not_say_are_a_doubt_and_are_not_asked_of_every_ledger() -> None:
    entries = RecordedEntries({one: BookieUnavailableError("silence") for one in range(20)})
    world = World(entries=entries)
    for ledger_id in range(2, 10):
        world.population.ledger(ledger_id, CURSOR)
    world.population.names(CURSOR, [2])
    assert set(world.outcomes(*(mark(one, CURSOR) for one in range(3, 10)))) == {Outcome.RETRY}
    assert len(entries.asked) == 3


@pytest.mark.parametrize(
    ("versions", "expected", "text"),
    [
        ([30, 32], Outcome.DELETED, ""),
        ([30, 99], Outcome.RETRY, "it names ledger 99, which BookKeeper does not have"),
        ([30], Outcome.RETRY, "the ledger has version 1, which is newer than its newest one, 0"),
        ([30, 30], Outcome.RETRY, "two of its versions are in ledger 30"),
    ],
    ids=["lost a race", "damaged id", "earlier value", "one id twice"],
)
def test_a_schemas_ledger_goes_if_another_won_its_race(versions: list[int], expected: Outcome, text: str) -> None:
    world = World(entries=RecordedEntries({31: schema_entry(1, {0: 30})}))
    for ledger_id in (30, 31, 32):
        world.population.ledger(ledger_id, SCHEMA)
    world.population.names(SCHEMA, versions)
    assert world.outcomes(mark(31, SCHEMA)) == [expected]
    assert all(text in why for _, why in world.recorder.retried)


def test_a_schemas_ledger_whose_version_is_not_known_is_kept() -> None:
    world = World()
    world.population.ledger(1, SCHEMA)
    world.population.names(SCHEMA, [])
    world.population.ledger(2, SCHEMA)
    world.population.names(SCHEMA, [2])
    assert world.outcomes(mark(1, SCHEMA)) == [Outcome.RETRY]
    assert "there are no bookies to ask" in reason(world)


def test_holders_without_a_node_are_not_checked() -> None:
    world = World()
    for ledger_id, holder in ((1, DATA), (2, CURSOR), (3, SCHEMA)):
        world.population.ledger(ledger_id, holder)
    assert world.outcomes(mark(1), mark(2, CURSOR), mark(3, SCHEMA)) == [Outcome.DELETED] * 3


def test_each_ledger_is_looked_up_once_however_many_marks_there_are() -> None:
    world = world_of((50, 10), (51, 10), (52, 0))
    for ledger_id in range(10):
        world.population.ledger(ledger_id, DATA)
    readings = [one for one in world.catalog.read_many(range(10)) if isinstance(one, StoredLedger)]
    counted: list[int] = []

    class Counting:
        def read_many(self, ledger_ids: Sequence[int]) -> list[object]:
            counted.extend(ledger_ids)
            return list(world.catalog.read_many(ledger_ids))

    check = NodeCheck(Counting())  # type: ignore[arg-type]  # it deletes nothing
    nodes = world.references.nodes([DATA])[DATA]
    assert isinstance(nodes, tuple)
    assert check.doubts([Suspect(DATA, one, nodes) for one in readings]) == [None] * 10
    assert counted == [50, 52]


def test_a_ledger_that_its_node_names_is_no_matter_of_the_check() -> None:
    world = world_of((50, 10), (52, 0))
    readings = world.catalog.read_many([50])
    write(world, "/ledgers/00/0000/L0052", closed_ledger(tags_of(OTHER)))
    assert NodeCheck(world.catalog).doubts_now([Suspect(DATA, one) for one in readings], world.references) == [None]


def test_nodes_that_cannot_be_parsed_now_are_a_doubt() -> None:
    world = world_of((50, 10))
    write(world, f"/managed-ledgers/{DATA.name}", b"\x08\x05")
    (reading,) = world.catalog.read_many([50])
    absent = SchemaHolder("t/ns/none")
    suspects = [Suspect(DATA, reading), Suspect(absent, reading)]
    found, none = NodeCheck(world.catalog).doubts_now(suspects, world.references)
    assert isinstance(found, NodeDoubt)
    assert found.path == f"/managed-ledgers/{DATA.name}"
    assert none is None


def test_explain_says_that_a_node_may_be_damaged() -> None:
    world = world_of((91, 10), (95, 0))
    write(world, f"/managed-ledgers/{DATA.name}", listing((90, 10), (91, 10), (95, 0)))
    world.population.ledger(88, DATA)
    found = explain_with(88, world.catalog, world.references, POLICY, int(NOW * 1000))
    assert found.outcome is Outcome.RETRY
    assert "may be damaged: it lists ledger 90" in found.reason


class Nobody:
    """Owns no topic, and takes no mark."""

    def owner(self, topic: str) -> str | None:
        return None

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        raise AssertionError(marks)


@pytest.mark.parametrize(("gone", "holder"), [(90, None), (91, OTHER), (95, OTHER)], ids=["gone", "first", "last"])
def test_a_list_that_may_be_damaged_is_not_trimmed(gone: int, holder: Holder | None) -> None:
    world = world_of((91, 10), (95, 0))
    path = f"/managed-ledgers/{DATA.name}"
    if holder is None:
        write(world, path, listing((gone, 10), (91, 10), (95, 0)))
    else:
        write(world, f"/ledgers/00/0000/L00{gone}", closed_ledger(tags_of(holder)))
    trim = StoreTrim(Marker(Nobody()), ManagedLedgers(world.store), Nobody(), world.catalog)
    with pytest.raises(RefusedError, match=f"is not trimmed: the node {path} may be damaged"):
        trim.plan("persistent://t/ns/orders")
