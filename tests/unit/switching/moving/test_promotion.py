"""Topics are unloaded that may read a former cluster's ledgers; what was not is not promoted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from bookwarden.bookie_clusters.moving import promotion
from bookwarden.bookie_clusters.moving.former import FormerClusters, KeptLedger
from bookwarden.bookie_clusters.moving.promotion import Promoter, PromotionPass, Stamper, StampResult
from bookwarden.bookie_clusters.operation import SwitchState
from bookwarden.bookie_clusters.order import Phase
from bookwarden.bookie_clusters.promoted import (
    PROMOTION_PATH,
    Promotion,
    find_promotion,
    promotion_that_counts,
    read_promotion,
)
from bookwarden.bookie_clusters.registry import Directive
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.errors import FormatError, NotFoundError, PulsarUnavailableError, RefusedError
from bookwarden.ledgers.kinds import BucketHolder, CursorHolder, ManagedLedgerHolder, SchemaHolder
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import managed_ledger_pb2 as formats
from unit.switching.two_bookie_clusters import COPY, DATA, TwoBookieClusters

BEFORE, NOW = 1_000.0, 2_000.0
ORDERS = "persistent://t/ns/orders"
OTHER = "persistent://t/ns/other"


class Site(TwoBookieClusters):
    """Brokers were switched from a to b, and then three ledgers of a topic were copied; the topic is loaded."""

    def __init__(self, elsewhere: MetadataStore | None = None) -> None:
        self.time = BEFORE
        self.behind = 0.0  #: The clock of the store of b, where that is another one.
        self.phase = Phase.DONE
        self.started = 0
        self.topics = {ORDERS, OTHER}
        self.loading: set[str] = set()
        self.failing: dict[str, Exception] = {}
        self.unloaded: list[str] = []
        self.on_unload: Callable[[], object] = lambda: None
        super().__init__(MemoryStore(lambda: self.time), elsewhere)
        self.registry = replace(self.registry, directive=Directive("a", "b", "test", 3, 0))
        self.register()
        self.store.create("/managed-ledgers", b"")
        for ledger_id in (1, 2, 3):
            self.both(ledger_id)
        self.time = NOW
        self.promoting = Promoter(FormerClusters(self.clusters, self.catalog), self.store, self, self, self.clock_of)

    def state(self) -> SwitchState:
        return SwitchState(self.phase, self.registry, None, ())

    def started_ms(self) -> int:
        return self.started

    def clock_of(self, store: MetadataStore) -> Callable[[], float]:
        return lambda: self.time - (self.behind if store is self.stores["b"] and store is not self.store else 0)

    def both(
        self, ledger_id: int, holder: ManagedLedgerHolder | CursorHolder | SchemaHolder | BucketHolder = DATA
    ) -> None:
        self.ledger("a", ledger_id, holder=holder)
        self.ledger("b", ledger_id, holder=holder, **COPY)

    def loaded(self) -> Iterable[str]:
        told, self.topics = frozenset(self.topics), self.topics | self.loading
        return told

    def unload(self, topic: str) -> None:
        self.unloaded.append(topic)
        self.on_unload()
        if topic in self.failing:
            raise self.failing[topic]

    def promote(self) -> PromotionPass:
        return self.promoting.carry_out(self.promoting.plan(), 1e9)

    def record(self) -> Promotion | None:
        return read_promotion(self.store)

    def managed_ledger(self, name: str, *ledger_ids: int, shadow_of: str = "") -> None:
        info = formats.ManagedLedgerInfo()
        for ledger_id in ledger_ids:
            info.ledgerInfo.add(ledgerId=ledger_id)
        if shadow_of:
            info.properties.add(key="PULSAR.SHADOW_SOURCE", value=shadow_of)
        self.store.create(f"/managed-ledgers/{name}", info.SerializeToString(), make_parents=True)


@pytest.fixture
def site() -> Site:
    return Site()


def test_the_topics_of_whole_copies_are_unloaded_and_then_they_are_promoted(site: Site) -> None:
    site.ledger("a", 10)
    plan = site.promoting.plan()
    assert (plan.ledgers, plan.topics, plan.promoted) == (Counter({("a", "data"): 3}), (ORDERS,), 0)
    assert plan.stays == Counter({KeptLedger("a", "bookie cluster b, which is active, does not have it"): 1})
    assert (site.record(), site.unloaded) == (None, [])
    done = site.promote()
    assert (site.unloaded, done.failed) == ([ORDERS], [])
    assert site.record() == done.promotion == Promotion("b", 3, int(NOW * 1000), frozenset(), 0)
    again = site.promoting.plan()
    assert (again.ledgers.total(), again.topics, again.promoted) == (0, (), 3)


def test_an_order_that_finds_nothing_leaves_the_newest_promotion(site: Site) -> None:
    asked: list[int] = []
    looked = site.promoting.promote(1e9, dry_run=True, confirm=lambda plan: asked.append(plan.ledgers.total()))
    assert (looked.done, looked.dry_run, site.record(), asked) == (None, True, None, [])
    with pytest.raises(RefusedError, match="no"):
        site.promoting.promote(1e9, confirm=refuse)
    assert (site.record(), site.unloaded) == (None, [])
    done = site.promoting.promote(1e9, confirm=lambda plan: asked.append(plan.ledgers.total())).done
    assert (done is not None, asked) == (True, [3])
    version = find_promotion(site.store)[1]
    nothing = site.promoting.promote(1e9, confirm=lambda plan: asked.append(plan.ledgers.total()))
    assert (nothing.done, nothing.dry_run, asked) == (None, False, [3])
    # Nor does one that only stamps, here no topic.
    nowhere = ManagedLedgers(site.store)
    site.topics = set()
    stamped = site.promoting.promote(1e9, stamping=Stamper(nowhere, site, site.catalog))
    assert (stamped.done, stamped.stamped, stamped.failures) == (None, StampResult(0, 0, ()), [])
    assert find_promotion(site.store)[1] == version


def refuse(_: object) -> None:
    raise RefusedError("no")


def test_a_topic_that_no_broker_has_loaded_is_left_alone(site: Site) -> None:
    site.topics = {OTHER}
    site.promote()
    assert site.unloaded == []
    assert site.promoting.plan().promoted == 3


def test_a_topic_that_was_being_loaded_when_brokers_were_asked_is_unloaded_too(site: Site) -> None:
    site.topics, site.loading = set(), {ORDERS, OTHER}
    site.promote()
    assert site.unloaded == [ORDERS]


def test_what_failed_to_unload_is_not_promoted(site: Site) -> None:
    site.both(4, ManagedLedgerHolder("t/ns/persistent/other"))
    site.time = NOW + 1
    site.failing = {ORDERS: PulsarUnavailableError("no answer")}
    done = site.promote()
    assert [(one.topic, one.error) for one in done.failed] == [(ORDERS, "no answer")]
    assert done.promotion.failed == {DATA.topic}
    plan = site.promoting.plan()
    assert (plan.promoted, plan.ledgers, plan.topics) == (1, Counter({("a", "data"): 3}), (ORDERS,))
    site.failing = {}
    assert site.promote().promotion.failed == frozenset()


def test_a_topic_that_was_deleted_meanwhile_fails_nothing(site: Site) -> None:
    site.failing = {ORDERS: NotFoundError("no such topic")}
    assert site.promote().promotion.failed == frozenset()


def test_where_too_many_failed_nothing_counts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "MOST_FAILED", 0)
    site.failing = {ORDERS: PulsarUnavailableError("no answer")}
    with pytest.raises(RefusedError, match="1 topics were not unloaded"):
        site.promote()
    assert site.record() is None


def test_what_is_copied_while_it_runs_waits_for_the_next_time(site: Site) -> None:
    site.on_unload = lambda: site.both(5)
    site.promote()
    site.time += 1
    plan = site.promoting.plan()
    assert (plan.promoted, plan.ledgers.total(), plan.topics) == (3, 1, (ORDERS,))


def test_a_copy_of_the_same_moment_is_not_promoted(site: Site) -> None:
    site.both(5)
    plan = site.promoting.plan()
    assert plan.stays == Counter(
        {KeptLedger("a", "its copy was closed while this was looked at: promote once more"): 1}
    )


def test_shadow_topics_and_topics_that_took_ledgers_over_are_unloaded_too(site: Site) -> None:
    site.managed_ledger("t/ns/persistent/shadow", shadow_of=ORDERS)
    site.managed_ledger("t/ns/persistent/rescue", 2)
    site.topics = {f"persistent://t/ns/{name}" for name in ("shadow", "rescue", "other")}
    site.failing = {"persistent://t/ns/shadow": PulsarUnavailableError("no answer")}
    assert site.promote().promotion.failed == {DATA.topic}
    assert site.unloaded == ["persistent://t/ns/rescue", "persistent://t/ns/shadow"]


def test_a_topic_of_unknown_ledgers_is_unloaded_with_any(site: Site) -> None:
    site.store.create("/managed-ledgers/t/ns/persistent/broken", b"\xff", make_parents=True)
    site.topics = {"persistent://t/ns/broken", OTHER}
    site.promote()
    assert site.unloaded == ["persistent://t/ns/broken"]


def test_pending_acknowledgements_are_closed_by_their_topic(site: Site) -> None:
    site = Site()
    site.time = BEFORE
    name = "t/ns/persistent/a-b-sub-1__transaction_pending_ack"
    site.both(7, ManagedLedgerHolder(name))
    site.both(8, CursorHolder(name, "__pending_ack_state"))
    site.time = NOW
    site.topics = {"persistent://t/ns/a-b", "persistent://t/ns/b", "persistent://t/ns/a-b-sub-1__transaction"}
    assert site.promoting.plan().topics == ("persistent://t/ns/a-b",)


def test_a_schemas_ledger_is_open_nowhere(site: Site) -> None:
    site.time = BEFORE
    site.both(7, SchemaHolder("t/ns/orders"))
    site.time = NOW
    site.topics = {ORDERS}
    site.failing = {ORDERS: PulsarUnavailableError("no answer")}
    site.promote()
    assert site.promoting.plan().promoted == 1


BUCKET = BucketHolder("t/ns/persistent/other", "sub")
LOG = ManagedLedgerHolder("pulsar/system/persistent/__transaction_log_3")


@pytest.mark.parametrize(("holder", "says"), [(BUCKET, "a bucket of delayed messages"), (LOG, "their log open")])
def test_what_no_unloading_closes_is_promoted_once_all_brokers_were_restarted(
    site: Site, holder: BucketHolder | ManagedLedgerHolder, says: str
) -> None:
    site.time = BEFORE
    site.both(7, holder)
    site.time = NOW
    # The first of them was started as the copy was closed.
    site.started = int(BEFORE * 1000)
    site.promote()
    plan = site.promoting.plan()
    assert (plan.promoted, plan.ledgers.total()) == (3, 0)
    ((stays, count),) = plan.stays.items()
    assert (count, says in stays.reason) == (1, True)
    site.started += 1
    plan = site.promoting.plan()
    assert (plan.promoted, plan.ledgers.total(), plan.topics, plan.stays) == (3, 1, (), Counter())
    # Without another pass nothing counts, as it is the record that cleanup goes by.
    assert site.promoting.carry_out(plan, 1e9).promotion == site.record()
    assert site.promoting.plan().promoted == 4
    # A copy that was closed since they were started.
    site.both(8, holder)
    site.time += 1
    assert site.promoting.plan().stays.total() == 1


def test_a_copy_in_a_store_whose_clock_is_behind_is_not_older_than_brokers_that_were_started_before_it() -> None:
    now = BEFORE
    site = Site(MemoryStore(lambda: now - 600))
    site.behind = 600.0
    now = NOW
    site.both(7, BUCKET)
    site.time = NOW + 400
    # After the copy by their numbers, since its store says NOW - 600; in truth 300 s before it.
    site.started = int((NOW - 300) * 1000)
    assert site.promoting.plan().started_ms == int((NOW - 900) * 1000)
    assert site.promoting.plan().stays.total() == 1
    site.started = int((NOW + 1) * 1000)
    assert site.promoting.plan().stays.total() == 0


def test_what_brokers_opened_before_the_switch_is_not_promoted(site: Site) -> None:
    site.time = BEFORE
    site.both(7, BUCKET)
    # Copied ahead: the brokers were started after it, and before the switch.
    site.time = NOW
    site.register()
    site.started = int(NOW * 1000)
    assert site.promoting.plan().stays.total() == 1
    site.started += 1
    assert site.promoting.plan().stays.total() == 0


@pytest.mark.parametrize("phase", [Phase.SWITCH_TRIGGERED, Phase.LIVE_DUAL_READ, Phase.DONE_WITH_FAILURES])
def test_while_not_all_brokers_follow_nothing_is_promoted(site: Site, phase: Phase) -> None:
    site.phase = phase
    with pytest.raises(RefusedError, match=f"is in the phase {phase.value}"):
        site.promote()
    assert site.unloaded == []


def test_a_switch_makes_it_void(site: Site) -> None:
    site.promote()
    for epoch, active in ((4, "a"), (5, "b")):
        directive = Directive("b" if active == "a" else "a", active, "test", epoch, 0)
        registry = replace(site.registry, epoch=epoch, active=active, directive=directive)
        site.register(registry)
        assert promotion_that_counts(registry, site.record()) is None
        assert site.promoting.plan().promoted == 0
    assert promotion_that_counts(site.registry, site.record()) == site.record()


def test_a_switch_meanwhile_leaves_nothing_promoted(site: Site) -> None:
    back = replace(site.registry, epoch=4, active="a", directive=Directive("b", "a", "test", 4, 0))
    site.on_unload = lambda: site.register(back)
    with pytest.raises(RefusedError, match="brokers were switched meanwhile"):
        site.promote()
    assert site.record() is None


def test_another_registration_changes_nothing(site: Site) -> None:
    site.promote()
    site.register(replace(site.registry, epoch=4))
    assert site.promoting.plan().promoted == 3


def test_of_two_at_once_the_second_is_refused(site: Site) -> None:
    plan = site.promoting.plan()
    site.promote()
    with pytest.raises(RefusedError, match="another process has just promoted"):
        site.promoting.carry_out(plan, 1e9)


def test_an_unfinished_copy_unloads_nothing(site: Site) -> None:
    other = ManagedLedgerHolder("t/ns/persistent/other")
    site.ledger("a", 9, holder=other)
    site.ledger("b", 9, holder=other, state=LedgerState.OPEN, last=None, length=0, **COPY)
    plan = site.promoting.plan()
    assert plan.stays == Counter({KeptLedger("a", "its copy in bookie cluster b is not finished"): 1})
    assert plan.topics == (ORDERS,)


@pytest.mark.parametrize(
    "value", [b"", b"[]", b'{"format": 2, "target": "b", "epoch": 1, "throughMs": 1, "failed": []}', b'{"format": 1}']
)
def test_a_record_that_is_none_is_refused(site: Site, value: bytes) -> None:
    site.store.create(PROMOTION_PATH, value, make_parents=True)
    with pytest.raises(FormatError, match="is no record of a promotion"):
        find_promotion(site.store)
