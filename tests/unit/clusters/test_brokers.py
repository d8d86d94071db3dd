"""What is read from a broker's answers about compaction; shapes of Pulsar 4.0.8."""

from __future__ import annotations

from typing import Any

import pytest

from bookwarden.clusters.pulsar.rest.brokers import Brokers, TopicCompaction
from bookwarden.errors import FormatError, PulsarUnavailableError

TOPIC = "persistent://t/n/a b"


class Admin:
    """Gives the answers by the last part of the path."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def get_json(self, path: str) -> Any:
        base, _, asked = path.rpartition("/")
        assert base == "/persistent/t/n/a+b"
        return self._answers[asked]

    def close(self) -> None: ...


def brokers(**changes: Any) -> Brokers:
    answers: dict[str, Any] = {
        "compaction": {"status": "SUCCESS", "lastError": ""},
        "stats": {"subscriptions": {"__compaction": {"consumers": []}, "billing": {"consumers": [{}]}}},
        "internalStats": {
            "compactedLedger": {"ledgerId": 40, "entries": 1},
            "cursors": {"__compaction": {"cursorLedger": 90, "properties": {"CompactedTopicLedger": 39}}},
        },
    }
    return Brokers(Admin(**{**answers, **changes}))  # type: ignore[arg-type]


def test_the_ledger_in_use_and_the_one_recorded_are_both_named() -> None:
    assert brokers().compaction(TOPIC) == TopicCompaction(False, True, frozenset({39, 40}))
    assert brokers().subscriptions(TOPIC) == {"__compaction", "billing"}


@pytest.mark.parametrize("status", ["RUNNING", "SOMETHING_NEW"])
def test_a_status_that_is_not_known_to_be_at_rest_is_a_compaction_under_way(status: str) -> None:
    assert brokers(compaction={"status": status}).compaction(TOPIC).running


@pytest.mark.parametrize("status", ["NOT_RUN", "SUCCESS", "ERROR"])
def test_a_compaction_that_another_process_runs_is_seen_by_its_consumer(status: str) -> None:
    stats = {"subscriptions": {"__compaction": {"consumers": [{"consumerName": "c"}]}}}
    assert brokers(compaction={"status": status}, stats=stats).compaction(TOPIC).running
    assert not brokers(compaction={"status": status}).compaction(TOPIC).running


@pytest.mark.parametrize(
    ("cursor", "recorded"),
    [
        ({"state": "Open", "pendingReadOps": 0}, True),
        ({"state": "NoLedger", "pendingReadOps": 0}, True),
        ({"state": "SwitchingLedger", "pendingReadOps": 0}, False),
        ({"state": "Open", "pendingReadOps": 1}, False),
        ({"state": "Open"}, False),
        ({"pendingReadOps": 0}, False),
        ({}, False),
    ],
)
def test_a_cursor_that_may_have_an_acknowledgement_in_memory_has_not_recorded_all(
    cursor: dict[str, Any], recorded: bool
) -> None:
    internal = {"compactedLedger": {"ledgerId": -1}, "cursors": {"__compaction": cursor}}
    assert brokers(internalStats=internal).compaction(TOPIC).recorded is recorded


def test_a_topic_that_was_never_compacted_names_no_ledger() -> None:
    internal = {"compactedLedger": {"ledgerId": -1}, "cursors": {"billing": {}}}
    found = brokers(internalStats=internal, stats={"subscriptions": {}}).compaction(TOPIC)
    assert found == TopicCompaction(False, False, frozenset())


@pytest.mark.parametrize(
    "changes",
    [
        {"compaction": {}},
        {"compaction": []},
        {"stats": {}},
        {"stats": {"subscriptions": None}},
        {"internalStats": {"cursors": {}}},
        {"internalStats": {"cursors": {}, "compactedLedger": {"ledgerId": None}}},
        {"internalStats": {"cursors": None, "compactedLedger": {"ledgerId": -1}}},
    ],
)
def test_an_answer_of_another_shape_is_an_error_and_no_ledger_at_all(changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="a b"):
        brokers(**changes).compaction(TOPIC)


def test_brokers_that_fail_slowly_are_not_waited_for_again_at_once() -> None:
    now, asked, takes = 0.0, 0, 0.0

    class Slow(Admin):
        def get_json(self, path: str) -> Any:
            nonlocal now, asked
            asked += 1
            now += takes
            raise PulsarUnavailableError("no answer in time")

    made = Brokers(Slow(), clock=lambda: now)  # type: ignore[arg-type]
    for seconds, expected in ((1.0, 1), (1.0, 2), (10.0, 3), (10.0, 3), (10.0, 3)):
        takes = seconds
        with pytest.raises(PulsarUnavailableError):
            made.subscriptions(TOPIC)
        assert asked == expected
    now += 30.0
    with pytest.raises(PulsarUnavailableError):
        made.compaction(TOPIC)
    assert asked == 4


def test_a_name_of_the_first_version_is_not_asked_for_as_another_topic() -> None:
    with pytest.raises(FormatError, match="first version"):
        brokers().compaction("persistent://t/cluster/n/a b")
