"""The metadata store on ZooKeeper.

Changes of whole trees come from persistent recursive watches (servers from 3.6 on). They are the connection's: one that
broke has lost them, even if its session goes on, and no event reports what changed until they are set again.
"""

from __future__ import annotations

import copy
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from kazoo.protocol.serialization import Exists

from bookwarden.errors import (
    LostRaceError,
    NotFoundError,
    OutcomeUnknownError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
)
from bookwarden.ledgers.metadata import Condition, Conditions, DeleteResult
from bookwarden.metastore.changes import ChangedNodes, ChangeFeed, ChangeLog
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.doomed_nodes import DoomedNode, runs
from bookwarden.metastore.interface import Versioned, Write
from bookwarden.metastore.paths import ancestors, parent_of, validate_path, validate_paths
from bookwarden.metastore.write_conditions import ConditionalStore, NoConditions, WriteConditions
from bookwarden.metastore.zookeeper import requests as wire
from bookwarden.metastore.zookeeper.access import NodeAccess, validate_acl
from bookwarden.metastore.zookeeper.batches import BatchReader, ConditionalMulti
from bookwarden.metastore.zookeeper.deletes import ZooKeeperBatchDelete
from bookwarden.metastore.zookeeper.session import (
    ACCESS_REFUSED_TEXT,
    PendingReply,
    ReplyLost,
    ServerRefusal,
    ZooKeeperConnection,
    ZooKeeperSession,
)

_LOG = logging.getLogger(__name__)
_NOT_KNOWN = "this ZooKeeper, older than 3.6, reports no changes below a node"
_IN_FLIGHT: Final = 64


class TreeChanges(ChangeFeed):
    """Changes below some nodes; a server without such watches reports a gap instead."""

    def __init__(self, session: ZooKeeperSession, prefixes: Sequence[str]) -> None:
        self._session = session
        self._prefixes = prefixes
        self._log = ChangeLog(prefixes)
        self._lock = threading.Lock()
        self._watched: int | None = None
        self._refused = False

    def start(self) -> None:
        """Set the watches; raise when there is no connection."""
        self._session.listen(self._note)
        try:
            with self._lock:
                self._watch()
        except BaseException:
            self.close()
            raise

    def take(self) -> ChangedNodes:
        with self._lock:
            if not self._refused and self._watched != self._session.breaks:
                self._watch()
                self._log.lose("the connection to ZooKeeper broke, and its watches were lost")
            return ChangedNodes(frozenset(), _NOT_KNOWN, unwatched=True) if self._refused else self._log.take()

    def close(self) -> None:
        self._session.forget(self._note)

    def _note(self, path: str) -> None:
        self._log.add((path,))

    def _watch(self) -> None:
        deadline = self._session.deadline()
        while self._watched != self._session.breaks or self._watched is None:
            # A connection that breaks meanwhile may take a watch with it that was just confirmed.
            breaks = self._session.breaks
            try:
                for prefix in self._prefixes:
                    self._session.read(wire.AddWatch(self._session.absolute(prefix)), deadline)
            except ServerRefusal as refusal:
                if refusal.code != wire.UNIMPLEMENTED:
                    raise
                self._refused = True
                return
            self._watched = breaks


def list_many(session: ZooKeeperSession, paths: Sequence[str], deadline: Deadline) -> list[list[str]]:
    """List the children of each absolute path, sorted; an empty list where there is no such node."""
    return session.read_fresh(lambda: _list_once(session, paths, deadline), deadline)


def _list_once(session: ZooKeeperSession, paths: Sequence[str], deadline: Deadline) -> list[list[str]]:
    window: deque[tuple[str, PendingReply]] = deque()
    found: list[list[str]] = []
    for path in paths:
        window.append((path, session.send(wire.GetChildren(path), deadline)))
        if len(window) >= _IN_FLIGHT:
            found.append(_children(session, *window.popleft(), deadline))
    found += [_children(session, *sent, deadline) for sent in window]
    return found


def _children(session: ZooKeeperSession, path: str, reply: PendingReply, deadline: Deadline) -> list[str]:
    try:
        try:
            names: list[str] = reply.get()
        except ReplyLost as lost:
            session.require_time(deadline, lost)
            names = session.read(wire.GetChildren(path), deadline)
    except ServerRefusal as refusal:
        if refusal.code != wire.NO_NODE:
            raise
        return []
    deadline.progress()
    return sorted(names)


