"""What holds ledgers of a topic, decided from values alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bookwarden.ledgers.managed_ledger import (
    SHADOW_SOURCE_PROPERTY,
    BucketRange,
    LedgerInfo,
    ManagedLedgerInfo,
    OffloadInfo,
    Position,
)
from bookwarden.ledgers.pins import (
    CursorState,
    DeletionLag,
    OpenTransaction,
    Pin,
    PinKind,
    Retention,
    TopicPins,
    TopicState,
    find_pins,
    summary_of,
)

TOPIC = "persistent://t/n/orders"
HOUR = 3_600_000
NOW = 1_700_000_000_000
MIB = 2**20
NONE = Retention(0, 0, "the brokers' settings")
#: Ledgers 5, 6 and 7 of ten entries, closed three, two and one hours ago, and 9, which is written.
LEDGERS = (*(LedgerInfo(number, 10, MIB, NOW - (8 - number) * HOUR) for number in (5, 6, 7)), LedgerInfo(9, 4, 100))


def found(*cursors: CursorState, ledgers: Sequence[LedgerInfo] = LEDGERS, **fields: Any) -> TopicPins:
    properties = fields.pop("properties", {})
    values: dict[str, Any] = {"loaded": True, "retention": NONE, "check_s": 120, **fields}
    return find_pins(TopicState(TOPIC, ManagedLedgerInfo(tuple(ledgers), properties), cursors, **values), NOW)


def at(name: str, ledger: int, entry: int, **fields: Any) -> CursorState:
    return CursorState(name, Position(ledger, entry), **fields)


def only(result: TopicPins) -> Pin:
    (pin,) = result.pins
    return pin


def test_without_anything_the_broker_trims_it() -> None:
    result = found(at("s", 9, 1))
    assert (result.pins, result.holding) == ((), ())
    assert (result.ledgers, result.bytes, result.closed_ms) == ((5, 6, 7, 9), 3 * MIB + 100, NOW - 3 * HOUR)
    assert result.outlook == (
        "Nothing holds it: the broker trims it at its next check, within 2 minutes. "
        f"If it is still there then: `bookwarden mark trim {TOPIC}`."
    )


@pytest.mark.parametrize(
    ("position", "held"),
    [
        ((5, -1), (5, 6, 7)),
        ((5, 8), (5, 6, 7)),
        ((5, 9), (6, 7)),
        ((6, -1), (6, 7)),
        ((7, 9), ()),
        ((9, 3), ()),
        ((9, -1), ()),
        # In no listed ledger.
        ((3, 4), (5, 6, 7)),
        ((3, -1), (5, 6, 7)),
        ((8, 0), ()),
        ((12, 0), ()),
    ],
)
def test_a_cursor_holds_from_its_position_on(position: tuple[int, int], held: tuple[int, ...]) -> None:
    result = found(at("s", *position))
    assert [pin.ledgers for pin in result.pins] == ([held] if held else [])
    assert bool(result.holding) == (5 in held)
    assert bool(result.outlook) == (5 not in held)
    assert all(pin.bytes == len(held) * MIB for pin in result.pins)


def test_a_subscription_says_how_far_and_how_long() -> None:
    pin = only(found(at("a b", 5, 3, advanced_ms=NOW - 50 * HOUR, behind=27, consumers=0)))
    assert (pin.kind, pin.name) == (PinKind.SUBSCRIPTION, "a b")
    assert pin.what == (
        "Subscription a b stands at 5:3. 27 entries are behind it. It has not moved for 2 days. "
        "What it waits for was written at least 3 hours ago. It has no consumer."
    )
    assert pin.command == f"bookwarden mark subscription {TOPIC} 'a b'"
    pin = only(found(at("s", 5, 8, recorded_ms=NOW - 5 * HOUR, inexact="ledger 8 was not read")))
    assert "At least 25 entries are behind it. It was written down 5 hours ago." in pin.what
    assert pin.what.endswith("It may be further: ledger 8 was not read.")
    assert "It has 1 consumer." in only(found(at("s", 5, 8, consumers=1))).what
    assert "not moved since the topic was loaded" in only(found(at("s", 5, 8, advanced_ms=0))).what


def test_what_waits_before_what_is_acknowledged_is_counted_over_ledgers() -> None:
    ranges = ((Position(6, 1), Position(6, 4)), (Position(7, -1), Position(9, 0)))
    pin = only(found(at("s", 5, 3, acknowledged=ranges)))
    assert pin.kind is PinKind.UNACKNOWLEDGED
    assert "stands at 5:3: 8 entries are not acknowledged there, before 14 entries that are." in pin.what
    assert f"`pulsar-admin topics skip -n 8 -s s {TOPIC}`" in pin.todo
    one = only(found(at("s", 5, 3, acknowledged=((Position(5, 4), Position(5, 5)),))))
    assert "1 entry is not acknowledged there, before 1 entry that is." in one.what


def test_a_position_in_no_listed_ledger() -> None:
    pin = only(found(at("s", 3, 4)))
    assert pin.kind is PinKind.UNLISTED_POSITION
    assert "stands at 3:4, in a ledger that the topic does not list" in pin.what
    assert "--messageId earliest" in pin.command
    unknown = only(found(CursorState("s", None)))
    assert (unknown.ledgers, "is not known" in unknown.what) == ((5, 6, 7), True)


def test_a_replicator_of_a_cluster_that_is_gone_and_of_one_that_is_behind() -> None:
    gone = only(found(at("pulsar.repl.b", 5, 3), clusters={"a"}))
    assert (gone.kind, "which is gone" in gone.what) == (PinKind.REPLICATOR, True)
    assert gone.command.startswith("pulsar-admin namespaces set-clusters --clusters CLUSTERS t/n; ")
    for clusters in ({"a", "b"}, None):
        behind = only(found(at("pulsar.repl.b", 5, 3), clusters=clusters))
        assert (behind.kind, "gone" in behind.what) == (PinKind.REPLICATOR, False)


@pytest.mark.parametrize(
    ("name", "kind"), [("__compaction", PinKind.COMPACTION), ("pulsar.dedup", PinKind.DEDUPLICATION)]
)
def test_cursors_of_brokers_have_their_own_kinds(name: str, kind: PinKind) -> None:
    pin = only(found(at(name, 5, 3, behind=26, consumers=0)))
    assert (pin.kind, pin.name) == (kind, name)
    assert "consumer" not in pin.what


def test_an_open_transaction_that_acknowledged_or_that_wrote() -> None:
    acknowledged = OpenTransaction("(1,7)", NOW - 2 * HOUR, 3 * HOUR, None, frozenset({"s"}))
    pin = only(found(at("s", 5, 3), transactions=[acknowledged]))
    assert pin.kind is PinKind.TRANSACTION
    assert "the transaction (1,7) has acknowledged its messages, and is open for 2 hours." in pin.what
    assert pin.command == "pulsar-admin transactions abort-transaction -m 1 -l 7"
    assert only(found(at("other", 5, 3), transactions=[acknowledged])).kind is PinKind.SUBSCRIPTION
    older = OpenTransaction("(2,0)", NOW - 3 * HOUR, 4 * HOUR, None, frozenset({"s"}))
    assert "the transaction (2,0) has" in only(found(at("s", 5, 3), transactions=[acknowledged, older])).what
    for first, kind in (
        (Position(5, 4), PinKind.TRANSACTION),
        (Position(5, 6), PinKind.SUBSCRIPTION),
        (Position(5, 2), PinKind.SUBSCRIPTION),
    ):
        wrote = OpenTransaction("(1,7)", NOW - HOUR, HOUR, first, frozenset())
        assert only(found(at("s", 5, 3), transactions=[wrote])).kind is kind, first
    wrote = OpenTransaction("(1,7)", NOW - HOUR, HOUR, Position(6, 0), frozenset())
    assert found(at("s", 5, 9), transactions=[wrote]).pins[0].kind is PinKind.TRANSACTION


def test_delayed_messages_by_the_broker_and_by_buckets() -> None:
    pin = only(found(at("s", 5, 3, delayed=1_200)))
    assert (pin.kind, "1,200 messages that wait" in pin.what) == (PinKind.DELAYED, True)
    assert only(found(at("s", 5, 3, buckets=(BucketRange(4, 6),)))).kind is PinKind.DELAYED
    for other in (BucketRange(6, 7), BucketRange(3, 4)):
        assert only(found(at("s", 5, 3, buckets=(other,)))).kind is PinKind.SUBSCRIPTION


def test_a_reader_is_named_and_holds_nothing() -> None:
    result = found(at("reader-1", 5, 3, durable=False))
    assert (only(result).kind, only(result).ledgers, result.holding) == (PinKind.READER, (), ())
    assert result.outlook.startswith("Nothing holds it")
    shadow = only(found(at("pulsar.repl-persistent://t/n/shadow", 5, 3, durable=False)))
    assert (shadow.kind, shadow.ledgers) == (PinKind.READER, ())
    assert shadow.what.startswith(
        "The replicator to the shadow topic persistent://t/n/shadow stands at 5:3, and holds no"
    )


@pytest.mark.parametrize(
    ("minutes", "megabytes", "held"),
    [
        (0, 0, ()),
        (-1, -1, (5, 6, 7)),
        (150, -1, (6, 7)),
        (150, 0, ()),
        # The last was closed an hour ago, exactly.
        (60, -1, (7,)),
        (59, -1, ()),
        # All have three, and some bytes.
        (-1, 3, (5, 6, 7)),
        (-1, 2, (6, 7)),
        (150, 1, (7,)),
        (0, -1, ()),
    ],
)
def test_retention_keeps_what_is_neither_too_old_nor_too_much(
    minutes: int, megabytes: int, held: tuple[int, ...]
) -> None:
    result = found(retention=Retention(minutes, megabytes, "the namespace t/n"))
    assert [(pin.kind, pin.ledgers) for pin in result.pins] == ([(PinKind.RETENTION, held)] if held else [])


def test_retention_says_whose_it_is_and_until_when() -> None:
    pin = only(found(retention=Retention(300, 100, "the namespace t/n")))
    assert pin.what == (
        "Retention of the namespace t/n keeps what is consumed, for 5 hours and up to 100.0 MiB. "
        "The first of them is kept for 2 hours more, or until later ledgers have that size."
    )
    assert pin.command == "pulsar-admin namespaces set-retention --time TIME --size SIZE t/n"
    pin = only(found(retention=Retention(-1, -1, "the topic")))
    assert pin.what == "Retention of the topic keeps what is consumed, for ever and of any size."
    assert pin.command == f"pulsar-admin topicPolicies set-retention --time TIME --size SIZE {TOPIC}"
    unknown = found(retention=None)
    assert (unknown.pins, "retention is not known" in unknown.outlook) == ((), True)


def offloaded(number: int, *, deleted: bool = False, complete: bool = True) -> LedgerInfo:
    copy = OffloadInfo(1, 2, complete, deleted, NOW - HOUR, "aws-s3")
    return LedgerInfo(number, 10, MIB, NOW - 2 * HOUR, copy)


def test_an_offloaded_ledger_stays_for_the_deletion_lag() -> None:
    ledgers = (offloaded(5, deleted=True), offloaded(6), offloaded(7), LedgerInfo(9, 4, 100))
    result = found(ledgers=ledgers, lag=DeletionLag(3 * HOUR, "the namespace t/n"))
    assert (result.ledgers, only(result).kind, only(result).ledgers) == ((6, 7, 9), PinKind.OFFLOADED, (6, 7))
    assert "of the namespace t/n, 3 hours, which ends in 2 hours for the first of them." in only(result).what
    ended = only(found(ledgers=ledgers, lag=DeletionLag(HOUR // 2, "the brokers' settings")))
    assert ("which has ended" in ended.what, "offload driver" in ended.todo) == (True, True)
    assert "has no deletion lag" in only(found(ledgers=ledgers, lag=DeletionLag(None, "the topic"))).what
    begun = (offloaded(5, complete=False), LedgerInfo(9))
    assert found(ledgers=begun, lag=DeletionLag(HOUR, "the topic")).pins == ()


def test_a_ledger_that_is_written_is_never_trimmed() -> None:
    result = found(at("s", 9, 1), ledgers=LEDGERS[-1:], created_ms=NOW - 30 * 24 * HOUR, rollover_minutes=240)
    pin = only(result)
    assert (pin.kind, pin.ledgers, result.holding) == (PinKind.OPEN_LEDGER, (9,), (pin,))
    assert pin.what == "Ledger 9 is written for 30 days, and a ledger that is not closed is never trimmed."
    assert pin.todo.startswith("Wait until it is full, after 4 hours at the latest where it has entries;")


def test_the_last_ledger_of_a_terminated_topic_is_never_trimmed() -> None:
    info = ManagedLedgerInfo(LEDGERS[-2:], terminated=Position(9, 3))
    both = find_pins(TopicState(TOPIC, info, (), loaded=False, retention=NONE), NOW)
    assert [(pin.kind, pin.ledgers) for pin in both.pins] == [(PinKind.NOT_LOADED, (7,))]
    info = ManagedLedgerInfo(LEDGERS[-1:], terminated=Position(9, 3))
    pin = only(find_pins(TopicState(TOPIC, info, (), loaded=False, retention=NONE), NOW))
    assert (pin.kind, pin.command) == (PinKind.OPEN_LEDGER, f"bookwarden mark topic {TOPIC}")


def test_a_topic_that_is_not_loaded_is_not_trimmed_and_writes_no_ledger() -> None:
    result = found(at("s", 9, 3), loaded=False)
    assert (only(result).kind, only(result).ledgers) == (PinKind.NOT_LOADED, (5, 6, 7, 9))
    assert only(result).command == f"pulsar-admin topics stats {TOPIC}"
    held = found(at("s", 9, 1), loaded=False)
    assert [pin.kind for pin in held.pins] == [PinKind.NOT_LOADED, PinKind.SUBSCRIPTION]
    assert [pin.kind for pin in held.holding] == [PinKind.NOT_LOADED]
    # The time of the last one begins when a broker closes it.
    kept = found(loaded=False, ledgers=LEDGERS[2:3], retention=Retention(60, -1, "the topic"))
    assert "kept for 60 minutes more" in kept.pins[0].what
    unknown = found(loaded=None)
    assert (unknown.pins, unknown.outlook) == ((), "Nothing that can be seen holds it.")


def test_a_shadow_topic_lists_the_ledgers_of_its_source() -> None:
    result = found(
        at("s", 5, 3), properties={SHADOW_SOURCE_PROPERTY: "persistent://t/n/source"}, retention=Retention(-1, -1, "x")
    )
    assert (only(result).kind, only(result).command) == (
        PinKind.SHADOW,
        "bookwarden disk why persistent://t/n/source",
    )


def test_pins_of_the_oldest_ledger_come_first_then_by_kind() -> None:
    result = found(
        at("later", 6, 3),
        at("b", 5, 3),
        at("a", 5, 4),
        at("gap", 5, 1, acknowledged=((Position(5, 2), Position(5, 3)),)),
        at("reader", 5, 0, durable=False),
        retention=Retention(150, -1, "the topic"),
    )
    assert [(pin.kind, pin.name) for pin in result.pins] == [
        (PinKind.UNACKNOWLEDGED, "gap"),
        (PinKind.SUBSCRIPTION, "a"),
        (PinKind.SUBSCRIPTION, "b"),
        (PinKind.SUBSCRIPTION, "later"),
        (PinKind.RETENTION, ""),
        (PinKind.READER, "reader"),
    ]
    assert [pin.name for pin in result.holding] == ["gap", "a", "b"]
    assert result.outlook == ""


def test_a_topic_without_ledgers_has_no_pins() -> None:
    result = found(at("s", 5, 3), ledgers=(), loaded=False)
    assert (result.ledgers, result.pins, result.outlook, result.closed_ms) == ((), (), "", 0)


def test_partitions_are_summed_up_in_a_sentence() -> None:
    stuck, free = found(at("s", 5, 3)), found()
    assert summary_of([stuck, free]) == "2 partitions: subscription; 1 of them held by nothing"
    assert summary_of([free, free]) == "2 partitions: nothing holds a ledger"
    assert summary_of([stuck, stuck]) == "2 partitions: subscription"
