"""Batches over a ZooKeeper session: how they are cut, and reading them with MultiRead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from bookwarden.errors import StoreAccessError, StoreError
from bookwarden.metastore import zookeeper_requests as wire
from bookwarden.metastore.zookeeper_session import (
    ACCESS_REFUSED_TEXT,
    Deadline,
    PendingReply,
    ReplyLost,
    ServerRefusal,
    ZooKeeperSession,
)

T = TypeVar("T")

# What frames, xid and headers take of a request besides its operations.
_REQUEST_MARGIN: Final = 1024


def split(items: Sequence[T], size: int, max_bytes: int, path_of: Callable[[T], str]) -> Iterator[list[T]]:
    """Cut into batches of at most ``size`` items whose request stays below ``max_bytes``."""
    budget = max_bytes - _REQUEST_MARGIN
    batch: list[T] = []
    used = 0
    for item in items:
        cost = len(path_of(item).encode("utf-8")) + wire.OPERATION_OVERHEAD
        if batch and (len(batch) >= size or used + cost > budget):
            yield batch
            batch, used = [], 0
        batch.append(item)
        used += cost
    if batch:
        yield batch


def halves(batch: list[T]) -> list[list[T]]:
    """Cut a batch whose connection broke in two: it may be more than the server takes at once."""
    middle = len(batch) // 2
    return [batch[:middle], batch[middle:]] if middle else [batch]


@dataclass(frozen=True, slots=True)
class _Read:
    paths: list[str]
    replies: list[PendingReply]
    is_multi: bool


class BatchReader:
    """Reads of many paths, several requests in flight.

    A server before 3.6 refuses MultiRead and ends the session with it; from then on this reader sends single
    reads.
    """

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._multi_read = session.connection.multi_read

    def read(self, paths: Sequence[str], deadline: Deadline) -> list[wire.Row | None]:
        """Read each absolute path; None where there is no node. Raises StoreAccessError if one may not be read."""
        rows = self._session.read_fresh(lambda: self._read_once(paths, deadline), deadline)
        return [_row_or_none(path, rows[path]) for path in paths]

    def _read_once(self, paths: Sequence[str], deadline: Deadline) -> dict[str, wire.Row | int]:
        settings = self._session.connection
        unique = list(dict.fromkeys(paths))
        queue = deque(split(unique, settings.batch_size, settings.max_request_bytes, str))
        window: deque[_Read] = deque()
        rows: dict[str, wire.Row | int] = {}
        while queue or window:
            while queue and len(window) < settings.in_flight:
                window.append(self._send(queue.popleft(), deadline))
            sent = window.popleft()
            found = self._receive(sent, deadline)
            if found is None:
                queue.extend(halves(sent.paths))
            else:
                rows.update(zip(sent.paths, found, strict=True))
                deadline.progress()
        return rows

    def _send(self, paths: list[str], deadline: Deadline) -> _Read:
        if self._multi_read:
            return _Read(paths, [self._session.send(wire.MultiRead(paths), deadline)], True)
        return _Read(paths, [self._session.send(wire.GetData(path), deadline) for path in paths], False)

    def _receive(self, sent: _Read, deadline: Deadline) -> list[wire.Row | int] | None:
        """Wait for the rows; None when they have to be asked for again."""
        try:
            if not sent.is_multi:
                return [_single_row(reply) for reply in sent.replies]
            rows: list[wire.Row | int] = sent.replies[0].get()
        except ReplyLost as lost:
            self._session.require_time(deadline, lost)
            return None
        except ServerRefusal as refusal:
            if refusal.code != wire.UNIMPLEMENTED:
                raise
            self._multi_read = False
            return None
        return rows


def _single_row(reply: PendingReply) -> wire.Row | int:
    try:
        row: wire.Row = reply.get()
    except ServerRefusal as refusal:
        if refusal.code != wire.NO_NODE:
            raise
        return wire.NO_NODE
    return row


def _row_or_none(path: str, row: wire.Row | int) -> wire.Row | None:
    if not isinstance(row, int):
        return row
    if row == wire.NO_NODE:
        return None
    if row == wire.NO_AUTH:
        raise StoreAccessError(f"{path} cannot be read: {ACCESS_REFUSED_TEXT}")
    raise StoreError(f"{path} cannot be read: ZooKeeper error {row}")
