"""Subscriptions that came while their topics moved: made on green from the first message on, or reported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bookwarden.cluster_migration import green_resources
from bookwarden.cluster_migration import record as record_module
from bookwarden.cluster_migration.green_resources import GreenResources, LatePolicy
from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.record import ABORTED, FINISHED, FOLLOWED, MigrationRecord
from bookwarden.cluster_migration.states import CursorStatus, ExpectedTopic, TopicStatus
from bookwarden.errors import NotFoundError, PulsarError, StoreError
from bookwarden.ledgers.managed_ledger import LedgerInfo, ManagedLedgerInfo, Position
from bookwarden.ledgers.names import TopicName
from unit.blue_green.test_states import MARKED, OPEN

NAMESPACE = "shop/live"
TOPIC = f"persistent://{NAMESPACE}/orders"
PARTED = f"persistent://{NAMESPACE}/parted"


class Green:
    """Green: its topics by name with the entries that each subscription has behind it."""

    def __init__(self, **topics: dict[str, int]) -> None:
        self.there = {f"persistent://{NAMESPACE}/{name}": dict(found) for name, found in topics.items()}
        self.partitions: dict[str, int] = {}
        self.made: list[Any] = []
        self.reads = 0
        #: Where a subscription began, if that is known.
        self.began: dict[str, Position] = {}
        #: When subscriptions were made, if that matters.
        self.created_ms: dict[str, int] = {}
        #: What a client makes while a subscription is about to be made.
        self.faster: set[str] = set()

    def topics(self, _namespace: str) -> list[SimpleNamespace]:
        self.reads += 1
        return [
            SimpleNamespace(
                managed_ledger=TopicName.parse(topic).managed_ledger,
                cursors=found,
                created_ms={name: self.created_ms.get(name, 0) for name in found},
            )
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
    """Blue: properties of subscriptions, where it tells them, counts of partitions, and what changes of its cursors."""

    def __init__(self) -> None:
        self.changed: list[Any] = []
        self.is_followed = True
        self.told: dict[str, Any] = {}
        self.partitions: dict[str, int] = {}

    def stats(self, topic: str) -> Any:
        if topic not in self.told:
            raise NotFoundError("not loaded")
        return self.told[topic]

    def partition_count(self, topic: str) -> int:
        return self.partitions.get(topic, 0)

    def follow(self, _namespace: str) -> Blue:
        if not self.is_followed:
            raise StoreError("this store reports no changes")
        return self

    def take(self) -> Any:
        found = self.changed.pop(0) if self.changed else ()
        names = [name if isinstance(name, tuple) else (TOPIC, name) for name in found or ()]
        pairs = [(TopicName.parse(topic).managed_ledger, name) for topic, name in names]
        return None if found is None else pairs

    def close(self) -> None:
        self.is_followed = False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of one item, the time that the record and the follower see, in ms."""
    now = [1_000_000]
    monkeypatch.setattr(green_resources, "now_ms", lambda: now[0])
    monkeypatch.setattr(record_module, "time", SimpleNamespace(time=lambda: now[0] / 1000))
    return now


@pytest.fixture
def record(tmp_path: Path) -> MigrationRecord:
    made = MigrationRecord(tmp_path)
    made.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app",))])
    return made


def resources(
    record: MigrationRecord, green: Any, blue: Any = None, policy: LatePolicy = LatePolicy.REPORT
) -> GreenResources:
    return GreenResources(side(blue or Blue()), side(green), record, policy)


def side(double: Any) -> Any:
    return SimpleNamespace(admin=double, nodes=double, writer=double)


def look(*names: str, topic: str = TOPIC, info: ManagedLedgerInfo | None = MARKED) -> MigrationSnapshot:
    seen = TopicStatus(topic, info, True, True, 0, tuple(CursorStatus(name, 3, 1) for name in names))
    return MigrationSnapshot(0, (seen,), {NAMESPACE: True})


