"""ZooKeeper's transaction logs: the changes after a snapshot was begun, replayed on its nodes, one path at a time.

A snapshot is written while transactions go on, so it is the state of no one moment until those after its start are
replayed on it, as the server itself does when it starts. Replaying a change that the snapshot already has does
no harm. Format: persistence.FileTxnLog, util.SerializeUtils and the records of txn, ZooKeeper 3.6 to 3.9.

A path may be in the snapshot in any of its states since the snapshot was begun. A transaction that does not fit (a
node to create that exists, one to change that does not) has no effect, as in ZooKeeper.
Source: server.DataTree.processTxn, ZooKeeper 3.9.
"""

from __future__ import annotations

import logging
import mmap
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from bookwarden.errors import FormatError
from bookwarden.metastore.zookeeper.jute import JuteReader, damaged

_LOG = logging.getLogger(__name__)

_MAGIC: Final = b"ZKLG"
_END_OF_RECORD: Final = b"B"
_HEAD: Final = 12
_BLOCK: Final = 1 << 20
# An end mark and the bytes behind it: a checksum of four bytes in eight, and a length below 16 MiB.
_NEXT_RECORD: Final = re.compile(rb"B(?=\0{4}.{4}\0)", re.DOTALL)
_NAME: Final = re.compile(r"log\.([0-9a-f]{1,16})")

_CREATE, _DELETE, _SET_DATA, _SET_ACL, _CHECK, _MULTI, _CREATE2, _RECONFIG = 1, 2, 5, 7, 13, 14, 15, 16
_CREATE_CONTAINER, _DELETE_CONTAINER, _CREATE_TTL = 19, 20, 21
_CREATE_SESSION, _CLOSE_SESSION, _ERROR = -10, -11, -1
_DIGEST: Final = 12


@dataclass(frozen=True, slots=True)
class Created:
    """A node was created, unless it existed already. ``owner`` is its session, 0 for none."""

    path: str
    value: bytes
    owner: int = 0


@dataclass(frozen=True, slots=True)
class Replaced:
    """The value of a node was replaced."""

    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """A node was deleted."""

    path: str


@dataclass(frozen=True, slots=True)
class Closed:
    """A session was closed, and its ephemeral nodes went with it."""

    session: int


Change = Created | Replaced | Deleted | Closed


@dataclass(frozen=True, slots=True)
class Transaction:
    """Changes that were made together by a session, at the server's time in milliseconds."""

    zxid: int
    time_ms: int
    session: int
    changes: tuple[Change, ...]


def logs_after(folder: Path, after: int) -> list[Path]:
    """List the log that has the transaction behind the zxid ``after``, and all later ones, in their order."""
    found = ((_NAME.fullmatch(file.name), file) for file in folder.iterdir())
    logs = sorted((int(match[1], 16), file) for match, file in found if match)
    first = max((index for index, (zxid, _) in enumerate(logs) if zxid <= after + 1), default=0)
    return [file for _, file in logs[first:]]


def read_logs(logs: Sequence[Path], after: int) -> Iterator[Transaction]:
    """Read the transactions behind the zxid ``after``, without a gap, as far as the logs go.

    Later epochs are left out, since it cannot be seen whether the epoch before is complete; so is a half-written last
    record of the last log. Raises FormatError for anything else that is not whole, and for a gap.
    """
    expected = after + 1
    for file in logs:
        for transaction in _read(file, last=file == logs[-1]):
            zxid = transaction.zxid
            if zxid < expected:
                continue
            if zxid >> 32 != after >> 32:
                _LOG.info("%s: the epoch of the snapshot ends before 0x%x; read no further", file, zxid)
                return
            if zxid != expected:
                raise FormatError(
                    f"{file}: transaction 0x{zxid:x} comes where 0x{expected:x} is due: copy all logs of one server "
                    "from the snapshot's on, or take a newer snapshot"
                )
            expected = zxid + 1
            yield transaction


def _read(file: Path, *, last: bool) -> Iterator[Transaction]:
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        if size == 0 and last:
            return
        if size == 0:
            raise damaged(str(file), 0, "it is empty")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield from _records(data, str(file), last)


def _records(data: mmap.mmap, place: str, last: bool) -> Iterator[Transaction]:
    reader = JuteReader(data, place)
    reader.read_header(_MAGIC)
    seen = 0
    while reader.left:
        start = reader.offset
        if not any(data[start : start + _HEAD]):
            # The file is padded with zeros far ahead of what is written.
            if not _is_zero(data, start):
                raise reader.damaged("zeros stand before further records")
            return
        record = _record(reader)
        if record is None:
            reader.offset = start
            if not last or not _is_torn(data, start):
                raise reader.damaged("a transaction is not whole")
            _LOG.warning("%s: the last transaction was being written; all before 0x%x are read", place, seen + 1)
            return
        transaction = _transaction(JuteReader(record, place, base=start + _HEAD))
        seen = transaction.zxid
        yield transaction


def _record(reader: JuteReader) -> bytes | None:
    """Read the bytes of a transaction, checked by checksum and end mark; None if they are damaged."""
    if reader.left < _HEAD:
        return None
    checksum, size = reader.read_long(), reader.read_int()
    if not 0 < size < reader.left:
        return None
    record = reader.take(size)
    return record if reader.take(1) == _END_OF_RECORD and zlib.adler32(record) == checksum else None


