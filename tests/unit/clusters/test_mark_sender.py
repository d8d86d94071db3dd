"""Whole batches of marks: what one answer proves, and what it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.mark_sender import DelayedSender, PendingDeletionSender
from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.errors import MarkingInterrupted
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.wire.avro import PendingDeletionCodec

BATCH = 500
WHOLE: list[tuple[pulsar.Result, int] | BaseException] = [(pulsar.Result.Ok, BATCH - 1)]


class LastMessage:
    """The id of a batch's last message, at a place of the batch."""

    def __init__(self, place: int) -> None:
        self._place = place

    def batch_index(self) -> int:
        return self._place


class ScriptedProducer:
    """Answers what has a callback: `answers` for whole batches, in turn; everything else is confirmed."""

    def __init__(self, answers: list[tuple[pulsar.Result, int] | BaseException]) -> None:
        self._answers = answers
        self.payloads: list[bytes] = []
        self.options: list[dict[str, Any]] = []
        self._without_callback = 0

    def send_async(self, payload: bytes, callback: Callable[..., None] | None, **options: Any) -> None:
        self.payloads.append(payload)
        self.options.append(options)
        if callback is None:
            self._without_callback += 1
            return
        if not self._without_callback:
            callback(pulsar.Result.Ok, None)
            return
        self._without_callback = 0
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        callback(answer[0], LastMessage(answer[1]))


class Sending:
    """A sender whose producer is scripted; ``closed`` counts how often its producers were closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: tuple[pulsar.Result, int] | BaseException) -> None:
        self.producer = ScriptedProducer(list(answers))
        self.closed = 0
        monkeypatch.setattr(ConfirmedProducers, "producer", lambda *_: self.producer)
        monkeypatch.setattr(ConfirmedProducers, "partitions", lambda _, topic: [topic])
        monkeypatch.setattr(ConfirmedProducers, "close", lambda _: self._close())
        self.sender = PendingDeletionSender(
            PulsarConnection("pulsar://127.0.0.1:1", "http://127.0.0.1:1"), "persistent://t/n/d", PendingDeletionCodec()
        )

    def _close(self) -> None:
        self.closed += 1


def marks(count: int, topic: str = "t/n/persistent/orders") -> list[PendingDeletion]:
    return [
        PendingDeletion(topic, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id, marked_at=1)
        for ledger_id in range(count)
    ]


def test_one_answer_confirms_a_batch_that_went_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sending = Sending(monkeypatch, (pulsar.Result.Ok, BATCH - 1), (pulsar.Result.Ok, BATCH - 1))
    assert sending.sender.send_all(marks(2 * BATCH + 7)) == [None] * (2 * BATCH + 7)
    decode = PendingDeletionCodec().decode
    assert [decode(payload).ledger_id for payload in sending.producer.payloads] == list(range(2 * BATCH + 7))
    assert sending.closed == 0


def test_a_batch_that_the_client_cut_counts_as_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    sending = Sending(monkeypatch, (pulsar.Result.Ok, BATCH - 2), (pulsar.Result.Ok, BATCH - 1))
    results = sending.sender.send_all(marks(2 * BATCH + 7))
    assert all("in parts" in str(reason) for reason in results[:BATCH])
    assert results[BATCH:] == [None] * (BATCH + 7)


def test_a_batch_that_the_broker_refuses_fails_whole_and_the_next_call_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sending = Sending(monkeypatch, (pulsar.Result.Timeout, BATCH - 1), (pulsar.Result.Ok, BATCH - 1))
    results = sending.sender.send_all(marks(2 * BATCH + 1))
    assert [reason is None for reason in results] == [False] * BATCH + [True] * (BATCH + 1)
    assert sending.closed == 1


def test_an_interruption_within_a_batch_counts_whole_batches_and_leaves_nothing_in_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sending = Sending(monkeypatch, (pulsar.Result.Ok, BATCH - 1), KeyboardInterrupt())
    with pytest.raises(MarkingInterrupted) as caught:
        sending.sender.send_all(marks(2 * BATCH + 7))
    assert (caught.value.confirmed, caught.value.total) == (BATCH, 2 * BATCH + 7)
    assert sending.closed == 1


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 700)), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_whole_batches_arrive_as_marks_that_are_sent_one_by_one(runs: list[tuple[int, int]], partitions: int) -> None:
    sent = [mark for length, count in runs for mark in marks(count, f"t/n/persistent/{'x' * length}")]
    arrived = []
    for at_once in (len(sent), BATCH - 1):
        producers = {str(number): ScriptedProducer(WHOLE * 9) for number in range(partitions)}
        with pytest.MonkeyPatch.context() as monkeypatch:
            sending = Sending(monkeypatch)
            monkeypatch.setattr(ConfirmedProducers, "partitions", lambda *_, names=producers: list(names))
            monkeypatch.setattr(ConfirmedProducers, "producer", lambda _, name, *__, all_of=producers: all_of[name])
            for at in range(0, len(sent), at_once):
                part = sent[at : at + at_once]
                assert sending.sender.send_all(part) == [None] * len(part)
        arrived.append({name: by_holder(producer.payloads) for name, producer in producers.items()})
    assert arrived[0] == arrived[1]


def by_holder(payloads: list[bytes]) -> dict[str, list[int]]:
    """Return the ids of each holder in the order in which they were sent."""
    found: dict[str, list[int]] = {}
    for mark in map(PendingDeletionCodec().decode, payloads):
        found.setdefault(mark.topic_name, []).append(mark.ledger_id)
    return found


def test_marks_too_long_for_a_whole_batch_are_confirmed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sending = Sending(monkeypatch)
    count = BATCH + 3
    assert sending.sender.send_all(marks(count, f"t/n/persistent/{'x' * 300}")) == [None] * count
    assert len(sending.producer.payloads) == count


def test_delayed_marks_go_singly_with_what_a_retry_has(monkeypatch: pytest.MonkeyPatch) -> None:
    sending = Sending(monkeypatch)
    delayed = DelayedSender(sending.sender, 600.5, "persistent://t/n/d", clock=lambda: 1000.0)
    assert delayed.send_all(marks(2 * BATCH)) == [None] * 2 * BATCH
    assert sending.producer.options == [
        {
            "properties": {"DELAY_TIME": "600500", "REAL_TOPIC": "persistent://t/n/d"},
            "partition_key": "t/n/persistent/orders",
            "deliver_at": 1_600_500,
        }
    ] * (2 * BATCH)
