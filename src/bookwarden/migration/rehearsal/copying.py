"""A metadata store copied into a scratch namespace as Pulsar's migration copies it, with the time it takes.

It follows coordination.impl.MigrationCoordinator of pulsar-metadata 4.2. Every persistent node but the root is put with
its value, version and number of writes to the key of its path, parents before children. Pulsar's first error ends its
copy; this one goes on, to find all errors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bookwarden.errors import RefusedError
from bookwarden.metastore.interface import CreateResult, MetadataStore, NewNode, ScratchStore, Versioned
from bookwarden.migration.rehearsal.marker import MARKER, Hold
from bookwarden.migration.rehearsal.scratch import COORDINATOR
from bookwarden.migration.walking import TreeWalk

# A request's worth, and a few megabytes at most where nodes are large.
_NODES_AT_ONCE: Final = 1_000
_BYTES_AT_ONCE: Final = 8 * 1024 * 1024


class SizedNode(NamedTuple):
    """A node and the size of its value in bytes."""

    path: str
    size: int


class NotCopied(NamedTuple):
    """A node that the target does not take, and why; ``size`` in bytes."""

    path: str
    size: int
    reason: CreateResult


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The result of a copy."""

    copied: int  #: Persistent nodes that the target has now.
    ephemeral: int  #: Ephemeral nodes, which are not copied.
    value_bytes: int  #: Of the copied nodes.
    path_bytes: int  #: Of the copied nodes.
    largest: SizedNode | None  #: The node with the largest value; None without nodes.
    not_copied: tuple[NotCopied, ...]  #: Nodes that the target did not take.
    seconds: float  #: Of the whole copy.
    writing_s: float  #: Seconds spent in writes, over all threads.


class Copy:
    """Copies the persistent nodes of a tree; reads the source, and writes to the scratch namespace while it is held.

    ``progress`` is called with the number of nodes seen so far. Nodes about migrations, and the marker, are left out.
    """

    def __init__(
        self,
        source: MetadataStore,
        scratch: ScratchStore,
        hold: Hold,
        *,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._walk = TreeWalk([source], self._copy, passed_over=(COORDINATOR, MARKER))
        self._scratch = scratch
        self._hold = hold
        self._progress = progress
        self._lock = threading.Lock()
        self._copied = self._ephemeral = self._value_bytes = self._path_bytes = 0
        self._largest: SizedNode | None = None
        self._not_copied: list[NotCopied] = []
        self._writing_s = 0.0

    def run(self) -> CopyReport:
        """Copy everything, once.

        Raises what the stores raise, and RefusedError where something else writes to the namespace.
        """
        begin = time.monotonic()
        self._walk.run()
        return CopyReport(
            self._copied,
            self._ephemeral,
            self._value_bytes,
            self._path_bytes,
            self._largest,
            tuple(sorted(self._not_copied, key=lambda one: one.path)),
            time.monotonic() - begin,
            self._writing_s,
        )

    def _copy(self, paths: Sequence[str], nodes: Sequence[Sequence[Versioned | None]]) -> None:
        batch: list[NewNode] = []
        ephemeral = size = 0
        for path, node in zip(paths, nodes[0], strict=True):
            if node is None:
                continue
            if node.ephemeral:
                ephemeral += 1
                continue
            batch.append(NewNode(path, node.value, node.version))
            size += len(node.value)
            if len(batch) >= _NODES_AT_ONCE or size >= _BYTES_AT_ONCE:
                self._write(batch)
                batch, size = [], 0
        if batch:
            self._write(batch)
        with self._lock:
            self._ephemeral += ephemeral

    def _write(self, batch: Sequence[NewNode]) -> None:
        self._hold.require()
        begin = time.monotonic()
        results = self._scratch.create_many(batch)
        seconds = time.monotonic() - begin
        with self._lock:
            self._writing_s += seconds
            for node, result in zip(batch, results, strict=True):
                self._take(node, result)
            seen = self._copied + len(self._not_copied)
        self._progress(seen)

    def _take(self, node: NewNode, result: CreateResult) -> None:
        if result is CreateResult.EXISTS:
            raise RefusedError(
                f"{node.path} was in the target before it was copied, though the namespace was empty: somebody else "
                "writes to it"
            )
        size = len(node.value)
        if self._largest is None or size > self._largest.size:
            self._largest = SizedNode(node.path, size)
        if result is CreateResult.CREATED:
            self._copied += 1
            self._value_bytes += size
            self._path_bytes += len(node.path.encode("utf-8", "surrogatepass"))
            return
        self._not_copied.append(NotCopied(node.path, size, result))