def test_a_subscription_that_green_lacks_is_made_there_once_with_its_properties(record: MigrationRecord) -> None:
    green, blue = Green(orders={"app": 9}), Blue()
    blue.told[TOPIC] = {"subscriptions": {"late": {"subscriptionProperties": {"a": "b"}, "replicated": True}}}
    ours = resources(record, green, blue)
    for _ in range(2):
        ours.complete_snapshot(look("app", "late", "pulsar.repl.west", "__compaction", "pulsar.dedup"))
    assert green.made == [(TOPIC, "late", {"a": "b"}, True)]
    assert record.late([NAMESPACE]) == ()
    # `verify` asks for it also once blue has deleted it, and another process knows that it is ours.
    assert record.expected([NAMESPACE])[TOPIC].subscriptions == ("app", "late")
    green.there[TOPIC]["late"] = 50
    resources(record, green).complete_snapshot(look("late"))
    assert record.late([NAMESPACE]) == ()


def test_one_that_its_client_made_behind_entries_of_green_is_reported(record: MigrationRecord) -> None:
    green = Green(orders={"app": 9, "late": 5, "early": 0})
    ours = resources(record, green)
    assert ours.late_in(look("app", "late", "early")) == [(TOPIC, "late", 5)]
    assert record.late([NAMESPACE]) == ()
    ours.complete_snapshot(look("app", "late", "early"))
    ours.complete_snapshot(look("app", "late", "early"))
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
    resources(record, green).complete_snapshot(look("late"))
    assert record.late([NAMESPACE]) == ((TOPIC, "late", 7),)


def test_it_is_reset_where_that_is_wanted(record: MigrationRecord) -> None:
    green = Green(orders={"app": 9, "late": 5})
    resources(record, green, policy=LatePolicy.RESET).complete_snapshot(look("late"))
    assert green.there[TOPIC]["late"] == 0
    assert record.late([NAMESPACE]) == ()
    # Where it began says nothing any more.
    green.began = {"late": Position(8, 0)}
    assert resources(record, green).late_in(look("late")) == []


def test_one_that_was_reported_is_reset_though_blue_has_deleted_it(record: MigrationRecord) -> None:
    green = Green(orders={"app": 9, "late": 5})
    resources(record, green).complete_snapshot(look("late"))
    resources(record, green, policy=LatePolicy.RESET).complete_snapshot(look())
    assert green.there[TOPIC]["late"] == 0
    assert record.late([NAMESPACE]) == ()


def test_before_the_flag_no_client_of_blue_was_on_green(record: MigrationRecord) -> None:
    green = Green(orders={"app": 9, "late": 5})
    ours = resources(record, green)
    ours.complete({TOPIC: ["late"]}, redirects=False)
    ours.complete_snapshot(look("late"))
    assert record.late([NAMESPACE]) == ()


def test_what_cannot_be_told_is_tried_again(record: MigrationRecord) -> None:
    ours = resources(record, Green(orders={"app": 9, "broken": 5}))
    for _ in range(2):
        with pytest.raises(PulsarError):
            ours.complete_snapshot(look("broken"))


def test_what_is_recorded_and_green_has_not_is_made(record: MigrationRecord) -> None:
    green = Green(orders={})
    resources(record, green).complete_snapshot(look("app"))
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


def test_one_that_is_gone_from_a_partition_waits_for_its_number_likewise(record: MigrationRecord) -> None:
    green, blue = Green(orders={"app": 9}), Blue()
    part = f"{PARTED}-partition-3"
    blue.partitions[PARTED] = green.partitions[PARTED] = 3
    ours = resources(record, green, blue)
    ours.follow([NAMESPACE])
    blue.changed = [[(part, "brief")]]
    ours.complete_snapshot(look(topic=part))
    assert green.made == []
    blue.partitions[PARTED] = 4
    ours.complete_snapshot(look(topic=part))
    assert green.made == [(PARTED, "raised to", 4), (part, "brief", {}, False)]


