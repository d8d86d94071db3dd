"""Subscriptions that came while their topics moved: made on green from the first message on, or reported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bookwarden.blue_green.green_resources import GreenResources, LatePolicy
from bookwarden.blue_green.observing import Expected, Look
from bookwarden.blue_green.record import FINISHED, MigrationRecord
from bookwarden.blue_green.states import CursorSeen, TopicSeen
from bookwarden.errors import NotFoundError, PulsarError
from bookwarden.ledgers.managed_ledger import LedgerInfo, Position
from bookwarden.ledgers.names import TopicName
from unit.blue_green.test_states import MARKED

NAMESPACE = "shop/live"
TOPIC = f"persistent://{NAMESPACE}/orders"
PARTED = f"persistent://{NAMESPACE}/parted"


class Green:
    """Green: its topics by name with the entries that each subscription has behind it."""

    def __init__(self, **topics: dict[str, int]) -> None:
        self.there = {f"persistent://{NAMESPACE}/{name}": dict(found) for name, found in topics.items()}
        self.partitions: dict[str, int] = {}
        self.made: list[Any] = []
        #: Where a subscription began, if that is known.
        self.began: dict[str, Position] = {}
        #: What a client makes while a subscription is about to be made.
        self.faster: set[str] = set()

    def topics(self, _namespace: str) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(managed_ledger=TopicName.parse(topic).managed_ledger, cursors=found)
            for topic, found in self.there.items()
        ]

    def topic(self, managed_ledger: str) -> SimpleNamespace:
        topic = str(TopicName.of_managed_ledger(managed_ledger))
        info = SimpleNamespace(ledgers=[LedgerInfo(3, 4), LedgerInfo(8)])
        return SimpleNamespace(info=info, cursors={name: name for name in self.there[topic]})

    def first_position(self, cursor: str) -> Position | None:
        return self.began.get(cursor)

    def partition_count(self, topic: str) -> int:
        return self.partitions.get(topic, 0)

    def subscribe(self, topic: str, name: str, properties: Mapping[str, str], *, replicated: bool) -> bool:
        if name in self.faster:
            self.there[topic][name] = 7
            return False
        self.there[topic][name] = 0
        self.made.append((topic, name, dict(properties), replicated))
        return True

    def create_topic(self, topic: str, partitions: int | None) -> None:
        self.made.append((topic, partitions))
        self.there.setdefault(topic, {})

    def add_partitions(self, topic: str, partitions: int) -> None:
        self.made.append((topic, "raised to", partitions))
        self.there.setdefault(f"{topic}-partition-{partitions - 1}", {})

    def entries_passed(self, topic: str, name: str) -> int:
        if name == "broken":
            raise PulsarError("no answer")
        return self.there[topic][name]

    def reset_to_earliest(self, topic: str, name: str) -> None:
        self.there[topic][name] = 0


class Blue:
    """Blue: properties of subscriptions, where it tells them, and counts of partitions."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.partitions: dict[str, int] = {}

    def stats(self, topic: str) -> Any:
        if topic not in self.told:
            raise NotFoundError("not loaded")
        return self.told[topic]

    def partition_count(self, topic: str) -> int:
        return self.partitions.get(topic, 0)


@pytest.fixture
def record(tmp_path: Path) -> MigrationRecord:
    made = MigrationRecord(tmp_path)
    made.starting(NAMESPACE, [Expected(TOPIC, ("app",))])
    return made


def resources(
    record: MigrationRecord, green: Any, blue: Any = None, policy: LatePolicy = LatePolicy.REPORT
) -> GreenResources:
    return GreenResources(blue or Blue(), green, green, green, green, record, policy)


def look(*names: str, topic: str = TOPIC) -> Look:
    seen = TopicSeen(topic, MARKED, True, True, 0, tuple(CursorSeen(name, 3, 1) for name in names))
    return Look(0, (seen,), {NAMESPACE: True})


def test_a_subscription_that_green_lacks_is_made_there_once_with_its_properties(record: MigrationRecord) -> None:
    green, blue = Green(orders={"app": 9}), Blue()
    blue.told[TOPIC] = {"subscriptions": {"late": {"subscriptionProperties": {"a": "b"}, "replicated": True}}}
    ours = resources(record, green, blue)
    for _ in range(2):
        ours.complete_look(look("app", "late", "pulsar.repl.west", "__compaction", "pulsar.dedup"))
    assert green.made == [(TOPIC, "late", {"a": "b"}, True)]
    assert record.late([NAMESPACE]) == ()
    # `verify` asks for it also once blue has deleted it, and another process knows that it is ours.
    assert record.expected([NAMESPACE])[TOPIC].subscriptions == ("app", "late")
    green.there[TOPIC]["late"] = 50
    resources(record, green).complete_look(look("late"))
    assert record.late([NAMESPACE]) == ()


