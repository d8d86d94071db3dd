"""What former bookie clusters have is marked only where brokers read the same, whole, from the active one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from bookwarden.bookie_clusters.moving.cleanup import Cleanup
from bookwarden.bookie_clusters.moving.former import FormerClusters
from bookwarden.bookie_clusters.operation import SwitchState
from bookwarden.bookie_clusters.order import Phase
from bookwarden.bookie_clusters.promoted import NOT_PROMOTED, Promotion, keep_promotion, void_promotion
from bookwarden.bookie_clusters.registry import Directive
from bookwarden.errors import RefusedError
from bookwarden.ledgers.kinds import BucketHolder, Holder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.live_references import LiveReferences, References, UnknownReferences
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.ledgers.pending_deletion import MarkedLedger, MarkReport, PendingDeletion, Waiver
from bookwarden.metastore.memory import MemoryStore
from unit.clusters.copy_site import offloaded_info
from unit.switching.two_bookie_clusters import COPY, DATA, TwoBookieClusters

WINDOW_S = 3600.0
NOW = 2_000_000.0
OPEN = {"state": LedgerState.OPEN, "last": None, "length": 0}


class Site(TwoBookieClusters):
    """Brokers were switched from a to b; a marker that keeps what it gets."""

    enabled = True

    def __init__(self) -> None:
        self.changed_at = NOW - WINDOW_S - 1
        self.phase = Phase.DONE
        self.marked: list[PendingDeletion] = []
        self.failing: set[int] = set()
        self.named: dict[int, Holder] = {}
        self.references: References = LiveReferences(frozenset(), True)
        super().__init__(MemoryStore(lambda: self.changed_at))
        self.registry = replace(self.registry, directive=Directive("a", "b", "test", 3, 0))
        self.register()
        self.promote(Promotion("b", 3, int(NOW * 1000), frozenset()))

    @property
    def cleanup(self) -> Cleanup:
        former = FormerClusters(
            *(self.clusters, self.catalog, self.named.get), lambda holders: dict.fromkeys(holders, self.references)
        )
        return Cleanup(former, self.store, self, self.mark, self.enabled, WINDOW_S, lambda: NOW)

    def state(self) -> SwitchState:
        return SwitchState(self.phase, self.registry, None, ())

    def promote(self, promotion: Promotion | None) -> None:
        """Write the newest promotion."""
        void_promotion(self.store)
        if promotion is not None:
            keep_promotion(self.store, promotion, -1)

    def mark(self, marks: Sequence[PendingDeletion]) -> MarkReport:
        told = [MarkedLedger(mark, "no answer" if mark.ledger_id in self.failing else None) for mark in marks]
        self.marked += [one.mark for one in told if one.sent]
        return MarkReport(tuple(told))

    def marked_ids(self) -> list[int]:
        return sorted(mark.ledger_id for mark in self.marked)


@pytest.fixture
def site() -> Site:
    made = Site()
    for ledger_id in range(1, 4):
        made.ledger("a", ledger_id)
        made.ledger("b", ledger_id, **COPY)
    return made


def test_what_the_active_cluster_has_whole_may_go_from_others(site: Site) -> None:
    site.ledger("a", 10)
    site.ledger("a", 11, **OPEN)
    site.ledger("a", 12)
    site.ledger("b", 12, **OPEN, **COPY)
    site.ledger("b", 13)
    site.ledger("a", 14)
    site.ledger("b", 14)
    found = site.cleanup.targets()
    assert (found.active, found.total, found.window_left_s) == ("b", 3, 0)
    kind = "a", DATA.ledgers_label
    assert (found.ledgers, found.sizes) == (Counter({kind: 3}), Counter({kind: 3000}))
    assert found.kept == Counter(
        {
            ("a", "bookie cluster b, which is active, does not have it"): 2,
            ("a", "its copy in bookie cluster b is not finished"): 1,
            ("a", "its metadata cannot be understood, or differs between clusters"): 1,
        }
    )
    assert site.marked == []


def test_each_is_marked_in_the_cluster_where_it_is_to_go(site: Site) -> None:
    done = site.cleanup.mark()
    assert (done.sent, done.failed) == (3, ())
    assert site.marked_ids() == [1, 2, 3]
    assert {(mark.bookie_cluster, mark.waives, mark.reason) for mark in site.marked} == {
        ("a", frozenset({Waiver.SUPERSEDED}), "brokers read it from bookie cluster b")
    }
    for mark in site.marked:
        mark.validate()


def test_what_does_not_say_whose_it_is_goes_for_the_one_that_names_it(site: Site) -> None:
    for ledger_id in (5, 6):
        site.ledger("a", ledger_id, holder=None)
        site.ledger("b", ledger_id, holder=None, **COPY)
    site.named[5] = DATA
    found = site.cleanup.targets()
    assert (found.total, found.kept) == (
        4,
        Counter({("a", "its owner is unknown: the orphan scan decides about it"): 1}),
    )
    site.cleanup.mark()
    assert site.marked_ids() == [1, 2, 3, 5]
    assert {mark.holder() for mark in site.marked} == {DATA}


def test_so_many_at_most(site: Site) -> None:
    reached: list[int] = []
    assert site.cleanup.mark(at_most=2, progress=reached.append).sent == 2
    assert (len(site.marked), reached) == (2, [2])


def test_an_order_looks_asks_and_marks(site: Site) -> None:
    asked: list[int] = []

    @contextmanager
    def confirm(total: int) -> Iterator[Callable[[int], object]]:
        asked.append(total)
        yield lambda _: None

    looked = site.cleanup.clean_up(at_most=2, dry_run=True, confirm=confirm)
    assert (looked.total, looked.done, looked.dry_run, asked, site.marked) == (2, None, True, [], [])
    done = site.cleanup.clean_up(at_most=2, confirm=confirm).done
    assert (done is not None and done.sent, asked, len(site.marked)) == (2, [2], 2)
    # It is refused before anybody is asked; and not at all where nothing may go.
    site.enabled = False
    with pytest.raises(RefusedError, match="topic_two_phase_deletion_enabled is false"):
        site.cleanup.clean_up(confirm=confirm)
    site.promote(None)
    assert site.cleanup.clean_up(confirm=confirm).done is None
    assert asked == [2]


def test_what_could_not_be_sent_is_told(site: Site) -> None:
    site.failing = {2}
    done = site.cleanup.mark()
    assert (done.sent, done.failed, site.marked_ids()) == (2, ((2, "no answer"),), [1, 3])


def test_within_the_rollback_window_nothing_is_marked_unless_forced(site: Site) -> None:
    site.changed_at = NOW - 1800
    site.register()
    assert site.cleanup.targets().window_left_s == 1800
    with pytest.raises(RefusedError, match=r"the switch to b can be rolled back for another 0\.5 h"):
        site.cleanup.mark()
    assert site.marked == []
    assert site.cleanup.mark(force=True).sent == 3
    assert {mark.waives for mark in site.marked} == {frozenset({Waiver.SUPERSEDED, Waiver.ROLLBACK_WINDOW})}


@pytest.mark.parametrize("phase", [Phase.SWITCH_TRIGGERED, Phase.LIVE_DUAL_READ, Phase.DONE_WITH_FAILURES])
def test_while_not_all_brokers_follow_nothing_is_marked(site: Site, phase: Phase) -> None:
    site.phase = phase
    with pytest.raises(RefusedError, match=f"is in the phase {phase.value}"):
        site.cleanup.mark(force=True)
    assert site.marked == []


def test_where_nothing_may_be_marked_nothing_is(site: Site) -> None:
    site.enabled = False
    with pytest.raises(RefusedError, match="topic_two_phase_deletion_enabled is false"):
        site.cleanup.mark()


def test_only_a_registered_cluster_is_cleaned_up(site: Site) -> None:
    source, says = "c", "no bookie cluster 'c' is registered"
    with pytest.raises(RefusedError, match=says):
        site.cleanup.targets(source)
    with pytest.raises(RefusedError, match=says):
        site.cleanup.mark(source, force=True)
    assert site.cleanup.targets("a").total == 3


def test_after_a_rollback_the_copies_may_go(site: Site) -> None:
    back = Directive("b", "a", "test", 4, 0)
    site.register(replace(site.registry, epoch=4, active="a", directive=back))
    # Handles that were opened on b are read there until their topics are unloaded.
    assert site.cleanup.targets().kept == Counter({("b", NOT_PROMOTED): 3})
    assert site.cleanup.mark().sent == 0
    site.promote(Promotion("a", 4, int(NOW * 1000), frozenset()))
    assert site.cleanup.mark().sent == 3
    assert {mark.bookie_cluster for mark in site.marked} == {"b"}


def test_copies_made_ahead_of_a_switch_that_never_came_may_go(site: Site) -> None:
    """Nothing can have been opened there, so that nothing has to be promoted; the window is that of a switch."""
    site.registry = replace(site.registry, active="a", directive=None)
    site.register()
    site.phase, site.changed_at = Phase.REGISTERED, NOW
    site.promote(None)
    found = site.cleanup.targets()
    assert (found.total, found.active, found.window_left_s) == (3, "a", 0)
    assert site.cleanup.mark("b").sent == 3
    assert {(mark.bookie_cluster, mark.waives) for mark in site.marked} == {("b", frozenset({Waiver.SUPERSEDED}))}
    site.phase = Phase.SWITCH_TRIGGERED
    with pytest.raises(RefusedError, match="is in the phase SWITCH_TRIGGERED"):
        site.cleanup.mark("b")


def test_an_unfinished_copy_of_what_is_nowhere_goes_once_nothing_needs_it(site: Site) -> None:
    for ledger_id in (20, 21, 22):
        site.ledger("a", ledger_id, **OPEN, **COPY)
    site.ledger("a", 23, holder=None, **OPEN, **COPY)
    # Of a ledger that is there it goes with what is superseded.
    site.ledger("a", 24, **OPEN, **COPY)
    site.ledger("b", 24)
    unknown = Counter({("a", "an unfinished copy, and whether its ledger is named is not known now"): 3})
    unknown["a", "its owner is unknown: the orphan scan decides about it"] = 1
    site.references = UnknownReferences("no answer")
    assert site.cleanup.targets().kept == unknown
    site.references = LiveReferences(frozenset({20, 21}), True, left_behind={21: offloaded_info(21)})
    found = site.cleanup.targets()
    named = "named and gone: no bookie cluster has it whole, and this unfinished copy may have the rest"
    assert (found.total, found.kept["a", named]) == (6, 1)
    site.cleanup.mark()
    assert site.marked_ids() == [1, 2, 3, 21, 22, 24]
    # Phase two judges these as it judges any ledger, by its grace too.
    marks = {mark.ledger_id: mark for mark in site.marked}
    assert [(marks[each].waives, marks[each].bookie_cluster) for each in (21, 22)] == [(frozenset(), "a")] * 2


def test_unfinished_copies_go_from_the_active_cluster_too_where_it_is_named(site: Site) -> None:
    for ledger_id in (20, 21):
        site.ledger("b", ledger_id, **OPEN, **COPY)
    site.ledger("b", 22)
    site.references = LiveReferences(frozenset({21}), True)
    assert site.cleanup.targets().kept == Counter()
    found = site.cleanup.targets("b")
    assert (found.total, list(found.kept.values())) == (1, [1])
    assert site.cleanup.mark("b").sent == 1
    assert [(mark.ledger_id, mark.bookie_cluster, mark.waives) for mark in site.marked] == [(20, "b", frozenset())]


def test_without_a_second_cluster_there_is_nothing_to_clean_up(site: Site) -> None:
    alone = {"a": site.registry.clusters["a"]}
    site.register(replace(site.registry, active="a", clusters=alone, directive=Directive("b", "a", "test", 3, 0)))
    with pytest.raises(RefusedError, match="no other bookie cluster than the active one"):
        site.cleanup.targets()


def test_another_pulsar_clusters_ledger_in_a_shared_cluster_is_not_looked_at(site: Site) -> None:
    site.register(site.changed("a", shared=True))
    assert site.cleanup.targets().total == 0
    site.ledger("a", 20, **{"bookwarden.owner": site.registry.owner.encode()})
    site.ledger("b", 20, **{"bookwarden.owner": site.registry.owner.encode()}, **COPY)
    assert site.cleanup.targets().total == 1


@pytest.mark.parametrize(
    "promotion",
    [
        None,
        Promotion("b", 2, int(NOW * 1000), frozenset()),
        Promotion("a", 3, int(NOW * 1000), frozenset()),
        Promotion("b", 3, int((NOW - WINDOW_S - 1) * 1000), frozenset()),
    ],
    ids=["none", "of an earlier switch", "of another cluster", "begun as the copies were closed"],
)
def test_what_is_not_promoted_stays(site: Site, promotion: Promotion | None) -> None:
    site.promote(promotion)
    found = site.cleanup.targets()
    assert (found.total, found.kept) == (0, Counter({("a", NOT_PROMOTED): 3}))
    assert site.cleanup.mark(force=True).sent == 0
    assert site.marked == []


def test_what_topics_have_open_that_were_not_unloaded_stays(site: Site) -> None:
    site.ledger("a", 30, holder=SchemaHolder("t/ns/orders"))
    site.ledger("b", 30, holder=SchemaHolder("t/ns/orders"), **COPY)
    site.promote(Promotion("b", 3, int(NOW * 1000), frozenset({DATA.topic})))
    assert site.cleanup.targets().kept == Counter({("a", f"{NOT_PROMOTED}, which could not unload its topic"): 3})
    assert (site.cleanup.mark().sent, site.marked_ids()) == (1, [30])


@pytest.mark.parametrize(
    ("holder", "says"),
    [
        (BucketHolder("t/ns/persistent/orders", "sub"), "a bucket of delayed messages open"),
        (ManagedLedgerHolder("pulsar/system/persistent/__transaction_log_3"), "keep their log open"),
    ],
)
def test_what_unloading_topics_does_not_close_stays(site: Site, holder: Holder, says: str) -> None:
    site.ledger("a", 30, holder=holder)
    site.ledger("b", 30, holder=holder, **COPY)
    ((_, why),) = site.cleanup.targets().kept
    assert says in why
    assert (site.cleanup.mark().sent, site.marked_ids()) == (3, [1, 2, 3])
    site.marked.clear()
    site.promote(Promotion("b", 3, int(NOW * 1000), frozenset(), started_ms=int(NOW * 1000)))
    assert (site.cleanup.mark().sent, site.marked_ids()) == (4, [1, 2, 3, 30])
