"""The planning of batches: what changed since the last one, or the next part of a comparison with the present.

A comparison comes first, and again wherever changes may be missing: after a lost connection or session, a gap in
notifications, a restart, and a move of the metadata. Changes go first while it lasts, and no node is in a batch twice.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from bookwarden.clusters.pulsar.references.node_snapshots import FOLLOWED
from bookwarden.clusters.pulsar.references.pieces import LOGS, ReferencePiece, ReferencePieces
from bookwarden.config import Settings
from bookwarden.errors import StoreUnavailableError
from bookwarden.metastore.changes import ChangeFeed
from bookwarden.pipelines.metadata_source.reading import ListingEnd, PathShare, PieceShare
from bookwarden.wiring.cluster import Cluster

_LOG = logging.getLogger(__name__)

# Of a large namespace a piece has some five thousand topics.
_PIECES_AT_ONCE: Final = 8
_SHARES: Final = 2
_FEW_PATHS: Final = 500
_HOUR_S: Final = 3600.0


class Offset(NamedTuple):
    """An offset of the source: a number within a run, which begins with each start of a query."""

    run: str
    at: int

    def dump(self) -> dict[str, str]:
        """Write it as Spark keeps it."""
        return {"run": self.run, "at": str(self.at)}

    @classmethod
    def load(cls, kept: dict[str, str]) -> Offset:
        """Read it back."""
        return cls(kept["run"], int(kept["at"]))


@dataclass(frozen=True)
class PlanLimits:
    """Limits of the planner; all times in seconds."""

    nodes: int = 20_000  #: Most changed nodes in a batch.
    tick_s: float = 5.0  #: A batch comes at least so often, with nothing in it if need be; 0 plans no such batches.
    #: From the end of a comparison to the next, where the store reports no changes.
    compare_s: float = 60.0
    compare_hours: float = 24.0  #: The same where it reports them, in hours.
    unreachable_s: float = 120.0  #: How long a store may not answer before the query fails.


@dataclass
class _Root:
    feed: ChangeFeed | None = None
    changed: set[str] = field(default_factory=set)


class Planner:
    """Plans the batches of one run of a query, one after another; one thread at a time."""

    def __init__(self, settings: Settings, limits: PlanLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = Cluster(settings)
        self._limits = limits
        self._clock = clock
        self._run = uuid.uuid4().hex
        self._at = 0
        self._plans: dict[int, list[InputPartition]] = {}
        self._roots = {url: _Root() for url in self._cluster.stores}
        self._pieces: deque[ReferencePiece] | None = None
        self._listing = 0
        self._wanted = True
        self._unwatched = False
        self._is_turn_of_pieces = False
        self._listed_at: float | None = None
        self._began_at = clock()
        self._took_s = 0.0
        self._planned_at = clock()
        self._silent_since: float | None = None
        self._once = False

    @property
    def cluster(self) -> Cluster:
        """The cluster whose roots it lists, for a process that reads what it plans as well."""
        return self._cluster

    @property
    def is_silent(self) -> bool:
        """True while a store gives no answer, so that there may be more to plan than there seems."""
        return self._silent_since is not None

    def close(self) -> None:
        """End the sessions of the roots."""
        self._cluster.close()

    def initial(self) -> Offset:
        """Return where the query begins."""
        return Offset(self._run, 0)

    def freeze(self) -> None:
        """Plan only one comparison, and what changes meanwhile."""
        self._once = True

    def latest(self, start: Offset) -> Offset:
        """Return the end of the next batch: `start` if there is none now.

        Everything up to `start` is done, and needs not be planned again. Raises StoreUnavailableError when a store gave
        no answer for too long.
        """
        begin = start.at if start.run == self._run else 0
        self._plans = {at: plan for at, plan in self._plans.items() if at > begin}
        if not self._plans:
            try:
                plan = self._next()
                self._silent_since = None
            except StoreUnavailableError as error:
                self._note_silence(error)
                plan = None
            if plan is None:
                return start
            self._at += 1
            self._plans[self._at] = plan
            self._planned_at = self._clock()
        return Offset(self._run, self._at)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the tasks of a batch; none for one of an earlier run, which the comparison stands in for."""
        if end.run != self._run:
            return []
        begin = start.at if start.run == self._run else 0
        return [share for at in sorted(self._plans) if begin < at <= end.at for share in self._plans[at]]

    def _next(self) -> list[InputPartition] | None:
        self._collect()
        # In turns, lest a comparison never end while much changes.
        compares = self._pieces is not None or self._is_listing_due()
        self._is_turn_of_pieces = compares and not self._is_turn_of_pieces
        changed = [] if self._is_turn_of_pieces else self._changed()
        if changed:
            return changed
        if self._pieces is None and compares:
            self._begin_listing()
        if self._pieces:
            return self._next_pieces()
        if self._pieces is not None:
            return self._end_listing()
        tick = self._limits.tick_s
        return [] if tick and not self._once and self._clock() - self._planned_at >= tick else None

    def _collect(self) -> None:
        for url, root in self._roots.items():
            if root.feed is None:
                root.feed = self._cluster.stores[url].follow_below(FOLLOWED)
            changes = root.feed.take()
            root.changed |= changes.paths
            if changes.unwatched:
                self._note_unwatched(url, changes.gap)
            elif changes.gap:
                _LOG.info("%s: all nodes are read again: %s", url, changes.gap)
                self._wanted, self._pieces = True, None

    def _note_unwatched(self, url: str, why: str) -> None:
        if not self._unwatched:
            _LOG.warning("%s: all nodes are read again and again: %s", url, why)
        self._unwatched = True

    def _changed(self) -> list[InputPartition]:
        left, shares = self._limits.nodes, list[InputPartition]()
        for url, root in self._roots.items():
            paths = list(islice(sorted(root.changed), left))
            root.changed.difference_update(paths)
            left -= len(paths)
            size = max(_FEW_PATHS, -(-len(paths) // _SHARES))
            shares += [PathShare(url, tuple(paths[at : at + size])) for at in range(0, len(paths), size)]
        return shares

    def _is_listing_due(self) -> bool:
        if self._wanted:
            return True
        if self._once or self._listed_at is None:
            return False
        since = self._clock() - self._listed_at
        often = self._unwatched and since >= max(self._limits.compare_s, 2 * self._took_s)
        return often or since >= self._limits.compare_hours * _HOUR_S

    def _begin_listing(self) -> None:
        self._listing = max(self._listing + 1, int(time.time() * 1000))
        self._began_at = self._clock()
        pieces = ReferencePieces(self._cluster.stores).pieces()
        # Only now: a root that does not answer is asked again.
        self._wanted = False
        self._pieces = deque(piece for piece in pieces if piece.kind != LOGS)

    def _next_pieces(self) -> list[InputPartition]:
        assert self._pieces
        taken = [self._pieces.popleft() for _ in range(min(_PIECES_AT_ONCE, len(self._pieces)))]
        return [PieceShare(tuple(taken[at::_SHARES]), self._listing) for at in range(_SHARES) if taken[at::_SHARES]]

    def _end_listing(self) -> list[InputPartition]:
        self._pieces, self._listed_at = None, self._clock()
        self._took_s = self._listed_at - self._began_at
        return [ListingEnd(self._listing)]

    def _note_silence(self, error: StoreUnavailableError) -> None:
        now = self._clock()
        if self._silent_since is None:
            self._silent_since = now
            _LOG.warning("the metadata cannot be read now, trying on: %s", error)
        elif now - self._silent_since > self._limits.unreachable_s:
            raise error
