"""Requests that kazoo has no class for, in the shape that its connection expects.

Format: ZooKeeper's jute (zookeeper.jute, MultiOperationRecord, MultiResponse in ZooKeeper 3.9). A request is a
sequence of operations, each behind a header (int type, bool done, int error), closed by a header with done = 1.
Everything is encoded when the request is made: an error then hits the caller, not kazoo's connection thread.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.zookeeper.jute import is_of_session

MULTI_READ: Final = 22
MULTI: Final = 14
CREATE: Final = 1
DELETE: Final = 2
GET_DATA: Final = 4
SET_DATA: Final = 5
GET_CHILDREN: Final = 8
CHECK: Final = 13
ADD_WATCH: Final = 106

OK: Final = 0
ROLLED_BACK: Final = -2
UNIMPLEMENTED: Final = -6
NO_NODE: Final = -101
NO_AUTH: Final = -102
BAD_VERSION: Final = -103
NODE_EXISTS: Final = -110
NOT_EMPTY: Final = -111
INVALID_ACL: Final = -114

EPHEMERAL_SEQUENTIAL: Final = 3
_PERSISTENT_RECURSIVE: Final = 1

_HEADER = struct.Struct("!iBi")
_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
# The fields of it that reads need: times of creation and change, version, owner, number of children.
_READ_STAT = struct.Struct("!16xqqi8xq4xi8x")
_ROW_BEGIN = struct.Struct("!iBii")
_END = _HEADER.pack(-1, 1, -1)
# A delete or a check that was carried out is answered with a header alone.
_WITHOUT_RESULT: Final = frozenset({DELETE, CHECK})
_GET_DATA_HEADER = _HEADER.pack(GET_DATA, 0, -1)
_DELETE_HEADER = _HEADER.pack(DELETE, 0, -1)


class AccessRule(NamedTuple):
    """One entry of a node's ACL: permission bits, scheme and id."""

    permissions: int
    scheme: str
    identity: str


class MultiRead:
    """Read many nodes at once; each row is a node or the error code of that path alone (opcode 22, from 3.6 on).

    ``reply_bytes`` is the size of the answer, 0 before; ``nodes`` the number of nodes.
    """

    type = MULTI_READ

    def __init__(self, paths: Sequence[str]) -> None:
        self.nodes = len(paths)
        self._body = b"".join(_reads(paths)) + _END
        self.reply_bytes = 0

    def serialize(self) -> bytes:
        return self._body

    def deserialize(self, reply: bytes, offset: int) -> list[Versioned | int]:
        self.reply_bytes = len(reply) - offset
        rows: list[Versioned | int] = []
        # Fast path of GetData.deserialize, must equal it: tests/unit/metastore/test_zookeeper_requests.py
        # Two calls a row, since millions are read: the first takes its header, and the length or error behind it.
        while len(reply) - offset > _HEADER.size:
            kind, _, _, number = _ROW_BEGIN.unpack_from(reply, offset)
            offset += _ROW_BEGIN.size
            if kind == -1:
                rows.append(number)
                continue
            end = offset + number if number > 0 else offset
            created, modified, version, owner, children = _READ_STAT.unpack_from(reply, end)
            if owner != 0 and is_of_session(owner):
                rows.append(Versioned(reply[offset:end], version, created, modified, children, True, None, owner))
            else:
                rows.append(Versioned(reply[offset:end], version, created, modified, children))
            offset = end + _READ_STAT.size
        if _HEADER.unpack_from(reply, offset)[1] != 1:
            raise ValueError("the answer to a multi-read has no end")
        return rows


class GetData:
    """Read one node, for servers that refuse MultiRead."""

    type = GET_DATA

    def __init__(self, path: str) -> None:
        self._body = _string(path) + b"\0"

    def serialize(self) -> bytes:
        return self._body

    @staticmethod
    def deserialize(reply: bytes, offset: int) -> Versioned:
        (length,) = _INT.unpack_from(reply, offset)
        begin = offset + _INT.size
        end = begin + max(length, 0)
        created, modified, version, owner, children = _READ_STAT.unpack_from(reply, end)
        ephemeral = is_of_session(owner)
        session = owner if ephemeral else None
        return Versioned(reply[begin:end], version, created, modified, children, ephemeral, None, session)


# Fast path of _names, must equal it: tests/unit/metastore/test_zookeeper_requests.py
def _names_alike(reply: bytes, begin: int, count: int) -> list[str] | None:
    """Read ASCII names of one size, as ledgers have, in half the time; None for any other."""
    if count < 1:
        return []
    step = _INT.size + _INT.unpack_from(reply, begin)[0]
    end = begin + count * step
    sizes_differ = any(reply[at:end:step] != reply[at : at + 1] * count for at in range(begin, begin + _INT.size))
    if len(reply) != end or sizes_differ or not reply[begin:end].isascii():
        return None
    text = reply[begin:end].decode("ascii")
    return [text[at : at + step - _INT.size] for at in range(_INT.size, len(text) + 1, step)]


def _names(reply: bytes, begin: int, count: int) -> list[str]:
    names = []
    for _ in range(count):
        end = begin + _INT.size + _INT.unpack_from(reply, begin)[0]
        names.append(reply[begin + _INT.size : end].decode("utf-8"))
        begin = end
    if begin > len(reply):
        raise ValueError("the answer with a node's children is cut off")
    return names


