"""A ZooKeeper's snapshot file, and the transaction logs next to it, checked and ready to be read in parts.

One that ZooKeeper compressed as it wrote it is unpacked first.
Format: persistence.SnapStream, ZooKeeper 3.9; snappy-java's SnappyOutputStream: a magic, two versions, and blocks of
raw Snappy, each behind its length; such streams may follow each other.
"""

from __future__ import annotations

import gzip
import hashlib
import mmap
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import BinaryIO, Final

import cramjam

from bookwarden.errors import ConfigError, NotFoundError, RefusedError
from bookwarden.metastore.snapshot.transaction_log import Replay, logs_after, read_logs
from bookwarden.metastore.snapshot.walk import SnapshotIndex, identity_of, load_index, save_index, walk
from bookwarden.metastore.zookeeper.jute import Bytes, damaged

_NAME: Final = re.compile(r"snapshot\.([0-9a-f]{1,16})(\.(gz|snappy))?")
_BLOCK: Final = 1 << 20
_SNAPPY_MAGIC: Final = b"\x82SNAPPY\0"
_SNAPPY_HEADER: Final = len(_SNAPPY_MAGIC) + 8
_MAX_SNAPPY_BLOCK: Final = 1 << 29


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A snapshot to read, and options of reading it."""

    file: str  #: Path of the snapshot, as ZooKeeper named it.
    chroot: str = ""  #: Node whose children are read as if it were the root.
    ledgers_root: str = "/ledgers"  #: BookKeeper's, below the chroot.
    logs: str | None = None  #: Folder of the transaction logs; None is that of the snapshot.
    allow_fuzzy: bool = False  #: Read on where the logs do not reach far enough.
    #: Where a compressed one is unpacked; None is one of our own among the temporary files.
    work_folder: str | None = None


@contextmanager
def open_snapshot(source: SnapshotFile) -> Iterator[tuple[SnapshotIndex, mmap.mmap]]:
    """Check a snapshot in one pass over it, replay the logs, and yield the index with the file.

    Raises FormatError for a file that is not whole or a gap between the logs, NotFoundError where there is no file,
    ConfigError where it has no such chroot, and RefusedError if the logs do not reach to the moment at which the
    snapshot was finished, unless that is allowed. The index is kept in the work folder, and spares other processes
    that read the same files the pass.
    """
    file = Path(source.file)
    if not file.is_file():
        raise NotFoundError(f"there is no snapshot file {file}: check the path")
    name = _NAME.fullmatch(file.name)
    begun = int(name[1], 16) if name else None
    with _file_errors():
        logs = [] if begun is None else logs_after(Path(source.logs or file.parent), begun)
        work = work_folder(source.work_folder)
        identity = identity_of([file, *logs], astuple(source))
        readable = unpacked(file, work)
    with _mapped(readable) as data:
        index = load_index(work, identity) if identity else None
        if index is None:
            with _file_errors():
                replay = Replay() if begun is None else Replay(read_logs(logs, begun))
            index = _index(source, data, begun, replay)
            if identity:
                save_index(index, work, identity)
        yield index, data


def _index(source: SnapshotFile, data: Bytes, begun: int | None, replay: Replay) -> SnapshotIndex:
    file, chroot, ledgers_root = source.file, source.chroot.rstrip("/"), source.ledgers_root.rstrip("/")
    found = walk(data, file, chroot, ledgers_root, replay)
    if "" not in found.kept:
        raise ConfigError(f"{file} has no node {chroot}: check the part after # in the metadata store's URL")
    needed = max(found.ended or 0, found.youngest)
    fuzzy = _fuzzy(begun, replay.last_zxid, found.ended, needed)
    if fuzzy and not source.allow_fuzzy:
        raise RefusedError(
            f"{file} is not the state of one moment: {fuzzy}; copy the snapshot first, and then all log.* files of "
            "the same server into its folder"
        )
    inside = [path for path in {*replay.paths, *found.before} if f"{path}/".startswith(f"{chroot}/")]
    return SnapshotIndex(
        file=file,
        chroot=chroot,
        ledgers_root=ledgers_root,
        checksum=found.checksum,
        zxid=max(needed, begun or 0, replay.last_zxid or 0),
        latest_ms=max(found.latest_ms, replay.latest_ms),
        nodes=found.nodes,
        fuzzy=fuzzy,
        kept=found.kept,
        below=found.below,
        changed={path[len(chroot) :]: replay.resolve(path, found.before.get(path)) for path in inside},
    )


def _fuzzy(begun: int | None, replayed: int | None, ended: int | None, needed: int) -> str | None:
    """Return why the nodes may not be the state of one moment; None if they are."""
    if begun is None:
        return "its name is not that which the server gave it (snapshot.<number>), so where the logs begin is not known"
    if ended is None:
        return "it does not say at which transaction it was finished"
    if ended < begun:
        return f"it says that it was finished at transaction 0x{ended:x}, before it was begun at 0x{begun:x}"
    if needed > (replayed or begun):
        there = f"end at 0x{replayed:x}" if replayed else "are not there"
        return f"it was written from transaction 0x{begun:x} to 0x{needed:x}, and the logs after its start {there}"
    return None


@contextmanager
def _mapped(file: Path) -> Iterator[mmap.mmap]:
    with _file_errors():
        opened = file.open("rb")
    with opened:
        if opened.seek(0, 2) == 0:
            raise damaged(str(file), 0, "it is empty")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


@contextmanager
def _file_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotFoundError(
            f"{error.filename} cannot be read ({error.strerror}): check the path and its rights"
        ) from error


def work_folder(chosen: str | None) -> Path:
    """Make the folder for unpacked snapshots and indexes, by default one of our own among the temporary ones."""
    if chosen is not None:
        Path(chosen).mkdir(parents=True, exist_ok=True)
        return Path(chosen)
    folder = Path(tempfile.gettempdir()) / f"bookwarden-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ConfigError(f"{folder} belongs to someone else: set TMPDIR, or ?work=/folder in the store's URL")
    return folder


def unpacked(file: Path, folder: Path) -> Path:
    """Return the file itself if it is not compressed, else its content in the folder, unpacked once.

    Raises FormatError if the file is not whole.
    """
    blocks = {".gz": _gzip_blocks, ".snappy": _snappy_blocks}.get(file.suffix)
    if blocks is None:
        return file
    stat = file.stat()
    identity = hashlib.sha256(f"{file.resolve()}\n{stat.st_size}\n{stat.st_mtime_ns}".encode()).hexdigest()[:16]
    target = folder / f"{file.stem}-{identity}"
    if not target.exists():
        _unpack(file, target, blocks)
    return target


def _unpack(file: Path, target: Path, blocks: Callable[[BinaryIO, Path], Iterator[bytes]]) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "wb") as sink, file.open("rb") as source:
            sink.writelines(blocks(source, file))
        Path(name).rename(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _gzip_blocks(source: BinaryIO, file: Path) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=source, mode="rb") as stream:
        while True:
            try:
                block = stream.read(_BLOCK)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise damaged(str(file), source.tell(), f"it cannot be unpacked ({error})") from error
            if not block:
                return
            yield block


def _snappy_blocks(source: BinaryIO, file: Path) -> Iterator[bytes]:
    if source.read(len(_SNAPPY_MAGIC)) != _SNAPPY_MAGIC:
        raise damaged(str(file), 0, "it does not begin as a stream of Snappy blocks does")
    source.seek(0)
    while prefix := source.read(4):
        if prefix == _SNAPPY_MAGIC[:4]:
            if len(source.read(_SNAPPY_HEADER - 4)) < _SNAPPY_HEADER - 4:
                raise damaged(str(file), source.tell(), "a header of Snappy blocks is not whole")
            continue
        size = int.from_bytes(prefix, "big")
        block = source.read(size) if size <= _MAX_SNAPPY_BLOCK else b""
        if len(prefix) < 4 or len(block) < size:
            raise damaged(str(file), source.tell(), "a Snappy block is not whole")
        try:
            yield bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise damaged(str(file), source.tell(), f"a Snappy block cannot be unpacked ({error})") from error
