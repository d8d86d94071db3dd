"""Survey of what a migration would copy: the number and size of nodes, and the sessions of ephemeral ones."""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.migration.walking import TreeWalk

# Enough to estimate a share to 3 % (two standard deviations), and few enough to be read at once.
SAMPLE_SIZE: Final = 1_000

_KEPT_PATHS: Final = 3


class SizedNode(NamedTuple):
    """A node's path and the bytes of its value."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Survey:
    """The nodes of a source."""

    nodes: int  #: Number of persistent nodes.
    size: int  #: Bytes of values and paths of the persistent nodes.
    ephemeral: int  #: Number of ephemeral nodes.
    largest: SizedNode | None  #: The persistent node with the largest value; None without nodes.
    #: The first paths of each session's ephemeral nodes, in order; None: the store tells no session.
    sessions: Mapping[int | None, tuple[str, ...]]
    #: Paths of some persistent nodes, all if they are few, each chosen with the same probability.
    sample: tuple[str, ...]

    @property
    def is_sampled_whole(self) -> bool:
        """Whether the sample has all nodes."""
        return len(self.sample) == self.nodes


def survey(
    source: MetadataStore,
    *,
    progress: Callable[[int], object] = lambda _: None,
    sample_size: int = SAMPLE_SIZE,
) -> Survey:
    """Read all of a source; ``progress`` is called with the number of nodes read so far."""
    tally = _Tally(progress, sample_size)
    TreeWalk([source], tally.add).run()
    return tally.survey()


class _Tally:
    """Gathers what the threads of a walk find."""

    def __init__(self, progress: Callable[[int], object], sample_size: int) -> None:
        self._progress = progress
        self._sample_size = sample_size
        self._lock = threading.Lock()
        self._random = random.Random()
        self._nodes = self._size = self._ephemeral = 0
        self._largest: SizedNode | None = None
        self._sessions: dict[int | None, list[str]] = {}
        # The paths with the largest random numbers: a heap, the smallest first.
        self._sample: list[tuple[float, str]] = []

    def add(self, paths: Sequence[str], nodes: Sequence[Sequence[Versioned | None]]) -> None:
        """Count the nodes of some paths."""
        with self._lock:
            for path, node in zip(paths, nodes[0], strict=True):
                if node is None:
                    continue
                if node.ephemeral:
                    self._add_ephemeral(path, node)
                else:
                    self._add_persistent(path, len(node.value))
            self._progress(self._nodes + self._ephemeral)

    def survey(self) -> Survey:
        """Sum up."""
        sessions = {session: tuple(paths) for session, paths in self._sessions.items()}
        sample = tuple(sorted(path for _, path in self._sample))
        return Survey(self._nodes, self._size, self._ephemeral, self._largest, sessions, sample)

    def _add_ephemeral(self, path: str, node: Versioned) -> None:
        self._ephemeral += 1
        kept = self._sessions.setdefault(node.session, [])
        kept.append(path)
        kept.sort()
        del kept[_KEPT_PATHS:]

    def _add_persistent(self, path: str, size: int) -> None:
        self._nodes += 1
        self._size += size + len(path)
        if self._largest is None or size > self._largest.size:
            self._largest = SizedNode(path, size)
        drawn = self._random.random()
        if len(self._sample) < self._sample_size:
            heapq.heappush(self._sample, (drawn, path))
        elif drawn > self._sample[0][0]:
            heapq.heapreplace(self._sample, (drawn, path))
