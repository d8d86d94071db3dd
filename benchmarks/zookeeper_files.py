"""Writes snapshots and transaction logs as ZooKeeper 3.9 does, for benchmarks and tests."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

_OPEN_ACCESS = -1
_SEAL_MARK = struct.pack(">i", 1) + b"/"
_STAT = struct.Struct(">qqqqqiiiqq")
_CLIENT = 0x1001


def text(value: str | bytes | None) -> bytes:
    """Encode a text or a value with its length; None is none at all, which is not the same as empty."""
    if value is None:
        return struct.pack(">i", -1)
    encoded = value.encode() if isinstance(value, str) else value
    return struct.pack(">i", len(encoded)) + encoded


def node(
    path: str,
    value: bytes | None = b"",
    *,
    zxid: int = 1,
    children_zxid: int = 1,
    created_ms: int = 1_700_000_000_000,
    modified_ms: int | None = None,
    version: int = 0,
    owner: int = 0,
) -> bytes:
    """Encode a node of a snapshot; the root's path is empty.

    ``zxid`` is the transaction of its own last change, ``children_zxid`` that of the last change of its children.
    """
    modified = created_ms if modified_ms is None else modified_ms
    stat = _STAT.pack(_OPEN_ACCESS, zxid, zxid, created_ms, modified, version, 0, 0, owner, children_zxid)
    return text(path) + text(value) + stat


def write_snapshot(
    file: Path,
    nodes: Iterable[bytes],
    *,
    last_zxid: int | None = None,
    digest_zxid: int | None = None,
    sessions: Sequence[int] = (_CLIENT,),
) -> int:
    """Write a snapshot of these nodes, each behind its parent; return its size in bytes."""
    with file.open("wb") as opened:
        sink = _Sealed(opened)
        head = b"ZKSN" + struct.pack(">iq", 2, -1) + struct.pack(">i", len(sessions))
        head += b"".join(struct.pack(">qi", session, 30_000) for session in sessions)
        rule = struct.pack(">i", 31) + text("digest") + text("user:hash")
        sink.write(head + struct.pack(">iqi", 1, 1, 1) + rule)
        for encoded in nodes:
            sink.write(encoded)
        sink.write(_SEAL_MARK)
        sink.seal()
        if digest_zxid is not None:
            sink.write(struct.pack(">qiq", digest_zxid, 2, 123_456_789))
            sink.seal()
        if last_zxid is not None:
            sink.write(struct.pack(">q", last_zxid))
            sink.seal()
        return sink.size


class _Sealed:
    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._checksum = 1
        self.size = 0

    def write(self, data: bytes) -> None:
        self._checksum = zlib.adler32(data, self._checksum)
        self._sink.write(data)
        self.size += len(data)

    def seal(self) -> None:
        self.write(struct.pack(">q", self._checksum) + _SEAL_MARK)


_ACCESS = struct.pack(">ii", 1, 31) + text("world") + text("anyone")


def create(path: str, value: bytes, *, ephemeral: bool = False) -> tuple[int, bytes]:
    """Encode a creation, with the number of its type."""
    return 1, text(path) + text(value) + _ACCESS + struct.pack(">?i", ephemeral, 1)


def create2(path: str, value: bytes) -> tuple[int, bytes]:
    """Encode a creation that returned the node's data."""
    return 15, create(path, value)[1]


def create_ttl(path: str, value: bytes) -> tuple[int, bytes]:
    """Encode the creation of a node that ends by itself."""
    return 21, text(path) + text(value) + _ACCESS + struct.pack(">iq", 1, 60_000)


def create_container(path: str, value: bytes) -> tuple[int, bytes]:
    """Encode the creation of a container."""
    return 19, text(path) + text(value) + _ACCESS + struct.pack(">i", 1)


def set_data(path: str, value: bytes, version: int) -> tuple[int, bytes]:
    """Encode the replacement of a value; `version` is the new one."""
    return 5, text(path) + text(value) + struct.pack(">i", version)


def set_acl(path: str) -> tuple[int, bytes]:
    """Encode new access rules."""
    return 7, text(path) + _ACCESS + struct.pack(">i", 1)


def check(path: str) -> tuple[int, bytes]:
    """Encode the check of a version."""
    return 13, text(path) + struct.pack(">i", 0)


def delete(path: str) -> tuple[int, bytes]:
    """Encode a deletion."""
    return 2, text(path)


def failed() -> tuple[int, bytes]:
    """Encode an operation that failed."""
    return -1, struct.pack(">i", -110)


def open_session() -> tuple[int, bytes]:
    """Encode the begin of a session."""
    return -10, struct.pack(">i", 30_000)


def close_session(paths: Sequence[str] | None = None) -> tuple[int, bytes]:
    """Encode the end of the session, with the paths of its nodes or, as before 3.6, without."""
    return -11, b"" if paths is None else struct.pack(">i", len(paths)) + b"".join(map(text, paths))


def multi(*parts: tuple[int, bytes]) -> tuple[int, bytes]:
    """Encode operations that are made together."""
    return 14, struct.pack(">i", len(parts)) + b"".join(struct.pack(">i", kind) + text(body) for kind, body in parts)


def record(zxid: int, operation: tuple[int, bytes], *, time_ms: int = 1_700_000_000_500, digest: bool = True) -> bytes:
    """Encode a transaction as it stands in a log, by the session that all of them are of."""
    kind, body = operation
    entry = struct.pack(">qiqqi", _CLIENT, 7, zxid, time_ms, kind) + body
    if digest:
        entry += struct.pack(">iq", 2, 987_654_321)
    return struct.pack(">q", zlib.adler32(entry)) + text(entry) + b"B"


def write_log(file: Path, records: Iterable[bytes], *, padding: int = 4096) -> None:
    """Write a log of these records, padded with zeros."""
    head = b"ZKLG" + struct.pack(">iq", 2, 0)
    file.write_bytes(head + b"".join(records) + bytes(padding))