class GetChildren:
    """List a node's children."""

    type = GET_CHILDREN

    def __init__(self, path: str) -> None:
        self._body = _string(path) + b"\0"

    def serialize(self) -> bytes:
        return self._body

    @staticmethod
    def deserialize(reply: bytes, offset: int) -> list[str]:
        (count,) = _INT.unpack_from(reply, offset)
        begin = offset + _INT.size
        alike = _names_alike(reply, begin, count)
        return _names(reply, begin, count) if alike is None else alike


class AddWatch:
    """Watch a node and all below it until the connection ends, whether it exists or not (from 3.6 on)."""

    type = ADD_WATCH

    def __init__(self, path: str) -> None:
        self._body = _string(path) + _INT.pack(_PERSISTENT_RECURSIVE)

    def serialize(self) -> bytes:
        return self._body

    @staticmethod
    def deserialize(reply: bytes, offset: int) -> bool:
        return True


class Multi:
    """Change many nodes, all or none; the reply is a list with one element for each operation.

    An element is an error code, or for a success 0 (delete), the path (create) or the new version as a
    one-tuple (set). When one operation fails, those before it say 0 or ROLLED_BACK although nothing was done,
    and the reply's own header reports no error: read every element.

    kazoo queues a request while there is no connection, and would send it later. `withdraw` prevents that, and
    returns whether it could: a change that no caller waits for must not happen.
    """

    type = MULTI

    def __init__(self, operations: Sequence[bytes]) -> None:
        self.nodes = len(operations)
        self._body = b"".join(operations) + _END
        self._lock = threading.Lock()
        self._sent = False
        self._withdrawn = False

    def serialize(self) -> bytes:
        with self._lock:
            if self._withdrawn:
                return _END
            self._sent = True
            return self._body

    def withdraw(self) -> bool:
        """Keep the request from being sent; return False if that is too late."""
        with self._lock:
            self._withdrawn = True
            return not self._sent

    @staticmethod
    def deserialize(reply: bytes, offset: int) -> list[Any]:
        results: list[Any] = []
        # Fast path of _read_result, must equal it: tests/unit/metastore/test_zookeeper_requests.py
        if (len(reply) - offset) % _HEADER.size == 0 and reply.endswith(_END):
            kinds = [kind for kind, _, _ in _HEADER.iter_unpack(reply[offset : -_HEADER.size])]
            if _WITHOUT_RESULT.issuperset(kinds):
                return [OK] * len(kinds)
        while True:
            kind, done, _ = _HEADER.unpack_from(reply, offset)
            offset += _HEADER.size
            if done:
                return results
            result, offset = _read_result(kind, reply, offset)
            results.append(result)


def delete_operation(path: str, version: int) -> bytes:
    """Encode the deletion of a node that has this version."""
    return _DELETE_HEADER + _string(path) + _INT.pack(version)


def set_operation(path: str, value: bytes, version: int) -> bytes:
    """Encode the replacement of a node's value, if it has this version."""
    return _HEADER.pack(SET_DATA, 0, -1) + _string(path) + _buffer(value) + _INT.pack(version)


def check_operation(path: str, version: int) -> bytes:
    """Encode the demand that a node has this version."""
    return _HEADER.pack(CHECK, 0, -1) + _string(path) + _INT.pack(version)


def create_operation(path: str, value: bytes, acl: Iterable[AccessRule], flags: int = 0) -> bytes:
    """Encode the creation of a node."""
    rules = [_INT.pack(rule.permissions) + _string(rule.scheme) + _string(rule.identity) for rule in acl]
    body = _string(path) + _buffer(value) + _INT.pack(len(rules)) + b"".join(rules) + _INT.pack(flags)
    return _HEADER.pack(CREATE, 0, -1) + body


def failed_at(results: list[Any]) -> int | None:
    """Find the operation for which a multi was refused; None if it was carried out."""
    if results.count(OK) == len(results):
        return None
    codes = [result if isinstance(result, int) else OK for result in results]
    for index, code in enumerate(codes):
        if code not in (OK, ROLLED_BACK):
            return index
    return 0 if ROLLED_BACK in codes else None


# Fast path of GetData.serialize, must equal it: tests/unit/metastore/test_zookeeper_requests.py
def _reads(paths: Iterable[str]) -> Iterator[bytes]:
    """Encode a read of each path; neighbours of one length, as ledgers are, with one call."""
    for length, encoded in groupby([path.encode("utf-8") for path in paths], len):
        begin = _GET_DATA_HEADER + _INT.pack(length)
        yield begin + (b"\0" + begin).join(encoded) + b"\0"


def _read_result(kind: int, reply: bytes, offset: int) -> tuple[Any, int]:
    if kind in _WITHOUT_RESULT:
        return OK, offset
    if kind == CREATE:
        (length,) = _INT.unpack_from(reply, offset)
        end = offset + _INT.size + length
        return reply[offset + _INT.size : end].decode("utf-8"), end
    if kind == SET_DATA:
        return (_STAT.unpack_from(reply, offset)[4],), offset + _STAT.size
    return _INT.unpack_from(reply, offset)[0], offset + _INT.size


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8")
    return _INT.pack(len(encoded)) + encoded


def _buffer(value: bytes) -> bytes:
    return _INT.pack(len(value)) + value