_WRITE_OVERHEAD: Final = 2048


class _WrittenTogether(NamedTuple):
    """A multi that is under way, with what it writes."""

    writes: list[Write]
    request: ConditionalMulti
    reply: PendingReply


class ZooKeeperStore(ConditionalStore):
    """A metadata store over one ZooKeeper session, which begins with the first call.

    Make it in the process that uses it: a session does not survive a fork.
    """

    def __init__(self, connection: ZooKeeperConnection) -> None:
        validate_acl(connection.acl)
        self._session = ZooKeeperSession(connection)
        self._reader = BatchReader(self._session)
        self._access = NodeAccess(self._session)
        self._conditions: WriteConditions = NoConditions()

    def under(self, conditions: WriteConditions) -> ZooKeeperStore:
        view = copy.copy(self)
        view._conditions = conditions
        return view

    @property
    def sessions_lost(self) -> int:
        return self._session.sessions_lost

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        if not paths:
            return []
        absolute = self._session.absolute_many(validate_paths(paths))
        return self._reader.read(absolute, self._session.deadline())

    def delete_many(
        self,
        expected: Sequence[tuple[str, int]],
        *,
        created_ms: Sequence[int] | None = None,
        conditions: Sequence[Conditions] | None = None,
    ) -> list[DeleteResult]:
        paths = self._session.absolute_many(validate_paths([path for path, _ in expected]))
        versions = [version for _, version in expected]
        times: Sequence[int | None] = created_ms if created_ms is not None else [None] * len(expected)
        demanded = [self._demanded(some) for some in conditions] if conditions is not None else [()] * len(expected)
        targets = [
            DoomedNode(path, version, created, some)
            for path, version, created, some in zip(paths, versions, times, demanded, strict=True)
        ]
        results: dict[tuple[str, int], DeleteResult] = {}
        for run in runs(targets):
            settled = ZooKeeperBatchDelete(self._session, self._reader, self._conditions).run(list(run.values()))
            results |= {(path, run[path].version): result for path, result in settled.items()}
        return [results[target] for target in zip(paths, versions, strict=True)]

    def put(self, path: str, value: bytes, version: int) -> int:
        operation = wire.set_operation(self._absolute(path), value, version)
        (result,) = self._write(path, operation)
        if isinstance(result, tuple):
            return int(result[0])
        if result in (wire.NO_NODE, wire.BAD_VERSION):
            what = "was deleted" if result == wire.NO_NODE else f"no longer has version {version}"
            raise LostRaceError(f"{path} {what}: read it again")
        raise _refused(path, result)

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        try:
            self._create(path, value)
        except NotFoundError:
            if not make_parents:
                raise
            for parent in ancestors(path):
                self._create_parent(parent)
            self._create(path, value)

    def write_many(self, writes: Sequence[Write]) -> list[StoreError | None]:
        deadline = self._session.deadline()
        self._create_parents(writes)
        window: deque[_WrittenTogether] = deque()
        results: list[StoreError | None] = []
        try:
            for batch in self._batches(writes):
                if len(window) >= self._session.connection.in_flight:
                    results += self._results_of(window.popleft(), deadline)
                operations = [operation for _, operation in batch]
                request = ConditionalMulti(operations, self._conditions, self._session.absolute)
                reply = self._session.send(request, deadline)
                window.append(_WrittenTogether([write for write, _ in batch], request, reply))
            while window:
                results += self._results_of(window.popleft(), deadline)
        finally:
            for each in window:
                each.request.withdraw()
        return results

    def write_together(self, writes: Sequence[Write]) -> None:
        if not writes:
            return
        own = {write.path for write in writes}
        self._create_parents([write for write in writes if parent_of(write.path) not in own])
        # In one transaction parents come first, whatever the order.
        in_order = sorted(writes, key=lambda write: write.path.count("/"))
        operations = [self._operation(write) for write in in_order]
        what = in_order[0].path if len(in_order) == 1 else f"{in_order[0].path} and {len(in_order) - 1} nodes with it"
        results = self._write(what, *operations)
        failed = wire.failed_at(results)
        if failed is not None:
            raise _not_written(in_order[failed], results[failed])

    def _create_parents(self, writes: Sequence[Write]) -> None:
        parents = list(dict.fromkeys(parent_of(write.path) for write in writes if write.version is None))
        for parent, node in zip(parents, self.get_many(parents), strict=True):
            if node is None:
                for missing in (*ancestors(parent), parent):
                    self._create_parent(missing)

    def _batches(self, writes: Sequence[Write]) -> Iterator[list[tuple[Write, bytes]]]:
        """Cut into what the servers take at once, each with its operation."""
        most = self._session.pace.most_nodes(self._session.connection.batch_size)
        limit = self._session.connection.max_request_bytes - _WRITE_OVERHEAD
        batch: list[tuple[Write, bytes]] = []
        size = 0
        for write in writes:
            operation = self._operation(write)
            self._require_size(write.path, operation)
            if batch and (len(batch) >= most or size + len(operation) > limit):
                yield batch
                batch, size = [], 0
            batch.append((write, operation))
            size += len(operation)
        if batch:
            yield batch

    def _results_of(self, sent: _WrittenTogether, deadline: Deadline) -> list[StoreError | None]:
        """Wait for one multi, which is all or nothing; write what was not done by that one by one."""
        try:
            answer = sent.request.results_of(sent.reply.get())
            deadline.progress()
        except ReplyLost:
            if not sent.request.withdraw():
                return [_in_doubt(write.path) for write in sent.writes]
            answer = None
        if answer is not None and wire.failed_at(answer) is None:
            return [None] * len(sent.writes)
        # By itself each is tried as long as there is time, and its error is returned.
        return list(map(self._written, sent.writes))

    def _operation(self, write: Write) -> bytes:
        path = self._absolute(write.path)
        if write.version is None:
            return wire.create_operation(path, write.value, self._access.rules_of_new(write.path))
        return wire.set_operation(path, write.value, write.version)

    def list_children(self, path: str) -> list[str]:
        deadline = self._session.deadline()
        request = wire.GetChildren(self._absolute(path))
        try:
            return sorted(self._session.read_fresh(lambda: self._session.read(request, deadline), deadline))
        except ServerRefusal as refusal:
            if refusal.code != wire.NO_NODE:
                raise
            raise NotFoundError(f"the metadata store has no node {path}") from refusal

    def list_many(self, paths: Sequence[str]) -> list[list[str]]:
        if not paths:
            return []
        absolute = self._session.absolute_many(validate_paths(paths))
        return list_many(self._session, absolute, self._session.deadline())

    def sync(self) -> None:
        self._session.sync(self._session.deadline())

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        watch = _Watch(self._session, validate_path(path), changed)
        watch.start()
        return watch.end

    def follow_below(self, prefixes: Sequence[str]) -> ChangeFeed:
        feed = TreeChanges(self._session, validate_paths(prefixes))
        feed.start()
        return feed

    def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
        validate_path(prefix + "0")
        absolute = self._session.absolute(prefix)
        operation = wire.create_operation(absolute, value, self._access.rules_of_new(prefix), wire.EPHEMERAL_SEQUENTIAL)
        (result,) = self._write(prefix, operation)
        if isinstance(result, str):
            return result.removeprefix(self._session.connection.chroot.rstrip("/"))
        if result == wire.NO_NODE:
            raise NotFoundError(f"{prefix} cannot be created: the metadata store has no node {parent_of(prefix)}")
        raise _refused(prefix, result)

    def next_number(self, path: str) -> int:
        """Return the number of the next sequential node directly below; NotFoundError if there is no such node.

        Source: DataNode.copyStat of ZooKeeper 3.9, where cversion is twice the nodes ever created there, less the
        present ones.
        """
        deadline = self._session.deadline()
        request = Exists(self._absolute(path), None)
        stat = self._session.read_fresh(lambda: self._session.read(request, deadline), deadline)
        if stat is None:
            raise NotFoundError(f"the metadata store has no node {path}")
        return int(stat.cversion + stat.numChildren) // 2

    def close(self) -> None:
        self._session.close()

    def _demanded(self, conditions: Conditions) -> tuple[Condition, ...]:
        return tuple([Condition(self._absolute(path), version) for path, version in conditions])

    def _absolute(self, path: str) -> str:
        return self._session.absolute(validate_path(path))

    def _create_parent(self, path: str) -> None:
        try:
            self._create(path, b"")
        except LostRaceError:
            _LOG.debug("%s exists already", path)

    def _create(self, path: str, value: bytes) -> None:
        absolute = self._absolute(path)
        (result,) = self._write(path, wire.create_operation(absolute, value, self._access.rules_of_new(path)))
        if isinstance(result, str):
            return
        if result == wire.NODE_EXISTS:
            raise LostRaceError(f"{path} exists already: read it again")
        if result == wire.NO_NODE:
            raise NotFoundError(f"{path} cannot be created: the metadata store has no node {parent_of(path)}")
        raise _refused(path, result)

    def _require_size(self, path: str, *operations: bytes) -> None:
        limit = self._session.connection.max_request_bytes - _WRITE_OVERHEAD
        size = sum(map(len, operations))
        if size > limit:
            raise StoreError(
                f"{path} cannot be written: {size:,} bytes are more than the {limit:,} that the servers take "
                "at once; raise jute.maxbuffer there, and here metadata_store.jute_maxbuffer"
            )

    def _write(self, path: str, *operations: bytes) -> list[Any]:
        """Send a change as a multi, which can be withdrawn when no caller waits for it any more."""
        self._require_size(path, *operations)
        deadline = self._session.deadline()
        while True:
            request = ConditionalMulti(operations, self._conditions, self._session.absolute)
            reply = self._session.send(request, deadline)
            try:
                results = request.results_of(reply.get())
            except ReplyLost as lost:
                if not request.withdraw():
                    raise _in_doubt(path) from lost
                self._session.require_time(deadline, lost)
            else:
                if results is not None:
                    return results


