"""Batches over a ZooKeeper session: reads with MultiRead, and multis that happen only under conditions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bookwarden.errors import StoreAccessError, StoreError
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.request_batches import first_batch, halves
from bookwarden.metastore.write_conditions import WriteConditions
from bookwarden.metastore.zookeeper import requests as wire
from bookwarden.metastore.zookeeper.session import (
    ACCESS_REFUSED_TEXT,
    PendingReply,
    ReplyLost,
    ServerRefusal,
    ZooKeeperSession,
)


class ConditionalMulti(wire.Multi):
    """A multi that has the present conditions before its operations.

    Making one raises the conditions' error when nothing may be written. ``absolute`` puts the chroot before a path.
    """

    def __init__(
        self, operations: Sequence[bytes], conditions: WriteConditions, absolute: Callable[[str], str]
    ) -> None:
        self._conditions = conditions
        self._demanded = conditions.current()
        checks = [wire.check_operation(absolute(path), version) for path, version in self._demanded]
        super().__init__([*checks, *operations])

    def results_of(self, results: list[Any]) -> list[Any] | None:
        """Leave out the results of the conditions; None when one of them failed, so that nothing was changed."""
        failed = wire.failed_at(results)
        if failed is not None and failed < len(self._demanded):
            self._conditions.failed(self._demanded[failed])
            return None
        return results[len(self._demanded) :]


Row = Versioned | int

# The number of batches of nodes as small as a ledger's metadata make one request: half of their cost is the request's.
_SMALL_NODE_BYTES: Final = 1024
_BATCHES_OF_SMALL_NODES: Final = 5


@dataclass(frozen=True, slots=True)
class _Read:
    paths: list[str]
    replies: list[PendingReply]
    request: wire.MultiRead | None

    @property
    def is_small(self) -> bool:
        """True if the answer had small nodes only."""
        size = self.request.reply_bytes if self.request else 0
        return 0 < size <= len(self.paths) * _SMALL_NODE_BYTES


class BatchReader:
    """Reads of many paths, several requests in flight.

    A server before 3.6 refuses MultiRead and ends the session; from then on this reader sends single reads.
    """

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._multi_read = session.connection.multi_read
        self._is_small: dict[str, bool] = {}

    def read(self, paths: Sequence[str], deadline: Deadline) -> list[Versioned | None]:
        """Read each absolute path; None where there is no node. Raises StoreAccessError if one may not be read."""
        if not paths:
            return []
        rows = self._session.read_fresh(lambda: self._read_once(paths, deadline), deadline)
        return [row if isinstance(row := rows[path], Versioned) else _absent(path, row) for path in paths]

    def _read_once(self, paths: Sequence[str], deadline: Deadline) -> dict[str, Row]:
        settings = self._session.connection
        left = list(dict.fromkeys(paths))
        kind, begin = self._kind_of(left), 0
        size = self._batch_size(kind)
        again: deque[list[str]] = deque()
        window: deque[_Read] = deque()
        rows: dict[str, Row] = {}
        while begin < len(left) or again or window:
            while len(window) < settings.in_flight and (again or begin < len(left)):
                if again:
                    batch = again.popleft()
                else:
                    batch = first_batch(left[begin : begin + size], settings.max_request_bytes, str)
                    begin += len(batch)
                window.append(self._send(batch, deadline))
            sent = window.popleft()
            found = self._receive(sent, deadline)
            if found is None:
                again.extend(halves(sent.paths))
            else:
                rows.update(zip(sent.paths, found, strict=True))
                self._is_small[kind] = sent.is_small
                size = self._batch_size(kind)
                deadline.progress()
        return rows

    def _kind_of(self, paths: Sequence[str]) -> str:
        """Return the top node above the first: ledgers are below one, managed ledgers below another."""
        chroot = self._session.connection.chroot.rstrip("/")
        return paths[0].removeprefix(chroot).lstrip("/").partition("/")[0]

    def _batch_size(self, kind: str) -> int:
        """Return how many nodes to read at once, by the size of this kind's nodes in the last answer."""
        batches = _BATCHES_OF_SMALL_NODES if self._is_small.get(kind, False) else 1
        return self._session.pace.most_nodes(self._session.connection.batch_size * batches)

    def _send(self, paths: list[str], deadline: Deadline) -> _Read:
        if self._multi_read:
            request = wire.MultiRead(paths)
            return _Read(paths, [self._session.send(request, deadline)], request)
        return _Read(paths, [self._session.send(wire.GetData(path), deadline) for path in paths], None)

    def _receive(self, sent: _Read, deadline: Deadline) -> list[Row] | None:
        """Wait for the rows; None if the request has to be repeated."""
        try:
            if sent.request is None:
                return [_single_row(reply) for reply in sent.replies]
            rows: list[Row] = sent.replies[0].get()
        except ReplyLost as lost:
            self._session.require_time(deadline, lost)
            return None
        except ServerRefusal as refusal:
            if refusal.code != wire.UNIMPLEMENTED:
                raise
            self._multi_read = False
            return None
        return rows


def _single_row(reply: PendingReply) -> Row:
    try:
        row: Versioned = reply.get()
    except ServerRefusal as refusal:
        if refusal.code != wire.NO_NODE:
            raise
        return wire.NO_NODE
    return row


def _absent(path: str, code: int) -> Versioned | None:
    """Return None for an absent node; raise where the code means something else."""
    if code == wire.NO_NODE:
        return None
    if code == wire.NO_AUTH:
        raise StoreAccessError(f"{path} cannot be read: {ACCESS_REFUSED_TEXT}")
    raise StoreError(f"{path} cannot be read: ZooKeeper error {code}")
