"""A ZooKeeper snapshot as a metadata store that can only be read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn

from bookwarden.errors import NotFoundError, RefusedError, StoreUnavailableError
from bookwarden.ledgers.metadata import Conditions, DeleteResult
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.metastore.paths import validate_path
from bookwarden.metastore.snapshot.file import SnapshotFile, open_snapshot
from bookwarden.metastore.snapshot.walk import SnapshotIndex, paths_between, read_values
from bookwarden.metastore.zookeeper.jute import Bytes, damaged, is_of_session

# The number of paths below the kept nodes that are remembered, the last used, besides those below the largest one.
_REMEMBERED_PATHS: Final = 200_000


class EncodedNodes(NamedTuple):
    """All nodes below one, as they follow each other in a snapshot; ``parent`` is the path of that node there."""

    parent: bytes
    data: bytes


@dataclass(slots=True)
class _Below:
    """Nodes below a kept one: the offset of each value, and the names of each node's children."""

    places: dict[str, int] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)


class SnapshotStore(MetadataStore):
    """The nodes of a snapshot with the transactions behind it replayed, below its chroot.

    The file is checked at the first call. Only paths and offsets are in memory, and far below the root only
    some at a time. Reads are as of the moment of the snapshot, and a sync changes nothing; all writes, and watches,
    raise RefusedError.
    """

    def __init__(self, source: SnapshotFile) -> None:
        self._source = source
        self._lock = threading.RLock()
        self._files = ExitStack()
        self._opened: _Opened | None = None
        self._closed = False

    @property
    def index(self) -> SnapshotIndex:
        """The index of the file; raises the errors of `open_snapshot`, as every first call does."""
        with self._lock:
            return self._snapshot().index

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        with self._lock:
            return self._snapshot().get_many(paths)

    answers_at_once = True

    def list_children(self, path: str) -> list[str]:
        with self._lock:
            return self._snapshot().children_of(path)

    def encoded_below(self, path: str) -> EncodedNodes | None:
        """Return the nodes below one as they are in the file.

        None where they have to be read one by one: where transactions changed the node or its children, and where they
        lie among other nodes, as a rule far from the root.
        """
        with self._lock:
            return self._snapshot().encoded_below(path)

    def sync(self) -> None:
        with self._lock:
            self._snapshot()

    def close(self) -> None:
        with self._lock:
            self._closed, self._opened = True, None
            self._files.close()

    def delete_many(
        self,
        expected: Sequence[tuple[str, int]],
        *,
        created_ms: Sequence[int] | None = None,
        conditions: Sequence[Conditions] | None = None,
    ) -> list[DeleteResult]:
        return [] if not expected else self._refuse()

    def put(self, path: str, value: bytes, version: int) -> int:
        self._refuse()

    def create(self, path: str, value: bytes, *, make_parents: bool = False) -> None:
        self._refuse()

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        self._refuse()

    def ephemeral_sequential(self, prefix: str, value: bytes) -> str:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RefusedError("a snapshot of the metadata store cannot be written or watched: use the store's own URL")

    def _snapshot(self) -> _Opened:
        if self._closed:
            raise StoreUnavailableError("this metadata store was closed")
        if self._opened is None:
            self._opened = _Opened(*self._files.enter_context(open_snapshot(self._source)))
        return self._opened


