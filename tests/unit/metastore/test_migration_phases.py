"""The states of a process while Pulsar moves its metadata: every order of what may happen."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bookwarden.errors import StoreError
from bookwarden.metastore.following.phases import (
    ANSWERS,
    BEFORE_WRITING,
    FLAG_UNKNOWN,
    HAPPENINGS,
    MOVED,
    TABLE,
    WRITING_SOURCE,
    Event,
    ParticipantAction,
    ParticipantState,
    Participation,
    Step,
)

FLAG_EVENT = {
    None: Event.FLAG_IDLE,
    "PREPARATION": Event.FLAG_PREPARATION,
    "COPYING": Event.FLAG_COPYING,
    "COMPLETED": Event.FLAG_COMPLETED,
    "FAILED": Event.FLAG_FAILED,
}
COPIED = ("COPYING", "COMPLETED")
ENDS_OF = {
    ParticipantAction.REGISTER: (Event.REGISTERED, Event.NOT_OFFERED, Event.REGISTRATION_FAILED),
    ParticipantAction.DRAIN: (Event.DRAINED, Event.DRAIN_LIMIT_PASSED),
    ParticipantAction.CONNECT_TARGET: (Event.TARGET_CONNECTED, Event.TARGET_FAILED),
    ParticipantAction.RECREATE_EPHEMERALS: (Event.EPHEMERALS_RECREATED, Event.TARGET_FAILED),
    ParticipantAction.LEAVE: (Event.LEFT, Event.LEAVE_FAILED),
}


def walk(*events: Event) -> Participation:
    participation = Participation()
    for event in events:
        participation.apply(event)
    return participation


SERVING = (Event.FLAG_IDLE, Event.WRITE_WANTED, Event.REGISTERED, Event.FLAG_IDLE)
LEFT = (
    Event.FLAG_PREPARATION,
    Event.DRAINED,
    Event.TARGET_CONNECTED,
    Event.EPHEMERALS_RECREATED,
    Event.LEFT,
)


def test_every_state_has_a_rule_for_whatever_may_happen_in_the_world() -> None:
    missing = [(state, event) for state in ParticipantState for event in HAPPENINGS if event not in TABLE[state]]
    assert missing == []


def test_every_end_of_an_action_has_a_rule_where_the_action_leads_to() -> None:
    steps = [step for row in TABLE.values() for step in row.values()]
    missing = [
        (step.state, end)
        for step in steps
        for action in step.actions
        for end in ENDS_OF.get(action, ())
        if end not in TABLE[step.state]
    ]
    assert missing == []
    assert {end for ends in ENDS_OF.values() for end in ends} == ANSWERS


def test_a_pair_without_a_rule_raises_with_what_was_before() -> None:
    participation = walk(*SERVING)
    with pytest.raises(StoreError, match=r"'drained' while serving source.*starting: flag: none.*registering: reg"):
        participation.apply(Event.DRAINED)


def test_no_state_that_has_moved_leads_back_to_the_source() -> None:
    assert {step.state for state in MOVED for step in TABLE[state].values()} <= MOVED


def test_only_a_flag_that_was_read_lets_a_process_write() -> None:
    for state, row in TABLE.items():
        for event, step in row.items():
            participation = Participation()
            participation.state = state
            participation.apply(event)
            read = event in (Event.FLAG_IDLE, Event.FLAG_FAILED)
            assert not participation.may_write_source or (read and step.state in WRITING_SOURCE), (state, event)


def test_a_migration_that_goes_well() -> None:
    participation = walk(*SERVING)
    assert participation.may_write_source
    for event, actions, state in (
        (Event.FLAG_PREPARATION, (ParticipantAction.DRAIN,), ParticipantState.DRAINING),
        (Event.DRAINED, (ParticipantAction.CONNECT_TARGET,), ParticipantState.CONNECTING_TARGET),
        (Event.TARGET_CONNECTED, (ParticipantAction.RECREATE_EPHEMERALS,), ParticipantState.RECREATING),
        (Event.EPHEMERALS_RECREATED, (ParticipantAction.LEAVE,), ParticipantState.LEAVING),
        (Event.LEFT, (ParticipantAction.READ_FLAG,), ParticipantState.WAITING),
        (Event.FLAG_COPYING, (), ParticipantState.WAITING),
        (Event.FLAG_COMPLETED, (ParticipantAction.CONNECT_TARGET,), ParticipantState.SWITCHING),
        (Event.TARGET_CONNECTED, (ParticipantAction.RECREATE_EPHEMERALS,), ParticipantState.MOVING),
        (
            Event.EPHEMERALS_RECREATED,
            (ParticipantAction.MOVE_WATCHES, ParticipantAction.CLOSE_SOURCE),
            ParticipantState.SERVING_TARGET,
        ),
    ):
        assert participation.apply(event) == actions
        assert participation.state is state
        assert not participation.may_write_source


@pytest.mark.parametrize(
    ("flag", "state", "actions"),
    [
        (Event.FLAG_IDLE, ParticipantState.READING, ()),
        (Event.FLAG_FAILED, ParticipantState.READING, ()),
        (Event.FLAG_PREPARATION, ParticipantState.WAITING, ()),
        (Event.FLAG_COPYING, ParticipantState.WAITING, ()),
        (Event.FLAG_COMPLETED, ParticipantState.SWITCHING, (ParticipantAction.CONNECT_TARGET,)),
        (Event.FLAG_UNREADABLE, ParticipantState.STARTING, ()),
    ],
)
def test_a_process_that_starts_in_any_phase_does_the_right_thing(
    flag: Event, state: ParticipantState, actions: tuple[ParticipantAction, ...]
) -> None:
    participation = Participation()
    assert participation.apply(flag) == actions
    assert participation.state is state
    assert not participation.may_write_source


def test_after_a_failed_migration_it_registers_anew_before_it_writes() -> None:
    participation = walk(*SERVING, *LEFT)
    assert participation.apply(Event.FLAG_FAILED) == (ParticipantAction.DISCARD_TARGET,)
    assert not participation.may_write_source
    assert participation.apply(Event.WRITE_WANTED) == (ParticipantAction.REGISTER,)
    assert participation.apply(Event.REGISTERED) == (ParticipantAction.READ_FLAG,)
    assert not participation.may_write_source
    participation.apply(Event.FLAG_FAILED)
    assert participation.may_write_source


def test_the_end_of_an_action_of_an_earlier_state_is_void() -> None:
    participation = walk(*SERVING, Event.FLAG_PREPARATION)
    visit = participation.visit
    participation.apply(Event.FLAG_FAILED)
    participation.apply(Event.FLAG_PREPARATION)
    assert participation.answer(Event.DRAINED, visit) is None
    assert participation.state is ParticipantState.DRAINING


@dataclass
class Write:
    """One that was sent and not yet carried out; it demands the node of its session, if it had one."""

    session: int
    node: int | None


@dataclass
class World:
    """What ZooKeeper and the coordinator know."""

    phase: str | None = None
    offered: bool = True
    nodes: set[int] = field(default_factory=set)
    sessions: set[int] = field(default_factory=set)


class Play:
    """One process after another against a coordinator, with late news, lost watches, sessions that end and crashes.

    A node is named by the session that made it. ZooKeeper carries out the requests of a session in their order. Each
    move takes a number, for what it has to choose; one that is not possible now does nothing.
    """

    def __init__(self) -> None:
        self.world = World()
        self.next_session = 0
        self.sent: list[Write] = []
        self.crash()

    def crash(self, _: int = 0) -> None:
        """Begin anew; the session of the former process lives until the server ends it."""
        self.process = Participation()
        self.session = self.new_session()
        self.node: int | None = None
        self.to_do: deque[tuple[ParticipantAction, int]] = deque()
        self.connected = self.saw_moved = False

    def new_session(self) -> int:
        self.next_session += 1
        self.world.sessions.add(self.next_session)
        return self.next_session

    def tell(self, event: Event) -> None:
        self.do_later(self.process.apply(event))

    def do_later(self, actions: tuple[ParticipantAction, ...]) -> None:
        """Remember what is to be done; one look at the flag does for all that want one."""
        for action in actions:
            if action is not ParticipantAction.READ_FLAG or action not in dict(self.to_do):
                self.to_do.append((action, self.process.visit))

    def learn(self) -> None:
        """Find out that the session ended, as any request does."""
        if self.session not in self.world.sessions:
            self.session, self.node = self.new_session(), None
            self.tell(Event.SESSION_EXPIRED)

    def land(self, write: Write) -> None:
        """Let ZooKeeper carry a write out, or refuse it; only a session that lives has any."""
        self.sent.remove(write)
        demanded = write.node is None or write.node in self.world.nodes
        if write.session in self.world.sessions and demanded:
            assert self.world.phase not in COPIED
        elif write.session == self.session and write.node == self.node and self.node is not None:
            self.node = None
            self.tell(Event.OWN_NODE_GONE)

    def land_all(self) -> None:
        while self.sent:
            self.land(self.sent[0])

    # The coordinator and the operator.

    def start(self, _: int) -> None:
        if self.world.phase is None and self.world.offered:
            self.world.phase = "PREPARATION"

    def copy(self, _: int) -> None:
        if self.world.phase == "PREPARATION" and not self.world.nodes:
            self.world.phase = "COPYING"

    def lose_patience(self, _: int) -> None:
        """Copy after 60 s, whoever is still there: by then what was sent is decided, and what was known is old."""
        if self.world.phase == "PREPARATION":
            self.land_all()
            self.tell(Event.FLAG_IN_DOUBT)
            self.world.phase = "COPYING"

    def complete(self, _: int) -> None:
        if self.world.phase == "COPYING":
            self.world.phase = "COMPLETED"

    def fail(self, _: int) -> None:
        if self.world.phase in ("PREPARATION", "COPYING"):
            self.world.phase = "FAILED"

    def remove_flag(self, _: int) -> None:
        if self.world.phase == "FAILED":
            self.world.phase = None

    def stop_brokers(self, _: int) -> None:
        if self.world.phase is None and not self.world.nodes and not self.sent:
            self.world.offered = False

    def start_brokers(self, _: int) -> None:
        """Let the first broker of 4.2 start; what was sent before is carried out before a migration can begin."""
        if not self.world.offered:
            self.land_all()
            self.world.offered = True
            self.tell(Event.FLAG_IN_DOUBT)

    # ZooKeeper.

    def fire_watch(self, _: int) -> None:
        self.tell(Event.FLAG_IN_DOUBT)

    def end_session(self, choice: int) -> None:
        sessions = sorted(self.world.sessions)
        if sessions:
            session = sessions[-1 - choice % len(sessions)]
            self.world.sessions.discard(session)
            self.world.nodes.discard(session)

    def delete_node_by_hand(self, _: int) -> None:
        self.land_all()
        self.world.nodes.discard(self.session)

    def carry_out(self, choice: int) -> None:
        if self.sent:
            self.land(self.sent[choice % len(self.sent)])

    # The process.

    def read_flag(self, choice: int = 1) -> None:
        self.learn()
        self.tell(FLAG_EVENT[self.world.phase] if choice else Event.FLAG_UNREADABLE)
        if choice and self.world.offered:
            self.tell(Event.PARTICIPANTS_OFFERED)

    def write(self, _: int) -> None:
        self.read_flag()
        self.tell(Event.WRITE_WANTED)
        self.write_on(0)

    def write_on(self, _: int) -> None:
        """Send another part of what was begun, if what is known lets it."""
        if self.process.may_write_source and self.session in self.world.sessions:
            registered = self.process.state is ParticipantState.SERVING_SOURCE
            assert not registered or self.node is not None
            self.sent.append(Write(self.session, self.node if registered else None))

    def act(self, choice: int) -> None:
        if not self.to_do:
            return
        action, visit = self.to_do.popleft()
        if action is ParticipantAction.READ_FLAG:
            self.read_flag()
        elif action is ParticipantAction.DISCARD_TARGET:
            self.connected = False
        elif action in ENDS_OF and visit == self.process.visit:
            ends = ENDS_OF[action]
            # Most of what is done succeeds.
            end = ends[max(0, choice - 6) % len(ends)]
            self.do_later(self.process.answer(self.carry(action, end), visit) or ())

    def carry(self, action: ParticipantAction, end: Event) -> Event:
        if action is ParticipantAction.REGISTER:
            return self.register(end)
        if action is ParticipantAction.DRAIN:
            return Event.DRAIN_LIMIT_PASSED if self.sent else Event.DRAINED
        if action is ParticipantAction.LEAVE:
            return self.leave(end)
        if end is Event.TARGET_CONNECTED:
            self.connected = True
        return end

    def register(self, end: Event) -> Event:
        if self.session not in self.world.sessions or end is Event.REGISTRATION_FAILED:
            return Event.REGISTRATION_FAILED
        if not self.world.offered:
            return Event.NOT_OFFERED
        self.node = self.session
        self.world.nodes.add(self.node)
        return Event.REGISTERED

    def leave(self, end: Event) -> Event:
        """Delete the node: on its session, so behind all that was sent before."""
        if self.session not in self.world.sessions:
            return Event.LEFT
        if end is Event.LEAVE_FAILED:
            return end
        assert self.connected or self.world.phase != "PREPARATION" or self.node not in self.world.nodes
        for write in [write for write in self.sent if write.session == self.session]:
            self.land(write)
        self.world.nodes.discard(self.session)
        self.node = None
        return Event.LEFT

    def check(self) -> None:
        """Hold what must always be true."""
        state = self.process.state
        assert state in MOVED or not self.saw_moved
        assert state not in MOVED or self.world.phase == "COMPLETED"
        assert not self.process.may_write_source or (state in WRITING_SOURCE and self.process.knows_flag)
        self.saw_moved = state in MOVED

    def quiet(self) -> None:
        """With servers that answer, and no news, the process ends where the phase wants it, without its node."""
        for _ in range(40):
            self.learn()
            if self.to_do:
                self.act(0)
            else:
                self.write(0)
            self.check()
        wanted = {
            "PREPARATION": {ParticipantState.WAITING},
            "COPYING": {ParticipantState.WAITING},
            "COMPLETED": {ParticipantState.SERVING_TARGET},
        }
        assert self.process.state in wanted.get(self.world.phase or "", WRITING_SOURCE)
        assert self.world.phase != "PREPARATION" or self.session not in self.world.nodes


# How often each comes in a play.
MOVES = (
    [Play.act] * 8
    + [Play.write] * 4
    + [Play.start, Play.copy, Play.read_flag, Play.carry_out, Play.fire_watch, Play.write_on] * 2
    + [Play.complete, Play.fail, Play.remove_flag, Play.lose_patience, Play.end_session, Play.crash]
    + [Play.stop_brokers, Play.start_brokers, Play.delete_node_by_hand]
)


def play_on(moves: Iterable[tuple[Callable[[Play, int], None], int]]) -> None:
    play = Play()
    for move, choice in moves:
        move(play, choice)
        play.check()
    play.quiet()


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 9)), max_size=60))
@example([(Play.write, 0), (Play.act, 0), (Play.start, 0)] + [(Play.act, 0)] * 8)
def test_whatever_the_order_nothing_is_written_to_a_store_that_is_copied_or_was_left(
    moves: list[tuple[Callable[[Play, int], None], int]],
) -> None:
    play_on(moves)


@pytest.mark.parametrize("seed", range(10))
def test_nor_is_it_in_long_plays(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(300):
        play_on((move, dice.randrange(10)) for move in dice.choices(MOVES, k=dice.randrange(20, 120)))


def test_what_has_to_be_read_first_is_told_by_the_state() -> None:
    assert FLAG_UNKNOWN < BEFORE_WRITING
    assert (
        set(ParticipantState)
        - {
            ParticipantState.DRAINING,
            ParticipantState.CONNECTING_TARGET,
            ParticipantState.RECREATING,
            ParticipantState.LEAVING,
            ParticipantState.WAITING,
        }
        == BEFORE_WRITING | WRITING_SOURCE | MOVED
    )


def rendered_table() -> list[str]:
    """Write the table as the runbook has it: what leads somewhere, or is to be done, the rest left out."""
    lines = ["| state | event | next | to do |", "|---|---|---|---|"]
    for state, row in TABLE.items():
        groups: dict[Step, list[str]] = {}
        for event in Event:
            step = row.get(event)
            if step is not None and step != (state, ()):
                groups.setdefault(step, []).append(event.value)
        for step, events in groups.items():
            to_do = ", ".join(action.value for action in step.actions)
            lines.append(f"| {state.value} | {'; '.join(events)} | {step.state.value} | {to_do} |")
    return lines


def test_the_runbook_has_the_table_as_it_is() -> None:
    text = (Path(__file__).parents[3] / "docs" / "metadata-migration-store.md").read_text(encoding="utf-8")
    assert "\n".join(rendered_table()) in text
