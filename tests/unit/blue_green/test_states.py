"""The state of a topic, by what was seen of it; what is not known never counts as read."""

from __future__ import annotations

import dataclasses

import pytest

from bookwarden.cluster_migration.states import CursorStatus, TopicState, TopicStatus, entries_of, unread_entries
from bookwarden.ledgers.managed_ledger import LedgerInfo, ManagedLedgerInfo, Position

TOPIC = "persistent://shop/live/orders"
OPEN = ManagedLedgerInfo((LedgerInfo(5, 10), LedgerInfo(6)))
MARKED = dataclasses.replace(OPEN, terminated=Position(6, 2), properties={"migrated": "true"})
BY_USER = dataclasses.replace(MARKED, properties={})

READ = CursorStatus("app", 0, 1)
LEFT = CursorStatus("app", 3, 1)
IDLE = CursorStatus("app", 3, 0)
UNKNOWN = CursorStatus("app", None)
REPLICATING = CursorStatus("pulsar.repl.west", 3, 0)


@pytest.mark.parametrize(
    ("state", "info", "flagged", "loaded", "cursors", "lacks"),
    [
        (TopicState.SERVING, OPEN, False, True, (LEFT,), False),
        (TopicState.SERVING, BY_USER, False, True, (LEFT,), False),
        (TopicState.ROLLED_BACK, MARKED, False, False, (LEFT,), False),
        (TopicState.GONE, None, True, None, (), False),
        (TopicState.WAITING, OPEN, True, True, (LEFT,), False),
        (TopicState.UNMARKED, OPEN, True, False, (LEFT,), False),
        (TopicState.UNMARKED, OPEN, True, False, (), False),
        (TopicState.UNKNOWN, OPEN, True, None, (), False),
        (TopicState.DRAINING, MARKED, True, True, (LEFT, READ), False),
        (TopicState.STUCK, MARKED, True, True, (IDLE, READ), False),
        (TopicState.HELD, MARKED, True, True, (REPLICATING, READ), False),
        (TopicState.DRAINED, MARKED, True, True, (READ,), False),
        (TopicState.PRODUCERS_LEFT, MARKED, True, True, (READ,), True),
        (TopicState.PRODUCERS_LEFT, MARKED, True, True, (), True),
        (TopicState.PRODUCERS_LEFT, MARKED, True, False, (), True),
        (TopicState.DRAINED, MARKED, True, None, (), False),
        (TopicState.DRAINED, MARKED, True, False, (READ,), False),
        (TopicState.STRANDED, MARKED, True, False, (LEFT,), False),
        (TopicState.STRANDED, BY_USER, True, False, (LEFT,), False),
        (TopicState.STRANDED, MARKED, True, False, (UNKNOWN,), False),
        (TopicState.STRANDED, MARKED, True, False, (REPLICATING,), False),
        (TopicState.UNKNOWN, MARKED, True, None, (LEFT,), False),
        (TopicState.DRAINING, MARKED, True, True, (UNKNOWN,), False),
    ],
)
def test_the_state(
    state: TopicState,
    info: ManagedLedgerInfo | None,
    flagged: bool,
    loaded: bool | None,
    cursors: tuple[CursorStatus, ...],
    lacks: bool,
) -> None:
    assert TopicStatus(TOPIC, info, flagged, loaded, None, cursors, lacks).state is state


@pytest.mark.parametrize(
    ("mark_delete", "unread"),
    [
        (Position(4, 7), 13),
        (Position(5, -1), 13),
        (Position(5, 3), 9),
        (Position(5, 9), 3),
        (Position(6, -1), 3),
        (Position(6, 2), 0),
        (Position(7, -1), 0),
        (None, None),
    ],
)
def test_unread_entries_of_a_marked_topic(mark_delete: Position | None, unread: int | None) -> None:
    assert unread_entries(MARKED, mark_delete) == unread


def test_unread_entries_of_a_topic_that_accepts_messages_are_not_known() -> None:
    assert unread_entries(OPEN, Position(6, 5)) is None


def test_consumers_that_green_has_not_seen_are_left_once_all_is_read() -> None:
    seen = TopicStatus(TOPIC, MARKED, True, True, None, (READ,), green_lacks=("app",))
    assert seen.state is TopicState.CONSUMERS_LEFT
    assert dataclasses.replace(seen, green_lacks_producer=True).state is TopicState.PRODUCERS_LEFT
    assert dataclasses.replace(seen, cursors=(LEFT,)).state is TopicState.DRAINING
    assert dataclasses.replace(seen, loaded=False).state is TopicState.CONSUMERS_LEFT


def test_the_last_ledger_counts_by_where_the_topic_was_terminated() -> None:
    empty_at_the_end = dataclasses.replace(MARKED, terminated=Position(6, -1))
    assert (entries_of(MARKED), entries_of(empty_at_the_end)) == (13, 10)
    assert unread_entries(empty_at_the_end, Position(5, 9)) == 0
