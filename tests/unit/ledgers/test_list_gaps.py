"""What a topic's list says of ledgers that it does not name, over any list and any damage; and what the sweep does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.deletion.phase_one.named_ledgers import marks_of_ids, refuse_holes, waive_the_list
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.errors import BookieUnavailableError, RefusedError
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import CursorHolder, ManagedLedgerHolder
from bookwarden.ledgers.list_gaps import NAMES_NOTHING, ListStatus, list_status_of
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment, StoredLedger
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, Waiver
from bookwarden.ledgers.received import WAIVES, ReceivedMark, waiving
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from servers.recorded_entries import RecordedEntries
from servers.sweep_parts import explain_with
from unit.deletion.test_sweeping import DATA, NOW, POLICY, World, mark

LISTS = st.sets(st.integers(0, 2**62), min_size=1, max_size=30).map(sorted)
OF_LISTS = (Waiver.INSIDE_LIST, Waiver.EMPTIED)


@given(LISTS, st.data(), st.sampled_from([True, False, None]))
def test_what_is_trimmed_off_the_front_of_any_list_may_go(
    ids: list[int], data: st.DataObject, has_entries: bool | None
) -> None:
    left = data.draw(st.integers(0, len(ids) - 1))
    assert {list_status_of(one, ids[left], has_entries) for one in ids[:left]} <= {ListStatus.LET_GO}


@given(LISTS, st.data())
def test_what_any_other_loss_takes_off_a_list_stays(ids: list[int], data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from(ids)))
    first = min(kept, default=NAMES_NOTHING)
    for one in set(ids) - kept:
        may_go = list_status_of(one, first, True) is ListStatus.LET_GO
        assert may_go == (bool(kept) and one < first)
        assert list_status_of(one, first, None) is (ListStatus.LET_GO if may_go else ListStatus.UNPROVEN)
        assert list_status_of(one, first, False) is ListStatus.LET_GO
        assert list_status_of(one, None, True) is ListStatus.LET_GO


class Bookies(DecodedEntries):
    """Says what ledgers have; an error is raised."""

    def __init__(self, last: bytes | Exception | None = None) -> None:
        self.last = last
        self.asked: list[int] = []

    def last_entry(self, ledger_id: int) -> bytes | None:
        self.asked.append(ledger_id)
        if isinstance(self.last, Exception):
            raise self.last
        return self.last


def world_of(listed: list[int], others: list[int], bookies: Bookies | None = None) -> World:
    """Make a topic that lists some of its ledgers; all are there."""
    world = World(entries=bookies)
    for ledger_id in (*listed, *others):
        world.population.ledger(ledger_id, DATA)
    world.population.names(DATA, listed)
    return world


def opened(world: World, ledger_id: int, state: LedgerState = LedgerState.OPEN) -> str:
    """Make a ledger whose metadata does not say whether it has entries."""
    tags = {name: text.encode() for name, text in expected_custom_metadata(DATA).items()}
    metadata = LedgerMetadata(
        3, state, 1, 1, 1, (Segment(0, ("127.0.0.1:3181",)),), digest_type="CRC32C", ctime_ms=1, custom=tags
    )
    path = world.population.ledger(ledger_id, DATA)
    found = world.store.get(path)
    assert found is not None
    world.store.put(path, encode_ledger_metadata(metadata), found.version)
    return path


def test_a_ledger_with_entries_inside_the_list_or_above_it_is_kept_and_given_up_at_the_second_look() -> None:
    world = world_of([2, 4], [1, 3, 5])
    # A node that is damaged for a moment settles nothing.
    assert world.outcomes(mark(1), mark(3), mark(5)) == [Outcome.DELETED, Outcome.RETRY, Outcome.RETRY]
    assert world.outcomes(mark(3, attempts=1), mark(5, attempts=1)) == [Outcome.INSIDE_LIST] * 2
    assert world.recorder.journaled == [1]
    (outcome, reason), _ = world.recorder.given_up
    assert outcome is Outcome.INSIDE_LIST
    assert "lists older ledgers (from 2 on) without it" in reason


def test_an_empty_ledger_is_deleted_wherever_it_is() -> None:
    world = world_of([2, 4], [])
    path = opened(world, 3)
    found = world.store.get(path)
    assert found is not None
    empty = LedgerMetadata(
        3,
        LedgerState.CLOSED,
        1,
        1,
        1,
        (Segment(0, ("127.0.0.1:3181",)),),
        last_entry_id=-1,
        digest_type="CRC32C",
        ctime_ms=1,
        custom={name: text.encode() for name, text in expected_custom_metadata(DATA).items()},
    )
    world.store.put(path, encode_ledger_metadata(empty), found.version)
    assert world.outcomes(mark(3)) == [Outcome.DELETED]


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
@pytest.mark.parametrize("listed", [[2], []])
def test_one_that_is_not_closed_goes_only_if_the_bookies_say_that_it_is_empty(
    state: LedgerState, listed: list[int]
) -> None:
    for last, expected in (
        (None, Outcome.DELETED),
        (b"entry", Outcome.INSIDE_LIST if listed else Outcome.RETRY),
        (BookieUnavailableError("bookie 1 does not answer"), Outcome.RETRY),
    ):
        world = world_of(listed, [], Bookies(last))
        opened(world, 3, state)
        assert world.outcomes(mark(3, attempts=1)) == [expected]
        assert (world.recorder.journaled == [3]) == (expected is Outcome.DELETED)


def test_without_bookies_nothing_is_proven() -> None:
    world = world_of([2], [])
    opened(world, 3)
    assert world.outcomes(mark(3)) == [Outcome.RETRY]
    assert "no bookies to ask" in world.recorder.retried[0][1]


def test_bookies_that_are_silent_are_not_asked_of_every_ledger() -> None:
    bookies = Bookies(BookieUnavailableError("silence"))
    world = world_of([2], [], bookies)
    for ledger_id in range(3, 10):
        opened(world, ledger_id)
    assert set(world.outcomes(*map(mark, range(3, 10)))) == {Outcome.RETRY}
    assert len(bookies.asked) == 3


def test_one_that_is_not_closed_below_the_list_or_of_a_dead_topic_is_not_asked_for() -> None:
    bookies = Bookies(BookieUnavailableError("silence"))
    world = world_of([4], [], bookies)
    opened(world, 3)
    assert world.outcomes(mark(3)) == [Outcome.DELETED]
    world = World(entries=bookies)
    opened(world, 3)
    assert world.outcomes(mark(3)) == [Outcome.DELETED]
    assert bookies.asked == []


def test_a_node_that_names_nothing_is_a_doubt_until_it_is_gone_or_has_a_list() -> None:
    world = world_of([], [3])
    assert world.outcomes(mark(3)) == [Outcome.RETRY]
    assert "is there without naming any ledger" in world.recorder.retried[0][1]
    assert world.outcomes(mark(3, attempts=2)) == [Outcome.GAVE_UP]
    node = world.store.get(f"/managed-ledgers/{DATA.name}")
    assert node is not None
    world.store.delete_many([(f"/managed-ledgers/{DATA.name}", node.version)])
    assert world.outcomes(mark(3, attempts=1)) == [Outcome.DELETED]


def test_a_topic_is_not_left_without_any_ledger() -> None:
    world = world_of([], [3])
    world.population.names(DATA, [4, 5])
    assert world.outcomes(mark(3)) == [Outcome.RETRY]
    assert "BookKeeper has none of the ledgers that it lists" in world.recorder.retried[0][1]
    assert world.outcomes(mark(3, attempts=2)) == [Outcome.DAMAGED_HOLDER]
    assert world.outcomes(waived(3, Waiver.INSIDE_LIST)) == [Outcome.RETRY]
    world.population.ledger(4, DATA)
    world.population.ledger(5, DATA)
    assert world.outcomes(mark(3)) == [Outcome.DELETED]
    world = world_of([], [3])
    world.population.names(DATA, [4, 5])
    assert world.outcomes(waived(3, *OF_LISTS)) == [Outcome.DELETED]


def waived(ledger_id: int, *waives: Waiver, attempts: int = 0) -> ReceivedMark:
    received = mark(ledger_id, attempts=attempts)
    return replace(received, properties={**received.properties, **waiving(waives)})


def test_an_operator_may_say_that_the_list_is_no_reason() -> None:
    world = world_of([2, 4], [3, 5])
    assert world.outcomes(waived(3, Waiver.INSIDE_LIST), waived(5, Waiver.EMPTIED, attempts=1)) == [
        Outcome.DELETED,
        Outcome.INSIDE_LIST,
    ]
    world = world_of([], [3])
    assert world.outcomes(waived(3, Waiver.INSIDE_LIST)) == [Outcome.DELETED]
    opened(world, 6)
    assert world.outcomes(waived(6, *OF_LISTS)) == [Outcome.DELETED]


def test_a_ledger_that_is_listed_stays_whatever_its_mark_waives() -> None:
    world = world_of([2, 4], [])
    assert world.outcomes(waived(2, *OF_LISTS)) == [Outcome.STILL_REFERENCED]
    # Those of a cleanup are for marks of one bookie cluster among several.
    assert world.outcomes(waived(2, *Waiver)) == [Outcome.MISMATCH]
    assert isinstance(world.catalog.read_many([2])[0], StoredLedger)


def test_words_that_nobody_knows_waive_nothing() -> None:
    assert replace(mark(1), properties={WAIVES: "inside-list,everything,"}).waives == {Waiver.INSIDE_LIST}
    assert replace(mark(1), properties={WAIVES: "INSIDE-LIST"}).waives == frozenset()
    assert waiving(frozenset()) == {}


def test_ledgers_of_cursors_have_no_list_to_lie_inside() -> None:
    cursor = CursorHolder(DATA.name, "s")
    world = World(entries=RecordedEntries({}))
    world.population.ledger(2, cursor)
    world.population.ledger(3, cursor)
    world.population.names(cursor, [2])
    assert world.outcomes(mark(3, cursor)) == [Outcome.DELETED]


def test_an_offloaded_copy_of_what_the_list_lost_is_kept() -> None:
    world = world_of([2, 4], [3])
    context = OffloadContext(1, 2, "filesystem", {})
    for attempts, outcome in ((0, Outcome.RETRY), (1, Outcome.INSIDE_LIST)):
        received = mark(3, attempts=attempts)
        assert received.mark is not None
        copy = replace(received.mark, ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context)
        assert world.outcomes(replace(received, mark=copy)) == [outcome]


def test_with_a_delay_it_is_given_up_as_soon() -> None:
    world = World(policy=replace(POLICY, delete_delay=1000))
    for ledger_id in (2, 3):
        world.population.ledger(ledger_id, DATA)
    world.population.names(DATA, [2])
    assert world.outcomes(mark(3, attempts=1)) == [Outcome.INSIDE_LIST]


@pytest.mark.parametrize(("listed", "text"), [([2, 4], "lists older ledgers"), ([], "lists no ledger at all")])
def test_a_mark_by_id_is_refused_without_its_flag(listed: list[int], text: str) -> None:
    world = world_of(listed, [1, 3])
    marks = marks_of_ids(world.catalog, [3])
    with pytest.raises(RefusedError, match=f"{text}.*--inside-list"):
        refuse_holes(marks, world.catalog, world.references)
    if listed:
        refuse_holes(marks_of_ids(world.catalog, [1, 2]), world.catalog, world.references)
    assert [one.waives for one in waive_the_list(marks)] == [frozenset(OF_LISTS)]


def test_explain_says_what_the_sweep_does() -> None:
    def explained(ledger_id: int, bookies: Bookies | None = None) -> Outcome | None:
        policy = DeletionPolicy()
        return explain_with(
            ledger_id, world.catalog, world.references, policy, int(NOW * 1000), entries=bookies
        ).outcome

    world = world_of([2, 4], [1, 3, 5])
    assert [explained(one) for one in (1, 3, 5)] == [Outcome.DELETED, Outcome.INSIDE_LIST, Outcome.INSIDE_LIST]
    opened(world, 6)
    assert explained(6, Bookies(None)) is Outcome.DELETED
    assert explained(6, Bookies(b"entry")) is Outcome.INSIDE_LIST
    assert explained(6) is Outcome.RETRY
    world = world_of([], [3])
    assert explained(3) is Outcome.RETRY
    world.population.names(ManagedLedgerHolder(DATA.name), [4])
    assert explained(3) is Outcome.RETRY