def test_topics_and_partitions_that_green_lacks_are_made(record: MigrationRecord) -> None:
    green, blue = Green(orders={"app": 9}), Blue()
    new, part = f"persistent://{NAMESPACE}/new", f"{PARTED}-partition-3"
    blue.partitions[PARTED], green.partitions[PARTED] = 4, 3
    resources(record, green, blue).complete({new: [], part: ["late"]})
    assert green.made == [(new, None), (PARTED, "raised to", 4), (part, "late", {}, False)]


def test_one_that_blue_has_deleted_by_the_next_look_is_made_on_green(record: MigrationRecord) -> None:
    green, blue = Green(orders={"app": 9}), Blue()
    ours = resources(record, green, blue)
    ours.follow([NAMESPACE])
    blue.changed = [["brief", "__compaction", "pulsar.repl.west"]]
    ours.complete_snapshot(look("app"))
    assert green.made == [(TOPIC, "brief", {}, False)]
    # A topic that blue has deleted, too.
    blue.changed = [["last"]]
    ours.complete_snapshot(look(info=None))
    assert green.made[1:] == [(TOPIC, "last", {}, False)]


def test_one_that_its_client_made_on_green_by_the_next_look_is_reported(record: MigrationRecord) -> None:
    green, blue = Green(orders={"app": 9, "brief": 4}), Blue()
    ours = resources(record, green, blue)
    ours.follow([NAMESPACE])
    blue.changed = [["brief"]]
    ours.complete_snapshot(look("app"))
    assert record.late([NAMESPACE]) == ((TOPIC, "brief", 4),)


def test_one_that_clients_deleted_before_the_mark_is_not_made(record: MigrationRecord) -> None:
    green, blue = Green(orders={"app": 9}), Blue()
    ours = resources(record, green, blue)
    ours.follow([NAMESPACE])
    blue.changed = [["deleted"], [], ["brief"]]
    for _ in range(2):
        ours.complete_snapshot(look("app", info=OPEN))
    ours.complete_snapshot(look("app", info=OPEN))
    assert green.made == []
    # Its topic was marked between both looks.
    ours.complete_snapshot(look("app"))
    assert green.made == [(TOPIC, "brief", {}, False)]


def test_one_that_green_could_not_be_given_is_tried_again_though_it_is_gone(record: MigrationRecord) -> None:
    green, blue = Green(orders={"app": 9, "broken": 5}), Blue()
    ours = resources(record, green, blue)
    ours.follow([NAMESPACE])
    blue.changed = [["broken"]]
    for _ in range(2):
        with pytest.raises(PulsarError):
            ours.complete_snapshot(look("app"))
    del green.there[TOPIC]["broken"]
    ours.complete_snapshot(look("app"))
    assert green.made == [(TOPIC, "broken", {}, False)]
    del green.there[TOPIC]["broken"]
    ours.complete_snapshot(look("app"))
    assert len(green.made) == 1


