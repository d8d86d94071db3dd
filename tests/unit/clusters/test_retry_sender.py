"""Marks sent on: what becomes of their times, keys and properties on the way to the retry topic and the DLQ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.retries import RetrySender
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.received import ReceivedMark

STORE_MS = 1_750_000_000_123


class Sent(NamedTuple):
    topic: str
    key: str | None
    properties: Mapping[str, str]
    deliver_at: int | None


class Producers:
    """Stands where the producers of the native client stand."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    def send(
        self, topic: str, payload: bytes, *, key: str | None, properties: Mapping[str, str], deliver_at: Any, **_: Any
    ) -> None:
        self.sent.append(Sent(topic, key, properties, deliver_at))


@pytest.fixture
def producers() -> Producers:
    return Producers()


@pytest.fixture
def sender(producers: Producers) -> RetrySender:
    connection = PulsarConnection("pulsar://nowhere", "http://nowhere")
    registry: Any = None
    made = RetrySender(connection, "retry", "dlq", "worker", registry=registry, clock=lambda: STORE_MS / 1000)
    replaced: Any = producers
    made._producers = replaced
    return made


def received(**properties: str) -> ReceivedMark:
    return ReceivedMark("persistent://t/n/d-partition-1", "1:2:1", "holder", b"mark", properties, 7)


def test_the_due_time_goes_by_the_clock_of_the_store(sender: RetrySender, producers: Producers) -> None:
    sender.retry(received(), 600, "named")
    sender.wait(received(), 2.5, "doubt")
    sender.delay(received(), 0, 5, "younger")
    assert [sent.deliver_at for sent in producers.sent] == [STORE_MS + 600_000, STORE_MS + 2500, STORE_MS]
    assert [sent.properties["DELAY_TIME"] for sent in producers.sent] == ["600000", "2500", "0"]
    assert {sent.topic for sent in producers.sent} == {"retry"}


def test_a_letter_is_due_at_once_and_says_why(sender: RetrySender, producers: Producers) -> None:
    sender.give_up(received(RECONSUMETIMES="10"), Outcome.GAVE_UP, "after 10 retries")
    (letter,) = producers.sent
    assert (letter.topic, letter.key, letter.deliver_at) == ("dlq", "holder", None)
    assert letter.properties["bookwarden.reason"] == "after 10 retries"
    assert letter.properties["bookwarden.attempts"] == "10"


def test_a_mark_of_many_rounds_has_the_origin_of_its_first(sender: RetrySender, producers: Producers) -> None:
    mark = received(theirs="x")
    for round_ in range(1, 6):
        sender.retry(mark, 600, f"reason {round_}" * round_)
        sent = producers.sent[-1]
        assert sent.properties["RECONSUMETIMES"] == str(round_)
        mark = ReceivedMark("persistent://t/n/d-RETRY-partition-0", f"9:{round_}:0", sent.key, b"", sent.properties, 8)
    assert {sent.properties["ORIGIN_MESSAGE_ID"] for sent in producers.sent} == {"1:2:1"}
    assert {sent.properties["REAL_TOPIC"] for sent in producers.sent} == {"persistent://t/n/d"}
    assert {len(sent.properties) for sent in producers.sent} == {10}
    assert producers.sent[-1].properties["bookwarden.reason"] == "reason 5" * 5


def test_what_is_left_out_is_told_once_and_nothing_else(
    sender: RetrySender, producers: Producers, caplog: pytest.LogCaptureFixture
) -> None:
    sender.retry(received(trace="y" * 9000, app="x"), 600, "named")
    first = producers.sent[0].properties
    assert ("trace" in first, first["app"]) == (False, "x")
    assert "goes on without 1 of its properties" in caplog.text
    caplog.clear()
    sender.retry(ReceivedMark("r", "9:9:0", "holder", b"", {**first, "bookwarden.verified-at": "5"}, 8), 600, "named")
    assert caplog.text == ""
    assert "bookwarden.verified-at" not in producers.sent[1].properties
