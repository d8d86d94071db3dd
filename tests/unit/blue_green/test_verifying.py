"""Verdicts on a migration by what both sides have."""

from __future__ import annotations

import dataclasses

from bookwarden.cluster_migration.finishing import GreenTopic, evaluate_migration
from bookwarden.cluster_migration.observing import MigrationSnapshot
from bookwarden.cluster_migration.states import ExpectedTopic, TopicStatus
from unit.blue_green.test_states import LEFT, MARKED, READ, TOPIC

ON = {"shop/live": True}
EXPECTED = {TOPIC: ExpectedTopic(TOPIC, ("app", "audit"), True, entries=13)}
GREEN = {TOPIC: GreenTopic(frozenset({"app", "audit"}), 20)}
DRAINED = TopicStatus(TOPIC, MARKED, True, True, 0, (READ,))
GONE = TopicStatus(TOPIC, None, True)


def test_a_topic_that_is_drained_or_gone_and_on_green_is_done() -> None:
    for seen in (DRAINED, GONE):
        found = evaluate_migration(MigrationSnapshot(0, (seen,), ON), GREEN, EXPECTED)
        assert found.ok
        assert (found.topics[0].began_with, found.topics[0].on_green) == (13, 20)


def test_a_topic_whose_producers_went_nowhere_has_nothing_to_lose() -> None:
    assert evaluate_migration(
        MigrationSnapshot(0, (dataclasses.replace(DRAINED, green_lacks_producer=True),), ON), GREEN, EXPECTED
    ).ok


def test_what_is_unread_is_a_fault() -> None:
    found = evaluate_migration(
        MigrationSnapshot(0, (TopicStatus(TOPIC, MARKED, True, True, 0, (LEFT,)),), ON), GREEN, EXPECTED
    )
    assert found.topics[0].faults == ("DRAINING on blue", "app has 3 entries unread")


def test_a_subscription_that_blue_had_and_green_has_not_is_a_fault() -> None:
    found = evaluate_migration(MigrationSnapshot(0, (GONE,), ON), {TOPIC: GreenTopic(frozenset({"app"}))}, EXPECTED)
    assert found.topics[0].missing == ("audit",)
    assert not found.ok


def test_a_subscription_that_came_too_late_is_a_fault_of_its_own_unless_accepted() -> None:
    look = MigrationSnapshot(0, (DRAINED,), ON, late=((TOPIC, "late", 7),))
    found = evaluate_migration(look, GREEN, EXPECTED)
    assert (found.ok, found.is_only_late, found.topics[0].faults) == (False, True, ())
    assert found.topics[0].late == ("late (behind 7 entries)",)
    assert not evaluate_migration(look, {}, EXPECTED).is_only_late
    assert evaluate_migration(look, GREEN, EXPECTED, ("late-subscriptions",)).ok


def test_a_topic_with_partitions_and_without_is_a_fault() -> None:
    twin = {**GREEN, f"{TOPIC}-partition-0": GreenTopic(frozenset())}
    (fault,) = evaluate_migration(MigrationSnapshot(0, (DRAINED,), ON), twin, EXPECTED).faults
    assert f"{TOPIC} with partitions and without" in fault


def test_a_topic_that_is_not_on_green_is_a_fault() -> None:
    assert "not on green" in evaluate_migration(MigrationSnapshot(0, (DRAINED,), ON), {}, EXPECTED).topics[0].faults


def test_what_only_readers_read_or_compaction_made_is_a_fault_unless_accepted() -> None:
    alone = {TOPIC: ExpectedTopic(TOPIC, (), True, entries=13)}
    look = MigrationSnapshot(0, (dataclasses.replace(DRAINED, cursors=(), compacted=True),), ON)
    readers, compacted = evaluate_migration(look, GREEN, alone).topics[0].faults
    assert "--accept readers" in readers
    assert "--accept compacted-topics" in compacted
    assert evaluate_migration(look, GREEN, alone, ("readers", "compacted-topics")).ok


def test_a_doubt_a_flag_that_is_off_and_a_start_that_is_not_recorded_are_faults() -> None:
    assert not evaluate_migration(
        MigrationSnapshot(0, (DRAINED,), ON, ("a broker does not answer",)), GREEN, EXPECTED
    ).ok
    assert not evaluate_migration(MigrationSnapshot(0, (DRAINED,), {"shop/live": False}), GREEN, EXPECTED).ok
    assert not evaluate_migration(MigrationSnapshot(0, (DRAINED,), ON), GREEN, {}).ok
