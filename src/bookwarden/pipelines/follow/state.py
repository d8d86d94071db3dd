"""The state of following in files: what every node named, and what is to be looked at.

A file has the changes of a batch; now and then one has everything, and those before it go. A file is whole or absent,
and names its place in the order: ``000000000007-all.arrow``, ``000000000008-more.arrow``.

A root has no name of its own, and its URL changes: a host is added, or Pulsar moves the metadata to another store
(PIP-454). It is known by what its nodes name, since no two roots of a BookKeeper have a ledger in common.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final
from uuid import UUID
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from bookwarden.errors import FormatError, RefusedError, StateTakenOverError
from bookwarden.follow.drops import Drop, DropCause, Key
from bookwarden.follow.table import Changes, FollowedNodes, NodeNow
from bookwarden.follow.timers import Timer
from bookwarden.leases import describe_holder, holder_here
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.naming import ids_in
from bookwarden.ledgers.pending_deletion import OffloadContext
from bookwarden.metastore.urls import is_same_store
from bookwarden.pipelines.folders import Folder

logger = logging.getLogger(__name__)
_SAMPLE: Final = 500
_ID_BYTES: Final = 8
_ALL: Final = "-all.arrow"
_MORE: Final = "-more.arrow"
_OWNER: Final = "owner.json"
_SCHEMA: Final = pa.schema(
    [
        pa.field("root", pa.string()),
        pa.field("path", pa.string()),
        pa.field("naming", pa.binary()),
        pa.field("key", pa.string()),
        pa.field("timer", pa.string()),
    ],
    metadata={"bookwarden.follow": "1"},
)
_ROWS: Final = 50_000
# The number of rows, and of files, below which a restart reads them at once.
_FEW_ROWS: Final = 100_000
_FEW_FILES: Final = 200
# Where there is much to write, a file for this number of rows may be left, lest all be written again too often.
_ROWS_OF_A_FILE: Final = 10_000
# Root, path and naming of a node, then key and timer, in place of each other; the last is None for one that is gone.
_Row = tuple[str | None, str | None, bytes | None, str | None, str | None]


class KeptRoot:
    """A root in a kept state: a sample of its nodes, and the keys of what is still to be looked at."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.timers: set[str] = set()
        self._mask = 0

    @property
    def is_without_nodes(self) -> bool:
        """Whether none of its nodes names a ledger."""
        return not self.nodes and not self._mask

    def take(self, rows: Iterable[tuple[str, bytes | None]]) -> None:
        """Take path and naming of its nodes, in their order; None for one that is gone, or names no ledger."""
        for path, naming in rows:
            if crc32(path.encode()) & self._mask:
                continue
            if naming is not None and ids_in(naming):
                self.nodes[path] = naming
            else:
                self.nodes.pop(path, None)
            if len(self.nodes) > _SAMPLE:
                # The same nodes each time, so that a later row of one replaces its earlier one.
                self._mask = 2 * self._mask + 1
                self.nodes = {
                    path: known for path, known in self.nodes.items() if not crc32(path.encode()) & self._mask
                }


def find_roots(
    kept: Mapping[str, KeptRoot], urls: Collection[str], read: Callable[[str, Sequence[str]], list[NodeNow]]
) -> dict[str, str]:
    """Return for the roots that are kept the URLs of now; roots that are none of ``urls`` are left out.

    ``read`` reads nodes of a root by its URL of now. Raises RefusedError where all would be left out, StoreError where
    a root does not answer.
    """
    found = {before: now for before, root in kept.items() if (now := _found(before, root, urls, read)) is not None}
    if kept and not found:
        timers = sum(len(root.timers) for root in kept.values())
        raise RefusedError(
            f"follow.checkpoint is of {', '.join(sorted(kept))}, and metadata_store.urls names {', '.join(urls)}, whose"
            f" nodes do not name the same ledgers: all would be forgotten, and {timers:,} dropped ledgers never looked "
            "at. Name that root, or move the folder away: what was dropped before is found by the orphan scan then"
        )
    return found


def _found(
    before: str, root: KeptRoot, urls: Collection[str], read: Callable[[str, Sequence[str]], list[NodeNow]]
) -> str | None:
    if before in urls:
        return before
    same = next((url for url in urls if is_same_store(before, url)), None)
    if same is not None:
        return same
    if root.is_without_nodes:
        # A timer is only looked at, in all roots.
        return next(iter(urls)) if len(urls) == 1 else None
    return next((url for url in urls if _names_the_same(root.nodes, read(url, list(root.nodes)))), None)


