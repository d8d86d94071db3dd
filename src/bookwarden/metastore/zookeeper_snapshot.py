"""A ZooKeeper's snapshot file, and the transaction logs beside it, checked and ready to be read in parts."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bookwarden.errors import ConfigError, NotFoundError, RefusedError
from bookwarden.metastore.zookeeper_jute import damaged
from bookwarden.metastore.zookeeper_log import read_logs
from bookwarden.metastore.zookeeper_replay import Replay, SnapshotNode
from bookwarden.metastore.zookeeper_snapshot_walk import walk
from bookwarden.metastore.zookeeper_unpack import unpacked

_NAME: Final = re.compile(r"snapshot\.([0-9a-f]{1,16})(\.(gz|snappy))?")


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """Which snapshot to read, and how.

    ``chroot`` is the node whose children are read as if it were the root. ``logs`` is the folder of the transaction
    logs, that of the snapshot by default; ``allow_fuzzy`` reads on where they do not reach far enough. A compressed
    snapshot is unpacked into ``work_folder``, by default one among the temporary files.
    """

    file: str
    chroot: str = ""
    ledgers_root: str = "/ledgers"
    logs: str | None = None
    allow_fuzzy: bool = False
    work_folder: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """What a pass over a snapshot found; paths are relative to the chroot, and that of the root is empty.

    ``kept`` are the nodes near the top with the offsets of their values, and ``below`` the spans (start, end) of the
    nodes below each of them that are not kept. ``changed`` is what became of the nodes that transactions of the logs
    changed, None for those that are gone.

    The nodes are the state at the transaction ``zxid``; ``latest_ms`` is the latest time of a change that it has, by
    the servers' clocks. Unless ``fuzzy`` says why not: then changes of the time in which the snapshot was written may
    be in it or not, each by itself. ``checksum`` is that of all nodes in the file.
    """

    file: str
    chroot: str
    ledgers_root: str
    checksum: int
    zxid: int
    latest_ms: int
    nodes: int
    fuzzy: str | None
    kept: dict[str, int]
    below: dict[str, list[tuple[int, int]]]
    changed: dict[str, SnapshotNode | None]


@contextmanager
def open_snapshot(source: SnapshotFile) -> Iterator[tuple[SnapshotIndex, mmap.mmap]]:
    """Check a snapshot in one pass over it, replay the logs, and give what was found with the file.

    Raises FormatError for a file that is not whole or a gap between the logs, NotFoundError where there is no file,
    ConfigError where it has no such chroot, and RefusedError if the logs do not reach to the moment at which the
    snapshot was finished, unless that is allowed.
    """
    file, chroot, ledgers_root = Path(source.file), source.chroot.rstrip("/"), source.ledgers_root.rstrip("/")
    if not file.is_file():
        raise NotFoundError(f"there is no snapshot file {file}: check the path")
    name = _NAME.fullmatch(file.name)
    begun = int(name[1], 16) if name else None
    replay = Replay() if begun is None else Replay(read_logs(Path(source.logs or file.parent), begun))
    with _mapped(unpacked(file, source.work_folder)) as data:
        found = walk(data, str(file), chroot, ledgers_root, replay)
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
        index = SnapshotIndex(
            file=str(file),
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
        yield index, data


def _fuzzy(begun: int | None, replayed: int | None, ended: int | None, needed: int) -> str | None:
    """Say why the nodes may not be the state of one moment; None if they are."""
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
    with file.open("rb") as opened:
        if opened.seek(0, 2) == 0:
            raise damaged(str(file), 0, "it is empty")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
