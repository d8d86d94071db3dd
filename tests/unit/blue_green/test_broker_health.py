"""Deadlocks inside blue's brokers: asked for only where topics stand still, and reported in place of other advice."""

from __future__ import annotations

import itertools

import pytest

from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.states import CursorStatus, TopicStatus
from bookwarden.cluster_migration.watching import BrokerHealth, DrainOutcome, DrainStep, follow
from bookwarden.errors import DeadlockedBrokerError, StoreError
from unit.blue_green.test_states import IDLE, MARKED, TOPIC

BROKER = "broker-1:8080"


class Brokers:
    """Blue's brokers, of which one may be deadlocked; counts how often they were asked."""

    def __init__(self, *deadlocked: str) -> None:
        self.deadlocked = deadlocked
        self.asked = 0

    def deadlocked_brokers(self) -> tuple[str, ...]:
        self.asked += 1
        return self.deadlocked


def draining(unread: int) -> TopicStatus:
    return TopicStatus(TOPIC, MARKED, True, True, None, (CursorStatus("app", unread, 1),))


def stuck(unread: int) -> TopicStatus:
    return TopicStatus(TOPIC, MARKED, True, True, 0, (IDLE, CursorStatus("other", unread, 1)))


def look(*topics: TopicStatus) -> MigrationSnapshot:
    return MigrationSnapshot(0, topics, {"shop/live": True})


def test_brokers_are_asked_where_a_topic_stands_still_for_half_a_minute_and_once_a_minute() -> None:
    brokers = Brokers()
    health = BrokerHealth(brokers)
    asked = []
    for now in (0, 29, 30, 89, 90):
        health.after(look(draining(5)), (), now)
        asked.append(brokers.asked)
    assert asked == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(("make", "asked"), [(draining, 0), (stuck, 1)])
def test_what_is_read_goes_on_and_what_nobody_reads_does_not(make: object, asked: int) -> None:
    brokers = Brokers()
    health = BrokerHealth(brokers)
    assert callable(make)
    for now in range(0, 50, 10):
        health.after(look(make(100 - now)), (), now)
    assert brokers.asked == asked


def test_an_unload_without_an_answer_has_them_asked_at_once() -> None:
    brokers = Brokers(BROKER)
    assert BrokerHealth(brokers).after(look(draining(5)), (TOPIC,), 0) == (BROKER,)
    assert brokers.asked == 1


def test_a_topic_whose_broker_does_not_answer_has_them_asked_at_once() -> None:
    seen = MigrationSnapshot(0, (draining(5),), {"shop/live": True}, unanswered=(TOPIC,))
    assert BrokerHealth(Brokers(BROKER)).after(seen, (), 0) == (BROKER,)


def test_what_is_done_is_no_reason_to_ask() -> None:
    brokers = Brokers()
    health = BrokerHealth(brokers)
    for now in (0, 100):
        health.after(look(draining(0), TopicStatus(f"{TOPIC}-gone", None, True)), (), now)
    assert brokers.asked == 0


def test_a_store_that_does_not_answer_is_no_deadlock() -> None:
    class Down(Brokers):
        def deadlocked_brokers(self) -> tuple[str, ...]:
            raise StoreError("no answer")

    assert BrokerHealth(Down()).after(look(draining(5)), (TOPIC,), 0) == ()


def test_a_command_refuses_a_deadlocked_broker_with_what_to_do() -> None:
    BrokerHealth(Brokers()).require()
    with pytest.raises(
        DeadlockedBrokerError, match=f"{BROKER} of blue is deadlocked.*abort.*kill -9.*start"
    ) as refused:
        BrokerHealth(Brokers(BROKER)).require()
    assert refused.value.exit_code == 28


def steps(health: BrokerHealth, *seen: tuple[float, TopicStatus], timed_out: tuple[str, ...] = ()) -> list[DrainStep]:
    # The time is asked for twice at each look.
    times, looks = iter([at for at, _ in seen for _ in range(2)]), iter([look(one) for _, one in seen])
    watched = follow(
        lambda: next(looks),
        every_s=0,
        health=health,
        unanswered=lambda: timed_out,
        clock=lambda: next(times),
        sleep=lambda _: None,
    )
    return list(itertools.islice(watched, len(seen)))


def test_a_deadlock_ends_the_watch_and_takes_the_place_of_other_advice() -> None:
    moments = [(at, stuck(5)) for at in (0.0, 31.0)]
    found = steps(BrokerHealth(Brokers(BROKER)), *moments)
    assert [step.ending for step in found] == [None, DrainOutcome.DEADLOCKED]
    (before,), (after,) = (step.warnings for step in found)
    assert before.startswith("STUCK")
    assert after.startswith(f"broker {BROKER} of blue is deadlocked")
    assert found[-1].deadlocked == (BROKER,)


def test_no_progress_for_a_minute_and_an_unload_without_an_answer_are_warnings() -> None:
    moments = [(at, draining(5)) for at in (0.0, 59.0, 60.0)]
    found = [step.warnings for step in steps(BrokerHealth(Brokers()), *moments)]
    assert [len(one) for one in found] == [0, 0, 1]
    assert found[-1][0].startswith(f"DRAINING: {TOPIC} (app 5 unread): nothing was read for a minute")
    (timed_out,) = steps(BrokerHealth(Brokers()), (0.0, draining(5)), timed_out=(TOPIC,))[0].warnings
    assert timed_out.startswith(f"not unloaded: {TOPIC}: its broker gave no answer")
