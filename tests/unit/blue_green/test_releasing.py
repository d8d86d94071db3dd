"""Topics are unloaded once nobody has anything left to read, and after an abort where a fence may hold them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from bookwarden.cluster_migration.aborting import MigrationAborter
from bookwarden.cluster_migration.releasing import (
    ContinuousReleaser,
    ReleasePlan,
    ReleaseResult,
    TopicReleaser,
    release_plan,
)
from bookwarden.cluster_migration.states import CursorStatus, ExpectedTopic, TopicStatus
from bookwarden.errors import PulsarError, PulsarTimeoutError, SilentBrokerError, StoreError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName
from unit.blue_green.scripted_blue import NAMESPACE, TOPIC, ScriptedBlue, cursor, node
from unit.blue_green.test_states import LEFT, MARKED, READ


@pytest.fixture
def blue(tmp_path: Path) -> ScriptedBlue:
    made = ScriptedBlue(tmp_path)
    made.flag()
    made.put_topic(node())
    made.loaded = {TOPIC}
    return made


def seen(
    name: str, *cursors: CursorStatus, loaded: bool = True, lacks: bool = False, lacks_readers: tuple[str, ...] = ()
) -> TopicStatus:
    return TopicStatus(name, MARKED, True, loaded, None, cursors, lacks, lacks_readers)


def test_what_is_loaded_and_drained_can_be_released_and_nothing_else() -> None:
    topics = [
        seen("drained", READ),
        seen("bare"),
        seen("unloaded", READ, loaded=False),
        seen("held", READ, lacks=True),
        seen("released", READ, loaded=False, lacks=True),
        seen("without consumers", READ, lacks_readers=("app",)),
        seen("of two", READ, LEFT, lacks_readers=("app",)),
        seen("behind", LEFT, lacks=True),
        seen("draining", LEFT),
    ]
    assert release_plan(topics) == ReleasePlan(("held", "without consumers"), ("behind",), ("drained", "bare"))


@pytest.mark.parametrize("backlog", [{"msgBacklog": 4}, {}], ids=["behind", "not known"])
def test_a_reader_that_no_node_tells_of_keeps_its_topic(blue: ScriptedBlue, backlog: dict[str, Any]) -> None:
    releasing = TopicReleaser(blue, blue.observer, blue.record)
    blue.told[TOPIC] = {"subscriptions": {"reader-1": {"durable": False, **backlog}}}
    assert "reader-1" in releasing.release_all([TOPIC]).refused[TOPIC]
    assert blue.unloaded == []
    # A watch asks again and again.
    assert list(blue.record.events()) == []
    blue.told[TOPIC] = {"subscriptions": {"reader-1": {"durable": False, "msgBacklog": 0}}}
    assert releasing.release_all([TOPIC]) == ReleaseResult()
    assert blue.unloaded == [TOPIC]


def test_compaction_that_is_behind_does_not_keep_its_topic(blue: ScriptedBlue) -> None:
    blue.told[TOPIC] = {"subscriptions": {"__compaction": {"durable": True, "msgBacklog": 188}}}
    assert TopicReleaser(blue, blue.observer, blue.record).release_all([TOPIC]) == ReleaseResult()
    assert blue.unloaded == [TOPIC]


def test_a_broker_that_does_not_answer_for_a_topic_is_not_asked_again_at_each_look(
    blue: ScriptedBlue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that waits for a deadlocked topic keeps a thread of its broker's for ever."""
    asked = []

    def stats(topic: str) -> Any:
        asked.append(topic)
        raise PulsarTimeoutError("b-1 gave no answer in time")

    monkeypatch.setattr(blue, "stats", stats)
    path = f"/managed-ledgers/{TopicName.parse(TOPIC).managed_ledger}/app"
    blue.store.create(path, cursor(6, 2))
    looks = [blue.observer.snapshot([NAMESPACE]) for _ in range(2)]
    assert [look.unanswered for look in looks] == [(TOPIC,), (TOPIC,)]
    assert all("gave no answer in time" in look.errors[0] for look in looks)
    refused = TopicReleaser(blue, blue.observer, blue.record).release_all([TOPIC]).refused
    assert "gave no answer in time" in refused[TOPIC]
    assert asked == [TOPIC]


def test_a_topic_is_known_to_be_loaded_though_another_broker_is_silent(blue: ScriptedBlue) -> None:
    other = f"persistent://{NAMESPACE}/other"

    def ask() -> frozenset[str]:
        raise SilentBrokerError("b-2 does not answer", frozenset({other}))

    blue.loaded_topics = ask
    observer = blue.observer
    (seen,) = observer.snapshot([NAMESPACE]).topics
    assert seen.loaded is None
    path = f"/managed-ledgers/{TopicName.parse(other).managed_ledger}"
    blue.store.create(path, node(), make_parents=True)
    blue.told[other] = {}
    look = observer.snapshot([NAMESPACE])
    assert {one.topic: one.loaded for one in look.topics} == {TOPIC: None, other: True}
    assert "b-2" in look.errors[0]


