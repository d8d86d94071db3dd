"""A migration followed look by look: what is said, and when it ends."""

from __future__ import annotations

import itertools

from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.states import CursorStatus, TopicStatus
from bookwarden.cluster_migration.watching import DrainOutcome, ending_of, follow, warnings_of
from unit.blue_green.test_states import IDLE, LEFT, MARKED, OPEN, READ, TOPIC

ON = {"shop/live": True}


def look(*topics: TopicStatus, at_ms: int = 0, errors: tuple[str, ...] = ()) -> MigrationSnapshot:
    return MigrationSnapshot(at_ms, topics, ON, errors)


def seen(unread: int, *, loaded: bool = True, name: str = TOPIC, lacks: bool = False) -> TopicStatus:
    return TopicStatus(name, MARKED, True, loaded, None, (CursorStatus("app", unread, 1),), lacks)


def test_it_ends_where_all_is_drained_or_gone() -> None:
    assert ending_of(look(seen(0), TopicStatus("persistent://shop/live/b", None, True))) is DrainOutcome.DRAINED


def test_a_doubt_is_no_end() -> None:
    assert ending_of(look(seen(0), errors=("a broker does not say which topics it has",))) is None
    assert ending_of(look(seen(0), TopicStatus(TOPIC, OPEN, True, None))) is None


def test_it_ends_where_the_flag_is_off() -> None:
    assert ending_of(MigrationSnapshot(0, (seen(3),), {"shop/live": False})) is DrainOutcome.FLAG_OFF


def test_what_nobody_reaches_is_told_with_what_to_do() -> None:
    (stranded,) = warnings_of(look(seen(3, loaded=False)))
    assert stranded.startswith(f"STRANDED: {TOPIC} (app 3 unread): `cluster-migration abort` now")
    (unmarked,) = warnings_of(look(TopicStatus(TOPIC, OPEN, True, False)))
    assert unmarked.startswith(f"UNMARKED: {TOPIC}")
    (stuck,) = warnings_of(look(TopicStatus(TOPIC, MARKED, True, True, 0, (IDLE, READ))))
    assert stuck.startswith(f"STUCK: {TOPIC} (app 3 unread)")
    assert warnings_of(look(TopicStatus(TOPIC, MARKED, True, True, 0, (LEFT,)))) == ()


def test_a_subscription_that_came_too_late_is_told() -> None:
    (late,) = warnings_of(MigrationSnapshot(0, (), ON, late=((TOPIC, "late", 7),)))
    assert f"late of {TOPIC} (behind 7 entries):" in late


def test_many_subscriptions_that_came_too_late_are_one_sentence() -> None:
    (late,) = warnings_of(MigrationSnapshot(0, (), ON, late=tuple((TOPIC, f"late-{number}", 7) for number in range(9))))
    assert f"late-4 of {TOPIC} (behind 7 entries) and 4 more (`verify` lists them): " in late
    assert "late-5" not in late


def test_a_restarted_broker_is_told() -> None:
    (restarted,) = warnings_of(MigrationSnapshot(0, (), ON, (), ("broker-1:8080",)))
    assert "broker-1:8080" in restarted


def test_the_rate_is_that_of_the_last_looks_and_the_end_is_a_step() -> None:
    ticks = itertools.count(0, 2)
    looks = iter([look(seen(30)), look(seen(20)), look(seen(10)), look(seen(0))])
    steps = list(follow(lambda: next(looks), every_s=1, clock=lambda: next(ticks), sleep=lambda _: None))
    assert [step.snapshot.unread for step in steps] == [30, 20, 10, 0]
    assert [step.ending for step in steps] == [None, None, None, DrainOutcome.DRAINED]
    assert steps[0].rate is None
    assert steps[2].rate == 2.5
    assert steps[2].seconds_left == 4


def test_producers_that_green_lacks_are_not_waited_for_for_ever() -> None:
    ticks = itertools.count(0, 20)
    steps = list(
        follow(lambda: look(seen(0, lacks=True)), every_s=1, clock=lambda: next(ticks) / 2, sleep=lambda _: None)
    )
    assert [step.ending for step in steps] == [None, None, None, DrainOutcome.CLIENTS_LEFT]


def test_a_producer_that_green_lacks_is_told_at_the_second_look() -> None:
    looks = iter([look(seen(5, lacks=True)), look(seen(4, lacks=True)), look(seen(0))])
    steps = list(follow(lambda: next(looks), every_s=1, clock=lambda: 0.0, sleep=lambda _: None))
    assert [len(step.warnings) for step in steps] == [0, 1, 0]


def test_a_topic_that_its_consumers_may_not_reach_is_told_at_the_second_look() -> None:
    shut = TopicStatus(TOPIC, MARKED, True, True, 0, (IDLE,), green_lacks_producer=True)
    assert len(warnings_of(look(shut))) == 1
    told = warnings_of(look(shut), {TOPIC})
    assert [text.partition(":")[0] for text in told] == ["STUCK", "PRODUCERS LEFT", "STUCK and PRODUCERS LEFT"]
    assert "fenced" in told[-1]
