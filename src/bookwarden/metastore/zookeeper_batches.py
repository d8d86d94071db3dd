"""Reads over a ZooKeeper session, in batches with MultiRead."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bookwarden.errors import StoreAccessError, StoreError
from bookwarden.metastore import zookeeper_requests as wire
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.request_batches import OPERATION_OVERHEAD, REQUEST_MARGIN, halves, split
from bookwarden.metastore.zookeeper_session import (
    ACCESS_REFUSED_TEXT,
    PendingReply,
    ReplyLost,
    ServerRefusal,
    ZooKeeperSession,
)

Row = Versioned | int

_MOST_BYTES_OF_CHARACTER: Final = 4

# Nodes as small as a ledger's metadata are read so many batches at once: half of what they cost is the request's.
_SMALL_NODE_BYTES: Final = 1024
_BATCHES_OF_SMALL_NODES: Final = 5


def _first_batch(paths: list[str], size: int, max_bytes: int) -> list[str]:
    """Cut the first batch off as split does, without a look at each path where they are all short."""
    batch = paths[:size]
    most = (max(map(len, batch)) * _MOST_BYTES_OF_CHARACTER + OPERATION_OVERHEAD) * len(batch)
    return batch if most <= max_bytes - REQUEST_MARGIN else next(split(batch, size, max_bytes, str))


@dataclass(frozen=True, slots=True)
class _Read:
    paths: list[str]
    replies: list[PendingReply]
    request: wire.MultiRead | None

    @property
    def is_small(self) -> bool:
        """Whether the answer was one of small nodes."""
        size = self.request.reply_bytes if self.request else 0
        return 0 < size <= len(self.paths) * _SMALL_NODE_BYTES


class BatchReader:
    """Reads of many paths, several requests in flight.

    A server before 3.6 refuses MultiRead and ends the session with it; from then on this reader sends single
    reads.
    """

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._multi_read = session.connection.multi_read

    def read(self, paths: Sequence[str], deadline: Deadline) -> list[Versioned | None]:
        """Read each absolute path; None where there is no node. Raises StoreAccessError if one may not be read."""
        rows = self._session.read_fresh(lambda: self._read_once(paths, deadline), deadline)
        return [row if isinstance(row := rows[path], Versioned) else _absent(path, row) for path in paths]

    def _read_once(self, paths: Sequence[str], deadline: Deadline) -> dict[str, Row]:
        settings = self._session.connection
        left = list(dict.fromkeys(paths))
        most_nodes = self._session.pace.most_nodes
        size, begin = most_nodes(settings.batch_size), 0
        again: deque[list[str]] = deque()
        window: deque[_Read] = deque()
        rows: dict[str, Row] = {}
        while begin < len(left) or again or window:
            while len(window) < settings.in_flight and (again or begin < len(left)):
                if again:
                    batch = again.popleft()
                else:
                    batch = _first_batch(left[begin : begin + size], size, settings.max_request_bytes)
                    begin += len(batch)
                window.append(self._send(batch, deadline))
            sent = window.popleft()
            found = self._receive(sent, deadline)
            if found is None:
                again.extend(halves(sent.paths))
            else:
                rows.update(zip(sent.paths, found, strict=True))
                size = most_nodes(settings.batch_size * (_BATCHES_OF_SMALL_NODES if sent.is_small else 1))
                deadline.progress()
        return rows

    def _send(self, paths: list[str], deadline: Deadline) -> _Read:
        if self._multi_read:
            request = wire.MultiRead(paths)
            return _Read(paths, [self._session.send(request, deadline)], request)
        return _Read(paths, [self._session.send(wire.GetData(path), deadline) for path in paths], None)

    def _receive(self, sent: _Read, deadline: Deadline) -> list[Row] | None:
        """Wait for the rows; None when they have to be asked for again."""
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
    """Say that there is no node, unless the code tells something else."""
    if code == wire.NO_NODE:
        return None
    if code == wire.NO_AUTH:
        raise StoreAccessError(f"{path} cannot be read: {ACCESS_REFUSED_TEXT}")
    raise StoreError(f"{path} cannot be read: ZooKeeper error {code}")
