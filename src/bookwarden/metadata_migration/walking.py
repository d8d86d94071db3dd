"""All nodes of one tree, or of several side by side, read by a few threads that share the work.

The walk goes depth first and reads in batches. In memory are, at any time, the names in the directories being read,
the paths of some thousand waiting directories, and a batch for each thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, Generic, TypeVar

from bookwarden.metastore.interface import MetadataStore, Versioned

Piece = TypeVar("Piece")


class WorkQueue(Generic[Piece]):
    """A queue with room for ``most`` pieces; it ends when it is empty and no thread works on one of its pieces.

    ``first`` are in it from the start, however many there are.
    """

    def __init__(self, first: Iterable[Piece], most: int) -> None:
        self._waiting = deque(first)
        self._most = most
        self._changed = threading.Condition()
        self._under_way = 0
        self._stopped = False

    @property
    def is_stopped(self) -> bool:
        """Whether threads should stop working."""
        return self._stopped

    def each(self) -> Iterator[Piece]:
        """Yield pieces to a thread, which finishes one by asking for the next, until all are done or stopped."""
        while (piece := self._take()) is not None:
            try:
                yield piece
            finally:
                self._done()

    def offer(self, piece: Piece) -> bool:
        """Leave a piece to any thread; False if there is no room, and the caller has to do it."""
        with self._changed:
            if len(self._waiting) >= self._most:
                return False
            self._waiting.append(piece)
            self._changed.notify()
            return True

    def stop(self) -> None:
        """Stop handing out pieces."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _take(self) -> Piece | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopped or not self._under_way)
            if self._stopped or not self._waiting:
                return None
            self._under_way += 1
            return self._waiting.popleft()

    def _done(self) -> None:
        with self._changed:
            self._under_way -= 1
            if not self._under_way:
                self._changed.notify_all()


_BATCH: Final = 1_000
_THREADS: Final = 4
_MOST_WAITING: Final = 64
_MOST_DIRECTORIES: Final = 50

# Takes paths, and the nodes of each tree at these paths.
Visit = Callable[[Sequence[str], Sequence[Sequence[Versioned | None]]], object]


# A node to list the children of, and their number by a store's answer, None without one.
_Directory = tuple[str, int | None]


class TreeWalk:
    """Visits every node of any of the trees but the root, parents before children; reads only.

    ``passed_over`` are paths that are not visited, with all below them. ``visit`` is called by several threads at the
    same time, with the nodes of each tree in the order of the paths, None where a tree has none. An object walks once.
    """

    def __init__(self, trees: Sequence[MetadataStore], visit: Visit, *, passed_over: Collection[str] = ()) -> None:
        self._trees = trees
        self._visit = visit
        self._passed_over = frozenset(passed_over)
        self._threads = 1 if all(tree.answers_at_once for tree in trees) else _THREADS

    def run(self) -> None:
        """Visit all nodes; raises what the trees raise, and what the visit does."""
        pieces: WorkQueue[_Directories] = WorkQueue(self._grouped([("/", None)]), _MOST_WAITING)
        for tree in self._trees:
            tree.sync()
        with ThreadPoolExecutor(self._threads, thread_name_prefix="walk") as pool:
            try:
                for work in [pool.submit(self._work, pieces) for _ in range(self._threads)]:
                    work.result()
            finally:
                # On an error of one thread, and on Ctrl-C, the others end with their batch.
                pieces.stop()

    def _work(self, pieces: WorkQueue[_Directories]) -> None:
        try:
            for piece in pieces.each():
                self._walk(piece, pieces)
        except BaseException:
            pieces.stop()
            raise

    def _walk(self, piece: _Directories, pieces: WorkQueue[_Directories]) -> None:
        """Visit all of a piece but the parts left to other threads."""
        levels = [piece]
        while levels and not pieces.is_stopped:
            batch = levels[-1].batch()
            if not batch:
                levels.pop()
                continue
            below = self._visit_batch(batch)
            mine = [group for group in self._grouped(below) if not pieces.offer(group)]
            levels += reversed(mine)

    def _grouped(self, directories: Sequence[_Directory]) -> Iterator[_Directories]:
        """Divide directories so that each thread gets some."""
        size = min(_MOST_DIRECTORIES, max(1, len(directories) // (2 * self._threads)))
        for begin in range(0, len(directories), size):
            yield _Directories(self._paths_in, directories[begin : begin + size])

    def _paths_in(self, paths: Sequence[str]) -> Iterator[str]:
        """Yield the paths of all children of these nodes, in any of the trees."""
        lists = zip(*(tree.list_many(paths) for tree in self._trees), strict=True)
        for directory, (names, *others) in zip(paths, lists, strict=True):
            prefix = directory if directory == "/" else f"{directory}/"
            same = all(names == other for other in others)
            for name in names if same else sorted({*names}.union(*others)):
                path = prefix + name
                if path not in self._passed_over:
                    yield path

    def _visit_batch(self, paths: list[str]) -> list[_Directory]:
        """Visit the nodes of these paths; return those with children in any of the trees."""
        nodes = [tree.get_many(paths) for tree in self._trees]
        self._visit(paths, nodes)
        parents: set[str] = set()
        for tree, found in zip(self._trees, nodes, strict=True):
            parents |= _parents(tree, paths, found)
        if not parents:
            return []
        rows = zip(paths, *nodes, strict=True)
        return [(path, _number_of_children(of_trees)) for path, *of_trees in rows if path in parents]


class _Directories:
    """The paths below some directories, listed as they are asked for; for one thread at a time."""

    def __init__(self, paths_in: Callable[[Sequence[str]], Iterator[str]], directories: Iterable[_Directory]) -> None:
        self._paths_in = paths_in
        self._listed: Iterator[str] = iter(())
        self._unlisted = deque(_listed_together(directories))

    def batch(self) -> list[str]:
        """Return the next paths; none if there are no more."""
        batch = list(islice(self._listed, _BATCH))
        while len(batch) < _BATCH and self._unlisted:
            self._listed = self._paths_in(self._unlisted.popleft())
            batch += islice(self._listed, _BATCH - len(batch))
        return batch


def _listed_together(directories: Iterable[_Directory]) -> Iterator[list[str]]:
    """Divide the paths of directories to limit the children listed at once; one with an unknown number is alone."""
    group: list[str] = []
    children = 0
    for path, known in directories:
        expected = known or _BATCH
        if group and children + expected > _BATCH:
            yield group
            group, children = [], 0
        group.append(path)
        children += expected
    if group:
        yield group


def _number_of_children(nodes: Iterable[Versioned | None]) -> int | None:
    return max((node.children or 0 for node in nodes if node is not None), default=0) or None


def _parents(tree: MetadataStore, paths: Sequence[str], nodes: Sequence[Versioned | None]) -> set[str]:
    known = {path for path, node in zip(paths, nodes, strict=True) if node is not None and node.children}
    uncounted = [path for path, node in zip(paths, nodes, strict=True) if node is not None and node.children is None]
    return known | tree.parents_among(uncounted) if uncounted else known