def _is_torn(data: mmap.mmap, start: int) -> bool:
    """Return whether the record that begins here was never finished: at its end are zeros or nothing, and no record."""
    if len(data) - start < _HEAD:
        return True
    size = int.from_bytes(data[start + 8 : start + _HEAD], "big", signed=True)
    end = start + _HEAD + max(size, 0)
    if end < len(data) and not _is_zero(data, end):
        return False
    followers = (JuteReader(data, "", match.start() + 1) for match in _NEXT_RECORD.finditer(data, start))
    return all(_record(follower) is None for follower in followers)


def _is_zero(data: mmap.mmap, start: int) -> bool:
    return not any(data[at : at + _BLOCK].strip(b"\0") for at in range(start, len(data), _BLOCK))


def _transaction(reader: JuteReader) -> Transaction:
    client = reader.read_long()
    reader.read_int()
    zxid, time_ms, kind = reader.read_long(), reader.read_long(), reader.read_int()
    if zxid < 0:
        raise reader.damaged(f"a transaction has the number {zxid}")
    changes = tuple(_changes(kind, reader, client))
    if reader.left not in (0, _DIGEST):
        raise reader.damaged(f"a transaction of type {kind} has {reader.left} bytes too many")
    return Transaction(zxid, time_ms, client, changes)


def _changes(kind: int, reader: JuteReader, client: int) -> Iterator[Change]:
    if kind == _MULTI:
        yield from _multi(reader, client)
    elif kind == _CLOSE_SESSION:
        # Some servers name the paths of the session's nodes as well.
        reader.offset += reader.left
        yield Closed(client)
    elif kind in (_CREATE_SESSION, _ERROR):
        reader.read_int()
    else:
        change = _change(kind, reader, client)
        if change is not None:
            yield change


def _multi(reader: JuteReader, client: int) -> Iterator[Change]:
    parts = [(reader.read_int(), reader.read_value(), reader.offset) for _ in reader.each()]
    if any(kind == _ERROR for kind, _, _ in parts):
        return
    for kind, value, end in parts:
        part = JuteReader(value, reader.place, base=reader.base + end - len(value))
        change = _change(kind, part, client)
        if part.left:
            raise part.damaged(f"a part of type {kind} has {part.left} bytes too many")
        if change is not None:
            yield change


def _change(kind: int, reader: JuteReader, client: int) -> Change | None:
    """Read the change of one operation; None if it changes no value."""
    if kind in (_CREATE, _CREATE2, _CREATE_TTL, _CREATE_CONTAINER):
        return _created(kind, reader, client)
    path = reader.read_text()
    if kind in (_DELETE, _DELETE_CONTAINER):
        return Deleted(path)
    if kind in (_SET_DATA, _RECONFIG):
        # The root has another name in a snapshot.
        return Replaced(path.rstrip("/"), reader.read_value(), reader.read_int())
    if kind == _SET_ACL:
        reader.skip_access_rules()
    elif kind != _CHECK:
        raise reader.damaged(f"a transaction has the type {kind}, which ZooKeeper 3.6 to 3.9 do not have")
    reader.read_int()
    return None


def _created(kind: int, reader: JuteReader, client: int) -> Created:
    path, value = reader.read_text(), reader.read_value()
    reader.skip_access_rules()
    owner = client if kind in (_CREATE, _CREATE2) and reader.read_boolean() else 0
    reader.read_int()
    if kind == _CREATE_TTL:
        reader.read_long()
    return Created(path, value, owner)


class SnapshotNode(NamedTuple):
    """A node of a snapshot; times in milliseconds by the server's clock; ``owner`` is its session, 0 for none."""

    value: bytes
    version: int
    created_ms: int
    modified_ms: int
    owner: int = 0


class Replay:
    """The transactions since a snapshot was begun, in memory, by path."""

    def __init__(self, transactions: Iterable[Transaction] = ()) -> None:
        self._changes: dict[str, list[tuple[Transaction, Change]]] = {}
        self._closed: dict[int, int] = {}
        self.last_zxid: int | None = None
        self.latest_ms = 0
        for transaction in transactions:
            self.last_zxid = transaction.zxid
            self.latest_ms = max(self.latest_ms, transaction.time_ms)
            for change in transaction.changes:
                self._note(transaction, change)

    def _note(self, transaction: Transaction, change: Change) -> None:
        if isinstance(change, Closed):
            self._closed[change.session] = transaction.zxid
            return
        changes = self._changes.setdefault(change.path, [])
        if isinstance(change, Deleted):
            # Earlier changes no longer matter.
            changes.clear()
        elif isinstance(change, Replaced) and changes and isinstance(changes[-1][1], Replaced):
            changes.pop()
        changes.append((transaction, change))

    @property
    def paths(self) -> Set[str]:
        """The paths that were changed."""
        return self._changes.keys()

    @property
    def closed(self) -> Set[int]:
        """The sessions that were closed: their nodes are gone, whether a transaction names them or not."""
        return self._closed.keys()

    def resolve(self, path: str, node: SnapshotNode | None) -> SnapshotNode | None:
        """Return the node as the transactions left it; ``node`` is None where the snapshot has none."""
        for transaction, change in self._changes.get(path, ()):
            node = self._applied(transaction, change, node)
        return None if node is not None and node.owner in self._closed else node

    def _applied(self, transaction: Transaction, change: Change, node: SnapshotNode | None) -> SnapshotNode | None:
        if isinstance(change, Deleted):
            return None
        if isinstance(change, Created):
            if node is not None and self._closed.get(node.owner, transaction.zxid) >= transaction.zxid:
                return node
            return SnapshotNode(change.value, 0, transaction.time_ms, transaction.time_ms, change.owner)
        if isinstance(change, Replaced) and node is not None:
            return node._replace(value=change.value, version=change.version, modified_ms=transaction.time_ms)
        return node