def test_one_that_its_client_made_behind_entries_of_green_is_reported(record: MigrationRecord) -> None:
    green = Green(orders={"app": 9, "late": 5, "early": 0})
    ours = resources(record, green)
    assert ours.late_in(look("app", "late", "early")) == [(TOPIC, "late", 5)]
    assert record.late([NAMESPACE]) == ()
    ours.complete_look(look("app", "late", "early"))
    ours.complete_look(look("app", "late", "early"))
    assert record.late([NAMESPACE]) == ((TOPIC, "late", 5),)
    assert record.late(["shop/other"]) == ()
    record.append(FINISHED, namespace=NAMESPACE)
    assert record.late([NAMESPACE]) == ()


def test_one_that_has_read_all_that_green_had_before_is_not_reported(record: MigrationRecord) -> None:
    green = Green(orders={"app": 9, "first": 20, "second": 20, "third": 20})
    green.began = {"first": Position(3, -1), "second": Position(3, 1), "third": Position(8, 0)}
    ours = resources(record, green)
    assert ours.late_in(look("first", "second", "third")) == [(TOPIC, "second", 2), (TOPIC, "third", 5)]


def test_one_that_its_client_makes_just_before_us_is_reported_too(record: MigrationRecord) -> None:
    green = Green(orders={"app": 9})
    green.faster = {"late"}
    resources(record, green).complete_look(look("late"))
    assert record.late([NAMESPACE]) == ((TOPIC, "late", 7),)


def test_it_is_reset_where_that_is_wanted(record: MigrationRecord) -> None:
    green = Green(orders={"app": 9, "late": 5})
    resources(record, green, policy=LatePolicy.RESET).complete_look(look("late"))
    assert green.there[TOPIC]["late"] == 0
    assert record.late([NAMESPACE]) == ()
    # Where it began says nothing any more.
    green.began = {"late": Position(8, 0)}
    assert resources(record, green).late_in(look("late")) == []


def test_one_that_was_reported_is_reset_though_blue_has_deleted_it(record: MigrationRecord) -> None:
    green = Green(orders={"app": 9, "late": 5})
    resources(record, green).complete_look(look("late"))
    resources(record, green, policy=LatePolicy.RESET).complete_look(look())
    assert green.there[TOPIC]["late"] == 0
    assert record.late([NAMESPACE]) == ()


def test_before_the_flag_no_client_of_blue_was_on_green(record: MigrationRecord) -> None:
    green = Green(orders={"app": 9, "late": 5})
    ours = resources(record, green)
    ours.complete({TOPIC: ["late"]}, redirects=False)
    ours.complete_look(look("late"))
    assert record.late([NAMESPACE]) == ()


def test_what_cannot_be_told_is_tried_again(record: MigrationRecord) -> None:
    ours = resources(record, Green(orders={"app": 9, "broken": 5}))
    for _ in range(2):
        with pytest.raises(PulsarError):
            ours.complete_look(look("broken"))


def test_what_is_recorded_and_green_has_not_is_made(record: MigrationRecord) -> None:
    green = Green(orders={})
    resources(record, green).complete_look(look("app"))
    assert green.made == [(TOPIC, "app", {}, False)]
    assert record.late([NAMESPACE]) == ()


def test_a_partition_that_blue_is_about_to_have_waits_for_its_number(record: MigrationRecord) -> None:
    green, blue = Green(orders={"app": 9}), Blue()
    part = f"{PARTED}-partition-3"
    blue.partitions[PARTED] = green.partitions[PARTED] = 3
    ours = resources(record, green, blue)
    ours.complete({part: ["late"]})
    assert green.made == []
    blue.partitions[PARTED] = 4
    ours.complete({part: ["late"]})
    assert green.made == [(PARTED, "raised to", 4), (part, "late", {}, False)]


def test_topics_and_partitions_that_green_lacks_are_made(record: MigrationRecord) -> None:
    green, blue = Green(orders={"app": 9}), Blue()
    new, part = f"persistent://{NAMESPACE}/new", f"{PARTED}-partition-3"
    blue.partitions[PARTED], green.partitions[PARTED] = 4, 3
    resources(record, green, blue).complete({new: [], part: ["late"]})
    assert green.made == [(new, None), (PARTED, "raised to", 4), (part, "late", {}, False)]
