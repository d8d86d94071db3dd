"""A metadata store in this process's memory: dry runs decide and act on a copy, and tests need no server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bookwarden.errors import FormatError, LostRaceError, NotFoundError, StoreUnavailableError
from bookwarden.ledgers.metadata import Conditions, DeleteResult
from bookwarden.metastore.changes import ChangedNodes, ChangeFeed, ChangeLog
from bookwarden.metastore.interface import CreateResult, NewNode, ScratchStore, Versioned, Write
from bookwarden.metastore.paths import ancestors, parent_of, validate_path, validate_paths


@dataclass(frozen=True, slots=True)
class _Watch:
    path: str
    changed: Callable[[str], None]


class _MemoryChanges(ChangeFeed):
    def __init__(self, log: ChangeLog, end: Callable[[ChangeLog], None]) -> None:
        self._log = log
        self._end = end

    def take(self) -> ChangedNodes:
        return self._log.take()

    def close(self) -> None:
        self._end(self._log)


class MemoryStore(ScratchStore):
    """Nodes in a dictionary; every change counts as committed and visible at once, and is dated by ``clock``."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._nodes: dict[str, Versioned] = {"/": Versioned(b"", 0, 0)}
        self._children: dict[str, set[str]] = {"/": set()}
        self._sequences: dict[str, int] = {}
        self._ephemerals: list[str] = []
        self._watches: list[_Watch] = []
        self._logs: tuple[ChangeLog, ...] = ()
        self._closed = False

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        with self._lock:
            self._require_open()
            return [self._nodes.get(validate_path(path)) for path in paths]

    def delete_many(
        self,
        expected: Sequence[tuple[str, int]],
        *,
        created_ms: Sequence[int] | None = None,
        conditions: Sequence[Conditions] | None = None,
    ) -> list[DeleteResult]:
        done: dict[tuple[str, int], DeleteResult] = {}
        with self._lock:
            self._require_open()
            for (path, version), demanded in zip(expected, conditions or [()] * len(expected), strict=True):
                if (path, version) not in done:
                    done[path, version] = self._delete(validate_path(path), version, demanded)
        deleted = [path for (path, _), result in done.items() if result is DeleteResult.DELETED]
        self._notify(deleted)
        return [done[pair] for pair in expected]

    def put(self, path: str, value: bytes, version: int) -> int:
        with self._lock:
            self._require_open()
            self._require_as_read(Write(path, value, version))
            self._replace(path, value)
        self._notify([path])
        return version + 1

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        created = [path]
        with self._lock:
            self._require_open()
            if validate_path(path) in self._nodes:
                raise LostRaceError(f"{path} exists already: read it again")
            if make_parents:
                missing = [parent for parent in ancestors(path) if parent not in self._nodes]
                for parent in missing:
                    self._add(parent, b"")
                created += missing
            self._add(path, value)
        self._notify(created)

    def write_together(self, writes: Sequence[Write]) -> None:
        written = []
        with self._lock:
            self._require_open()
            for write in writes:
                self._require_as_read(write)
            # Parents come first.
            for write in sorted(writes, key=lambda write: write.path.count("/")):
                if write.version is None:
                    for parent in (*ancestors(write.path), write.path):
                        if parent not in self._nodes:
                            self._add(parent, b"")
                            written.append(parent)
                    self._nodes[write.path] = self._nodes[write.path]._replace(value=write.value)
                else:
                    self._replace(write.path, write.value)
                    written.append(write.path)
        self._notify(written)

    def create_many(self, nodes: Sequence[NewNode]) -> list[CreateResult]:
        """Create nodes, each below one that is there; a result for each, in the order asked."""
        return [self._create_one(node) for node in nodes]

    def list_children(self, path: str) -> list[str]:
        with self._lock:
            self._require_open()
            children = self._children.get(validate_path(path))
            if children is None:
                raise NotFoundError(f"the metadata store has no node {path}")
            return sorted(children)

    def sync(self) -> None:
        with self._lock:
            self._require_open()

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        watch = _Watch(validate_path(path), changed)
        with self._lock:
            self._require_open()
            self._watches.append(watch)

        def end() -> None:
            with self._lock:
                self._watches = [other for other in self._watches if other is not watch]

        return end

    def follow_below(self, prefixes: Sequence[str]) -> ChangeFeed:
        log = ChangeLog(validate_paths(prefixes))
        with self._lock:
            self._require_open()
            self._logs = (*self._logs, log)
        return _MemoryChanges(log, self._end_log)

    def _end_log(self, log: ChangeLog) -> None:
        with self._lock:
            self._logs = tuple(other for other in self._logs if other is not log)

    def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
        with self._lock:
            self._require_open()
            parent = parent_of(prefix)
            number = self._sequences.get(parent, 0)
            path = f"{prefix}{number:010d}"
            self._add(path, value, ephemeral=True)
            self._sequences[parent] = number + 1
            self._ephemerals.append(path)
        self._notify([path])
        return path

    def next_number(self, path: str) -> int:
        with self._lock:
            self._require_open()
            if validate_path(path) not in self._nodes:
                raise NotFoundError(f"the metadata store has no node {path}")
            return self._sequences.get(path, 0)

    def close(self) -> None:
        with self._lock:
            gone = [path for path in self._ephemerals if path in self._nodes]
            for path in gone:
                self._remove(path)
            self._ephemerals.clear()
            self._closed = True
        self._notify(gone)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _create_one(self, node: NewNode) -> CreateResult:
        try:
            self.create(node.path, node.value)
        except FormatError:
            return CreateResult.BAD_NAME
        except LostRaceError:
            return CreateResult.EXISTS
        return CreateResult.CREATED

    def _require_as_read(self, write: Write) -> None:
        path, _, version = write
        node = self._nodes.get(validate_path(path))
        if version is None:
            if node is not None:
                raise LostRaceError(f"{path} exists already: read it again")
        elif node is None:
            raise LostRaceError(f"{path} was deleted since it was read: read it again")
        elif node.version != version:
            raise LostRaceError(f"{path} has version {node.version}, not {version}: read it again")

    def _replace(self, path: str, value: bytes) -> None:
        node = self._nodes[path]
        self._nodes[path] = node._replace(value=value, version=node.version + 1, modified_ms=self._now_ms())

    def _require_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError("this metadata store was closed")

    def _add(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        parent = parent_of(path)
        if parent not in self._nodes:
            raise NotFoundError(f"{path} cannot be created: the metadata store has no node {parent}")
        now = self._now_ms()
        self._nodes[path] = Versioned(value, 0, now, now, ephemeral=ephemeral)
        self._children[path] = set()
        self._children[parent].add(path.rpartition("/")[2])

    def _delete(self, path: str, version: int, conditions: Conditions) -> DeleteResult:
        seen = [self._nodes.get(condition.path) for condition in conditions]
        if any(now is None or now.version != then.version for now, then in zip(seen, conditions, strict=True)):
            return DeleteResult.LOST_RACE
        node = self._nodes.get(path)
        if node is None:
            return DeleteResult.ABSENT
        if node.version != version or self._children[path]:
            return DeleteResult.LOST_RACE
        self._remove(path)
        return DeleteResult.DELETED

    def _remove(self, path: str) -> None:
        del self._nodes[path]
        del self._children[path]
        self._children[parent_of(path)].discard(path.rpartition("/")[2])

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _notify(self, paths: Sequence[str]) -> None:
        with self._lock:
            calls = [watch for watch in self._watches if watch.path in paths]
            logs = self._logs
        for log in logs:
            log.add(paths)
        for watch in calls:
            watch.changed(watch.path)


_SHARED: dict[str, MemoryStore] = {}
_SHARED_LOCK = threading.Lock()


def shared_memory_store(name: str) -> MemoryStore:
    """Return this process's store of that name; one that was closed is replaced by an empty one."""
    with _SHARED_LOCK:
        store = _SHARED.get(name)
        if store is None or store.is_closed:
            store = _SHARED[name] = MemoryStore()
        return store
