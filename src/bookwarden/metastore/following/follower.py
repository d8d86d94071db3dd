"""The thread of a participant in a metadata migration, which carries out the actions of its phases.

Format: impl.DualMetadataStore of pulsar-metadata 4.2: an ephemeral sequential node ``participants/id-`` in the source,
whose value is never read; ours names this process. Its parents are container nodes, which ZooKeeper removes when empty.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from bookwarden.errors import (
    BookwardenError,
    LostRaceError,
    NotFoundError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.following.flag import COORDINATOR_PATH, MIGRATION_PATH, PARTICIPANTS_PATH
from bookwarden.metastore.following.phases import Event, ParticipantAction
from bookwarden.metastore.following.progress import MigrationProgress
from bookwarden.metastore.interface import MetadataStore

_LOG = logging.getLogger(__name__)


class MigrationFollower:
    """Carries out the actions of a progress, one after the other; begun by the first `start`.

    ``moved`` is called with the target when it serves, before the source is closed.
    """

    def __init__(self, progress: MigrationProgress, moved: Callable[[MetadataStore], None]) -> None:
        self._progress = progress
        self._source = progress.source
        self._target = progress.target
        self._moved = moved
        self._name = f"bookwarden {socket.gethostname()} {os.getpid()} {uuid.uuid4().hex[:8]}".encode()
        self._starting = threading.Lock()
        self._watches: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._registration_in_doubt = False

    def start(self) -> None:
        """Watch the flag and begin to follow it, once; raise StoreUnavailableError if there is no connection."""
        with self._starting:
            if self._thread is not None:
                return
            for path in (MIGRATION_PATH, COORDINATOR_PATH)[len(self._watches) :]:
                self._watches.append(self._source.watch(path, self._hear))
            self._thread = threading.Thread(target=self._follow, name="metadata migration", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the watches, the session and the thread; the progress has to be closed before."""
        self._end_source()
        if self._target.store is not None:
            # So that the thread waits no longer for a target that does not answer.
            self._target.store.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._progress.times.drain_limit_s)
        self._target.discard()

    def _hear(self, _path: str) -> None:
        self._progress.tell(Event.FLAG_IN_DOUBT)
        with suppress(StoreError):
            # The thread below, which may be busy, does it again.
            self._progress.refresh(time.monotonic())

    def _follow(self) -> None:
        while True:
            job = self._progress.next_action()
            if job is None:
                return
            try:
                self._carry_out(*job)
            except BookwardenError as error:
                self._progress.note(error)

    def _carry_out(self, action: ParticipantAction, visit: int) -> None:
        if action is ParticipantAction.READ_FLAG:
            self._progress.refresh(time.monotonic())
        elif action is ParticipantAction.DISCARD_TARGET:
            self._target.discard()
        elif action is ParticipantAction.MOVE_WATCHES:
            self._move_watches()
        elif action is ParticipantAction.CLOSE_SOURCE:
            self._close_source()
        elif visit == self._progress.participation.visit:
            self._progress.answer(self._drain(visit) if action is ParticipantAction.DRAIN else self._try(action), visit)

    def _try(self, action: ParticipantAction) -> Event:
        attempt, failed = {
            ParticipantAction.REGISTER: (self._register, Event.REGISTRATION_FAILED),
            ParticipantAction.CONNECT_TARGET: (self._connect, Event.TARGET_FAILED),
            ParticipantAction.RECREATE_EPHEMERALS: (self._recreate, Event.TARGET_FAILED),
            ParticipantAction.LEAVE: (self._leave, Event.LEAVE_FAILED),
        }[action]
        try:
            return attempt()
        except BookwardenError as error:
            self._registration_in_doubt |= action is ParticipantAction.REGISTER and isinstance(
                error, OutcomeUnknownError
            )
            self._progress.note(error)
            return failed

    def _register(self) -> Event:
        sessions = self._source.sessions_lost
        try:
            path = self._made_before() or self._make_node()
        except NotFoundError:
            # ZooKeeper removes the place of the participants some time after all have left.
            try:
                with suppress(LostRaceError):
                    self._source.create(PARTICIPANTS_PATH, b"")
                path = self._make_node()
            except NotFoundError:
                return Event.NOT_OFFERED
        self._registration_in_doubt = False
        with self._progress.changed:
            if self._source.sessions_lost != sessions:
                raise StoreUnavailableError("the session ended while it registered as a participant of migrations")
            self._progress.own_node = path
        return Event.REGISTERED

    def _make_node(self) -> str:
        return self._source.ephemeral_sequential(f"{PARTICIPANTS_PATH}/id-", self._name)

    def _made_before(self) -> str | None:
        """Find the node whose creation had no answer."""
        if not self._registration_in_doubt:
            return None
        self._source.sync()
        paths = [f"{PARTICIPANTS_PATH}/{name}" for name in self._source.list_children(PARTICIPANTS_PATH)]
        found = zip(paths, self._source.get_many(paths), strict=True)
        return next((path for path, node in found if node is not None and node.value == self._name), None)

    def _drain(self, visit: int) -> Event:
        progress = self._progress
        with progress.changed:
            over = progress.changed.wait_for(
                lambda: progress.in_flight == 0 or visit != progress.participation.visit or progress.closed,
                progress.times.drain_limit_s,
            )
            if over:
                return Event.DRAINED
            _LOG.warning(
                "%d writes have no answer after %g s: they are carried out, or refused, before this process leaves",
                progress.in_flight,
                progress.times.drain_limit_s,
            )
            return Event.DRAIN_LIMIT_PASSED

    def _connect(self) -> Event:
        self._target.connect(self._progress.flag.target_url)
        return Event.TARGET_CONNECTED

    def _recreate(self) -> Event:
        self._target.recreate()
        return Event.EPHEMERALS_RECREATED

    def _leave(self) -> Event:
        own = self._progress.own_node
        if own is not None:
            (result,) = self._source.delete_many([(own, 0)])
            if result not in (DeleteResult.DELETED, DeleteResult.ABSENT):
                raise StoreUnavailableError(f"{own} could not be deleted, so that the migration waits for this process")
            with self._progress.changed:
                self._progress.own_node = None
        return Event.LEFT

    def _move_watches(self) -> None:
        assert self._target.store is not None
        try:
            self._moved(self._target.store)
        except StoreError as error:
            self._progress.note(error)
            self._progress.do_later([ParticipantAction.MOVE_WATCHES])

    def _close_source(self) -> None:
        progress = self._progress
        with progress.changed:
            progress.changed.wait_for(lambda: progress.in_flight == 0 or progress.closed, progress.times.drain_limit_s)
        self._end_source()

    def _end_source(self) -> None:
        for end in self._watches:
            end()
        self._source.close()
        with self._progress.changed:
            self._progress.own_node = None
