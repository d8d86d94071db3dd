"""Index of a ZooKeeper snapshot, made in one pass and kept for the other processes that read the same file."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bookwarden.metastore.snapshot.transaction_log import SnapshotNode

_LOG = logging.getLogger(__name__)

_FORMAT: Final = 1
# A file this young may be changed once more without a change of its time.
_SETTLED_SECONDS: Final = 2.0


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
