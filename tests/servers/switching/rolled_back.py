"""A move to another bookie cluster that is rolled back: in each phase, under load, and all is read afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from bookwarden_dev.demo.ledger_places import ledgers_of_topic
from servers.switching.moving import Moving
from servers.switching.site import SwitchingSite
from servers.switching.topics_of_all_kinds import TopicsOfAllKinds
from servers.switching.watched_load import WatchedLoad

_SLOWLY = ("--max-ledgers-per-second", "2")


class RolledBack:
    """Moves from a to b, each up to a phase; afterwards a is active again, and what it serves was checked."""

    def __init__(self, site: SwitchingSite, moving: Moving, topics: TopicsOfAllKinds, load: WatchedLoad) -> None:
        self._site, self._moving, self._topics, self._load = site, moving, topics, load

    def switched(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Switch, and let something happen."""
        self._moving.switch("b")
        meanwhile()
        self._load.goes_on()
        self._back()

    def killed_in_build(self) -> None:
        """Kill the build, with topics changed while it ran."""
        self._build_slowly(self._moving.building("--max-ledgers-per-second", "0.5", kill=True))

    def built(self) -> None:
        """Build to the end, with topics changed meanwhile."""
        self._build_slowly(self._moving.building(*_SLOWLY))

    def promoted(self) -> None:
        """Promote what the newest build copied."""
        self._moving.switch("b")
        self._moving.promote()
        self._load.goes_on()
        self._back()

    def marked(self) -> None:
        """Mark what a needs no more, and sweep once it is needed again: nothing of it goes."""
        self._moving.switch("b")
        self._moving.build()
        self._moving.promote()
        # What cleanup marks are the ledgers of a that b has too; some may go with their topic at any time.
        places = self._site.places().by_cluster
        marked = self._moving.mark()
        twice = places["a"] & places["b"]
        assert 0 < marked <= len(twice)
        self._moving.roll_back()
        names = (*self._load.topics, *self._topics.names)
        listed = frozenset[int]().union(*(ledgers_of_topic(self._site.store, topic) for topic in names))
        kept = listed & twice & self._site.places().by_cluster["a"]
        assert kept, f"none of {marked} marked ledgers is one that a topic here lists"
        self._moving.sweep()
        assert kept <= self._site.places().by_cluster["a"]
        self._topics.check()

    def _build_slowly(self, building: AbstractContextManager[None]) -> None:
        self._moving.switch("b")
        self._moving.roll()
        with building:
            self._topics.change()
        self._load.goes_on()
        self._back()

    def _back(self) -> None:
        self._moving.roll_back()
        self._topics.check()