@pytest.mark.parametrize("publishers", [[], [{}]], ids=["on no side", "on green"])
def test_an_abort_unloads_what_may_be_fenced_once_the_flag_is_off(
    blue: ScriptedBlue, tmp_path: Path, publishers: list[Any]
) -> None:
    green = ScriptedBlue(tmp_path / "green")
    green.told[TOPIC] = {"publishers": publishers}
    blue.told[TOPIC] = {"subscriptions": {}}
    blue.record.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app",), had_producer=True)])
    flags: list[bool] = []
    blue.on_unload = lambda _topic: flags.append(blue.nodes.is_flagged(NAMESPACE))
    observer = blue.observer_with(green)
    done = MigrationAborter(blue, observer, blue.record).abort([NAMESPACE])
    lacking = () if publishers else (TOPIC,)
    assert (done.on_no_side, done.unloaded, done.errors) == (lacking, lacking, ())
    # With the flag on, nobody could load it again.
    assert flags == [False] * len(lacking)


def test_what_an_abort_could_not_unload_is_told(blue: ScriptedBlue, tmp_path: Path) -> None:
    def broken(_topic: str) -> None:
        raise PulsarError("no answer")

    green = ScriptedBlue(tmp_path / "green")
    green.told[TOPIC] = {}
    blue.told[TOPIC] = {"subscriptions": {}}
    blue.on_unload = broken
    blue.record.starting(NAMESPACE, [ExpectedTopic(TOPIC, had_producer=True)])
    observer = blue.observer_with(green)
    done = MigrationAborter(blue, observer, blue.record).abort([NAMESPACE])
    assert (done.taken_off, done.unloaded) == ((NAMESPACE,), ())
    assert "may be fenced" in done.errors[0]


def test_a_topic_that_is_not_read_is_not_released(blue: ScriptedBlue) -> None:
    path = f"/managed-ledgers/shop/live/persistent/{TOPIC.rpartition('/')[2]}/app"
    blue.store.create(path, cursor(5, 3))
    blue.told[TOPIC] = {"subscriptions": {"app": {"msgBacklog": 9, "consumers": []}}}
    refused = TopicReleaser(blue, blue.observer, blue.record).release_all([TOPIC]).refused
    assert "9 entries unread" in refused[TOPIC]
    assert blue.unloaded == []


@pytest.mark.parametrize("error", [PulsarError("no answer"), StoreError("no answer")])
def test_what_cannot_be_released_now_keeps_no_other_topic(blue: ScriptedBlue, error: Exception) -> None:
    other = TOPIC.replace("orders", "others")
    blue.store.create(f"/managed-ledgers/{TopicName.parse(other).managed_ledger}", node())
    blue.loaded |= {other}
    blue.told |= {TOPIC: {"subscriptions": {}}, other: {"subscriptions": {}}}

    def broken(topic: str) -> None:
        if topic == TOPIC:
            raise error

    blue.on_unload = broken
    assert TopicReleaser(blue, blue.observer, blue.record).release_all([TOPIC, other]).refused == {TOPIC: "no answer"}
    assert blue.unloaded[-1] == other


def test_an_unload_without_an_answer_ends_the_release_and_is_named(blue: ScriptedBlue) -> None:
    topics = [f"{TOPIC}-{number}" for number in range(4)]
    for topic in topics:
        blue.store.create(f"/managed-ledgers/{TopicName.parse(topic).managed_ledger}", node())
        blue.told[topic] = {"subscriptions": {}}
    blue.loaded |= set(topics)

    def silent(topic: str) -> None:
        if topic == topics[1]:
            raise PulsarTimeoutError("no answer in time")

    blue.on_unload = silent
    result = TopicReleaser(blue, blue.observer, blue.record).release_all(topics)
    assert result == ReleaseResult({}, topics[1], tuple(topics[2:]))
    assert blue.unloaded == topics[:2]


def test_an_unload_without_an_answer_is_not_tried_again_for_five_minutes() -> None:
    unloading = Unloading(silent="b")
    times = iter([0.0, 10.0, 299.0, 300.0])
    as_it_goes = ContinuousReleaser(cast(TopicReleaser, unloading), lambda: next(times))
    looks, named = [seen(name, READ) for name in "ab"], []
    for _ in range(4):
        assert as_it_goes.take(looks) == []
        named.append(as_it_goes.timed_out)
    assert unloading.asked == [["a", "b"], ["a"], ["a"], ["a", "b"]]
    assert named == [("b",)] * 4


def test_an_abort_asks_nothing_more_of_a_deadlocked_broker(blue: ScriptedBlue, tmp_path: Path) -> None:
    green = ScriptedBlue(tmp_path / "green")
    green.told[TOPIC] = {}
    blue.told[TOPIC] = {"subscriptions": {}}
    blue.record.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app",), had_producer=True)])
    observer = blue.observer_with(green)
    blue.deadlocked = ("broker-1:8080",)
    bad = MigrationAborter(blue, observer, blue.record).abort([NAMESPACE])
    assert (bad.taken_off, bad.on_no_side, bad.unloaded, bad.made_again) == ((NAMESPACE,), (TOPIC,), (), ())
    assert "broker-1:8080 of blue is deadlocked" in bad.errors[0]
    assert (blue.unloaded, blue.created) == ([], [])
    # Once it was killed and started.
    blue.deadlocked = ()
    good = MigrationAborter(blue, observer, blue.record).abort([NAMESPACE])
    assert (good.taken_off, good.unloaded, good.made_again, good.errors) == ((), (TOPIC,), (f"app of {TOPIC}",), ())


