"""Rules that tell a node which was damaged and still parses from one that a broker wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import BucketHolder, CompactedHolder, CursorHolder, Holder, ManagedLedgerHolder
from bookwarden.ledgers.managed_ledger import (
    CursorInfo,
    CursorPosition,
    LedgerInfo,
    ManagedLedgerInfo,
    OffloadInfo,
    Position,
    SchemaEntryIndex,
    SchemaIndexEntry,
    SchemaLocator,
)
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    LedgerMetadata,
    LedgerReading,
    LedgerState,
    StoredLedger,
    UnreadableLedger,
)
from bookwarden.ledgers.node_doubts import (
    MOST_LOOKED_UP,
    UnnamedLedger,
    check_list,
    doubt_about_bucket,
    doubt_about_compacted,
    doubt_about_cursor,
    doubt_about_locator,
    doubt_about_position,
    doubt_about_version,
    is_newer_than_named,
    ledgers_of_cursor,
    rival_of,
    suspicious_entries,
)

TOPIC = ManagedLedgerHolder("t/n/persistent/a")
OTHER = ManagedLedgerHolder("t/n/persistent/b")
CURSOR = CursorHolder(TOPIC.name, "s")


def stored(ledger_id: int, holder: Holder | None = TOPIC, entries: int | None = 10, size: int = 1000) -> StoredLedger:
    tags = expected_custom_metadata(holder) if holder else {}
    state = LedgerState.OPEN if entries is None else LedgerState.CLOSED
    last = None if entries is None else entries - 1
    custom = {name: text.encode() for name, text in tags.items()}
    return StoredLedger(ledger_id, "/", 0, 0, b"", LedgerMetadata(3, state, 1, 1, 1, (), size, last, custom=custom))


def entry(ledger_id: int, entries: int = 10, size: int = 1000, at: int = 0, copy: bool = False) -> LedgerInfo:
    offload = OffloadInfo(1, 2, True, False, 0, "aws-s3") if copy else None
    return LedgerInfo(ledger_id, entries, size, at or ledger_id * 100, offload)


def listing(*entries: LedgerInfo, last: int = 95) -> ManagedLedgerInfo:
    return ManagedLedgerInfo((*entries, LedgerInfo(last)))


def doubt(info: ManagedLedgerInfo, ledger: UnnamedLedger, *readings: LedgerReading) -> str | None:
    known = {reading.ledger_id: reading for reading in readings}
    looked = {one.ledger_id: known.get(one.ledger_id, stored(one.ledger_id)) for one in info.ledgers}
    return check_list(TOPIC, info, suspicious_entries(info), looked).doubt_about(ledger)


SAME = UnnamedLedger(88, 10, 1000)
LARGER = UnnamedLedger(88, 11, 1000)
OPEN = UnnamedLedger(88, None, 0)


def test_an_id_that_changed_its_place_leaves_its_time_behind_and_is_looked_up() -> None:
    # The first of [88, 91, 94, 95], with one bit flipped.
    info = listing(entry(91), replace_id(entry(88), 92), entry(94))
    assert [one.ledger_id for one in suspicious_entries(info)] == [91, 95, 92]
    assert doubt(info, SAME, AbsentLedger(92)) == ("it lists ledger 92 with 10 entries, which BookKeeper does not have")
    assert doubt(info, LARGER, AbsentLedger(92)) is None
    assert doubt(info, OPEN, AbsentLedger(92)) is not None


def replace_id(one: LedgerInfo, ledger_id: int) -> LedgerInfo:
    return one._replace(ledger_id=ledger_id)


def test_ledgers_in_the_middle_that_were_deleted_by_hand_hold_nothing_back() -> None:
    info = listing(entry(89), entry(90), entry(91))
    assert [one.ledger_id for one in suspicious_entries(info)] == [89, 95]
    assert doubt(info, SAME, AbsentLedger(90), AbsentLedger(91)) is None


def test_ledgers_without_recorded_entries_are_looked_up_but_not_more_than_so_many() -> None:
    info = listing(entry(89), *(LedgerInfo(number) for number in range(100, 200)), last=300)
    found = [one.ledger_id for one in suspicious_entries(info)]
    assert found[:3] == [89, 300, 100]
    assert len(found) == MOST_LOOKED_UP
    # One of which nothing is recorded may have been any.
    assert doubt(info, LARGER, AbsentLedger(100)) is not None


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (AbsentLedger(80), "which BookKeeper does not have"),
        (UnreadableLedger(80, "no bytes"), "whose metadata cannot be read: no bytes"),
        (stored(80, OTHER), "another holder's"),
        (stored(80, size=999), "which BookKeeper has with 10 entries and 999 bytes"),
    ],
    ids=["gone", "unreadable", "another's", "another size"],
)
def test_a_first_ledger_that_is_wrong_keeps_what_it_may_have_been(first: LedgerReading, text: str) -> None:
    info = listing(entry(80), entry(91))
    found = doubt(info, SAME, first)
    assert found is not None
    assert text in found
    assert doubt(info, LARGER, first) is None


def test_a_finished_offloaded_copy_may_stand_for_a_ledger_that_is_gone() -> None:
    assert doubt(listing(entry(80, copy=True), entry(91)), SAME, AbsentLedger(80)) is None


def test_sound_lists_are_no_doubt() -> None:
    info = listing(entry(89), entry(91))
    assert doubt(info, SAME) is None
    # One that says nothing of its holder is of before Pulsar wrote that; one that is open has no size yet.
    assert doubt(info, SAME, stored(89, None), stored(95, TOPIC, None, 0)) is None
    assert doubt(ManagedLedgerInfo(), SAME) is None


def test_a_last_ledger_of_another_topic_is_a_doubt_about_all() -> None:
    info = listing(entry(89), entry(91))
    found = doubt(info, LARGER, stored(95, OTHER))
    assert found is not None
    assert found.startswith("its last ledger is 95, which is another holder's")


def test_a_rescue_holds_nothing_back_once_the_topic_was_loaded() -> None:
    info = listing(entry(89, size=5), entry(91), last=99)
    assert doubt(info, SAME, stored(89, OTHER, size=5)) is None


def test_the_list_of_a_shadow_topic_is_not_one_of_its_own_ledgers() -> None:
    shadow = replace(listing(entry(89)), properties={"PULSAR.SHADOW_SOURCE": "persistent://t/n/b"})
    assert doubt(shadow, SAME) == "it says that the topic is a shadow topic, which has no ledgers of its own"


@pytest.mark.parametrize("ledger", [UnnamedLedger(99, 0, 0), UnnamedLedger(99, None, 0)], ids=["empty", "open"])
def test_an_empty_ledger_above_the_list_is_kept_where_the_list_may_have_lost_its_end(ledger: UnnamedLedger) -> None:
    cut = ManagedLedgerInfo((entry(89), entry(95)))
    found = doubt(cut, ledger)
    assert found is not None
    assert "its last ledger 95 is recorded as closed" in found
    assert doubt(listing(entry(89)), ledger) is None
    assert doubt(replace(cut, terminated=Position(95, 9)), ledger) is None
    # With entries it is within the list.
    assert doubt(cut, ledger._replace(entries=10, size=1)) is None


def test_the_ledger_that_a_cursor_names_must_be_its_own() -> None:
    info = CursorInfo(7, Position(1, 1))
    assert doubt_about_cursor(CURSOR, info, {7: stored(7, CURSOR)}) is None
    for reading, text in (
        (AbsentLedger(7), "which BookKeeper does not have"),
        (stored(7, CursorHolder(TOPIC.name, "z")), "another holder's"),
        (stored(7, TOPIC), "another holder's"),
        (UnreadableLedger(7, "short"), "cannot be read: short"),
    ):
        for holder in (CURSOR, BucketHolder(TOPIC.name, "s"), CompactedHolder(TOPIC.name)):
            found = doubt_about_cursor(holder, info, {7: reading})
            assert found is not None
            assert text in found


def test_the_buckets_that_a_cursor_names_count_for_buckets_alone() -> None:
    info = CursorInfo(None, cursor_properties={"#pulsar.internal.delayed.bucket_1_2": "9"})
    holder = BucketHolder(TOPIC.name, "s")
    assert ledgers_of_cursor(CURSOR, info, ()) == frozenset()
    assert ledgers_of_cursor(holder, info, ()) == {9}
    assert doubt_about_cursor(holder, info, {9: stored(9, holder)}) is None
    assert doubt_about_cursor(holder, info, {9: AbsentLedger(9)}) is not None


def test_a_compacted_view_that_names_an_old_ledger_holds_nothing_back() -> None:
    holder = CompactedHolder(TOPIC.name)
    info = CursorInfo(None, properties={"CompactedTopicLedger": 9})
    assert doubt_about_cursor(holder, info, {9: AbsentLedger(9)}) is None
    assert doubt_about_cursor(holder, info, {9: stored(9, CompactedHolder(OTHER.name))}) is not None
    # While the cursor has a ledger what its node says of the view is of before.
    assert ledgers_of_cursor(holder, replace(info, cursors_ledger_id=7), ()) == {7}


def test_a_complete_compacted_ledger_goes_only_once_the_cursor_has_reached_its_end() -> None:
    complete = UnnamedLedger(9, 10, 1000)
    for recorded in ([at(5, 3)], [at(4, 0), at(6, 0)]):
        assert doubt_about_compacted(complete, Position(5, 3), recorded) is None
    for recorded, where in (([], "no position"), ([at(5, 2)], "5:2"), ([at(4, 9)], "4:9")):
        found = doubt_about_compacted(complete, Position(5, 3), recorded)
        assert found is not None
        assert f"reaches to 5:3, and the cursor is at {where}" in found
    # One that is open was never in use.
    assert doubt_about_compacted(UnnamedLedger(9, None, 0), Position(5, 3), []) is None
    assert doubt_about_compacted(complete, None, []) is None


def test_a_cursors_newer_ledger_goes_only_if_its_position_is_settled() -> None:
    assert [is_newer_than_named(CursorInfo(7), one) for one in (6, 8)] == [False, True]
    assert is_newer_than_named(CursorInfo(None), 6)
    assert doubt_about_position([at(5, 3)], None) is None
    assert doubt_about_position([at(5, 3)], at(5, 3)) is None
    assert doubt_about_position([at(5, 3), at(6, 0)], at(5, 9)) is None
    assert doubt_about_position([at(5, 3), at(4, 9)], at(5, 4)) is not None
    assert doubt_about_position([], at(0, 0)) is not None


def at(ledger_id: int, entry_id: int, *acknowledged: bytes) -> CursorPosition:
    return CursorPosition(Position(ledger_id, entry_id), acknowledged=acknowledged)


def test_what_is_acknowledged_behind_a_position_counts_too() -> None:
    assert doubt_about_position([at(5, 3)], at(5, 3, b"5..7")) == (
        "the last entry of the ledger acknowledges messages behind 5:3, and it and the ledger that it names have 5:3: "
        "it may be an earlier value of itself"
    )
    assert doubt_about_position([at(5, 3, b"5..7", b"9..9")], at(5, 3, b"5..7")) is None
    assert doubt_about_position([at(5, 4)], at(5, 3, b"5..7")) is None


def test_a_cursor_without_a_ledger_has_its_position_in_its_own_topic() -> None:
    info = CursorInfo(None, Position(9, 0))
    for holder in (CURSOR, BucketHolder(TOPIC.name, "s"), CompactedHolder(TOPIC.name)):
        assert ledgers_of_cursor(holder, info, ()) == {9}
        assert doubt_about_cursor(holder, info, {9: stored(9)}) is None
        assert doubt_about_cursor(holder, info, {9: AbsentLedger(9)}) is None
        found = doubt_about_cursor(holder, info, {9: stored(9, OTHER)})
        assert found is not None
        assert found.startswith("its position is in ledger 9, which is another topic's")
    assert ledgers_of_cursor(CURSOR, info, {9}) == frozenset()
    assert doubt_about_cursor(CURSOR, info, {}) is None
    assert ledgers_of_cursor(CURSOR, CursorInfo(7, Position(9, 0)), ()) == {7}
    assert ledgers_of_cursor(CURSOR, CursorInfo(None, Position(-1, -1)), ()) == frozenset()


def test_a_list_that_has_a_ledger_twice_is_a_doubt_about_all() -> None:
    assert doubt(listing(entry(89), entry(89), entry(91)), LARGER) == "it lists ledger 89 twice"


def bucket(first: int, last: int) -> dict[str, bytes]:
    return {"pulsar/delayedIndexBucketKey": f"#pulsar.internal.delayed.bucket_{first}_{last}".encode()}


@pytest.mark.parametrize(
    ("named", "position", "kept"),
    [
        ((), at(20, 5), False),
        ((), at(14, 5), True),
        ((), at(12, 5), True),
        (((10, 14),), at(10, 0), False),
        (((9, 11), (12, 30)), at(9, 0), False),
        (((9, 11), (13, 30)), at(9, 0), True),
        (((12, 14),), at(9, 0), True),
    ],
    ids=["behind the cursor", "reached", "before", "replaced", "by two", "with a gap", "a part"],
)
def test_a_bucket_goes_if_it_was_replaced_or_the_cursor_is_past_it(
    named: tuple[tuple[int, int], ...], position: CursorPosition, kept: bool
) -> None:
    properties = {f"#pulsar.internal.delayed.bucket_{first}_{last}": "7" for first, last in named}
    info = CursorInfo(None, cursor_properties={**properties, "x": "y"})
    assert (doubt_about_bucket(info, bucket(10, 14), [position]) is not None) is kept
    assert doubt_about_bucket(info, {}, [position]) is None


def locator(*ledgers: int, newest: int | None = None) -> SchemaLocator:
    index = [SchemaIndexEntry(version, Position(one, 0), b"") for version, one in enumerate(ledgers)]
    return SchemaLocator((replace(index[-1], version=len(index) - 1 if newest is None else newest), *index))


def test_a_schemas_index_has_each_version_once_up_to_the_newest() -> None:
    assert doubt_about_locator(locator(30, 31, 32)) is None
    assert doubt_about_locator(locator(30)) is None
    whole = locator(30, 31, 32)
    for broken in (whole.entries[:1], whole.entries[:3], (whole.entries[0], whole.entries[1], whole.entries[3])):
        assert doubt_about_locator(SchemaLocator(broken)) is not None
    assert doubt_about_locator(locator(30, 31, 32, newest=3)) == "its newest version is 3, and its index has 0, 1, 2"
    assert doubt_about_locator(locator(30, 30)) == "two of its versions are in ledger 30"


def test_a_schema_that_lost_its_race_goes_and_one_that_the_node_lost_stays() -> None:
    whole = locator(30, 31, 32)
    lost = SchemaEntryIndex(1, ((0, Position(30, 0)),))
    assert rival_of(whole, lost) == 31
    assert doubt_about_version(TOPIC, whole, lost, stored(31)) is None
    assert doubt_about_version(TOPIC, whole, lost, AbsentLedger(31)) is not None
    assert doubt_about_version(TOPIC, whole, lost, stored(31, OTHER)) is not None


def test_a_version_that_is_newer_than_the_node_stays_unless_it_is_of_an_earlier_schema() -> None:
    node = locator(30)
    newer = SchemaEntryIndex(2, ((0, Position(30, 0)), (1, Position(31, 0))))
    assert rival_of(node, newer) == 30
    assert doubt_about_version(TOPIC, node, newer, stored(30)) == (
        "the ledger has version 2, which is newer than its newest one, 0"
    )
    earlier = SchemaEntryIndex(2, ((0, Position(10, 0)), (1, Position(11, 0))))
    assert doubt_about_version(TOPIC, node, earlier, stored(30)) is None
    assert doubt_about_version(TOPIC, node, earlier, AbsentLedger(30)) is not None
