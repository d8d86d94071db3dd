"""All nodes of one tree, or of several side by side, read by a few threads.

The walk goes depth first and reads in batches. What is in memory at any time are the names in the directories that are
being read, the paths of some thousand directories that wait, and a batch a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, NamedTuple

from bookwarden.migration.pieces import Pieces
from bookwarden.migration.ports import Node, Tree

_BATCH: Final = 1_000
_THREADS: Final = 4
_MOST_WAITING: Final = 64
_MOST_DIRECTORIES: Final = 50

# Takes paths, and the nodes of each tree at these paths.
Visit = Callable[[Sequence[str], Sequence[Sequence[Node | None]]], object]


class _Directory(NamedTuple):
    """A node to look below; ``children`` is how many nodes a tree said to be there, None if none did."""

    path: str
    children: int | None = None


class TreeWalk:
    """Visits every node that any of the trees has, but the root; reads only.

    ``passed_over`` are paths that are not visited, with all below them. ``visit`` is called by several threads at the
    same time, with the nodes of each tree in the order of the paths, None where a tree has none.
    """

    def __init__(self, trees: Sequence[Tree], visit: Visit, *, passed_over: Collection[str] = ()) -> None:
        self._trees = trees
        self._visit = visit
        self._passed_over = frozenset(passed_over)
        self._threads = 1 if all(tree.answers_at_once for tree in trees) else _THREADS
        self._pieces: Pieces[Sequence[_Directory]] = Pieces([_Directory("/")], _MOST_WAITING)

    def run(self) -> None:
        """Visit everything, once; raises what the trees raise, and what the visit does."""
        for tree in self._trees:
            tree.sync()
        with ThreadPoolExecutor(self._threads, thread_name_prefix="walk") as pool:
            try:
                for work in [pool.submit(self._work) for _ in range(self._threads)]:
                    work.result()
            finally:
                # On an error of one thread, and on Ctrl-C, the others end with their batch.
                self._pieces.stop()

    def _work(self) -> None:
        try:
            for directories in self._pieces.each():
                self._walk_below(directories)
        except BaseException:
            self._pieces.stop()
            raise

    def _walk_below(self, directories: Sequence[_Directory]) -> None:
        """Visit all that is below some directories, but for what is left to other threads."""
        levels = [self._batches(directories)]
        while levels and not self._pieces.is_stopped:
            batch = next(levels[-1], None)
            if batch is None:
                levels.pop()
                continue
            below = self._read(batch)
            mine = [group for group in self._groups(below) if not self._pieces.offer(group)]
            levels += [self._batches(group) for group in reversed(mine)]

    def _groups(self, directories: Sequence[_Directory]) -> Iterator[Sequence[_Directory]]:
        """Part directories so that there is something for each thread."""
        size = min(_MOST_DIRECTORIES, max(1, len(directories) // (2 * self._threads)))
        for begin in range(0, len(directories), size):
            yield directories[begin : begin + size]

    def _batches(self, directories: Sequence[_Directory]) -> Iterator[list[str]]:
        """Give the paths of what is in the directories, of any tree."""
        paths = (path for group in _listed_together(directories) for path in self._paths_in(group))
        while batch := list(islice(paths, _BATCH)):
            yield batch

    def _paths_in(self, directories: Sequence[str]) -> Iterator[str]:
        lists = zip(*(tree.list_many(directories) for tree in self._trees), strict=True)
        for directory, (names, *others) in zip(directories, lists, strict=True):
            prefix = directory if directory == "/" else f"{directory}/"
            same = all(names == other for other in others)
            for name in names if same else sorted({*names}.union(*others)):
                path = prefix + name
                if path not in self._passed_over:
                    yield path

    def _read(self, paths: list[str]) -> list[_Directory]:
        """Visit these paths; return those of them that have nodes below them in any tree."""
        nodes = [tree.get_many(paths) for tree in self._trees]
        self._visit(paths, nodes)
        parents: set[str] = set()
        for tree, found in zip(self._trees, nodes, strict=True):
            parents |= _parents(tree, paths, found)
        rows = zip(paths, *nodes, strict=True)
        return [_Directory(path, _told_children(of_trees)) for path, *of_trees in rows if path in parents]


def _listed_together(directories: Sequence[_Directory]) -> Iterator[list[str]]:
    """Part directories so that not too many children are listed at once; one is alone if its number is not known."""
    group: list[str] = []
    children = 0
    for directory in directories:
        expected = directory.children or _BATCH
        if group and children + expected > _BATCH:
            yield group
            group, children = [], 0
        group.append(directory.path)
        children += expected
    if group:
        yield group


def _told_children(nodes: Sequence[Node | None]) -> int | None:
    return max((node.children or 0 for node in nodes if node is not None), default=0) or None


def _parents(tree: Tree, paths: Sequence[str], nodes: Sequence[Node | None]) -> set[str]:
    told = {path for path, node in zip(paths, nodes, strict=True) if node is not None and node.children}
    untold = [path for path, node in zip(paths, nodes, strict=True) if node is not None and node.children is None]
    return told | tree.parents_among(untold) if untold else told
