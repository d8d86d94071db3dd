"""A drain does all that can be done now, in the order that loses nothing, and tells what is left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from bookwarden.bookie_clusters.moving.build import BUILD_PATH, Build, CopyPace
from bookwarden.bookie_clusters.moving.cleanup import Cleanup
from bookwarden.bookie_clusters.moving.draining import Drainer, DrainResult
from bookwarden.bookie_clusters.moving.former import FormerClusters
from bookwarden.bookie_clusters.moving.promotion import Promoter
from bookwarden.bookie_clusters.moving.scope import scope_of
from bookwarden.bookie_clusters.operation import SwitchState
from bookwarden.bookie_clusters.order import Phase
from bookwarden.bookie_clusters.registry import NOT_OURS, Directive
from bookwarden.bookie_clusters.registry_node import ClusterRegistry
from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterStores
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.listing import read_every_ledger
from bookwarden.errors import PulsarUnavailableError, RefusedError
from bookwarden.leases import holder_here
from bookwarden.ledgers.custom_metadata import is_unfinished
from bookwarden.ledgers.live_references import LiveReferences
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.ledgers.pending_deletion import MarkedLedger, MarkReport, PendingDeletion, Waiver
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.memory import MemoryStore
from unit.switching.two_bookie_clusters import COPY, ROOTS, TwoBookieClusters

WINDOW_S = 3600.0
SWITCHED, NOW = 1_000_000.0, 2_000_000.0
OPEN = {"state": LedgerState.OPEN, "last": None, "length": 0}
ORDERS = "persistent://t/ns/orders"
ALL = scope_of(every_kind=True, tenants=(), namespaces=(), topics=())


class Site(TwoBookieClusters):
    """Brokers were switched from a to b; a build copies what is closed, and unloading a topic closes its ledgers."""

    enabled = True

    def __init__(self) -> None:
        self.time = SWITCHED
        self.phase = Phase.DONE
        self.steps: list[str] = []
        self.is_stubborn = False
        self.on_unload: Callable[[], object] = lambda: None
        self.damaged: set[int] = set()
        self.marked: list[int] = []
        self.waived = set[Waiver]()
        self.references = LiveReferences(frozenset(), True)
        super().__init__(MemoryStore(lambda: self.time))
        self.registry = replace(self.registry, directive=Directive("a", "b", "test", 3, 0))
        self.register()
        self.store.create("/managed-ledgers", b"")
        former = FormerClusters(
            self.clusters,
            self.catalog,
            read_references=lambda holders: dict.fromkeys(holders, self.references),
        )
        self.draining = Drainer(
            ClusterRegistry(ClusterStores(lambda _: self.store), "memory:"),
            Cleanup(former, self.store, self, self.mark, self.enabled, WINDOW_S, lambda: self.time),
            Promoter(former, self.store, self, self, self.clock_of),
        )

    def state(self) -> SwitchState:
        return SwitchState(self.phase, self.registry, None, ())

    def started_ms(self) -> int:
        return 0

    def built(self, newest: Build, last: Build | None = None) -> None:
        """Write the record of builds."""
        node = self.store.get(BUILD_PATH)
        if node is not None:
            self.store.delete_many([(BUILD_PATH, node.version)])
        fields = {"build": newest.as_json(), "last": last and last.as_json(), "holder": holder_here(), "isHeld": False}
        self.store.create(BUILD_PATH, json.dumps(fields).encode(), make_parents=True)

    def clock_of(self, _: MetadataStore) -> Callable[[], float]:
        # Each look is a moment later, so that copies are older than a promotion.
        self.time += 1
        return lambda: self.time

    def loaded(self) -> Iterable[str]:
        return [ORDERS]

    def build(self) -> Build:
        self.steps.append("build")
        build = Build("a", "b", ALL, "folder", 0, 0)
        for ledger_id, metadata in list(read_every_ledger(self.store, ROOTS["a"])):
            assert metadata is not None
            if ledger_id in self.damaged:
                build.counts.add(CopyOutcome.FAILED, "data", metadata.length)
            elif metadata.state is LedgerState.CLOSED and self.places_of(ledger_id) == "a":
                self.ledger("b", ledger_id, **COPY)
                build.counts.add(CopyOutcome.COPIED, "data", metadata.length)
        return build

    def unload(self, topic: str) -> None:
        self.steps.append(f"unload {topic}")
        self.on_unload()
        if self.is_stubborn:
            raise PulsarUnavailableError("no answer")
        for ledger_id, metadata in list(read_every_ledger(self.store, ROOTS["a"])):
            if metadata is not None and metadata.state is LedgerState.OPEN and not is_unfinished(metadata):
                self.remove("a", ledger_id)
                self.ledger("a", ledger_id)

    def remove(self, name: str, ledger_id: int) -> None:
        path = ledger_path(ROOTS[name], ledger_id)
        node = self.store.get(path)
        assert node is not None
        self.store.delete_many([(path, node.version)])

    def mark(self, marks: Sequence[PendingDeletion]) -> MarkReport:
        self.steps.append("mark")
        self.marked += [mark.ledger_id for mark in marks]
        self.waived = {waiver for mark in marks for waiver in mark.waives}
        return MarkReport(tuple(MarkedLedger(mark, None) for mark in marks))

    def drain(self, *, force: bool = False) -> DrainResult:
        self.steps.clear()
        return self.draining.carry_out("a", self.build, per_second=1e9, force=force)


@pytest.fixture
def site() -> Site:
    made = Site()
    for ledger_id in (1, 2):
        made.ledger("a", ledger_id)
    made.ledger("a", 3, **OPEN)
    made.time = NOW
    return made


def test_everything_is_copied_promoted_and_marked_in_one_pass(site: Site) -> None:
    before = site.draining.left("a")
    assert (before.active, before.total, before.may_go, before.topics) == ("b", 3, 0, [ORDERS])
    assert before.stays == Counter({"bookie cluster b, which is active, does not have it": 3})
    done = site.drain()
    # What is open is closed and copied before anything is promoted, and that before anything is marked.
    assert site.steps == ["build", f"unload {ORDERS}", "build", f"unload {ORDERS}", "mark"]
    assert (done.left.total, done.left.may_go, done.left.open, done.failed) == (3, 3, (), 0)
    assert done.marked is not None
    assert (done.marked.sent, sorted(site.marked), site.waived) == (3, [1, 2, 3], {Waiver.SUPERSEDED})
    for ledger_id in (1, 2, 3):
        site.remove("a", ledger_id)
    assert site.draining.left("a").total == 0


def test_how_long_copying_takes_is_told_by_what_was_measured(site: Site) -> None:
    def told() -> tuple[int, int, float | None]:
        left = site.draining.left("a")
        return left.to_copy, left.to_copy_size, left.copying_s

    length = sum(metadata.length for _, metadata in read_every_ledger(site.store, ROOTS["a"]) if metadata is not None)
    assert length > 0
    # The open one is not copied yet, and of an unfinished copy all is left to do.
    assert told() == (2, length, None)
    newest = Build("a", "b", ALL, "folder", 0)
    site.built(newest)
    assert told() == (2, length, None)
    through = Build("a", "b", ALL, "folder", 0, 0, pace=CopyPace(0.5, length / 4))
    site.built(newest, through)
    assert told() == (2, length, pytest.approx(4.0))
    # The build under way goes before.
    site.built(replace(newest, pace=CopyPace(1.0, length / 2)), through)
    assert told() == (2, length, pytest.approx(2.0))
    site.build()
    assert told() == (0, 0, 0.0)


def test_within_the_rollback_window_all_is_done_but_marking(site: Site) -> None:
    site.time = SWITCHED + 10
    done = site.drain()
    assert (site.marked, done.marked, done.left.may_go) == ([], None, 3)
    assert 0 < done.left.window_left_s < WINDOW_S
    again = site.drain(force=True)
    assert (again.marked is not None, again.promoted) == (True, None)
    assert site.waived == {Waiver.SUPERSEDED, Waiver.ROLLBACK_WINDOW}
    # The second pass finds all copied, and promoted.
    assert site.steps == ["build", "mark"]


def test_what_is_written_still_stays_and_the_rest_goes(site: Site) -> None:
    site.is_stubborn = True
    done = site.drain()
    assert site.steps.count("build") == 3
    assert [one.ledger_id for one in done.left.open] == [3]
    # The topic that reads them could not be unloaded either.
    assert (site.marked, done.left.may_go) == ([], 0)
    assert {one.error for one in done.unloaded} == {"no answer"}
    site.is_stubborn = False
    site.drain()
    assert sorted(site.marked) == [1, 2, 3]


def test_what_fails_to_be_copied_is_counted_and_stays(site: Site) -> None:
    site.damaged = {2}
    done = site.drain()
    assert (done.failed, sorted(site.marked)) == (1, [1, 3])


def test_what_the_last_copying_came_to_counts(site: Site) -> None:
    site.damaged = {2}
    site.on_unload = site.damaged.clear
    done = site.drain()
    assert ([build.counts.of(CopyOutcome.FAILED) for build in done.builds], done.failed) == ([1, 0], 0)


def test_a_cluster_that_is_active_or_unknown_is_not_drained(site: Site) -> None:
    for name in ("b", "c"):
        with pytest.raises(RefusedError):
            site.draining.left(name)
        with pytest.raises(RefusedError):
            site.draining.carry_out(name, site.build, per_second=1e9)
    assert site.steps == []


def test_nothing_is_done_while_a_switch_is_under_way(site: Site) -> None:
    site.phase = Phase.LIVE_DUAL_READ
    with pytest.raises(RefusedError, match=r"bookie cluster .a. is not drained: .*LIVE_DUAL_READ"):
        site.drain()
    assert site.steps == []


def test_unfinished_copies_of_what_is_nowhere_are_drained_unless_they_are_needed(site: Site) -> None:
    """No build would ever go on with them; what is named may have its only bytes there."""
    for ledger_id in (20, 21):
        site.ledger("a", ledger_id, **OPEN, **COPY)
    site.references = LiveReferences(frozenset({20}), True)
    done = site.drain()
    assert sorted(site.marked) == [1, 2, 3, 21]
    ((why, number),) = done.left.stays.items()
    assert (number, why.startswith("named and gone: ")) == (1, True)
    site.references = LiveReferences(frozenset(), True)
    site.drain()
    assert 20 in site.marked


def test_what_is_not_ours_keeps_no_cluster(site: Site) -> None:
    site.registry = site.changed("a", unmarked_below=100)
    site.register()
    site.ledger("a", 200)
    for ledger_id in (1, 2, 3):
        site.remove("a", ledger_id)
    left = site.draining.left("a")
    assert (left.total, left.ledgers, left.stays) == (0, Counter({NOT_OURS: 1}), Counter())


def test_copies_made_ahead_of_a_switch_that_never_came_are_drained(site: Site) -> None:
    site.registry = replace(site.registry, active="b", directive=None)
    site.register()
    site.phase = Phase.REGISTERED
    for ledger_id in (1, 2):
        site.ledger("b", ledger_id)
    site.remove("a", 3)
    for ledger_id in (1, 2):
        site.remove("a", ledger_id)
        site.ledger("a", ledger_id, **COPY)
    done = site.drain()
    assert (sorted(site.marked), done.promoted, done.left.window_left_s) == ([1, 2], None, 0)
    assert "unload" not in "".join(site.steps)
