"""Attempts and age of a received mark, from what clients of either language write."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.pending_deletion import LedgerType, PendingDeletion, Waiver
from bookwarden.ledgers.received import (
    MOST_PROPERTIES,
    MOST_TRAVELLING,
    OF_PHASE_TWO,
    REASON,
    WAIVES,
    ReceivedMark,
    believed_properties,
    properties_of_phase_two,
    shortened,
    size_of,
    travelling,
)

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


OURS = {
    "RECONSUMETIMES": "3",
    "DELAY_TIME": "600000",
    "REAL_TOPIC": "persistent://pulsar/system/__ledger_deletion",
    "REAL_SUBSCRIPTION": "ledger-deletion",
    "ORIGIN_MESSAGE_ID": "1:2:3",
    "ORIGIN_MESSAGE_IDY_TIME": "1:2:3",
    "bookwarden.first-published": "1750000000000",
    "bookwarden.first-read": "1750000000000",
}


def sent_on(mark: ReceivedMark, reason: str) -> tuple[str | None, dict[str, str]]:
    key, properties = travelling(mark, {**properties_of_phase_two(mark), **OURS}, reason)
    sizes = [size_of(name) + size_of(value) for name, value in properties.items()]
    assert sum(sizes) + size_of(key or "") <= MOST_TRAVELLING
    assert len(properties) <= MOST_PROPERTIES
    return key, properties


def test_what_a_sender_wrote_travels_where_there_is_room() -> None:
    mark = replace(received({"trace": "ü" * 1000, "app": "x"}), key="holder")
    assert sent_on(mark, "named") == ("holder", {**OURS, REASON: "named", "trace": "ü" * 1000, "app": "x"})


def test_foreign_properties_go_first_and_the_large_ones_before_the_small() -> None:
    many = {f"n{number:03}": "x" for number in range(100)}
    mark = received({**many, "trace": "y" * 9000, "bookwarden.waives": "emptied,of a later version"})
    reason = "r" * 3000
    _, properties = sent_on(mark, reason)
    assert "trace" not in properties
    assert properties[REASON] == reason
    assert properties[WAIVES] == "emptied,of a later version"
    assert properties.items() >= OURS.items()
    assert len(properties) == MOST_PROPERTIES


def test_a_reason_is_shortened_only_where_nothing_foreign_is_left_to_go() -> None:
    key, properties = sent_on(replace(received({"app": "x"}), key="k" * 1024), "ü" * 9000)
    assert (key, "app" in properties) == ("k" * 1024, False)
    assert properties[REASON].endswith("... (18,000 bytes)")
    assert properties[REASON].startswith("ü" * 1000)


def test_a_key_that_no_holder_has_is_a_digest_by_which_its_marks_stay_together() -> None:
    one, _ = sent_on(replace(received({}), key="ключ" * 500), "named")
    other, _ = sent_on(replace(received({"more": "x"}), key="ключ" * 500), "named")
    assert one == other
    assert one is not None
    assert one.startswith("sha256:")
    again, _ = sent_on(replace(received({}), key=one), "named")
    assert again == one
    assert sent_on(replace(received({}), key="ключ" * 499), "named")[0] != one


def test_what_phase_two_never_writes_is_not_taken_for_its_own() -> None:
    long = dict.fromkeys(OF_PHASE_TWO, "9" * 4000)
    assert properties_of_phase_two(received(long)) == {}
    kept = properties_of_phase_two(received({**OURS, "REAL_TOPIC": "t" * 1000, REASON: "before"}))
    assert kept == {**OURS, "REAL_TOPIC": "t" * 1000}


def test_waives_that_are_too_long_are_those_that_are_known() -> None:
    _, properties = sent_on(received({WAIVES: "emptied," + "no such," * 100}), "named")
    assert properties[WAIVES] == Waiver.EMPTIED.value


TEXTS = st.one_of(st.text(max_size=20), st.integers(0, 8000).map(lambda size: "ü" * size))


@given(
    st.one_of(st.none(), TEXTS),
    st.dictionaries(st.one_of(st.sampled_from([*sorted(OF_PHASE_TWO), WAIVES]), TEXTS), TEXTS, max_size=80),
    st.lists(TEXTS, min_size=1, max_size=4),
)
@example("k", {f"property-{number}": "v" for number in range(200)}, ["named"])
@example("k", {"t": "y" * 9000, WAIVES: "superseded"}, ["r" * 65536, "named"])
def test_a_mark_that_goes_round_does_not_grow_and_keeps_key_and_waives(
    key: str | None, properties: dict[str, str], reasons: list[str]
) -> None:
    mark = replace(received(properties), key=key)
    waives, (key, written) = mark.waives, sent_on(mark, reasons[0])
    for reason in [*reasons, *reasons]:
        mark = replace(mark, key=key, properties=written)
        before, (again, written) = written, sent_on(mark, reason)
        assert (again, mark.waives) == (key, waives)
        assert written.keys() <= before.keys() | {REASON}
        assert properties_of_phase_two(replace(mark, properties=written)).items() >= OURS.items()


@given(TEXTS, st.integers(0, 100))
def test_a_shortened_text_has_no_more_bytes_than_it_may(text: str, most: int) -> None:
    assert size_of(shortened(text, most)) <= most
    assert size_of(text) > most or shortened(text, most) == text
