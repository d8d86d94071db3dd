"""Two metadata stores compared node by node: is the target what the source was?

Both trees are walked side by side, depth first, and read in batches. What is in memory at any time are the names in
the directories that are being compared, the paths of some thousand directories that wait, and a batch a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, NamedTuple

from bookwarden.migration.differences import Difference, compare_nodes
from bookwarden.migration.findings import DifferenceSink, Findings, Report, VersionRule
from bookwarden.migration.pieces import Pieces
from bookwarden.migration.ports import Node, Tree

# ZooKeeper's own nodes, which Pulsar's copy takes along from a store without a chroot.
ZOOKEEPERS_OWN: Final = "/zookeeper"

_BATCH: Final = 1_000
_THREADS: Final = 4
_MOST_WAITING: Final = 64
_MOST_DIRECTORIES: Final = 50


class _Directory(NamedTuple):
    """A node to look below; ``children`` is how many nodes a store said to be there, None if none did."""

    path: str
    children: int | None = None


class Comparison:
    """Compares every persistent node of two stores; reads only.

    ``passed_over`` are paths that are not compared, with all below them. ``switched_ms`` is when the target was put in
    the source's place, None if it was not. ``keep`` differences of each class are kept; ``sink`` is handed all of
    them, in the order in which they are found, by one thread at a time. ``progress`` is told the number of nodes
    compared so far. Ephemeral nodes count as absent.
    """

    def __init__(
        self,
        source: Tree,
        target: Tree,
        *,
        passed_over: Collection[str] = (ZOOKEEPERS_OWN,),
        switched_ms: int | None = None,
        versions: VersionRule = VersionRule.AUTO,
        keep: int = 20,
        sink: DifferenceSink = lambda _: None,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._source = source
        self._target = target
        self._passed_over = frozenset(passed_over)
        self._switched_ms = switched_ms
        self._findings = Findings(keep=keep, versions=versions, sink=sink)
        self._progress = progress
        self._threads = 1 if source.answers_at_once and target.answers_at_once else _THREADS
        self._pieces: Pieces[Sequence[_Directory]] = Pieces([_Directory("/")], _MOST_WAITING)

    def run(self) -> Report:
        """Compare everything, once; raises what the stores raise, and what the sink does."""
        self._source.sync()
        self._target.sync()
        with ThreadPoolExecutor(self._threads, thread_name_prefix="compare") as pool:
            try:
                for work in [pool.submit(self._work) for _ in range(self._threads)]:
                    work.result()
            finally:
                # On an error of one thread, and on Ctrl-C, the others end with their batch.
                self._pieces.stop()
        return self._findings.report()

    def _work(self) -> None:
        try:
            for directories in self._pieces.each():
                self._compare_below(directories)
        except BaseException:
            self._pieces.stop()
            raise

    def _compare_below(self, directories: Sequence[_Directory]) -> None:
        """Compare all that is below some directories, but for what is left to other threads."""
        levels = [self._batches(directories)]
        while levels and not self._pieces.is_stopped:
            batch = next(levels[-1], None)
            if batch is None:
                levels.pop()
                continue
            below = self._compare(batch)
            mine = [group for group in self._groups(below) if not self._pieces.offer(group)]
            levels += [self._batches(group) for group in reversed(mine)]

    def _groups(self, directories: Sequence[_Directory]) -> Iterator[Sequence[_Directory]]:
        """Part directories so that there is something for each thread."""
        size = min(_MOST_DIRECTORIES, max(1, len(directories) // (2 * self._threads)))
        for begin in range(0, len(directories), size):
            yield directories[begin : begin + size]

    def _batches(self, directories: Sequence[_Directory]) -> Iterator[list[str]]:
        """Give the paths of what is in the directories, of either store."""
        paths = (path for group in _listed_together(directories) for path in self._paths_in(group))
        while batch := list(islice(paths, _BATCH)):
            yield batch

    def _paths_in(self, directories: Sequence[str]) -> Iterator[str]:
        lists = zip(directories, self._source.list_many(directories), self._target.list_many(directories), strict=True)
        for directory, names, others in lists:
            prefix = directory if directory == "/" else f"{directory}/"
            for name in names if names == others else sorted({*names, *others}):
                path = prefix + name
                if path not in self._passed_over:
                    yield path

    def _compare(self, paths: list[str]) -> list[_Directory]:
        """Compare the nodes of these paths; return those of them that have nodes below them in either store."""
        sources, targets = self._source.get_many(paths), self._target.get_many(paths)
        compared = ephemeral = 0
        differences: list[Difference] = []
        for path, source, target in zip(paths, sources, targets, strict=True):
            persistent = _persistent(source), _persistent(target)
            if persistent[0] is None and persistent[1] is None:
                ephemeral += source is not None or target is not None
                continue
            compared += 1
            difference = compare_nodes(path, *persistent, self._switched_ms)
            if difference is not None:
                differences.append(difference)
        self._progress(self._findings.add(compared, ephemeral, differences))
        parents = _parents(self._source, paths, sources) | _parents(self._target, paths, targets)
        nodes = zip(paths, sources, targets, strict=True)
        return [_Directory(path, _told_children(*both)) for path, *both in nodes if path in parents]


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


def _told_children(source: Node | None, target: Node | None) -> int | None:
    return max((node.children or 0 for node in (source, target) if node is not None), default=0) or None


def _persistent(node: Node | None) -> Node | None:
    return None if node is None or node.ephemeral else node


def _parents(tree: Tree, paths: Sequence[str], nodes: Sequence[Node | None]) -> set[str]:
    told = {path for path, node in zip(paths, nodes, strict=True) if node is not None and node.children}
    untold = [path for path, node in zip(paths, nodes, strict=True) if node is not None and node.children is None]
    return told | tree.parents_among(untold) if untold else told
