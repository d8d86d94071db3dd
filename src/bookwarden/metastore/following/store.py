"""A metadata store that follows a migration of Pulsar's metadata (PIP-454) from ZooKeeper to another store.

Its behaviour in each phase: phases.py, and docs/metadata-migration-store.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bookwarden.errors import StoreAccessError, StoreError, StoreMigratingError, StoreUnavailableError
from bookwarden.ledgers.metadata import Condition, Conditions, DeleteResult
from bookwarden.metastore.changes import ChangedNodes, ChangeFeed
from bookwarden.metastore.following.follower import MigrationFollower
from bookwarden.metastore.following.phases import (
    BEFORE_WRITING,
    FLAG_UNKNOWN,
    MOVED,
    STOPPED,
    WRITING_SOURCE,
    Event,
    ParticipantState,
)
from bookwarden.metastore.following.progress import MigrationProgress, MigrationStatus, MigrationTimes
from bookwarden.metastore.following.target import TargetSession
from bookwarden.metastore.interface import MetadataStore, Versioned, Write
from bookwarden.metastore.urls import open_store
from bookwarden.metastore.write_conditions import ConditionalStore

T = TypeVar("T")


class MigratingStore(MetadataStore):
    """The source until a migration is COMPLETED, then the target; reads go on all the while, writes wait.

    Raises the errors of every store, and StoreMigratingError when a call has waited as long as it may. Reads that
    decide follow a `sync`, as ever: it reads the flag too. Versions of the target begin at 2**32, so that one read
    from the source before loses the race there. ``open_target`` makes the store of the flag's URL.
    """

    def __init__(
        self,
        source: ConditionalStore,
        *,
        open_target: Callable[[str], MetadataStore] = open_store,
        times: MigrationTimes | None = None,
    ) -> None:
        self._progress = MigrationProgress(source, TargetSession(open_target), times or MigrationTimes())
        self._follower = MigrationFollower(self._progress, self._move_watches)
        self._conditional = source.under(_Permission(self._progress))
        self._lock = threading.Lock()
        self._watches: list[_Watch] = []

    @property
    def state(self) -> ParticipantState:
        """The step of this process in a migration."""
        return self._progress.state

    @property
    def status(self) -> MigrationStatus:
        """The status of this process, with what it knows of the migration."""
        return self._progress.status

    @property
    def moved_to(self) -> str | None:
        """The URL of the target once the migration is COMPLETED, as far as this process knows; None before."""
        status = self._progress.status
        return status.target_url if status.state in MOVED else None

    def look(self) -> None:
        """Read the flag afresh; raise StoreError if that is not possible."""
        self._start()
        self._progress.refresh(time.monotonic())

    def await_writes(self) -> None:
        """Wait, as a write would, until no migration holds writes back; the flag may be some seconds old."""
        self._start()
        progress = self._progress
        began = time.monotonic()
        while True:
            with progress.changed:
                progress.require_open()
                if progress.state in STOPPED:
                    _wait_for_change(progress, began)
                    continue
                if progress.state not in FLAG_UNKNOWN:
                    return
            _refresh_flag(progress, began, time.monotonic())

    @property
    def participant(self) -> str | None:
        """The path of our node among the participants, while there is one."""
        return self._progress.own_node

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        return self._read(lambda store: store.get_many(paths))

    def list_children(self, path: str) -> list[str]:
        return self._read(lambda store: store.list_children(path))

    def list_many(self, paths: Sequence[str]) -> list[list[str]]:
        return self._read(lambda store: store.list_many(paths))

    def parents_among(self, paths: Sequence[str]) -> set[str]:
        return self._read(lambda store: store.parents_among(paths))

    def next_number(self, path: str) -> int:
        return self._read(lambda store: store.next_number(path))

    def sync(self) -> None:
        self._start()
        self._progress.refresh(time.monotonic())
        store = self._serving()
        if store is not self._progress.source:
            store.sync()

    def delete_many(
        self,
        expected: Sequence[tuple[str, int]],
        *,
        created_ms: Sequence[int] | None = None,
        conditions: Sequence[Conditions] | None = None,
    ) -> list[DeleteResult]:
        if not expected:
            return []
        results = self._write(lambda store: store.delete_many(expected, created_ms=created_ms, conditions=conditions))
        gone = (DeleteResult.DELETED, DeleteResult.ABSENT)
        self._progress.target.forget(
            [path for (path, _), result in zip(expected, results, strict=True) if result in gone]
        )
        return results

    def put(self, path: str, value: bytes, version: int) -> int:
        changed = self._write(lambda store: store.put(path, value, version))
        self._progress.target.replace(path, value)
        return changed

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        self._write(lambda store: store.create(path, value, make_parents=make_parents))

    def write_many(self, writes: Sequence[Write]) -> list[StoreError | None]:
        if not writes:
            return []
        results = self._write(lambda store: store.write_many(writes))
        for write, error in zip(writes, results, strict=True):
            if error is None and write.version is not None:
                self._progress.target.replace(write.path, write.value)
        return results

    def write_together(self, writes: Sequence[Write]) -> None:
        self._write(lambda store: store.write_together(writes))
        for write in writes:
            if write.version is not None:
                self._progress.target.replace(write.path, write.value)

    def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
        def make(store: MetadataStore) -> str:
            path = store.ephemeral_sequential(prefix, value)
            if store is self._conditional:
                self._progress.target.remember(path, prefix, value)
            return path

        return self._write(make)

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        watch = _Watch(path, changed)
        with self._lock:
            self._watches.append(watch)
        try:
            # A move meanwhile finds it in the list, and sets it again.
            watch.set_on(self._serving(), replace=False)
        except StoreError:
            self._drop(watch)
            raise
        return lambda: self._drop(watch)

    def follow_below(self, prefixes: Sequence[str]) -> ChangeFeed:
        return _MovingChanges(self._serving, prefixes)

    def close(self) -> None:
        with self._progress.changed:
            self._progress.closed = True
            self._progress.changed.notify_all()
        with self._lock:
            watches, self._watches = self._watches, []
        for watch in watches:
            watch.end()
        self._follower.close()

    def _start(self) -> None:
        self._progress.require_open()
        self._follower.start()

    def _read(self, call: Callable[[MetadataStore], T]) -> T:
        store = self._serving()
        try:
            return call(store)
        except StoreUnavailableError:
            # The source is closed when the target serves.
            now = self._serving()
            if now is store:
                raise
            return call(now)

    def _serving(self) -> MetadataStore:
        """Return the store for reads; raise StoreUnavailableError if it is not known in time."""
        self._start()
        progress = self._progress
        began = time.monotonic()
        while True:
            with progress.changed:
                progress.require_open()
                if progress.state is ParticipantState.SERVING_TARGET:
                    return self._target()
                if progress.state in MOVED:
                    _wait_for_change(progress, began)
                elif progress.state not in FLAG_UNKNOWN:
                    return progress.source
            _refresh_flag(progress, began, time.monotonic())

    def _target(self) -> MetadataStore:
        store = self._progress.target.store
        if store is None:
            raise StoreUnavailableError("this metadata store was closed")
        return store

    def _write(self, call: Callable[[MetadataStore], T]) -> T:
        self._start()
        progress = self._progress
        began = fresh_since = time.monotonic()
        while True:
            with progress.changed:
                progress.require_open()
                target = self._target() if progress.state is ParticipantState.SERVING_TARGET else None
                allowed = target is None and progress.may_write_source(fresh_since)
                progress.in_flight += allowed
            if target is not None:
                return call(target)
            if not allowed:
                fresh_since = _advance_to_writing(progress, began, fresh_since)
                continue
            try:
                return call(self._conditional)
            except StoreMigratingError:
                # Nothing was sent: it waits as a new call would.
                fresh_since = time.monotonic()
            finally:
                with progress.changed:
                    progress.in_flight -= 1
                    progress.changed.notify_all()

    def _move_watches(self, target: MetadataStore) -> None:
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.set_on(target, replace=True)

    def _drop(self, watch: _Watch) -> None:
        with self._lock:
            self._watches = [other for other in self._watches if other is not watch]
        watch.end()


@dataclass(frozen=True, slots=True)
class _Permission:
    """The conditions of each request of a write to the source: our node among the participants, the flag as read."""

    progress: MigrationProgress

    def current(self) -> Sequence[Condition]:
        """Return them, after a lost session once our next node is there; StoreMigratingError if it must not be sent."""
        progress = self.progress
        began = time.monotonic()
        fresh_since = began - progress.times.flag_max_age_s
        while True:
            with progress.changed:
                progress.require_open()
                if progress.may_write_source(fresh_since):
                    return progress.conditions()
                if progress.state not in BEFORE_WRITING | WRITING_SOURCE:
                    raise progress.migrating("no more is written")
            fresh_since = _advance_to_writing(progress, began, fresh_since)

    def failed(self, condition: Condition) -> None:
        progress = self.progress
        with progress.changed:
            if condition.path == progress.own_node:
                progress.own_node = None
                progress.tell(Event.OWN_NODE_GONE)
            else:
                progress.tell(Event.FLAG_IN_DOUBT)


class _MovingChanges(ChangeFeed):
    """Changes in the store that serves reads; when that becomes another one, there is a gap."""

    def __init__(self, serving: Callable[[], MetadataStore], prefixes: Sequence[str]) -> None:
        self._serving = serving
        self._prefixes = prefixes
        self._on = serving()
        self._feed = self._on.follow_below(prefixes)

    def take(self) -> ChangedNodes:
        store = self._serving()
        if store is self._on:
            return self._feed.take()
        before, self._feed = self._feed, store.follow_below(self._prefixes)
        self._on = store
        before.close()
        return ChangedNodes(self._feed.take().paths, "the metadata was moved to another store")

    def close(self) -> None:
        self._feed.close()


class _Watch:
    """One watched node, wherever the metadata is."""

    def __init__(self, path: str, changed: Callable[[str], None]) -> None:
        self._path = path
        self._changed = changed
        self._lock = threading.Lock()
        self._on: MetadataStore | None = None
        self._end: Callable[[], None] | None = None
        self._ended = False

    def set_on(self, store: MetadataStore, *, replace: bool) -> None:
        """Watch in this store; ``replace`` ends a watch on another and calls once, since the node may differ here."""
        with self._lock:
            if self._ended or self._on is store or (self._on is not None and not replace):
                return
            end, self._end = self._end, store.watch(self._path, self._changed)
            self._on = store
        if end is not None:
            end()
        if replace:
            # In a thread of its own, as every watch: one that raises ends no other.
            threading.Thread(target=self._changed, args=(self._path,), name=f"watch {self._path}", daemon=True).start()

    def end(self) -> None:
        with self._lock:
            self._ended = True
            end, self._end = self._end, None
        if end is not None:
            end()


def _advance_to_writing(progress: MigrationProgress, began: float, fresh_since: float) -> float:
    """Take, or wait for, the next step towards a write; return since when the flag has to be known."""
    with progress.changed:
        if progress.state is ParticipantState.READING:
            progress.tell(Event.WRITE_WANTED)
        if progress.state not in FLAG_UNKNOWN | WRITING_SOURCE:
            _wait_for_change(progress, began)
            return fresh_since
        if not progress.participation.knows_flag:
            fresh_since = time.monotonic()
    _refresh_flag(progress, began, fresh_since)
    return fresh_since


def _refresh_flag(progress: MigrationProgress, began: float, fresh_since: float) -> None:
    """Read the flag; raise StoreMigratingError if it has given no answer for too long."""
    progress.refresh(fresh_since)
    if progress.state in FLAG_UNKNOWN:
        if progress.flag.event is Event.FLAG_UNREADABLE:
            raise progress.migrating("its flag cannot be understood; look at it with a client of ZooKeeper")
        if time.monotonic() > began + progress.times.answer_wait_s:
            raise progress.migrating("its flag changes all the time")


def _wait_for_change(progress: MigrationProgress, began: float) -> None:
    """Wait for a change; raise the error that keeps us from registering, or StoreMigratingError in the end."""
    error = progress.error_since(began)
    if error is not None and progress.state in BEFORE_WRITING:
        kind = StoreAccessError if isinstance(error, StoreAccessError) else StoreUnavailableError
        raise kind(f"this process could not register for migrations of the metadata: {error}") from error
    longest_s = progress.longest_wait_s()
    left = began + longest_s - time.monotonic()
    if left <= 0 or not progress.changed.wait(left):
        raise progress.migrating(f"waited {longest_s:g} s" if longest_s else "nothing is written meanwhile", error)


class Migrations:
    """Status of this process with each store that Pulsar may move, by URL; other stores are passed over."""

    def __init__(self) -> None:
        self._stores: dict[str, MigratingStore] = {}

    def follow(self, url: str, store: MetadataStore) -> None:
        """Add a store, if it is one that Pulsar may move."""
        if isinstance(store, MigratingStore):
            self._stores[url] = store

    def look(self) -> None:
        """Read each flag afresh; raise StoreError where that is not possible."""
        for store in self._stores.values():
            store.look()

    def await_writes(self) -> None:
        """Wait, as a write would, until none of the stores is being moved; raises StoreMigratingError as one would."""
        for store in self._stores.values():
            store.await_writes()

    def statuses(self) -> dict[str, MigrationStatus]:
        """Return where each store stands, as far as this process knows."""
        return {url: store.status for url, store in self._stores.items()}

    def moved_to(self, url: str) -> str | None:
        """Return the store that the metadata of this one was moved to; None if it was not."""
        store = self._stores.get(url)
        return None if store is None else store.moved_to

    @property
    def stops(self) -> int:
        """The times that writes were stopped, in all stores: anything read before has to be read again."""
        return sum(status.stops for status in self.statuses().values())

    @property
    def blocked(self) -> str | None:
        """A description of a store that is being moved, so that it takes no writes; None if there is none."""
        return next((_described(url, at) for url, at in self.statuses().items() if at.blocked), None)


def _described(url: str, at: MigrationStatus) -> str:
    return f"the metadata of {url} is being moved to {at.target_url or 'another store'}: {at.phase}, {at.state.value}"
