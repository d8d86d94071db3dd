"""The record of migrations, also where a crash cut its last line short."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bookwarden.cluster_migration.record import ABORTED, CONNECTED, FINISHED, MADE, MigrationRecord
from bookwarden.cluster_migration.states import ExpectedTopic
from bookwarden.errors import FormatError, PulsarError

NAMESPACE, TOPIC = "shop/live", "persistent://shop/live/orders"


def test_what_was_there_is_what_all_starts_saw(tmp_path: Path) -> None:
    record = MigrationRecord(tmp_path / "new")
    record.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app", "audit"), True)])
    record.marked(NAMESPACE, {TOPIC: 13})
    record.append(ABORTED, namespace=NAMESPACE)
    assert record.begun() == []
    record.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("audit",), False, ("audit",))])
    assert record.expected([NAMESPACE]) == {TOPIC: ExpectedTopic(TOPIC, ("app", "audit"), False, ("audit",), 13)}
    assert record.expected(["shop/other"]) == {}
    assert record.begun() == [NAMESPACE]
    record.append(FINISHED, namespace=NAMESPACE)
    assert record.begun() == []
    assert list(record.expected([NAMESPACE])) == [TOPIC]
    record.starting(NAMESPACE, [ExpectedTopic("persistent://shop/live/other")])
    assert list(record.expected([NAMESPACE])) == ["persistent://shop/live/other"]


def silent() -> str:
    raise PulsarError("no broker answers")


def test_clients_may_be_on_green_only_once_a_migration_was_begun(tmp_path: Path) -> None:
    record = MigrationRecord(tmp_path)
    # A start that was refused afterwards had made something on green.
    record.append(MADE, namespace=NAMESPACE, topic=TOPIC, subscription="late")
    assert not record.has_moved(NAMESPACE)
    record.starting(NAMESPACE, [])
    record.append(ABORTED, namespace=NAMESPACE)
    assert record.has_moved(NAMESPACE)
    assert not record.has_moved("shop/other")
    record.append(FINISHED, namespace=NAMESPACE)
    assert not record.has_moved(NAMESPACE)


def test_blues_name_is_the_recorded_one_only_while_no_broker_tells_it(tmp_path: Path) -> None:
    record = MigrationRecord(tmp_path)
    with pytest.raises(PulsarError):
        record.cluster(silent)
    record.starting(NAMESPACE, [], cluster="blue")
    assert record.cluster(lambda: "other") == "other"


def test_clients_that_green_has_seen_are_not_waited_for(tmp_path: Path) -> None:
    record = MigrationRecord(tmp_path)
    record.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app", "audit"), True, ("app", "audit"))], cluster="blue")
    record.arrived([(TOPIC, ""), (TOPIC, "app")])
    assert record.expected([NAMESPACE]) == {TOPIC: ExpectedTopic(TOPIC, ("app", "audit"), False, ("audit",))}
    assert record.cluster(silent) == "blue"
    # They may have come back to blue before another start.
    record.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app",), True, ("app",))])
    assert record.expected([NAMESPACE])[TOPIC].had_producer
    assert record.cluster(silent) == "blue"


def test_topics_with_clients_on_blue_are_known_for_a_while(tmp_path: Path) -> None:
    record = MigrationRecord(tmp_path)
    record.append(CONNECTED, namespace=NAMESPACE, topics=[TOPIC])
    assert record.connected([NAMESPACE], 0) == [TOPIC]
    assert record.connected(["shop/other"], 0) == []
    assert record.connected([NAMESPACE], int(time.time() * 1000) + 1000) == []


def test_a_line_that_was_cut_short_says_nothing_and_hides_nothing(tmp_path: Path) -> None:
    record = MigrationRecord(tmp_path)
    record.starting(NAMESPACE, [ExpectedTopic(TOPIC, ("app",))])
    with record.path.open("ab") as file:
        file.write(b'{"event": "aborted", "namesp')
    assert record.begun() == [NAMESPACE]
    record.append(ABORTED, namespace=NAMESPACE)
    assert record.begun() == []


def test_a_line_that_is_no_event_is_refused(tmp_path: Path) -> None:
    record = MigrationRecord(tmp_path)
    record.path.write_text("something else\n")
    with pytest.raises(FormatError, match="line 1"):
        record.begun()
