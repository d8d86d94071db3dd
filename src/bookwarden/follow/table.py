"""The state of following all metadata roots: what each node names, and what left them; without any I/O."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from bookwarden.follow.drops import Drop, Key, drops_between, keys_in
from bookwarden.follow.timers import PackedTimers, Timer
from bookwarden.ledgers.naming import has_copies, ids_in, unpack


class NodeNow(NamedTuple):
    """A node as it was read; one that could not be read or understood says nothing, and has ``problem``."""

    root: str  #: URL of the metadata root.
    path: str  #: Of the node.
    naming: bytes | None  #: As `ledgers.naming.pack` makes it; None where there is no such node, or for a problem.
    at_ms: int  #: Of its last write by the store, or of the look that did not find it; in ms since the epoch.
    #: Number of the comparison in which it was read, None for a change; each later one has a larger number.
    listing: int | None = None
    problem: str = ""  #: For people; with a listing it stands for all nodes below the path as well.


@dataclass
class Changes:
    """The changes of a batch in the state, to be kept before the batch counts as done."""

    nodes: dict[tuple[str, str], bytes | None] = field(default_factory=dict)
    timers: dict[Key, Timer | None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.nodes) + len(self.timers)


class FollowedNodes:
    """The naming of every node, and a timer for all that left one. ``grace_ms`` is from the drop to the look.

    ``changes`` collects what is to be kept; the code that keeps it replaces it by a new one.
    """

    def __init__(self, grace_ms: int) -> None:
        #: From a drop to the look.
        self.grace_ms = grace_ms
        #: URLs of the roots whose brokers mark, and by how much later what they drop is looked at.
        self.roots_that_mark: Mapping[str, int] = {}
        self._nodes: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        #: All timers, of what was dropped.
        self.timers = PackedTimers()
        self._listing = _Listing(0)
        self.changes = Changes()
        #: The comparisons with the present that were finished.
        self.listed = 0

    def __len__(self) -> int:
        return sum(map(len, self._nodes.values()))

    def items(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield root, path and naming of each node."""
        for root, nodes in self._nodes.items():
            for path, naming in nodes.items():
                yield root, path, naming

    def restore(
        self, nodes: Iterable[tuple[str, str, bytes | None]], timers: Iterable[tuple[Key, Timer | None]]
    ) -> None:
        """Take up what was kept, in its order."""
        for root, path, naming in nodes:
            if naming is None:
                self._nodes[root].pop(path, None)
            else:
                self._nodes[root][path] = naming
        for key, timer in timers:
            self._set_timer(key, timer)

    def take(self, rows: Iterable[NodeNow], now_ms: int) -> list[Drop]:
        """Take what nodes name now, in the order in which they were read; return what was dropped."""
        drops: list[Drop] = []
        for row in rows:
            if row.listing is not None:
                self._note_listed(row)
            if not row.problem:
                drops += self._put(row, now_ms)
        return drops

    def unlisted(self, listing: int) -> dict[str, list[str]]:
        """Return by root the paths of known nodes that a comparison, which has ended, did not meet.

        They are to be read, and taken as changes: a store may have given a part of its names only. Nothing is returned
        for a comparison of which a part was not taken.
        """
        if self._listing.number != listing:
            return {}
        seen, closed = self._listing.seen, self._listing.closed
        return {
            root: [
                path
                for path in nodes
                if path not in seen[root] and not any(path.startswith(below) for below in closed[root])
            ]
            for root, nodes in self._nodes.items()
        }

    def end_listing(self, listing: int) -> bool:
        """Note the end of a comparison; return whether all of it was taken."""
        whole = self._listing.number == listing
        if whole:
            self.listed += 1
        self._listing = _Listing(0)
        return whole

    def due(self, now_ms: int, most: int) -> list[Timer]:
        """Return the timers whose time has come, the oldest first; each has to be settled or postponed then."""
        return self.timers.due(now_ms, most)

    def settle(self, drops: Iterable[Drop]) -> None:
        """End the timers of these."""
        for drop in drops:
            self._change_timer(drop.key, None)

    def postpone(self, timers: Iterable[Timer]) -> None:
        """Have their drops looked at again, when these are due."""
        for timer in timers:
            self._change_timer(timer.drop.key, timer)

    def named_among(self, keys: Collection[Key]) -> dict[Key, str]:
        """Find those ledgers and copies that any node names, each with the path of one; this looks at all nodes."""
        wanted = {_ID.pack(key): key for key in keys if isinstance(key, int)}
        copies = {key for key in keys if isinstance(key, UUID)}
        found: dict[Key, str] = {}
        if not keys:
            return found
        for nodes in self._nodes.values():
            for path, naming in nodes.items():
                for packed in _found_in(ids_in(naming), wanted):
                    found[wanted[packed]] = path
                if copies and has_copies(naming):
                    found.update((copy.uuid, path) for copy in unpack(naming).copies if copy.uuid in copies)
        return found

    def _put(self, row: NodeNow, now_ms: int) -> list[Drop]:
        nodes = self._nodes[row.root]
        before = nodes.get(row.path)
        if before == row.naming:
            return []
        if row.naming is None:
            del nodes[row.path]
        else:
            nodes[row.path] = row.naming
        self.changes.nodes[row.root, row.path] = row.naming
        if before is None and not self.timers:
            return []
        now = None if row.naming is None else unpack(row.naming)
        if now is not None and self.timers:
            for key in keys_in(now):
                if key in self.timers:
                    self._change_timer(key, None)
        if before is None:
            return []
        drops = drops_between(unpack(before), now, row.path, row.root, row.at_ms)
        grace_ms = self.grace_ms + self.roots_that_mark.get(row.root, 0)
        for drop in drops:
            self._change_timer(drop.key, Timer(now_ms + grace_ms, drop))
        return drops

    def _note_listed(self, row: NodeNow) -> None:
        if row.listing is not None and row.listing != self._listing.number:
            self._listing = _Listing(row.listing)
        if row.problem:
            self._listing.closed[row.root].append(f"{row.path}/")
        self._listing.seen[row.root].add(row.path)

    def _change_timer(self, key: Key, timer: Timer | None) -> None:
        self._set_timer(key, timer)
        self.changes.timers[key] = timer

    def _set_timer(self, key: Key, timer: Timer | None) -> None:
        if timer is None:
            self.timers.end(key)
        else:
            self.timers.put(timer)


@dataclass
class _Listing:
    """The paths that a comparison met so far, by root, and those below which it could not look."""

    number: int
    seen: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    closed: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


_ID: Final = struct.Struct("<q")


def _found_in(ids: bytes, wanted: Mapping[bytes, int]) -> list[bytes]:
    return [packed for at in range(0, len(ids), _ID.size) if (packed := ids[at : at + _ID.size]) in wanted]
