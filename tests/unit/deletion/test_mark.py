"""Marking: what is confirmed may leave, what is not may not, and one failure keeps nobody else back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.errors import PulsarUnavailableError
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion


class Sender:
    """Records what is sent; a ledger in `refused` is not confirmed."""

    def __init__(self, refused: Sequence[int] = ()) -> None:
        self.refused = refused
        self.sent: list[PendingDeletion] = []

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        self.sent += marks
        return ["the broker answered Timeout" if mark.ledger_id in self.refused else None for mark in marks]


def data_ledger(ledger_id: int) -> PendingDeletion:
    return PendingDeletion("persistent://t/n/a", LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id)


def test_each_mark_is_reported_in_the_order_given():
    report = Marker(Sender(refused=[2])).mark([data_ledger(number) for number in (3, 2, 1)])
    assert [(ledger.mark.ledger_id, ledger.sent) for ledger in report.ledgers] == [(3, True), (2, False), (1, True)]
    assert report.confirmed_ids() == {1, 3}
    assert report.failed[0].failure == "the broker answered Timeout"


def test_an_invalid_mark_is_not_sent_and_keeps_nobody_back():
    sender = Sender()
    cursorless = replace(data_ledger(5), component=LedgerComponent.MANAGED_CURSOR)
    report = Marker(sender).mark([data_ledger(4), cursorless, data_ledger(6)])
    assert [mark.ledger_id for mark in sender.sent] == [4, 6]
    assert [ledger.sent for ledger in report.ledgers] == [True, False, True]
    assert "needs cursorName" in str(report.failed[0].failure)


def test_a_ledger_with_one_of_two_copies_unconfirmed_may_not_leave():
    class OnlyTheBookiesCopy(Sender):
        def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
            return [None if mark.ledger_type is LedgerType.LEDGER else "no" for mark in marks]

    copy = replace(data_ledger(7), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=OffloadContext(1, 2, "S3"))
    report = Marker(OnlyTheBookiesCopy()).mark([data_ledger(7), copy, data_ledger(8)])
    assert report.confirmed_ids() == {8}


def test_the_time_of_marking_is_stamped_once():
    sender = Sender()
    Marker(sender, clock=lambda: 12.5).mark([data_ledger(1), replace(data_ledger(2), marked_at=7)])
    assert [mark.marked_at for mark in sender.sent] == [12_500, 7]


def test_with_two_phase_deletion_off_nothing_is_marked():
    sender = Sender()
    report = Marker(sender, enabled=False).mark([data_ledger(1)])
    assert report.ledgers == ()
    assert sender.sent == []


def test_an_unreachable_topic_is_told_by_an_error():
    class Unreachable(Sender):
        def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
            raise PulsarUnavailableError("opening a producer: ConnectError")

    with pytest.raises(PulsarUnavailableError):
        Marker(Unreachable()).mark([data_ledger(1)])
