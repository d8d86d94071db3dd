"""Attempts and age of a received mark, from what clients of either language write."""

from __future__ import annotations

import pytest

from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion
from bookwarden.ledgers.received import OF_PHASE_TWO, ReceivedMark, believed_properties

NOW = 10_000_000


def received(properties: dict[str, str], marked_at: int = 0, published_at: int = NOW - 1000) -> ReceivedMark:
    mark = PendingDeletion("a", LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, 7, marked_at=marked_at)
    return ReceivedMark("topic", "1:2:0", None, b"", properties, published_at, mark=mark)


@pytest.mark.parametrize(("text", "attempts"), [("3", 3), ("", 0), ("-1", 0), ("x", 0), ("9" * 50, 0), ("٣", 0)])
def test_attempts_count_only_what_a_client_writes(text: str, attempts: int) -> None:
    assert received({"RECONSUMETIMES": text}).attempts == attempts


def test_the_first_delivery_has_no_attempts() -> None:
    assert received({}).attempts == 0


@pytest.mark.parametrize(
    ("mark", "age"),
    [
        (received({}), 0),
        (received({}, marked_at=1, published_at=1), 0),
        (received({"bookwarden.first-read": str(NOW - 9000)}, published_at=NOW + 5000), 9),
        (received({"bookwarden.first-read": str(NOW + 9000)}), 0),
        (received({"bookwarden.first-read": "x"}), 0),
        (received({"bookwarden.first-published": "0"}), 0),
        (received({"RECONSUMETIMES": "1", "DELAY_TIME": "3000"}), 1),
        (received({"RECONSUMETIMES": "3", "DELAY_TIME": "3000"}), 7),
        (received({"DELAY_TIME": "3000"}), 0),
        (received({"bookwarden.first-read": str(NOW - 2000), "RECONSUMETIMES": "2", "DELAY_TIME": "99000"}), 2),
    ],
    ids=[
        *("first look", "clock of the producer", "read before", "future", "nonsense", "published long ago"),
        *("java's first retry", "java's third", "java first", "ours, delayed"),
    ],
)
def test_age_is_by_the_first_look_of_phase_two(mark: ReceivedMark, age: float) -> None:
    assert mark.age(NOW) == age


@pytest.mark.parametrize(("text", "time"), [("123", 123), ("", None), ("-1", None), ("x", None), ("9" * 16, None)])
def test_the_time_of_the_first_verification_is_what_we_wrote_or_none(text: str, time: int | None) -> None:
    assert received({"bookwarden.verified-at": text, "bookwarden.first-read": "100"}).verified_at == time


@pytest.mark.parametrize(
    ("properties", "time"),
    [
        ({"bookwarden.first-read": "500"}, 500),
        ({"bookwarden.first-published": "400"}, 400),
        ({"bookwarden.first-read": "500", "bookwarden.first-published": "1"}, 500),
        ({}, None),
    ],
)
def test_nothing_was_verified_before_it_was_first_read(properties: dict[str, str], time: int | None) -> None:
    assert received({"bookwarden.verified-at": "7", **properties}).verified_at == time


@pytest.mark.parametrize(("topic", "believed"), [("d-partition-1", False), ("d-RETRY-partition-1", True)])
def test_what_phase_two_writes_is_believed_on_its_own_topic_alone(topic: str, believed: bool) -> None:
    written = dict.fromkeys(OF_PHASE_TWO, "1")
    found = believed_properties({**written, "theirs": "2"}, f"persistent://t/n/{topic}", "t/n/d-RETRY")
    assert found == ({**written, "theirs": "2"} if believed else {"theirs": "2"})