def _names_the_same(known: Mapping[str, bytes], rows: Iterable[NodeNow]) -> bool:
    """Return whether most of these nodes that are there now name a ledger that they named before."""
    there = [row for row in rows if row.naming is not None]
    same = [row for row in there if not _ids(row.naming).isdisjoint(_ids(known[row.path]))]
    return bool(there) and 2 * len(same) > len(there)


def _ids(naming: bytes | None) -> frozenset[bytes]:
    ids = b"" if naming is None else ids_in(naming)
    return frozenset(ids[at : at + _ID_BYTES] for at in range(0, len(ids), _ID_BYTES))


class KeptState:
    """The files of a state below `location`, a path or a URI; one process at a time writes them.

    The stream's lock sees to that, unless its store does not answer or refuses the node. So a process that begins to
    write leaves its name here, and one that finds another name ends: two would write files of the same numbers.
    """

    def __init__(self, location: str) -> None:
        self._folder = Folder(location)
        self._owner = holder_here()
        self._next = 0
        self._files: list[str] = []
        self._rows_since = 0
        self._has_other_roots = False

    def is_begun(self) -> bool:
        """Return whether there are any files."""
        return bool(self._names())

    def take_over(self) -> None:
        """Become the one that writes, before the files are loaded."""
        self._folder.write_json(_OWNER, self._owner)

    def require_own(self) -> None:
        """Raise StateTakenOverError if another process has taken over since."""
        try:
            owner = self._folder.read_json(_OWNER)
        except FileNotFoundError:
            # The folder was removed: begin again.
            self.take_over()
            return
        if owner != self._owner:
            raise StateTakenOverError(
                f"another follow has taken over {self._folder.location}: {describe_holder(owner)}; this one ends, and "
                "loses nothing. Run one for each Pulsar cluster, and see why the lock of follow was not kept"
            )

    def roots(self, known: Collection[str]) -> dict[str, KeptRoot]:
        """Return what is kept of each root, by its URL then; of a root in ``known`` only that something is.

        Raises FormatError for a damaged file.
        """
        found: dict[str, KeptRoot] = {}
        texts = {url: json.dumps(url) for url in known}
        for batch in self._batches(self._names()):
            for url in pc.unique(batch.column("root")).drop_null().to_pylist():
                root = found.setdefault(url, KeptRoot())
                if url not in known:
                    some = batch.filter(pc.equal(batch.column("root"), url))
                    root.take(zip(some.column("path").to_pylist(), some.column("naming").to_pylist(), strict=True))
            others = batch.filter(pc.is_valid(batch.column("key")))
            for url, text in texts.items():
                is_of = pc.fill_null(pc.match_substring(others.column("timer"), text), False)
                if others.num_rows and pc.any(is_of).as_py():
                    found.setdefault(url, KeptRoot())
                others = others.filter(pc.invert(is_of))
            for key, text in zip(others.column("key").to_pylist(), others.column("timer").to_pylist(), strict=True):
                for root in found.values():
                    root.timers.discard(key)
                if text is not None:
                    found.setdefault(_timer_of(text).drop.root, KeptRoot()).timers.add(key)
        return found

    def load(self, nodes: FollowedNodes, roots: Mapping[str, str]) -> bool:
        """Read what was kept into ``nodes``, of the roots in ``roots``: by the URL then, that of now.

        Returns whether there was anything. Raises FormatError for a damaged file.
        """
        names = self._names()
        self._files = names
        for batch in self._batches(names):
            rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            nodes.restore(_nodes_in(rows, roots), _timers_in(rows, roots))
            self._rows_since += len(rows)
        self._next = 1 + max((int(name[:12]) for name in names), default=-1)
        self._has_other_roots = any(before != now for before, now in roots.items())
        return bool(names)

    def keep(self, nodes: FollowedNodes) -> None:
        """Make what changed since the last call durable."""
        changes, nodes.changes = nodes.changes, Changes()
        if not changes and not self._has_other_roots:
            return
        try:
            entries = len(nodes) + len(nodes.timers)
            many = self._rows_since > _FEW_ROWS + entries or len(self._files) > _FEW_FILES + entries // _ROWS_OF_A_FILE
            # The next start need not find out again which root is which.
            if many or self._has_other_roots:
                self.keep_all(nodes)
                return
            rows = len(changes.nodes) + len(changes.timers)
            self._write(f"{self._next:012d}{_MORE}", _rows_of_changes(changes))
            self._rows_since += rows
        except BaseException:
            changes.nodes.update(nodes.changes.nodes)
            changes.timers.update(nodes.changes.timers)
            nodes.changes = changes
            raise

    def keep_all(self, nodes: FollowedNodes) -> None:
        """Write everything that is known into one file, and remove those before it."""
        former = list(self._files)
        self._write(f"{self._next:012d}{_ALL}", _rows_of_all(nodes))
        self._files = self._files[-1:]
        self._rows_since = 0
        self._has_other_roots = False
        for name in former:
            self._folder.remove(name)

    def _names(self) -> list[str]:
        return [name for name in self._folder.files() if name.endswith((_ALL, _MORE))]

    def _write(self, name: str, rows: Iterator[_Row]) -> None:
        def write(sink: pa.NativeFile) -> None:
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            with pa.ipc.new_file(sink, _SCHEMA, options=options) as writer:
                while some := list(islice(rows, _ROWS)):
                    columns = [
                        pa.array(values, field.type)
                        for values, field in zip(zip(*some, strict=True), _SCHEMA, strict=True)
                    ]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))

        self._folder.write(name, write, durable=True)
        self._files.append(name)
        self._next += 1

    def _batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        whole = max((number for number, name in enumerate(names) if name.endswith(_ALL)), default=0)
        for name in names[whole:]:
            yield from self._read(name)

    def _read(self, name: str) -> Iterator[pa.RecordBatch]:
        try:
            with self._folder.open(name) as source, pa.ipc.open_file(source) as reader:
                if reader.schema != _SCHEMA:
                    raise FormatError(self._damaged(name, "its columns are others"))
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)
        except (pa.ArrowException, ValueError) as error:
            raise FormatError(self._damaged(name, str(error))) from error

    def _damaged(self, name: str, why: str) -> str:
        return (
            f"{self._folder.location}/{name} is damaged ({why}): remove this folder to start over; the orphan "
            "scan finds what was dropped before"
        )


