"""The pace at which nodes change that name ledgers, as their store tells it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

from bookwarden.background import in_background
from bookwarden.clusters.pulsar.references.node_snapshots import FOLLOWED
from bookwarden.metastore.urls import open_store

# A node that changes twice within this time counts once.
_LOOK_S = 0.1


class CountedChanges:
    """Changed nodes by kind, from its begin on; ``gap`` says why some were not counted."""

    def __init__(self) -> None:
        self.by_kind = Counter[str]()
        self.gap = ""
        self._begin = time.monotonic()
        self._seconds = 0.0

    def add(self, paths: frozenset[str], gap: str) -> None:
        self.by_kind.update(_kind_of(path) for path in paths)
        self.gap = self.gap or gap
        self._seconds = time.monotonic() - self._begin

    @property
    def a_second(self) -> float:
        """The pace over all of its time."""
        return self.by_kind.total() / max(self._seconds, _LOOK_S)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} of {kind}s" for kind, count in self.by_kind.most_common())
        return f"{self.a_second:.1f} changed nodes a second for {self._seconds:.0f} s: {kinds}"


@contextmanager
def counting_changes(store_url: str) -> Iterator[CountedChanges]:
    """Count during the block; all roots of one store."""
    counted = CountedChanges()
    with closing(open_store(store_url)) as store, closing(store.follow_below(FOLLOWED)) as feed:

        def count(ended: threading.Event) -> None:
            while not ended.wait(_LOOK_S):
                told = feed.take()
                counted.add(told.paths, told.gap)

        with in_background(count, "changes"):
            yield counted


def _kind_of(path: str) -> str:
    if path.startswith("/schemas/"):
        return "schema"
    # Below the root: tenant, namespace, domain, topic, cursor.
    return {6: "topic", 7: "cursor"}.get(path.count("/") + 1, "folder")
