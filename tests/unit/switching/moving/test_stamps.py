"""Subscriptions of loaded topics get the proposal's key, and keep all other properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from bookwarden.bookie_clusters.moving.promotion import ATTRIBUTION_KEY, Stamper, StampFailure, StampResult
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.errors import NotFoundError, PulsarUnavailableError
from bookwarden.ledgers.kinds import CursorHolder
from bookwarden.ledgers.names import TopicName
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.pb import managed_ledger_pb2 as formats
from unit.switching.two_bookie_clusters import COPY, DATA, TwoBookieClusters

TOPIC = "persistent://t/ns/orders"
BUCKET = "#pulsar.internal.delayed.bucket_1_2"


class Site(TwoBookieClusters):
    """b is active; one topic is loaded, whose owner writes what it is asked to."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.register()
        self.topics = [TOPIC]
        self.written: list[tuple[str, str, Mapping[str, str]]] = []
        self.failing: Exception | None = None
        self.meanwhile: Callable[[], object] = lambda: None
        self.stamping = Stamper(ManagedLedgers(self.store), self, self.catalog)

    def loaded(self) -> list[str]:
        return self.topics

    def cursor(self, name: str, ledger_id: int = -1, topic: str = TOPIC, **properties: str) -> None:
        """Write a cursor's node."""
        info = formats.ManagedCursorInfo(cursorsLedgerId=ledger_id, markDeleteLedgerId=1, markDeleteEntryId=2)
        for key, value in properties.items():
            info.cursorProperties.add(name=key, value=value)
        path = self.path(topic, name)
        found = self.store.get(path)
        if found is None:
            self.store.create(path, info.SerializeToString(), make_parents=True)
        else:
            self.store.put(path, info.SerializeToString(), found.version)

    def path(self, topic: str, name: str) -> str:
        return f"/managed-ledgers/{TopicName.parse(topic).managed_ledger}/{name}"

    def set_subscription_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        """Do as a broker does, which keeps properties of its own."""
        if self.failing is not None:
            raise self.failing
        self.written.append((topic, subscription, properties))
        path = self.path(topic, subscription.replace("/", "%2F"))
        node = self.store.get(path)
        assert node is not None
        info = formats.ManagedCursorInfo.FromString(node.value)
        kept = {one.name: one.value for one in info.cursorProperties if one.name.startswith("#pulsar.internal.")}
        del info.cursorProperties[:]
        for key, value in {**properties, **kept}.items():
            info.cursorProperties.add(name=key, value=value)
        self.store.put(path, info.SerializeToString(), node.version)
        self.meanwhile()

    def properties(self, name: str) -> dict[str, str]:
        return dict(ManagedLedgers(self.store).cursors(DATA.topic)[name].info.cursor_properties)

    def stamp(self) -> StampResult:
        return self.stamping.stamp("b", 1e9)


@pytest.fixture
def site() -> Site:
    return Site()


def test_the_key_is_added_to_the_properties_of_a_subscription(site: Site) -> None:
    site.cursor("a%2Fb", **{"team": "x", "#pulsar.internal.other": "7"})
    assert site.stamp() == StampResult(1, 0, ())
    assert site.written == [(TOPIC, "a/b", {"team": "x", ATTRIBUTION_KEY: "b"})]
    assert site.properties("a%2Fb") == {"team": "x", "#pulsar.internal.other": "7", ATTRIBUTION_KEY: "b"}


def test_what_is_right_is_not_written_again_and_what_is_wrong_is(site: Site) -> None:
    site.cursor("right", **{ATTRIBUTION_KEY: "b"})
    site.cursor("wrong", **{ATTRIBUTION_KEY: "a"})
    assert site.stamp() == StampResult(1, 1, ())
    assert [subscription for _, subscription, _ in site.written] == ["wrong"]


def test_the_cluster_is_the_one_that_brokers_read_the_cursors_ledger_from(site: Site) -> None:
    holder = CursorHolder(DATA.topic, "sub")
    site.ledger("a", 7, holder=holder)
    for ledger_id in (8, 9):
        site.ledger("a", ledger_id, holder=holder)
        site.ledger("b", ledger_id, holder=holder, **(COPY if ledger_id == 8 else {"bookwarden.copy": b"1:1"}))
    for ledger_id in (7, 8, 9):
        site.cursor(f"sub-{ledger_id}", ledger_id)
    assert site.stamp().written == 3
    assert [site.properties(f"sub-{each}")[ATTRIBUTION_KEY] for each in (7, 8, 9)] == ["a", "b", "a"]


def test_a_cursor_whose_ledger_is_nowhere_is_told(site: Site) -> None:
    site.cursor("sub", 99)
    (failed,) = site.stamp().failed
    assert (failed.subscription, "ledger 99 is in no bookie cluster" in failed.reason) == ("sub", True)
    assert site.written == []


def test_topics_that_nobody_has_loaded_are_left_alone(site: Site) -> None:
    site.cursor("sub", topic="persistent://t/ns/other")
    assert site.stamp() == StampResult(0, 0, ())


def test_subscriptions_with_delayed_buckets_are_left_alone(site: Site) -> None:
    site.cursor("sub", **{BUCKET: "5"})
    (failed,) = site.stamp().failed
    assert "buckets of delayed messages" in failed.reason
    assert site.written == []


def test_a_cursor_of_the_brokers_own_is_passed_over(site: Site) -> None:
    site.cursor("pulsar.repl.c2")
    site.failing = NotFoundError("no such subscription")
    assert site.stamp() == StampResult(0, 0, ())


def test_a_failure_is_told_and_ends_nothing(site: Site) -> None:
    site.topics = [TOPIC, "persistent://t/ns/broken", "persistent://t/ns/other"]
    site.cursor("sub")
    site.store.create("/managed-ledgers/t/ns/persistent/broken/sub", b"\xff", make_parents=True)
    site.cursor("sub", topic="persistent://t/ns/other")
    site.failing = PulsarUnavailableError("no answer")
    found = site.stamp().failed
    assert [(one.topic.rpartition("/")[2], one.subscription) for one in found] == [
        ("broken", ""),
        ("orders", "sub"),
        ("other", "sub"),
    ]
    assert found[1] == StampFailure(TOPIC, "sub", "no answer")


@pytest.mark.parametrize("properties", [{}, {ATTRIBUTION_KEY: "b", "new": "1"}], ids=["the key lost", "another's"])
def test_what_somebody_else_wrote_in_the_same_moment_is_told(site: Site, properties: dict[str, str]) -> None:
    site.cursor("sub", team="x")
    site.meanwhile = lambda: site.cursor("sub", **properties)
    (failed,) = site.stamp().failed
    assert "its properties are not as written" in failed.reason