def _rows_of_changes(changes: Changes) -> Iterator[_Row]:
    for (root, path), naming in changes.nodes.items():
        yield root, path, naming, None, None
    for key, timer in changes.timers.items():
        yield None, None, None, str(key), None if timer is None else _timer_text(timer)


def _rows_of_all(nodes: FollowedNodes) -> Iterator[_Row]:
    return chain(
        ((root, path, naming, None, None) for root, path, naming in nodes.items()),
        ((None, None, None, str(key), _timer_text(timer)) for key, timer in nodes.timers.items()),
    )


def _nodes_in(rows: Iterable[_Row], roots: Mapping[str, str]) -> Iterator[tuple[str, str, bytes | None]]:
    return (
        (roots[root], path, naming)
        for root, path, naming, _, _ in rows
        if root is not None and root in roots and path is not None
    )


def _timers_in(rows: Iterable[_Row], roots: Mapping[str, str]) -> Iterator[tuple[Key, Timer | None]]:
    for _, _, _, key, text in rows:
        if key is None:
            continue
        timer = None if text is None else _timer_of(text)
        if timer is None:
            yield _key_of(key), None
        elif timer.drop.root in roots:
            drop = timer.drop._replace(root=roots[timer.drop.root])
            yield _key_of(key), timer._replace(drop=drop)


def _key_of(text: str) -> Key:
    """Read the text of a key back."""
    return int(text) if text.isdecimal() else UUID(text)


def _timer_text(timer: Timer) -> str:
    drop, copy = timer.drop, timer.drop.copy
    context = None if copy is None else [copy.msb, copy.lsb, copy.driver_name, dict(copy.metadata)]
    waited = [timer.first_look_ms, timer.looks, timer.reason] if timer.looks else []
    return json.dumps(
        [
            timer.due_ms,
            *(drop.ledger_id, drop.place.value, drop.cause.value, drop.path, drop.root, drop.at_ms),
            context,
            *waited,
        ]
    )


def _timer_of(text: str) -> Timer:
    due_ms, ledger_id, place, cause, path, root, at_ms, context, *waited = json.loads(text)
    copy: Any = None if context is None else OffloadContext(*context)
    return Timer(due_ms, Drop(ledger_id, PlaceKind(place), DropCause(cause), path, root, at_ms, copy), *waited)
