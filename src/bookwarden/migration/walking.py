"""All nodes of one tree, or of several side by side, read by a few threads.

The walk goes depth first and reads in batches. In memory are, at any time, the names in the directories being read,
the paths of some thousand waiting directories, and a batch for each thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, NamedTuple

from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.migration.pieces import Pieces

_BATCH: Final = 1_000
_THREADS: Final = 4
_MOST_WAITING: Final = 64
_MOST_DIRECTORIES: Final = 50

# Takes paths, and the nodes of each tree at these paths.
Visit = Callable[[Sequence[str], Sequence[Sequence[Versioned | None]]], object]


class Directory(NamedTuple):
    """A node to look below; ``children`` is the number of nodes there by a store's answer, None without one."""

    path: str
    children: int | None = None


class Unvisited(NamedTuple):
    """The places left of a walk: nodes to visit, with all below them, and directories that were visited themselves."""

    paths: Sequence[str] = ()
    directories: Sequence[Directory] = ()


WHOLE_TREE: Final = Unvisited(directories=(Directory("/"),))


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
        self._lock = threading.Lock()
        self._visited = 0
        self._left: list[Unvisited] = []

    def run(self, where: Unvisited = WHOLE_TREE, *, most: int | None = None) -> Unvisited:
        """Visit all nodes, or about `most` of them; return the places left.

        Raises what the trees raise, and what the visit does.
        """
        first = _Below(self._paths_in, Unvisited(where.paths))
        pieces: Pieces[_Below] = Pieces([first, *self._grouped(where.directories)], _MOST_WAITING)
        for tree in self._trees:
            tree.sync()
        with ThreadPoolExecutor(self._threads, thread_name_prefix="walk") as pool:
            try:
                for work in [pool.submit(self._work, pieces, most) for _ in range(self._threads)]:
                    work.result()
            finally:
                # On an error of one thread, and on Ctrl-C, the others end with their batch.
                pieces.stop()
        left = self._left + [piece.left() for piece in pieces.not_taken()]
        return Unvisited(
            [path for one in left for path in one.paths], [directory for one in left for directory in one.directories]
        )

    def _work(self, pieces: Pieces[_Below], most: int | None) -> None:
        try:
            for piece in pieces.each():
                self._walk(piece, pieces, most)
        except BaseException:
            pieces.stop()
            raise

    def _walk(self, piece: _Below, pieces: Pieces[_Below], most: int | None) -> None:
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
            if most is not None and self._count(len(batch)) >= most:
                pieces.stop()
        with self._lock:
            self._left += [level.left() for level in levels]

    def _count(self, visited: int) -> int:
        with self._lock:
            self._visited += visited
            return self._visited

    def _grouped(self, directories: Sequence[Directory]) -> Iterator[_Below]:
        """Divide directories so that each thread gets some."""
        size = min(_MOST_DIRECTORIES, max(1, len(directories) // (2 * self._threads)))
        for begin in range(0, len(directories), size):
            yield _Below(self._paths_in, Unvisited(directories=directories[begin : begin + size]))

    def _paths_in(self, directories: Sequence[Directory]) -> Iterator[str]:
        """Yield the paths of all children of the directories, in any of the trees."""
        paths = [directory.path for directory in directories]
        lists = zip(*(tree.list_many(paths) for tree in self._trees), strict=True)
        for directory, (names, *others) in zip(paths, lists, strict=True):
            prefix = directory if directory == "/" else f"{directory}/"
            same = all(names == other for other in others)
            for name in names if same else sorted({*names}.union(*others)):
                path = prefix + name
                if path not in self._passed_over:
                    yield path

    def _visit_batch(self, paths: list[str]) -> list[Directory]:
        """Visit the nodes of these paths; return those with children in any of the trees."""
        nodes = [tree.get_many(paths) for tree in self._trees]
        self._visit(paths, nodes)
        parents: set[str] = set()
        for tree, found in zip(self._trees, nodes, strict=True):
            parents |= _parents(tree, paths, found)
        if not parents:
            return []
        rows = zip(paths, *nodes, strict=True)
        return [Directory(path, _told_children(of_trees)) for path, *of_trees in rows if path in parents]


class _Below:
    """The paths of a place to go, listed as they are asked for; for one thread at a time."""

    def __init__(self, paths_in: Callable[[Sequence[Directory]], Iterator[str]], where: Unvisited) -> None:
        self._paths_in = paths_in
        self._listed: Iterator[str] = iter(where.paths)
        self._unlisted = deque(_listed_together(where.directories))

    def batch(self) -> list[str]:
        """Return the next paths; none if there are no more."""
        batch = list(islice(self._listed, _BATCH))
        while len(batch) < _BATCH and self._unlisted:
            self._listed = self._paths_in(self._unlisted.popleft())
            batch += islice(self._listed, _BATCH - len(batch))
        return batch

    def left(self) -> Unvisited:
        """Return the rest; ask for no batch after that."""
        return Unvisited(list(self._listed), [directory for group in self._unlisted for directory in group])


def _listed_together(directories: Iterable[Directory]) -> Iterator[list[Directory]]:
    """Divide directories to limit the children listed at once; one with an unknown number is alone."""
    group: list[Directory] = []
    children = 0
    for directory in directories:
        expected = directory.children or _BATCH
        if group and children + expected > _BATCH:
            yield group
            group, children = [], 0
        group.append(directory)
        children += expected
    if group:
        yield group


def _told_children(nodes: Iterable[Versioned | None]) -> int | None:
    return max((node.children or 0 for node in nodes if node is not None), default=0) or None


def _parents(tree: MetadataStore, paths: Sequence[str], nodes: Sequence[Versioned | None]) -> set[str]:
    told = {path for path, node in zip(paths, nodes, strict=True) if node is not None and node.children}
    untold = [path for path, node in zip(paths, nodes, strict=True) if node is not None and node.children is None]
    return told | tree.parents_among(untold) if untold else told
