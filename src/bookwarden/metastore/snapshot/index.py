"""Index of a ZooKeeper snapshot: what a pass over it found, kept for the other processes that read the same file."""

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

from bookwarden.metastore.snapshot.replay import SnapshotNode

_LOG = logging.getLogger(__name__)

_FORMAT: Final = 1
# A file as young as that may be changed once more without a change of its time.
_SETTLED_SECONDS: Final = 2.0


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


def identity_of(files: Iterable[Path], options: Iterable[object]) -> str | None:
    """Make a name for what an index is made of; None if one of the files was changed just now."""
    found: list[object] = [_FORMAT, *options]
    for file in files:
        stat = file.stat()
        if time.time() - stat.st_mtime < _SETTLED_SECONDS:
            return None
        found.append([str(file.resolve()), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def save_index(index: SnapshotIndex, folder: Path, identity: str) -> None:
    """Keep an index; where that fails, the next process makes its own."""
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
    """Find an index that was kept; None if there is none, or none that can be read."""
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