def test_an_abort_makes_drained_subscriptions_again_at_their_end_and_once(blue: ScriptedBlue) -> None:
    blue.loaded = set()
    path = f"/managed-ledgers/{TopicName.parse(TOPIC).managed_ledger}"
    blue.store.create(f"{path}/kept", cursor(5, 3))
    blue.record.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app", "kept"))])
    aborting = MigrationAborter(blue, blue.observer, blue.record)

    def broken(*_: object) -> None:
        raise PulsarError("no answer")

    made, blue.create_subscription = blue.create_subscription, broken  # type: ignore[method-assign]
    failed = aborting.abort([NAMESPACE])
    assert failed.made_again == ()
    assert "run abort again" in failed.errors[0]
    blue.create_subscription = made  # type: ignore[method-assign]
    assert aborting.abort([NAMESPACE]).made_again == (f"app of {TOPIC}",)
    assert blue.created == [(TOPIC, "app", Position(6, 2))]
    # Whoever deletes it now has it deleted, until the namespace is started again.
    assert aborting.abort([NAMESPACE]).made_again == ()
    blue.record.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app", "kept"))])
    assert aborting.abort([NAMESPACE]).made_again == (f"app of {TOPIC}",)


class Unloading:
    """Releases all topics but those that it is told to refuse."""

    def __init__(self, *refused: str, silent: str = "") -> None:
        self._refused = refused
        self._silent = silent
        self.asked: list[list[str]] = []

    def release_all(self, topics: Iterable[str]) -> ReleaseResult:
        self.asked.append(list(topics))
        refused = {topic: f"{topic} is read" for topic in self.asked[-1] if topic in self._refused}
        return ReleaseResult(refused, self._silent if self._silent in self.asked[-1] else "")


def test_a_watch_releases_what_is_drained_at_once_and_gives_clients_time_to_come() -> None:
    unloading = Unloading()
    times = iter([0.0, 1.0, 9.9, 10.0, 11.0, 12.0, 21.9, 22.0])
    as_it_goes = ContinuousReleaser(cast(TopicReleaser, unloading), lambda: next(times))
    alone = seen("alone", READ, lacks_readers=("app",))
    looks = [seen("drained", READ), seen("held", READ, lacks=True), seen("behind", LEFT), alone]
    for _ in range(4):
        as_it_goes.take(looks)
    assert unloading.asked == [["drained"], *[["held", "drained"]] * 2, ["held", "alone", "drained"]]
    # Who came, and is missing again, gets its time anew.
    as_it_goes.take([seen("alone", READ)])
    for _ in range(3):
        as_it_goes.take([alone])
    assert unloading.asked[4:] == [["alone"], [], [], ["alone"]]


def test_what_is_refused_is_told_once_and_keeps_no_other_waiting() -> None:
    unloading = Unloading("a", "b")
    as_it_goes = ContinuousReleaser(cast(TopicReleaser, unloading))
    looks = [seen(name, READ) for name in "abcd"]
    told = [as_it_goes.take(looks, at_most=2) for _ in range(3)]
    assert told == [["a is read", "b is read"], [], []]
    assert unloading.asked == [["a", "b"], ["c", "d"], ["c", "d"]]


def test_the_last_look_of_a_watch_releases_all_that_is_left() -> None:
    unloading = Unloading()
    ContinuousReleaser(cast(TopicReleaser, unloading)).take([seen(f"t{number}", READ) for number in range(200)])
    assert len(unloading.asked[0]) == 200


def test_brokers_are_asked_what_they_have_loaded_once_for_fifty_topics(blue: ScriptedBlue) -> None:
    topics = [f"{TOPIC}-{number}" for number in range(51)]
    for topic in topics:
        blue.store.create(f"/managed-ledgers/{TopicName.parse(topic).managed_ledger}", node())
        blue.told[topic] = {"subscriptions": {}}
    blue.loaded |= set(topics)
    asked: list[int] = []

    def loaded() -> set[str]:
        asked.append(1)
        return blue.loaded

    blue.loaded_topics = loaded
    assert TopicReleaser(blue, blue.observer, blue.record).release_all(topics) == ReleaseResult()
    assert (blue.unloaded, len(asked)) == (topics, 2)


def test_a_store_that_does_not_answer_is_for_another_time(blue: ScriptedBlue) -> None:
    def down() -> set[str]:
        raise StoreError("no answer")

    blue.loaded_topics = down
    refused = TopicReleaser(blue, blue.observer, blue.record).release_all([TOPIC])
    assert refused == ReleaseResult({TOPIC: f"{TOPIC}: no answer"})
    assert blue.unloaded == []
