"""Progress of a process in a metadata migration: the flag as last read, its own node, its writes under way."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bookwarden.errors import BookwardenError, StoreMigratingError, StoreUnavailableError
from bookwarden.ledgers.metadata import Condition
from bookwarden.metastore.following.flag import MIGRATION_PATH, UNREAD, read_fresh_flag
from bookwarden.metastore.following.phases import (
    FLAG_UNKNOWN,
    HELD_UP,
    MOVED,
    STOPPED,
    Event,
    ParticipantAction,
    ParticipantState,
    Participation,
)
from bookwarden.metastore.following.target import TargetSession
from bookwarden.metastore.write_conditions import ConditionalStore

_LOG = logging.getLogger(__name__)
_NEVER: Final = float("-inf")


@dataclass(frozen=True, slots=True)
class MigrationTimes:
    """Limits of a participant, all in seconds."""

    write_wait_s: float = 60.0  #: How long a write waits for the end of a migration; 0 lets it fail at once.
    answer_wait_s: float = 60.0  #: How long a call waits for our registration, or after the migration for the target.
    drain_limit_s: float = 20.0  #: How long we wait, before leaving, for requests under way.
    flag_max_age_s: float = 5.0  #: Highest age of the flag when a further part of a call is sent.
    look_s: float = 10.0  #: Interval of reading the flag, in case a watch was lost.
    retry_s: float = 1.0  #: Pause after a failure.


class MigrationStatus(NamedTuple):
    """The status of a process in a migration, as others see it."""

    state: ParticipantState  #: Step in the table of phases.py.
    phase: str  #: The flag's, as Pulsar writes it.
    target_url: str | None  #: None before the flag names one.
    blocked: bool  #: No write is sent now.
    blocked_s: float  #: Time without writes, in total, in seconds.
    stops: int  #: Times that writes were stopped; anything read or sent before the latest has to be read again.


class MigrationProgress:
    """State shared by the callers of a migrating store and the thread that follows the flag.

    ``changed`` is held for every look at it, and notified of every change; no store is asked while it is held.
    """

    def __init__(self, source: ConditionalStore, target: TargetSession, times: MigrationTimes) -> None:
        self.source = source
        self.target = target
        self.times = times
        self.changed = threading.Condition()
        self.participation = Participation()
        self.flag = UNREAD
        self.own_node: str | None = None
        self.in_flight = 0
        self.closed = False
        self.stops = 0
        self._stopped_at: float | None = None
        self._stopped_s = 0.0
        self._error: tuple[float, BookwardenError] | None = None
        self._reading = threading.Lock()
        self._read_began = _NEVER
        self._to_do: deque[tuple[ParticipantAction, int]] = deque()
        self._sessions_seen = source.sessions_lost

    @property
    def state(self) -> ParticipantState:
        return self.participation.state

    @property
    def status(self) -> MigrationStatus:
        with self.changed:
            blocked = self._stopped_at is not None
            now_s = time.monotonic() - self._stopped_at if self._stopped_at is not None else 0.0
            flag = self.flag
            return MigrationStatus(
                self.state, flag.phase, flag.target_url, blocked, self._stopped_s + now_s, self.stops
            )

    def refresh(self, since: float) -> None:
        """Read the flag after a sync, unless a reading began after ``since``."""
        # One after the other: an older reading must not be taken for the news.
        with self._reading:
            if self._read_began >= since or self.state in MOVED:
                return
            began = time.monotonic()
            flag = read_fresh_flag(self.source)
            with self.changed:
                self.learn_session()
                self._read_began, self.flag = began, flag
                self.tell(flag.event)
                if flag.place:
                    self.tell(Event.PARTICIPANTS_OFFERED)

    def may_write_source(self, since: float) -> bool:
        """Return whether a write may be sent, by a flag that was read after ``since``."""
        self.learn_session()
        return self.participation.may_write_source and self._read_began >= since

    def conditions(self) -> list[Condition]:
        """List the conditions of a write to the source now."""
        conditions = []
        if self.state is ParticipantState.SERVING_SOURCE and self.own_node is not None:
            conditions.append(Condition(self.own_node, 0))
        if self.flag.version is not None:
            conditions.append(Condition(MIGRATION_PATH, self.flag.version))
        return conditions

    def learn_session(self) -> None:
        """Take note if our session has ended, and with it our nodes."""
        lost = self.source.sessions_lost
        if lost != self._sessions_seen:
            self._sessions_seen = lost
            self.own_node = None
            self.target.forget()
            self.tell(Event.SESSION_EXPIRED)

    def tell(self, event: Event) -> None:
        """Apply an event."""
        with self.changed:
            before = self.state
            actions = self.participation.apply(event)
            self._note_move(before, event)
            self.do_later(actions)

    def answer(self, event: Event, visit: int) -> None:
        """Apply the end of an action, if it still counts."""
        with self.changed:
            before = self.state
            actions = self.participation.answer(event, visit)
            self._note_move(before, event)
            self.do_later(actions or ())

    def do_later(self, actions: Sequence[ParticipantAction]) -> None:
        """Queue actions for the following thread; one reading of the flag serves all that ask for one."""
        with self.changed:
            for action in actions:
                if action is not ParticipantAction.READ_FLAG or all(action is not other for other, _ in self._to_do):
                    self._to_do.append((action, self.participation.visit))
            self.changed.notify_all()

    def next_action(self) -> tuple[ParticipantAction, int] | None:
        """Wait for the next action, and return it with the visit for which it counts; None once closed."""
        with self.changed:
            self.changed.wait_for(lambda: self._to_do or self.closed, self.times.look_s)
            if self.closed:
                return None
            return self._to_do.popleft() if self._to_do else (ParticipantAction.READ_FLAG, self.participation.visit)

    def note(self, error: BookwardenError) -> None:
        """Report a failure to the waiting callers, and pause before the next try."""
        with self.changed:
            if self.closed:
                return
            known = self._error is not None and str(self._error[1]) == str(error)
            _LOG.log(logging.DEBUG if known else logging.WARNING, "metadata migration, %s: %s", self.state.value, error)
            self._error = (time.monotonic(), error)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.closed, self.times.retry_s)

    def error_since(self, began: float) -> BookwardenError | None:
        """Return the last failure, if it was after that moment."""
        return self._error[1] if self._error is not None and self._error[0] > began else None

    def require_open(self) -> None:
        if self.closed:
            raise StoreUnavailableError("this metadata store was closed")

    def migrating(self, what: str, error: BookwardenError | None = None) -> StoreMigratingError:
        """Make the error for a call that cannot be served now."""
        why = f" ({error})" if error else ""
        return StoreMigratingError(
            f"the metadata is being moved to {self.flag.target_url or 'another store'}, phase {self.flag.phase}, here "
            f"{self.state.value}: {what}{why}; nothing was changed, try again when it is over"
        )

    def longest_wait_s(self) -> float:
        """Return how long a call waits for the state to change, in seconds."""
        return self.times.write_wait_s if self.state in HELD_UP else self.times.answer_wait_s

    def _note_move(self, before: ParticipantState, event: Event) -> None:
        not_understood = event is Event.FLAG_UNREADABLE and self.state in FLAG_UNKNOWN
        stopped = self.state in STOPPED or not_understood
        if stopped and self._stopped_at is None:
            self.stops += 1
            self._stopped_at = time.monotonic()
        elif self._stopped_at is not None and not stopped and self.state not in FLAG_UNKNOWN:
            self._stopped_s += time.monotonic() - self._stopped_at
            self._stopped_at = None
        if self.state in MOVED or before not in _QUIET or self.state not in _QUIET:
            level = logging.DEBUG if self.state is before else logging.INFO
            _LOG.log(level, "metadata migration: %s, now %s", event.value, self.state.value)


# Every process goes to and fro between these without any migration.
_QUIET: Final = frozenset(
    {
        ParticipantState.STARTING,
        ParticipantState.READING,
        ParticipantState.REGISTERING,
        ParticipantState.CHECKING,
        ParticipantState.SERVING_SOURCE,
        ParticipantState.SERVING_UNREGISTERED,
    }
)
