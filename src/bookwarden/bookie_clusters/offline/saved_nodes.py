"""The nodes of topics, cursors and schemas saved in a file, and put back from it into the store.

Format: gzip of JSON lines: a head with the format, the store's URL and the time; a line for each node with its path,
its version and its value in base64; a tail with the number of nodes and the sha256 of all lines before.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from bookwarden.bookie_clusters.brokers import read_brokers
from bookwarden.bookie_clusters.moving.former import in_parts
from bookwarden.durable import sync
from bookwarden.errors import FileError, FormatError, LostRaceError, RefusedError
from bookwarden.metastore.interface import MetadataStore, Versioned

#: Everything below these names ledgers of brokers.
TREES: Final = ("/managed-ledgers", "/schemas")
_FORMAT: Final = 1
_AT_ONCE: Final = 500
_SHOWN: Final = 20


class SavedNode(NamedTuple):
    """A node as it was."""

    path: str
    version: int
    value: bytes


def save_nodes(store: MetadataStore, url: str, folder: Path, name: str) -> Path:
    """Save all nodes into a new file of the folder, only for its owner's eyes; return it once it is durable.

    The folder is made if it is missing. FileError where it cannot be written.
    """
    target = folder / f"nodes-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{name}.jsonl.gz"
    part = target.with_suffix(".part")
    digest, count = hashlib.sha256(), 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened,
            gzip.GzipFile(fileobj=opened, mode="wb", compresslevel=1) as file,
        ):

            def write(line: dict[str, object]) -> None:
                raw = json.dumps(line).encode() + b"\n"
                digest.update(raw)
                file.write(raw)

            write({"format": _FORMAT, "store": url, "savedMs": int(time.time() * 1000)})
            for path, node in walk_nodes(store):
                write({"path": path, "version": node.version, "value": base64.b64encode(node.value).decode()})
                count += 1
            write({"nodes": count, "sha256": digest.hexdigest()})
        sync(part)
        part.replace(target)
        sync(folder)
    except OSError as error:
        with suppress(OSError):
            # Half of it would take room for nothing.
            part.unlink()
        raise FileError(f"the nodes cannot be saved in {folder}: {error.strerror}") from error
    return target


def walk_nodes(store: MetadataStore) -> Iterator[tuple[str, Versioned]]:
    """Yield every node of the trees, each after the one above it."""
    store.sync()
    rest = list(TREES)
    while rest:
        paths, rest = rest[-_AT_ONCE:], rest[:-_AT_ONCE]
        found = [(path, node) for path, node in zip(paths, store.get_many(paths), strict=True) if node is not None]
        yield from found
        parents = [path for path, node in found if node.children != 0]
        for parent, names in zip(parents, store.list_many(parents), strict=True):
            rest += [f"{parent}/{name}" for name in names]


def read_saved(file: Path, url: str) -> Iterator[SavedNode]:
    """Yield what a file has; FormatError where it is damaged, which may show at its very end.

    RefusedError where it was saved from another store.
    """
    digest, count = hashlib.sha256(), 0
    try:
        with gzip.open(file, "rb") as lines:
            head = _line(next(lines, b""))
            if head.get("format") != _FORMAT:
                raise FormatError(f"{file} has no saved nodes of format {_FORMAT}")
            if head.get("store") != url:
                raise RefusedError(f"{file} was saved from {head.get('store')}, and the settings name {url}")
            digest.update(json.dumps(head).encode() + b"\n")
            for raw in lines:
                fields = _line(raw)
                if "nodes" in fields:
                    if (fields["nodes"], fields["sha256"]) != (count, digest.hexdigest()):
                        raise FormatError(f"{file} is damaged: its checksum is not that of its lines")
                    return
                digest.update(raw)
                count += 1
                yield SavedNode(fields["path"], fields["version"], base64.b64decode(fields["value"]))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{file} cannot be read whole: {error}") from error
    raise FormatError(f"{file} is cut off: it has no last line")


@dataclass(frozen=True, slots=True)
class NodeDifferences:
    """The differences of the store from a file."""

    nodes: int  #: In the file.
    changed: int  #: Nodes that have another value now.
    gone: int  #: Nodes that are not there.
    shown: tuple[str, ...]  #: The first few paths of both.

    @property
    def total(self) -> int:
        """How many are written."""
        return self.changed + self.gone


def compare_saved(store: MetadataStore, file: Path, url: str) -> NodeDifferences:
    """Compare the store with a file; changes nothing."""
    store.sync()
    nodes = changed = gone = 0
    shown: list[str] = []
    for part in in_parts(read_saved(file, url)):
        nodes += len(part)
        for saved, now in _differing(store, part):
            changed, gone = (changed, gone + 1) if now is None else (changed + 1, gone)
            if len(shown) < _SHOWN:
                shown.append(saved.path)
    return NodeDifferences(nodes, changed, gone, tuple(shown))


def changed_since(store: MetadataStore, file: Path, url: str) -> str | None:
    """Return the path of a node that was written, made or removed since it was saved; None if all are as they were."""
    store.sync()
    count = 0
    for part in in_parts(read_saved(file, url)):
        count += len(part)
        for saved, now in zip(part, store.get_many([saved.path for saved in part]), strict=True):
            if now is None or (now.version, now.value) != (saved.version, saved.value):
                return saved.path
    if sum(1 for _ in walk_nodes(store)) == count:
        return None
    known = {saved.path for saved in read_saved(file, url)}
    return next((path for path, _ in walk_nodes(store) if path not in known), str(TREES))


def restore_nodes(store: MetadataStore, file: Path, url: str, require: Callable[[], object]) -> int:
    """Put the saved values back, each by compare-and-set; return how many were written.

    ``require`` is called before each part. May be interrupted and repeated. Nodes that are not in the file stay.
    RefusedError where another client writes meanwhile.
    """
    # Read to its end first: a damaged file must not be half put back.
    compare_saved(store, file, url)
    written = 0
    for part in in_parts(read_saved(file, url)):
        require()
        for saved, now in _differing(store, part):
            try:
                if now is None:
                    store.create(saved.path, saved.value, make_parents=True)
                else:
                    store.put(saved.path, saved.value, now.version)
            except LostRaceError as error:
                raise RefusedError(
                    f"{saved.path} was written by another client meanwhile: stop what writes there, then repeat"
                ) from error
            written += 1
    return written


def _differing(store: MetadataStore, part: list[SavedNode]) -> Iterator[tuple[SavedNode, Versioned | None]]:
    for saved, now in zip(part, store.get_many([saved.path for saved in part]), strict=True):
        if now is None or now.value != saved.value:
            yield saved, now


def _line(raw: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        fields = json.loads(raw)
        if isinstance(fields, dict):
            return fields
    raise FormatError("a line is no JSON object")


class NodeRestoreResult(NamedTuple):
    """The result of putting nodes back."""

    written: int
    before: Path  #: The file with all nodes as they were before.


@dataclass(frozen=True)
class NodeRestorer:
    """Puts saved nodes back into Pulsar's own store."""

    store: MetadataStore
    url: str

    def plan(self, file: Path) -> NodeDifferences:
        """Compare the store with the file; change nothing."""
        return compare_saved(self.store, file, self.url)

    def require_no_broker(self) -> None:
        """Raise RefusedError while a broker lives: it has what it read in memory, and writes it again."""
        live = read_brokers(self.store)
        if live:
            raise RefusedError(
                f"no node is put back while brokers live, such as {live[0].name}: stop all of them first"
            )

    def carry_out(self, file: Path) -> NodeRestoreResult:
        """Save what is there next to the file, then put the saved values back; RefusedError while a broker lives."""
        self.require_no_broker()
        before = save_nodes(self.store, self.url, file.parent, "before-restoring")
        return NodeRestoreResult(restore_nodes(self.store, file, self.url, self.require_no_broker), before)