def test_what_came_to_green_while_nobody_followed_blue_is_reported(tmp_path: Path, clock: list[int]) -> None:
    record = MigrationRecord(tmp_path)
    green = Green(
        orders={"app": 9, "early": 0, "between": 4, "native": 5, "new": 6, "pulsar.repl.west": 7}, other={"between": 8}
    )
    ours = resources(record, green)
    ours.follow([NAMESPACE])
    clock[0] += 1_000
    record.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app",))])
    clock[0] += 300_000
    ours.complete_snapshot(look())
    ours.close()
    begun = clock[0] = clock[0] + 20_000
    again = resources(record, green)
    again.follow([NAMESPACE])
    # 20 s in which nobody followed, and a minute before and after.
    green.created_ms = {"early": begun, "between": begun + 59_000, "native": begun + 61_000, "new": begun - 81_000}
    green.created_ms |= {"app": begun, "pulsar.repl.west": begun}
    assert resources(record, green).late_in(look())[0] == (TOPIC, "between", 4)
    # One that blue still has, too, is told once.
    assert resources(record, green).late_in(look("between")).count((TOPIC, "between", 4)) == 1
    # Its client is on its way at the first look.
    between = green.there[TOPIC].pop("between")
    again.complete_snapshot(look())
    assert record.late([NAMESPACE]) == ()
    green.there[TOPIC]["between"] = between
    clock[0] += 59_500
    again.complete_snapshot(look())
    assert record.late([NAMESPACE]) == ((TOPIC, "between", 4),)
    # Green's own clients may delete it.
    assert record.expected([NAMESPACE])[TOPIC].subscriptions == ("app",)
    clock[0] += 300_000
    again.complete_snapshot(look())
    reads = green.reads
    again.complete_snapshot(look())
    assert green.reads == reads
    again.close()
    assert resources(record, green).late_in(look()) == []
    # From then on nobody follows.
    green.created_ms["native"] = clock[0] + 3_600_000
    assert resources(record, green).late_in(look()) == [(TOPIC, "native", 5)]


def test_what_was_reported_and_reset_is_not_reported_again(clock: list[int], record: MigrationRecord) -> None:
    green, blue = Green(orders={"app": 9, "between": 4}), Blue()
    green.created_ms = {"between": clock[0] + 10**9}
    blue.is_followed = False
    ours = resources(record, green, blue, LatePolicy.RESET)
    ours.follow([NAMESPACE])
    ours.complete_snapshot(look())
    assert green.there[TOPIC]["between"] == 0
    green.there[TOPIC]["between"] = 7
    assert resources(record, green).late_in(look()) == []


def test_a_gap_is_a_time_in_which_nobody_followed(record: MigrationRecord, clock: list[int]) -> None:
    green, blue = Green(orders={"app": 9, "between": 4}), Blue()
    clock[0] = 2_000_000_000_000
    begun = clock[0]
    record.append(FOLLOWED, namespace=NAMESPACE, since_ms=0, until_ms=begun)
    ours = resources(record, green, blue)
    ours.follow([NAMESPACE])
    clock[0] += 100_000
    ours.complete_snapshot(look())
    green.created_ms = {"between": begun + 150_000}
    clock[0] += 100_000
    blue.changed = [None]
    ours.complete_snapshot(look())
    assert record.late([NAMESPACE]) == ((TOPIC, "between", 4),)
    assert record.unfollowed({NAMESPACE: clock[0]})[NAMESPACE] == [(begun + 100_000, begun + 200_000)]


def test_times_without_a_flag_need_nobody_who_follows(tmp_path: Path, clock: list[int]) -> None:
    record = MigrationRecord(tmp_path)

    def at(now: int, event: str, **facts: Any) -> None:
        clock[0] = now
        record.append(event, namespace=NAMESPACE, **facts)

    def starting(now: int) -> None:
        clock[0] = now
        record.starting(NAMESPACE, [])

    starting(10_000)
    at(20_000, FINISHED)
    starting(30_000)
    at(40_000, ABORTED)
    at(41_000, FOLLOWED, since_ms=32_000, until_ms=35_000)
    at(45_000, ABORTED)
    record.append(FOLLOWED, namespace="shop/other", since_ms=0, until_ms=90_000)
    starting(50_000)
    at(60_000, FOLLOWED, since_ms=49_000, until_ms=60_000)
    assert record.unfollowed({NAMESPACE: None})[NAMESPACE][:-1] == [(30_000, 32_000), (35_000, 40_000)]
    assert record.unfollowed({NAMESPACE: None})[NAMESPACE][-1][0] == 60_000
    assert record.unfollowed({NAMESPACE: 55_000})[NAMESPACE] == [(30_000, 32_000), (35_000, 40_000)]
    at(70_000, FINISHED)
    assert record.unfollowed({NAMESPACE: None}) == {NAMESPACE: []}
