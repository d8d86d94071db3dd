"""Phases of one process while Pulsar moves its metadata to another store (PIP-454): a pure transition table.

`Participation` takes events and returns actions; their ends come back to it as events.
Nothing here reads, writes or waits. docs/metadata-migration-store.md has the table with reasons.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from bookwarden.errors import StoreError

_REMEMBERED: Final = 12


class ParticipantState(Enum):
    """The status of a process; *registered*: a node of its own is among the participants."""

    STARTING = "starting"  # not registered; the flag must be read before anything else
    READING = "reading"  # not registered, no migration: reads from the source
    REGISTERING = "registering"  # its node is being made, since it wants to write
    CHECKING = "checking"  # registered; the flag must be read before anything else
    SERVING_SOURCE = "serving source"  # registered: reads and writes
    SERVING_UNREGISTERED = "serving unregistered"  # no process takes part in migrations here: reads and writes
    DRAINING = "draining"  # PREPARATION: nothing new is written, what is under way ends
    CONNECTING_TARGET = "connecting target"
    RECREATING = "recreating"  # its ephemeral nodes are made in the target
    LEAVING = "leaving"  # its node is being deleted
    WAITING = "waiting"  # not registered, PREPARATION or COPYING: reads from the source
    SWITCHING = "switching"  # COMPLETED: from here on never the source again
    MOVING = "moving"  # its ephemeral nodes are made in the target, unless they are there
    SERVING_TARGET = "serving target"


class Event(Enum):
    """An event of the world, which may come at any time, or the end of an action."""

    FLAG_IDLE = "flag: none, or NOT_STARTED"
    FLAG_FAILED = "flag: FAILED"
    FLAG_PREPARATION = "flag: PREPARATION"
    FLAG_COPYING = "flag: COPYING"
    FLAG_COMPLETED = "flag: COMPLETED"
    FLAG_UNREADABLE = "flag: not understood"
    FLAG_IN_DOUBT = "flag in doubt"  # its watch fired or was lost, or what is known is old
    PARTICIPANTS_OFFERED = "participants offered"  # there is a place to register that was not there before
    SESSION_EXPIRED = "session expired"  # our node and our other ephemeral nodes are gone
    OWN_NODE_GONE = "own node gone"
    WRITE_WANTED = "write wanted"

    REGISTERED = "registered"
    NOT_OFFERED = "not offered"
    REGISTRATION_FAILED = "registration failed"
    DRAINED = "drained"
    DRAIN_LIMIT_PASSED = "drain limit passed"
    TARGET_CONNECTED = "target connected"
    TARGET_FAILED = "target failed"
    EPHEMERALS_RECREATED = "ephemerals recreated"
    LEFT = "left"
    LEAVE_FAILED = "leave failed"


class ParticipantAction(Enum):
    """An action to carry out; one whose end is an event is void once the state was left."""

    READ_FLAG = "read flag"
    REGISTER = "register"
    DRAIN = "drain"
    CONNECT_TARGET = "connect target"
    RECREATE_EPHEMERALS = "recreate ephemerals"
    LEAVE = "leave"
    DISCARD_TARGET = "discard target"
    MOVE_WATCHES = "move watches"
    CLOSE_SOURCE = "close source"


class Step(NamedTuple):
    """The state that follows, and the actions on the way."""

    state: ParticipantState
    actions: tuple[ParticipantAction, ...] = ()


S, E, A = ParticipantState, Event, ParticipantAction

ANSWERS: Final = frozenset(
    {
        E.REGISTERED,
        E.NOT_OFFERED,
        E.REGISTRATION_FAILED,
        E.DRAINED,
        E.DRAIN_LIMIT_PASSED,
        E.TARGET_CONNECTED,
        E.TARGET_FAILED,
        E.EPHEMERALS_RECREATED,
        E.LEFT,
        E.LEAVE_FAILED,
    }
)
HAPPENINGS: Final = frozenset(E) - ANSWERS
IDLE_FLAGS: Final = frozenset({E.FLAG_IDLE, E.FLAG_FAILED})

WRITING_SOURCE: Final = frozenset({S.SERVING_SOURCE, S.SERVING_UNREGISTERED})
FLAG_UNKNOWN: Final = frozenset({S.STARTING, S.CHECKING})
BEFORE_WRITING: Final = frozenset({S.STARTING, S.READING, S.REGISTERING, S.CHECKING})
MOVED: Final = frozenset({S.SWITCHING, S.MOVING, S.SERVING_TARGET})
HELD_UP: Final = frozenset(S) - BEFORE_WRITING - WRITING_SOURCE - MOVED  # no write is sent until the migration ends
STOPPED: Final = frozenset(S) - BEFORE_WRITING - WRITING_SOURCE - {S.SERVING_TARGET}

_SWITCH: Final = Step(S.SWITCHING, (A.CONNECT_TARGET,))
_DRAIN: Final = Step(S.DRAINING, (A.DRAIN,))
_LEAVE: Final = Step(S.LEAVING, (A.LEAVE,))
_RESTART: Final = Step(S.STARTING, (A.READ_FLAG,))
_OUT: Final = Step(S.WAITING, (A.READ_FLAG,))


def _on(step: Step, *events: Event) -> dict[Event, Step]:
    return dict.fromkeys(events, step)


def _row(state: ParticipantState, *overrides: dict[Event, Step]) -> dict[Event, Step]:
    """Stay at any event, and read the flag again when it is in doubt, unless the row says otherwise."""
    rules = {event: Step(state) for event in HAPPENINGS} | _on(Step(state, (A.READ_FLAG,)), E.FLAG_IN_DOUBT)
    for override in overrides:
        rules |= override
    return rules


# A process that still has its node when it sees COPYING was not waited for: deleting the node stops its last writes,
# since each demands that the node exists.
_COPIED_WITHOUT_US: Final = _on(_LEAVE, E.FLAG_COPYING) | _on(_SWITCH, E.FLAG_COMPLETED)
_LOST_ITS_NODE: Final = _on(_OUT, E.SESSION_EXPIRED, E.OWN_NODE_GONE)
_BACK: Final = _on(Step(S.SERVING_SOURCE, (A.DISCARD_TARGET,)), *IDLE_FLAGS)
_NOT_MOVED: Final = _on(Step(S.WAITING), E.FLAG_PREPARATION, E.FLAG_COPYING) | _on(_SWITCH, E.FLAG_COMPLETED)
_REGISTERED: Final = (
    _on(_DRAIN, E.FLAG_PREPARATION) | _COPIED_WITHOUT_US | _on(_RESTART, E.SESSION_EXPIRED, E.OWN_NODE_GONE)
)

TABLE: Final[Mapping[ParticipantState, Mapping[Event, Step]]] = {
    S.STARTING: _row(S.STARTING, _on(Step(S.READING), *IDLE_FLAGS), _NOT_MOVED),
    S.READING: _row(
        S.READING,
        _NOT_MOVED,
        _on(_RESTART, E.FLAG_IN_DOUBT, E.SESSION_EXPIRED),
        _on(Step(S.STARTING), E.FLAG_UNREADABLE),
        _on(Step(S.REGISTERING, (A.REGISTER,)), E.WRITE_WANTED),
    ),
    # The flag counts only if read after our node is there: only then is it certain that no copy began without us.
    S.REGISTERING: _row(
        S.REGISTERING,
        _on(Step(S.REGISTERING), E.FLAG_IN_DOUBT),
        _on(Step(S.CHECKING, (A.READ_FLAG,)), E.REGISTERED),
        _on(Step(S.SERVING_UNREGISTERED, (A.READ_FLAG,)), E.NOT_OFFERED),
        _on(_RESTART, E.REGISTRATION_FAILED),
    ),
    S.CHECKING: _row(S.CHECKING, _REGISTERED, _on(Step(S.SERVING_SOURCE), *IDLE_FLAGS)),
    S.SERVING_SOURCE: _row(
        S.SERVING_SOURCE,
        _REGISTERED,
        _on(Step(S.CHECKING), E.FLAG_UNREADABLE),
        _on(Step(S.CHECKING, (A.READ_FLAG,)), E.FLAG_IN_DOUBT),
    ),
    S.SERVING_UNREGISTERED: _row(
        S.SERVING_UNREGISTERED,
        _NOT_MOVED,
        _on(_RESTART, E.FLAG_IN_DOUBT, E.SESSION_EXPIRED),
        _on(Step(S.STARTING), E.FLAG_UNREADABLE),
        _on(Step(S.REGISTERING, (A.REGISTER,)), E.PARTICIPANTS_OFFERED),
    ),
    S.DRAINING: _row(
        S.DRAINING,
        _on(Step(S.SERVING_SOURCE), *IDLE_FLAGS),
        _COPIED_WITHOUT_US,
        _LOST_ITS_NODE,
        _on(Step(S.CONNECTING_TARGET, (A.CONNECT_TARGET,)), E.DRAINED, E.DRAIN_LIMIT_PASSED),
    ),
    S.CONNECTING_TARGET: _row(
        S.CONNECTING_TARGET,
        _BACK,
        _COPIED_WITHOUT_US,
        _LOST_ITS_NODE,
        _on(Step(S.RECREATING, (A.RECREATE_EPHEMERALS,)), E.TARGET_CONNECTED),
        _on(Step(S.CONNECTING_TARGET, (A.CONNECT_TARGET,)), E.TARGET_FAILED),
    ),
    S.RECREATING: _row(
        S.RECREATING,
        _BACK,
        _COPIED_WITHOUT_US,
        _LOST_ITS_NODE,
        _on(_LEAVE, E.EPHEMERALS_RECREATED),
        _on(Step(S.CONNECTING_TARGET, (A.CONNECT_TARGET,)), E.TARGET_FAILED),
    ),
    # Whether the node is still there is not known until the answer: the flag is read after that.
    S.LEAVING: _row(
        S.LEAVING,
        _on(Step(S.LEAVING), E.FLAG_IN_DOUBT),
        _on(_OUT, E.LEFT),
        _on(_LEAVE, E.LEAVE_FAILED),
    ),
    S.WAITING: _row(S.WAITING, _on(Step(S.READING, (A.DISCARD_TARGET,)), *IDLE_FLAGS), _on(_SWITCH, E.FLAG_COMPLETED)),
    # Point of no return: no rule of these three leads back, whatever the flag in the source says from now on.
    S.SWITCHING: _row(
        S.SWITCHING,
        _on(Step(S.SWITCHING), E.FLAG_IN_DOUBT),
        _on(Step(S.MOVING, (A.RECREATE_EPHEMERALS,)), E.TARGET_CONNECTED),
        _on(_SWITCH, E.TARGET_FAILED),
    ),
    S.MOVING: _row(
        S.MOVING,
        _on(Step(S.MOVING), E.FLAG_IN_DOUBT),
        _on(Step(S.SERVING_TARGET, (A.MOVE_WATCHES, A.CLOSE_SOURCE)), E.EPHEMERALS_RECREATED),
        _on(_SWITCH, E.TARGET_FAILED),
    ),
    S.SERVING_TARGET: _row(S.SERVING_TARGET, _on(Step(S.SERVING_TARGET), E.FLAG_IN_DOUBT)),
}


class Participation:
    """One process's way through the table, from its start on, whatever the phase is then.

    ``visit`` numbers the states it has been in: the answer to an action counts only while it is the same.
    ``knows_flag``: the flag was read since this state began, or since it was last put in doubt.
    """

    def __init__(self) -> None:
        self.state = ParticipantState.STARTING
        self.visit = 0
        self.knows_flag = False
        self._history: deque[str] = deque(maxlen=_REMEMBERED)

    @property
    def may_write_source(self) -> bool:
        """True while a write may be sent to the source."""
        return self.knows_flag and self.state in WRITING_SOURCE

    def apply(self, event: Event) -> tuple[ParticipantAction, ...]:
        """Go on to the next state and return the actions due. Raises StoreError for a pair that the table lacks."""
        step = TABLE[self.state].get(event)
        if step is None:
            raise StoreError(
                f"a metadata migration met {event.value!r} while {self.state.value}, for which there is no rule: "
                f"restart this process, and report what was before: {'; '.join(self._history) or 'nothing'}"
            )
        if step.state is not self.state:
            self._history.append(f"{self.state.value}: {event.value}")
            self.visit += 1
        if event in IDLE_FLAGS:
            self.knows_flag = step.state in WRITING_SOURCE
        elif event is Event.FLAG_IN_DOUBT or step.state is not self.state:
            self.knows_flag = False
        self.state = step.state
        return step.actions

    def answer(self, event: Event, visit: int) -> tuple[ParticipantAction, ...] | None:
        """Apply the end of an action of that visit; None, without effect, if the state was left since."""
        return self.apply(event) if visit == self.visit else None
