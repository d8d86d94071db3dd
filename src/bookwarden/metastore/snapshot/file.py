"""A ZooKeeper's snapshot file, and the transaction logs next to it, checked and ready to be read in parts."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from bookwarden.errors import ConfigError, NotFoundError, RefusedError
from bookwarden.metastore.snapshot.index import SnapshotIndex, identity_of, load_index, save_index
from bookwarden.metastore.snapshot.replay import Replay
from bookwarden.metastore.snapshot.transaction_log import logs_after, read_logs
from bookwarden.metastore.snapshot.unpack import unpacked, work_folder
from bookwarden.metastore.snapshot.walk import walk
from bookwarden.metastore.zookeeper.jute import Bytes, damaged

_NAME: Final = re.compile(r"snapshot\.([0-9a-f]{1,16})(\.(gz|snappy))?")


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
