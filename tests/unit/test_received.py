"""Attempts and age of a received mark, from what clients of either language write."""

from __future__ import annotations

import pytest

from bookwarden.ledgers.pending_deletion import LedgerComponent, LedgerType, PendingDeletion
from bookwarden.ledgers.received import ReceivedMark

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
        (received({}), 1),
        (received({}, marked_at=NOW - 5000), 5),
        (received({}, marked_at=NOW + 5000), 1),
        (received({"bookwarden.first-published": str(NOW - 9000)}), 9),
        (received({"bookwarden.first-published": "x"}), 1),
        (received({"RECONSUMETIMES": "2", "DELAY_TIME": "3000"}), 7),
        (received({"DELAY_TIME": "3000"}), 1),
        (received({"bookwarden.first-published": str(NOW - 9000), "RECONSUMETIMES": "2", "DELAY_TIME": "99000"}), 9),
    ],
    ids=["published", "marked", "future", "first published", "nonsense", "java retries", "java first", "delayed"],
)
def test_age_is_by_the_earliest_trustworthy_time(mark: ReceivedMark, age: float) -> None:
    assert mark.age(NOW) == age


@pytest.mark.parametrize(("text", "time"), [("123", 123), ("", None), ("-1", None), ("x", None), ("9" * 16, None)])
def test_the_time_of_the_first_verification_is_what_we_wrote_or_none(text: str, time: int | None) -> None:
    assert received({"bookwarden.verified-at": text}).verified_at == time
