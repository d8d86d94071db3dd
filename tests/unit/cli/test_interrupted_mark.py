"""Ctrl-C while marks are sent: what the sender raises, and what the command line says and ends with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from click.testing import CliRunner

import bookwarden.cli.mark
from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.connection import PulsarConnection
from bookwarden.clusters.pulsar.messages.mark_sender import PendingDeletionSender
from bookwarden.clusters.pulsar.messages.producers import ConfirmedProducers
from bookwarden.errors import MarkingInterrupted
from bookwarden.exit_codes import INTERRUPTED
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.wire.avro import PendingDeletionCodec

MARKS = [
    PendingDeletion("t/n/persistent/orders", LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id, marked_at=1)
    for ledger_id in range(10)
]


def interrupted_inside_the_client() -> SystemError:
    """What Python makes of a native function that returns although an exception is set."""
    error = SystemError("send_async returned a result with an exception set")
    error.__cause__ = KeyboardInterrupt()
    return error


class InterruptedProducer:
    """Confirms three sends, refuses one, and then there is Ctrl-C."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._sent = 0

    def send_async(self, payload: bytes, callback: Callable[..., None], **_: Any) -> None:
        self._sent += 1
        if self._sent > 4:
            raise self._error
        callback(pulsar.Result.Ok if self._sent < 4 else pulsar.Result.Timeout, None)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Let every send end as an `InterruptedProducer` does."""

    def prepare(error: BaseException) -> None:
        monkeypatch.setattr(ConfirmedProducers, "partitions", lambda _, topic: [topic])
        monkeypatch.setattr(ConfirmedProducers, "producer", lambda *_: InterruptedProducer(error))

    return prepare


def sender() -> PendingDeletionSender:
    return PendingDeletionSender(
        PulsarConnection("pulsar://127.0.0.1:1", "http://127.0.0.1:1"),
        "persistent://t/n/deletion",
        PendingDeletionCodec(),
    )


@pytest.mark.parametrize("error", [interrupted_inside_the_client(), KeyboardInterrupt()])
def test_an_interruption_tells_how_many_marks_were_confirmed(
    interrupt: Callable[[BaseException], None], error: BaseException
) -> None:
    interrupt(error)
    with pytest.raises(MarkingInterrupted, match="3 of 10") as caught:
        sender().send_all(MARKS)
    assert (caught.value.confirmed, caught.value.total) == (3, 10)


def test_another_fault_of_the_client_is_not_taken_for_an_interruption(
    interrupt: Callable[[BaseException], None],
) -> None:
    interrupt(SystemError("a fault"))
    with pytest.raises(SystemError, match="a fault"):
        sender().send_all(MARKS)


def test_an_interrupted_mark_command_ends_with_its_code_and_says_what_is_safe(
    interrupt: Callable[[BaseException], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(interrupted_inside_the_client())
    monkeypatch.setattr(bookwarden.cli.mark, "marks_of_ids", lambda *_: MARKS)
    monkeypatch.setattr(bookwarden.cli.mark, "refuse_holes", lambda *_: None)
    monkeypatch.setattr(bookwarden.cli.mark, "require_marking", lambda *_: None)
    store = ("--set", "metadata_store.urls=['memory:interrupted']")
    result = CliRunner().invoke(cli, [*store, "mark", "ledger", "1", "--yes"])
    assert result.exit_code == INTERRUPTED
    assert result.stderr == (
        "bookwarden: interrupted: 3 marks confirmed; nothing left the metadata without a confirmed mark, "
        "so run the command again\n"
    )


@pytest.mark.parametrize(
    ("error", "exit_code"), [(interrupted_inside_the_client(), INTERRUPTED), (SystemError("a fault"), 1)]
)
def test_an_interruption_inside_the_client_ends_any_command_as_one(
    monkeypatch: pytest.MonkeyPatch, error: SystemError, exit_code: int
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(bookwarden.cli.mark, "require_marking", fail)
    monkeypatch.setattr(bookwarden.cli.mark, "marks_of_ids", lambda *_: MARKS)
    monkeypatch.setattr(bookwarden.cli.mark, "refuse_holes", lambda *_: None)
    store = ("--set", "metadata_store.urls=['memory:interrupted']")
    result = CliRunner().invoke(cli, [*store, "mark", "ledger", "1", "--yes"])
    assert result.exit_code == exit_code
    assert isinstance(result.exception, SystemExit) is (exit_code == INTERRUPTED)
