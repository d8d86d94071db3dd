"""A topic that a migration marked accepts messages again, and only one that may."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookwarden.cluster_migration.aborting import MigrationAborter
from bookwarden.cluster_migration.states import ExpectedTopic, TopicState
from bookwarden.errors import NotFoundError, PulsarError, RefusedError
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.names import TopicName
from unit.blue_green.scripted_blue import NAMESPACE, TOPIC, ScriptedBlue, cursor, node

NAME = TopicName.parse(TOPIC).managed_ledger


@pytest.fixture
def blue(tmp_path: Path) -> ScriptedBlue:
    return ScriptedBlue(tmp_path)


def raw(blue: ScriptedBlue) -> bytes:
    found = blue.store.get(f"/managed-ledgers/{NAME}")
    assert found is not None
    return found.value


def test_it_is_opened_while_nobody_has_it_and_its_subscriptions_are_made_again(blue: ScriptedBlue) -> None:
    blue.put_topic(node(), app=cursor(6, 2))
    blue.loaded = {TOPIC}
    blue.record.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app", "audit"))])
    assert not blue.reopening.plan(TOPIC).done
    assert raw(blue) == node()
    found = blue.reopening.reopen(TOPIC)
    assert (found.done, found.subscriptions) == (True, ("audit",))
    assert raw(blue) == node(terminated=False, migrated=False)
    assert blue.unloaded == [TOPIC]
    assert blue.created == [(TOPIC, "audit", Position(6, 2))]
    assert not blue.reopening.reopen(TOPIC).done


def test_it_is_refused_while_its_clients_load_it_again_each_time(blue: ScriptedBlue) -> None:
    blue.put_topic(node())
    blue.on_unload = blue.loaded.add
    with pytest.raises(RefusedError, match="loads"):
        blue.reopening.reopen(TOPIC)
    assert raw(blue) == node()


def test_whoever_loaded_it_in_the_moment_of_the_change_is_unloaded(blue: ScriptedBlue) -> None:
    blue.put_topic(node())
    answers = [set[str](), {TOPIC}]
    blue.loaded_topics = lambda: answers.pop(0)
    assert blue.reopening.reopen(TOPIC).done
    assert blue.unloaded == [TOPIC, TOPIC]


def test_a_change_that_loses_the_race_is_tried_again(blue: ScriptedBlue) -> None:
    blue.put_topic(node())
    path = f"/managed-ledgers/{NAME}"

    def write_once(_topic: str) -> None:
        found = blue.store.get(path)
        assert found is not None
        if found.version == 0:
            blue.store.put(path, found.value, 0)

    blue.on_unload = write_once
    assert blue.reopening.reopen(TOPIC).done


def test_flagged_terminated_by_its_user_or_absent_it_is_refused(blue: ScriptedBlue) -> None:
    with pytest.raises(NotFoundError):
        blue.reopening.reopen(TOPIC)
    blue.put_topic(node(migrated=False))
    with pytest.raises(RefusedError, match="by its user"):
        blue.reopening.reopen(TOPIC)
    blue.flag()
    with pytest.raises(RefusedError, match="flagged"):
        blue.reopening.reopen(TOPIC)
    assert raw(blue) == node(migrated=False)


def test_it_is_put_back_until_somebody_has_used_it(blue: ScriptedBlue) -> None:
    blue.put_topic(node())
    with pytest.raises(NotFoundError):
        blue.reopening.put_back(TOPIC)
    blue.reopening.reopen(TOPIC)
    blue.loaded = {TOPIC}
    with pytest.raises(RefusedError, match="loaded"):
        blue.reopening.put_back(TOPIC)
    blue.loaded = set()
    opened = raw(blue)
    assert not blue.reopening.plan_back(TOPIC).done
    assert raw(blue) == opened
    assert blue.reopening.put_back(TOPIC).done
    assert raw(blue) == node()
    assert not blue.reopening.put_back(TOPIC).done
    blue.reopening.reopen(TOPIC)
    path = f"/managed-ledgers/{NAME}"
    found = blue.store.get(path)
    assert found is not None
    blue.store.put(path, node(terminated=False), found.version)
    with pytest.raises(RefusedError, match="in use"):
        blue.reopening.put_back(TOPIC)


def test_an_abort_takes_the_flag_off_and_tells_what_was_marked(blue: ScriptedBlue) -> None:
    blue.put_topic(node(), app=cursor(5, 9))
    blue.flag()
    assert blue.observer.snapshot([NAMESPACE]).topics[0].state is TopicState.STRANDED
    assert blue.observer.flagged_namespaces() == [NAMESPACE]
    aborting = MigrationAborter(blue, blue.observer, blue.record)
    done = aborting.abort([NAMESPACE])
    assert done.taken_off == (NAMESPACE,)
    (seen,) = done.snapshot.topics
    assert (seen.state, seen.unread) == (TopicState.ROLLED_BACK, 3)
    assert aborting.abort([NAMESPACE]).taken_off == ()


def test_a_subscription_that_was_deleted_since_it_was_reopened_is_not_made_again(blue: ScriptedBlue) -> None:
    blue.put_topic(node(), app=cursor(6, 2))
    blue.record.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app", "audit"))])
    assert blue.reopening.reopen(TOPIC).subscriptions == ("audit",)
    blue.created.clear()
    # "audit" is not among the cursors here: as if its owner had deleted it. Its old position lies before all of today.
    assert blue.reopening.plan(TOPIC).subscriptions == ()
    again = blue.reopening.reopen(TOPIC)
    assert (again.done, again.said, again.subscriptions, blue.created) == (False, "accepts messages already", (), [])


def test_a_reopening_that_was_killed_makes_the_subscriptions_when_it_is_run_again(blue: ScriptedBlue) -> None:
    blue.put_topic(node(), app=cursor(6, 2))
    blue.record.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app", "audit"))])
    answers = iter([PulsarError("killed"), None])

    def create(topic: str, subscription: str, after: Position) -> None:
        error = next(answers)
        if error is not None:
            raise error
        ScriptedBlue.create_subscription(blue, topic, subscription, after)

    blue.create_subscription = create  # type: ignore[method-assign]
    with pytest.raises(PulsarError):
        blue.reopening.reopen(TOPIC)
    assert raw(blue) == node(terminated=False, migrated=False)
    assert blue.reopening.plan(TOPIC).subscriptions == ("audit",)
    assert blue.reopening.reopen(TOPIC).subscriptions == ("audit",)
    assert blue.created == [(TOPIC, "audit", Position(6, 2))]