class _Watch:
    """One watched node, with a thread of its own: a watcher that raises ends its watch only.

    ZooKeeper's watches fire once. The next is set before `changed` is called, so that nothing falls between.
    """

    def __init__(self, session: ZooKeeperSession, path: str, changed: Callable[[str], None]) -> None:
        self._session = session
        self._path = path
        self._changed = changed
        self._ended = False
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._follow, name=f"watch {path}", daemon=True)

    def start(self) -> None:
        """Set the first watch; raise when there is no connection."""
        self._session.watch_next(self._path, self._events.put, self._session.deadline())
        self._thread.start()

    def end(self) -> None:
        """Stop calling `changed`; a call under way goes on."""
        self._ended = True
        self._events.put(None)

    def _follow(self) -> None:
        while True:
            self._events.get()
            if not self._set_again():
                return
            self._changed(self._path)

    def _set_again(self) -> bool:
        while not (self._ended or self._session.is_closed):
            try:
                self._session.watch_next(self._path, self._events.put, self._session.deadline())
            except StoreUnavailableError as error:
                _LOG.warning("the watch of %s waits: %s", self._path, error)
            else:
                return not self._ended
        return False


def _in_doubt(path: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"the connection to the metadata store broke while {path} was written: read it before retrying"
    )


def _not_written(write: Write, code: int) -> StoreError | NotFoundError:
    """Return the error for the write of a transaction that the servers refused."""
    if code == wire.NODE_EXISTS:
        return LostRaceError(f"{write.path} exists already: read it again")
    if code == wire.BAD_VERSION or (code == wire.NO_NODE and write.version is not None):
        what = "was deleted" if code == wire.NO_NODE else f"no longer has version {write.version}"
        return LostRaceError(f"{write.path} {what}: read it again")
    if code == wire.NO_NODE:
        parent = parent_of(write.path)
        return NotFoundError(f"{write.path} cannot be created: the metadata store has no node {parent}")
    return _refused(write.path, code)


def _refused(path: str, code: int) -> StoreError:
    if code in (wire.NO_AUTH, wire.INVALID_ACL):
        return StoreAccessError(f"{path} cannot be written: {ACCESS_REFUSED_TEXT}")
    return StoreError(f"{path} cannot be written: ZooKeeper error {code}")