class _Opened:
    """An indexed snapshot with its file; names are paths below the chroot, that of the root is empty."""

    def __init__(self, index: SnapshotIndex, data: Bytes) -> None:
        self.index = index
        self._data = data
        self._below: OrderedDict[str, _Below] = OrderedDict()
        self._used_last = _Below()
        self._children: dict[str, list[str]] = {}
        for name in index.kept:
            if name:
                self._children.setdefault(_above(name), []).append(_last_part(name))
        self._appeared: dict[str, set[str]] = {}
        self._vanished: dict[str, set[str]] = {}
        for name, node in index.changed.items():
            if not name:
                continue
            changes = self._vanished if node is None else self._appeared
            changes.setdefault(_above(name), set()).add(_last_part(name))

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        places: list[int | None] = []
        flat: dict[str, list[int]] = {}
        for path in paths:
            # Mostly these nodes were listed just before.
            place = self._used_last.places.get(path)
            if place is None:
                name = validate_path(path).rstrip("/")
                place = self._place(name)
                if self._is_flat(name):
                    flat.setdefault(name, []).append(len(places))
            places.append(place)
        for name, place in self._flat_ledgers() if flat else ():
            for number in flat.get(name, ()):
                places[number] = place
        found = read_values(self._data, places)
        for number, path in enumerate(paths) if self.index.changed else ():
            name = path.rstrip("/")
            if name in self.index.changed:
                node = self.index.changed[name]
                session = node.owner if node is not None and is_of_session(node.owner) else None
                found[number] = node and Versioned(*node[:4], ephemeral=session is not None, session=session)
        return found

    def children_of(self, path: str) -> list[str]:
        name = validate_path(path).rstrip("/")
        found = self._children_in_file(name)
        if name in self.index.changed:
            found = None if self.index.changed[name] is None else found or []
        if found is None:
            raise NotFoundError(f"the snapshot of the metadata store has no node {path}")
        if name in self._vanished or name in self._appeared:
            found = (set(found) - self._vanished.get(name, set())) | self._appeared.get(name, set())
        return sorted(found)

    def encoded_below(self, path: str) -> EncodedNodes | None:
        name, index = validate_path(path).rstrip("/"), self.index
        changed = name in index.changed or name in self._appeared or name in self._vanished
        if changed or name not in index.below or name in self._children or name == index.ledgers_root:
            return None
        data = b"".join(self._data[start:end] for start, end in index.below[name])
        return EncodedNodes((index.chroot + name).encode(), data)

    def _place(self, name: str) -> int | None:
        """Find a node in the file; None for one of the flat layout as well."""
        if name in self.index.kept:
            return self.index.kept[name]
        below = self._found_below(name)
        return below.places.get(name) if below else None

    def _children_in_file(self, name: str) -> Collection[str] | None:
        if self._is_flat(name):
            return [] if any(name == ledger for ledger, _ in self._flat_ledgers()) else None
        if name not in self.index.kept:
            below = self._found_below(name)
            return below.children.get(name, []) if below and name in below.places else None
        found = self._children.get(name, [])
        if name == self.index.ledgers_root:
            return [*found, *(_last_part(ledger) for ledger, _ in self._flat_ledgers())]
        if name in self.index.below:
            return [*found, *self._load(name).children.get(name, ())]
        return found

    def _found_below(self, name: str) -> _Below | None:
        """Return the nodes below the nearest kept node above a name; None where there are none."""
        above = name
        while above and above not in self.index.kept:
            above = _above(above)
        has_more = above in self.index.below and above != self.index.ledgers_root
        return self._load(above) if has_more else None

    def _load(self, kept: str) -> _Below:
        below = self._below.get(kept)
        if below is None:
            below = self._below[kept] = self._read_below(kept)
            self._forget()
        self._below.move_to_end(kept)
        self._used_last = below
        return below

    def _forget(self) -> None:
        """Forget what is too much; a namespace of very many topics stays, since between two of them others are read."""
        sizes = {kept: len(held.places) for kept, held in self._below.items()}
        largest = max(sizes, key=sizes.__getitem__)
        excess = sum(sizes.values()) - sizes[largest] - _REMEMBERED_PATHS
        for kept, size in sizes.items():
            if excess > 0 and kept != largest:
                del self._below[kept]
                excess -= size

    def _read_below(self, kept: str) -> _Below:
        below = _Below()
        places, above = below.places, kept
        names = below.children.setdefault(kept, [])
        for name, place in self._nodes_below(kept):
            parent, _, last_part = name.rpartition("/")
            if parent != above:
                if parent != kept and parent not in places:
                    raise damaged(self.index.file, place, f"{name[:200]!r} comes before the node above it")
                above, names = parent, below.children.setdefault(parent, [])
            names.append(last_part)
            places[name] = place
        return below

    def _is_flat(self, name: str) -> bool:
        root = self.index.ledgers_root
        return root in self.index.below and name not in self.index.kept and _above(name) == root

    def _flat_ledgers(self) -> Iterator[tuple[str, int]]:
        """Pass over the ledgers of the flat layout, which may be too many to remember."""
        return self._nodes_below(self.index.ledgers_root)

    def _nodes_below(self, kept: str) -> Iterator[tuple[str, int]]:
        chroot = len(self.index.chroot)
        for start, end in self.index.below.get(kept, ()):
            for path, place in paths_between(self._data, start, end):
                yield path[chroot:], place


def _above(name: str) -> str:
    return name.rpartition("/")[0]


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]


def latest_ms_in(stores: Iterable[MetadataStore]) -> int | None:
    """Return the latest time in the snapshots among them, in milliseconds since the epoch; None where none is one."""
    return max((store.index.latest_ms for store in stores if isinstance(store, SnapshotStore)), default=None)


def fuzzy_in(stores: Iterable[MetadataStore]) -> str | None:
    """Return why one of the snapshots among them may not be the state of one moment; None where each is."""
    indices = (store.index for store in stores if isinstance(store, SnapshotStore))
    return next((f"{index.file}: {index.fuzzy}" for index in indices if index.fuzzy), None)
