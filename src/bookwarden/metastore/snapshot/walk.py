"""The pass over a ZooKeeper snapshot, which checks every byte and notes the places of the nodes in an index.

The file has a header, the sessions, the access rules, each node behind its parent, and a seal: the checksum of all
before it. Later versions append the transaction at which it was finished, each time with a further seal. The nodes
below a node follow it without a gap, so only those near the top are remembered, with the spans of what is below them.
Format: persistence.FileSnap and SnapStream, server.DataTree and StatPersisted, ZooKeeper 3.6 to 3.9.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bookwarden.metastore.interface import Versioned
from bookwarden.metastore.snapshot.transaction_log import Replay, SnapshotNode
from bookwarden.metastore.zookeeper.jute import Bytes, JuteReader, damaged, is_of_session

_LOG = logging.getLogger(__name__)
_FORMAT: Final = 1
# A file this young may be changed once more without a change of its time.
_SETTLED_SECONDS: Final = 2.0
_MAGIC: Final = b"ZKSN"
_SEAL: Final = 13
_LAST_ZXID: Final = 8 + _SEAL
_BLOCK: Final = 1 << 22
# More than the bytes behind the nodes, and little to read twice.
_AT_THE_END: Final = 1 << 16
# Nodes deeper than this below the chroot are found from the nodes above them.
_KEPT_DEPTH: Final = 3
# And of these: ctime, mtime, version, owner.
_LIFE: Final = struct.Struct(">24xqqi8xq")
# The kinds of runs of nodes that are not kept: far below the chroot, or ledgers of the flat layout.
_DEEP, _FLAT = 1, 2
_LENGTH: Final = struct.Struct(">i")
# Access rules, czxid, mzxid, ctime, mtime, version, cversion, aversion, owner, pzxid.
_STAT: Final = struct.Struct(">qqqqqiiiqq")
STAT_SIZE: Final = _STAT.size
# Offsets in it, of eight bytes and of four.
CREATED_AT: Final = 24
VERSION_AT: Final = 40
# Of these: mzxid, mtime, owner, pzxid; and behind them the size of the next path.
_YOUTH: Final = struct.Struct(">16xq8xq12xqqi")


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """The result of a pass over a snapshot; paths are relative to the chroot, and that of the root is empty."""

    file: str  #: Path of the snapshot.
    chroot: str  #: As in SnapshotFile, without a slash at the end.
    ledgers_root: str  #: Likewise.
    checksum: int  #: Adler-32 of all bytes up to the first seal.
    zxid: int  #: The transaction at which the nodes are as they are here.
    latest_ms: int  #: Latest time of a change in it, by the servers' clocks, in ms since the epoch.
    nodes: int  #: Number of nodes in the file.
    #: None, or why not: changes made while the snapshot was written may then be in it or not, each by itself.
    fuzzy: str | None
    kept: dict[str, int]  #: Nodes near the top, with the offsets of their values.
    #: Spans (start, end) in the file of the nodes below each of them that are not kept.
    below: dict[str, list[tuple[int, int]]]
    #: Nodes changed by the logs, as they are after that; None for those that are gone.
    changed: dict[str, SnapshotNode | None]


def identity_of(files: Iterable[Path], options: Iterable[object]) -> str | None:
    """Make the name of an index from its files and options; None if a file was changed just now."""
    found: list[object] = [_FORMAT, *options]
    for file in files:
        stat = file.stat()
        if time.time() - stat.st_mtime < _SETTLED_SECONDS:
            return None
        found.append([str(file.resolve()), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def save_index(index: SnapshotIndex, folder: Path, identity: str) -> None:
    """Save an index; where that fails, the next process makes its own."""
    fields = asdict(index)
    fields["changed"] = {name: node and _encode(node) for name, node in index.changed.items()}
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".index-")
        with os.fdopen(handle, "w", encoding="utf-8") as sink:
            json.dump(fields, sink)
        Path(name).rename(_file(folder, identity))
    except OSError as error:
        _LOG.warning("what was found in %s cannot be kept: %s", index.file, error)


def load_index(folder: Path, identity: str) -> SnapshotIndex | None:
    """Load a saved index; None if there is none, or it cannot be read."""
    try:
        fields = json.loads(_file(folder, identity).read_text(encoding="utf-8"))
        fields["changed"] = {name: node and _decode(node) for name, node in fields["changed"].items()}
        fields["below"] = {name: [(start, end) for start, end in spans] for name, spans in fields["below"].items()}
        return SnapshotIndex(**fields)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _file(folder: Path, identity: str) -> Path:
    return folder / f"index-{identity}.json"


def _encode(node: SnapshotNode) -> list[object]:
    value, *others = node
    return [base64.b64encode(value).decode("ascii"), *others]


def _decode(fields: list[object]) -> SnapshotNode:
    value, *others = fields
    return SnapshotNode(base64.b64decode(str(value), validate=True), *others)  # type: ignore[arg-type]  # as _encode wrote them


def read_node(data: Bytes, place: int) -> SnapshotNode:
    """Read a node, which has to be whole; ``place`` is the offset of its value, behind the path."""
    (size,) = _LENGTH.unpack_from(data, place)
    start = place + 4
    stat = start + max(size, 0)
    _, _, _, created, modified, version, _, _, owner, _ = _STAT.unpack_from(data, stat)
    return SnapshotNode(data[start:stat], version, created, modified, owner)


# Fast path of read_node, must equal it: tests/unit/metastore/test_zookeeper_snapshot.py
def read_values(data: Bytes, places: Iterable[int | None]) -> list[Versioned | None]:
    """Read the nodes of an indexed snapshot whose values are at these offsets; None for None."""
    length_at, life_at = _LENGTH.unpack_from, _LIFE.unpack_from
    found: list[Versioned | None] = []
    for place in places:
        if place is None:
            found.append(None)
            continue
        (size,) = length_at(data, place)
        start = place + 4
        stat = start + size if size > 0 else start
        created, modified, version, owner = life_at(data, stat)
        if owner != 0 and is_of_session(owner):
            found.append(Versioned(data[start:stat], version, created, modified, None, True, None, owner))
        else:
            found.append(Versioned(data[start:stat], version, created, modified))
    return found


def paths_between(data: Bytes, start: int, end: int) -> Iterator[tuple[str, int]]:
    """Yield the nodes between two offsets of an indexed snapshot, each with the offset of its value."""
    length_at, offset, stat_size = _LENGTH.unpack_from, start, STAT_SIZE
    while offset < end:
        (size,) = length_at(data, offset)
        place = offset + 4 + size
        (value_size,) = length_at(data, place)
        yield data[offset + 4 : place].decode("utf-8"), place
        offset = place + 4 + (value_size if value_size > 0 else 0) + stat_size


def walk(data: Bytes, file: str, chroot: str, ledgers_root: str, replay: Replay) -> Walk:
    """Check a whole snapshot and note where its nodes are; FormatError unless every byte is as it was written.

    ``replay`` has the transactions behind it: what they change is read at once.
    """
    reader = JuteReader(data, file)
    reader.read_header(_MAGIC)
    for _ in reader.each():
        reader.read_long()
        reader.read_int()
    for _ in reader.each():
        reader.read_long()
        reader.skip_access_rules()
    found = Walk(data, file, reader.offset, chroot, ledgers_root, replay)
    # As a rule the nodes end after that.
    most = max(len(data) - _AT_THE_END, 0)
    with ThreadPoolExecutor(1, thread_name_prefix="checksum") as pool:
        # The checksum is computed without Python's lock.
        checksum = pool.submit(_checksum, data, 0, most)
        try:
            found.run()
        except struct.error:
            raise damaged(file, found.offset, "a node goes on behind the end of the file") from None
        except UnicodeDecodeError:
            raise damaged(file, found.offset, "a path is not UTF-8") from None
    reader.offset = found.offset
    if "" not in found.kept and not chroot:
        raise damaged(file, found.offset, "no root stands before the end mark")
    if reader.offset < most:
        found.checksum = _checksum(data, 0, reader.offset)
    else:
        found.checksum = _checksum(data, most, reader.offset, checksum.result())
    found.ended = _read_seals(reader, data, found.checksum)
    return found


class Walk:
    """The pass over all nodes; its loop is optimised for millions of them."""

    def __init__(self, data: Bytes, file: str, offset: int, chroot: str, ledgers_root: str, replay: Replay) -> None:
        self._data = data
        self._file = file
        self._chroot = chroot
        self._ledgers = chroot + ledgers_root
        self._deepest = chroot.count("/") + max(_KEPT_DEPTH, ledgers_root.count("/") + 2)
        self._replay = replay
        self._last_kept = ""
        self._run: tuple[str, int] | None = None
        self.offset = offset
        self.nodes = 0
        self.youngest = 0
        self.ended: int | None = None
        self.checksum = 0
        self.latest_ms = 0
        self.kept: dict[str, int] = {}
        self.below: dict[str, list[tuple[int, int]]] = {}
        self.before: dict[str, SnapshotNode] = {}

    def run(self) -> None:
        """Read all nodes, up to the mark behind the last."""
        data, length_at, youth_at = self._data, _LENGTH.unpack_from, _YOUTH.unpack_from
        deepest, inside = self._deepest, f"{self._chroot}/".encode()
        flat = f"{self._ledgers}/L".encode()
        flat_size, stat_size = len(flat), STAT_SIZE
        changed, closed = {path.encode() for path in self._replay.paths}, self._replay.closed
        any_changed = bool(changed or closed)
        youngest = latest_ms = nodes = run = 0
        offset = self.offset
        (path_size,) = length_at(data, offset)
        while True:
            self.offset = offset
            path_end = offset + 4 + path_size
            path = data[offset + 4 : path_end]
            if path_size == 1 and path == b"/":
                break
            (value_size,) = length_at(data, path_end)
            if path_size < 0 or value_size < -1:
                raise damaged(self._file, offset, f"a node has lengths {path_size} and {value_size}")
            stat = path_end + 4 + (value_size if value_size > 0 else 0)
            modified_zxid, modified_ms, owner, children_zxid, path_size = youth_at(data, stat)
            if modified_zxid > youngest:
                youngest = modified_zxid
            if children_zxid > youngest:
                youngest = children_zxid
            if modified_ms > latest_ms:
                latest_ms = modified_ms
            if not path.isascii():
                path.decode("utf-8")
            if path.count(b"/") > deepest and path.startswith(inside):
                if run != _DEEP:
                    self._begin_run(path, self._last_kept, offset)
                    run = _DEEP
            elif path.startswith(flat) and path[flat_size:].isdigit():
                if run != _FLAT:
                    self._begin_run(path, self._ledgers, offset)
                    run = _FLAT
            else:
                self._end_run(offset)
                self._keep(path.decode(), offset, path_end)
                run = 0
            if any_changed and (path in changed or (owner and owner in closed)):
                self.before[path.decode()] = read_node(data, path_end)
            nodes += 1
            offset = stat + stat_size
        self._end_run(offset)
        self.offset = path_end
        self.nodes, self.youngest, self.latest_ms = nodes, youngest, latest_ms

    def _keep(self, path: str, offset: int, place: int) -> None:
        if path and not path.startswith("/"):
            raise damaged(self._file, offset, f"{path[:200]!r} is no path of a node")
        if not f"{path}/".startswith(f"{self._chroot}/"):
            return
        name = path[len(self._chroot) :]
        if name in self.kept or (name and name.rpartition("/")[0] not in self.kept):
            raise damaged(self._file, offset, f"{path[:200]!r} comes again, or before the node above it")
        self.kept[name] = place
        self._last_kept = path

    def _begin_run(self, path: bytes, above: str, offset: int) -> None:
        self._end_run(offset)
        name = above[len(self._chroot) :]
        if name not in self.kept or not path.startswith(f"{above}/".encode()):
            raise damaged(self._file, offset, f"{path[:200]!r} comes before the node above it")
        self._run = (name, offset)

    def _end_run(self, offset: int) -> None:
        if self._run is not None:
            above, start = self._run
            self.below.setdefault(above, []).append((start, offset))
            self._run = None


def _read_seals(reader: JuteReader, data: Bytes, checksum: int) -> int | None:
    """Check the bytes behind the nodes; ``checksum`` is that of the nodes.

    Returns the last transaction of the snapshot, None where the file has none.
    """
    checksum = _read_seal(reader, data, reader.offset, checksum)
    last_zxid: int | None = None
    if reader.left and reader.left != _LAST_ZXID:
        start = reader.offset
        # It is 0 if the server had no digest yet.
        last_zxid = reader.read_long() or None
        # The digest of all nodes: a number, or its digits in a version that no release wrote.
        if reader.read_int() < 2:
            reader.read_value()
        else:
            reader.read_long()
        checksum = _read_seal(reader, data, start, checksum)
    if reader.left:
        start = reader.offset
        last_zxid = max(last_zxid or 0, reader.read_long())
        _read_seal(reader, data, start, checksum)
    if reader.left:
        raise reader.damaged(f"{reader.left:,} bytes stand behind its end")
    return last_zxid


def _read_seal(reader: JuteReader, data: Bytes, start: int, checksum: int) -> int:
    """Check the seal over all bytes before it; ``checksum`` covers those up to ``start``. Return the new one."""
    end = reader.offset
    checksum = _checksum(data, start, end, checksum)
    if reader.read_long() != checksum:
        raise damaged(reader.place, end, "the checksum is not that of the bytes before it")
    if reader.read_value() != b"/":
        raise reader.damaged("the seal has no end mark")
    return _checksum(data, end, reader.offset, checksum)


def _checksum(data: Bytes, start: int, end: int, before: int = 1) -> int:
    """Compute the Adler-32 of the bytes, continuing ``before``."""
    with memoryview(data) as whole:
        for at in range(start, end, _BLOCK):
            with whole[at : min(at + _BLOCK, end)] as block:
                before = zlib.adler32(block, before)
    return before
