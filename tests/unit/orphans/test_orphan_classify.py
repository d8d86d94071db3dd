"""Classes of ledgers that nobody names: doubt, age and strange owners never make an orphan."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookwarden.ledgers.custom_metadata import (
    OWNER_KEY,
    TRIAL_KEY,
    describe_custom_metadata,
    expected_custom_metadata,
    identify_holder,
)
from bookwarden.ledgers.kinds import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    LedgerComponent,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.listing import ListedLedger
from bookwarden.ledgers.pending_deletion import mark_of_holder
from bookwarden.ledgers.references import Doubt, HoldersBelow
from bookwarden.orphans.classes import Cause, LedgerClass
from bookwarden.orphans.classify import (
    Knowledge,
    age_ms,
    born_ms,
    classify,
    classify_left,
    classify_named,
    sign_of_life,
)
from bookwarden.orphans.owners import owner_of, without_partition

CUTOFF_MS = 1_000_000
TOPIC = "t/n/persistent/orders"
ORDERS = ManagedLedgerHolder(TOPIC)
KINDS = {
    ManagedLedgerHolder: LedgerComponent.MANAGED_LEDGER.name,
    CursorHolder: LedgerComponent.MANAGED_CURSOR.name,
    SchemaHolder: LedgerComponent.SCHEMA_STORAGE.name,
    CompactedHolder: LedgerComponent.COMPACTED_LEDGER.name,
    BucketHolder: LedgerComponent.DELAYED_INDEX_BUCKET.name,
}


def knowledge(**fields: Any) -> Knowledge:
    known = {"tenants": {"t"}, "namespaces": {"t/n"}, "existing": {TOPIC}, **fields}
    return Knowledge(CUTOFF_MS, **known)


def row(holder: Holder | None = ORDERS, **fields: Any) -> ListedLedger:
    kind, text = (None, None) if holder is None else (KINDS[type(holder)], str(holder))
    fields = {"created_ms": 5, "ctime_ms": 7, "state": "CLOSED", "length": 100, "kind": kind, "holder": text, **fields}
    return ListedLedger(4711, "/ledgers/00/0000/L4711", 3, **fields)


def custom(**pairs: str) -> str:
    return describe_custom_metadata({name: value.encode() for name, value in pairs.items()})


@pytest.mark.parametrize(
    "holder", [ORDERS, ManagedLedgerHolder("t/gone/persistent/orders"), CursorHolder(TOPIC, "sub")]
)
def test_what_is_in_the_trash_is_no_orphan_and_not_foreign(holder: Holder) -> None:
    trashed = knowledge(trashed=frozenset((4711,)), tenants=set(), first_listed={TOPIC: 9000})
    assert classify(row(holder), trashed).ledger_class is LedgerClass.IN_TRASH
    other = knowledge(trashed=frozenset((4712,)), first_listed={TOPIC: 9000})
    assert classify(row(holder), other).ledger_class is LedgerClass.ORPHAN
    gone = knowledge(trashed=frozenset((4711,)))
    assert classify_left(row(ORDERS), {"managed ledger"}, gone).ledger_class is LedgerClass.REFERENCED


def test_a_trial_ledger_is_told_and_left_to_the_precheck() -> None:
    left = row(None, custom=custom(**{OWNER_KEY: "5f2c9a41", TRIAL_KEY: "precheck"}))
    found = classify(left, knowledge())
    assert found.ledger_class is LedgerClass.FOREIGN
    assert found.detail.startswith("left by a precheck, and removed by the next one: bookwarden.owner=5f2c9a41")


def test_an_old_ledger_of_a_known_topic_that_nobody_names_is_an_orphan() -> None:
    found = classify(row(), knowledge())
    assert (found.ledger_class, found.cause) == (LedgerClass.ORPHAN, Cause.TRIM)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (row(problem="2 bytes where 127"), LedgerClass.UNPARSABLE),
        (row(None, custom=custom()), LedgerClass.FOREIGN),
        (
            row(None, custom=custom(application="bk-stream-storage-service", component="state-store")),
            LedgerClass.FOREIGN,
        ),
        (row(None, custom=custom(application="pulsar", component="of-tomorrow")), LedgerClass.UNKNOWN_OWNER),
        (row(ManagedLedgerHolder("other/n/persistent/orders")), LedgerClass.FOREIGN),
        (row(SchemaHolder("other/n/orders")), LedgerClass.FOREIGN),
        (row(ManagedLedgerHolder("t/n/persistent/a b")), LedgerClass.UNKNOWN_OWNER),
        (row(ManagedLedgerHolder("t/n/non-persistent/a")), LedgerClass.UNKNOWN_OWNER),
        (row(ManagedLedgerHolder("t/n")), LedgerClass.UNKNOWN_OWNER),
        # A segment of a scalable topic of Pulsar 5, and a cursor of it.
        (row(ManagedLedgerHolder("t/n/segment/orders/0000-ffff-0")), LedgerClass.UNKNOWN_OWNER),
        (row(CursorHolder("t/n/segment/orders/0000-ffff-0", "s")), LedgerClass.UNKNOWN_OWNER),
        (row(CursorHolder(TOPIC, "")), LedgerClass.UNKNOWN_OWNER),
        (row(CursorHolder(TOPIC, "a/b")), LedgerClass.UNKNOWN_OWNER),
        (row(CursorHolder(TOPIC, "..")), LedgerClass.UNKNOWN_OWNER),
        (row(kind="SOMETHING_NEW"), LedgerClass.UNKNOWN_OWNER),
        (row(kind=LedgerComponent.SCHEMA_STORAGE.name), LedgerClass.UNKNOWN_OWNER),
        (row(created_ms=CUTOFF_MS + 1), LedgerClass.TOO_YOUNG),
        (row(ctime_ms=CUTOFF_MS + 1), LedgerClass.TOO_YOUNG),
        (row(created_ms=0, ctime_ms=None), LedgerClass.TOO_YOUNG),
        (row(created_ms=0, ctime_ms=0), LedgerClass.TOO_YOUNG),
        (row(created_ms=CUTOFF_MS, ctime_ms=None), LedgerClass.ORPHAN),
    ],
)
def test_the_first_class_that_fits_is_the_one(listed: ListedLedger, expected: LedgerClass) -> None:
    found = classify(listed, knowledge())
    assert found.ledger_class is expected
    assert (found.cause is not None) == (expected is LedgerClass.ORPHAN)


@pytest.mark.parametrize(
    ("first", "listed", "expected"),
    [
        ({TOPIC: 4710}, row(), LedgerClass.INSIDE_LIST),
        ({TOPIC: 4712}, row(), LedgerClass.ORPHAN),
        ({TOPIC: -1}, row(), LedgerClass.INSIDE_LIST),
        ({TOPIC + "x": -1}, row(), LedgerClass.ORPHAN),
        ({TOPIC: 4710}, row(length=0), LedgerClass.ORPHAN),
        ({TOPIC: 4710}, row(length=0, state="OPEN"), LedgerClass.ORPHAN),
        ({TOPIC: -1}, row(length=0, state="IN_RECOVERY"), LedgerClass.ORPHAN),
        ({TOPIC: 4710}, row(CursorHolder(TOPIC, "c")), LedgerClass.ORPHAN),
        ({TOPIC: 4710}, row(CompactedHolder(TOPIC)), LedgerClass.ORPHAN),
        ({TOPIC: 4710}, row(created_ms=CUTOFF_MS + 1), LedgerClass.TOO_YOUNG),
    ],
)
def test_a_ledger_with_entries_that_no_trim_can_have_taken_is_no_orphan(
    first: dict[str, int], listed: ListedLedger, expected: LedgerClass
) -> None:
    found = classify(listed, knowledge(first_listed=first))
    assert found.ledger_class is expected
    assert (found.cause is not None) == (expected is LedgerClass.ORPHAN)


@pytest.mark.parametrize(
    ("listed", "holey", "expected"),
    [
        (row(), TOPIC, LedgerClass.UNKNOWN_REFERENCES),
        (row(CursorHolder(TOPIC, "c")), TOPIC, LedgerClass.UNKNOWN_REFERENCES),
        (row(SchemaHolder("t/n/orders")), "t/n/persistent/orders", LedgerClass.UNKNOWN_REFERENCES),
        (row(), f"{TOPIC}x", LedgerClass.ORPHAN),
        (row(created_ms=CUTOFF_MS + 1), TOPIC, LedgerClass.TOO_YOUNG),
    ],
)
def test_nothing_is_planned_of_a_topic_whose_list_lost_ledgers(
    listed: ListedLedger, holey: str, expected: LedgerClass
) -> None:
    found = classify(listed, knowledge(first_listed={TOPIC: 4712}, holey=frozenset([holey])))
    assert found.ledger_class is expected
    if expected is LedgerClass.UNKNOWN_REFERENCES:
        assert f"other ledgers of {holey} with data are missing inside its list" in found.detail
        hole = classify(row(), knowledge(first_listed={TOPIC: 4710}, holey=frozenset([TOPIC])))
        assert hole.ledger_class is LedgerClass.INSIDE_LIST


def test_a_namespace_that_is_referenced_is_ours_although_its_tenant_has_no_policies() -> None:
    heartbeat = ManagedLedgerHolder("sla-monitor/c/broker:8080/persistent/x")
    assert classify(row(heartbeat), knowledge()).ledger_class is LedgerClass.FOREIGN
    known = knowledge(namespaces={"sla-monitor/c/broker:8080"})
    assert classify(row(heartbeat), known).ledger_class is LedgerClass.ORPHAN


@pytest.mark.parametrize(
    ("about", "is_unknown"),
    [
        ((), True),
        ((ManagedLedgerHolder,), True),
        ((ManagedLedgerHolder(TOPIC),), True),
        ((SchemaHolder, ManagedLedgerHolder(TOPIC)), True),
        ((HoldersBelow("t/n", (ManagedLedgerHolder,)),), True),
        ((HoldersBelow("t", (ManagedLedgerHolder,)),), True),
        ((SchemaHolder("t/n/x"), HoldersBelow("t/n", (ManagedLedgerHolder,))), True),
        ((HoldersBelow("t/nn", (ManagedLedgerHolder,)),), False),
        ((HoldersBelow("t/n", (SchemaHolder,)),), False),
        ((CursorHolder(TOPIC, "c"), CompactedHolder(TOPIC)), False),
        ((ManagedLedgerHolder(TOPIC + "x"),), False),
    ],
)
def test_a_doubt_about_the_holder_makes_its_references_unknown(about: tuple[Any, ...], is_unknown: bool) -> None:
    doubt = Doubt("/managed-ledgers/t/n", "zk:a", "not for our eyes", about)
    found = classify(row(), knowledge(doubts=(doubt,)))
    assert found.ledger_class is (LedgerClass.UNKNOWN_REFERENCES if is_unknown else LedgerClass.ORPHAN)
    if is_unknown:
        assert found.detail == "/managed-ledgers/t/n in zk:a: not for our eyes"


TOPICS = [f"{namespace}/persistent/{name}" for namespace in ("t/n", "t/m", "u/n", "t/c/n") for name in ("a", "b")]
HOLDERS = [
    *(ManagedLedgerHolder(topic) for topic in TOPICS),
    *(CursorHolder(topic, cursor) for topic in TOPICS for cursor in ("c", "d%2F")),
    *(BucketHolder(topic, "c") for topic in TOPICS),
    *(CompactedHolder(topic) for topic in TOPICS),
    *(SchemaHolder(f"{namespace}/{name}") for namespace in ("t/n", "u/n") for name in ("a", "b")),
]
STAMPS = st.sampled_from([-1, 0, 1, CUTOFF_MS - 1, CUTOFF_MS, CUTOFF_MS + 1, 10 * CUTOFF_MS])
ABOUT = st.one_of(
    st.sampled_from(HOLDERS),
    st.sampled_from(list(KINDS)),
    st.builds(
        HoldersBelow,
        st.sampled_from(["t", "u", "t/n", "t/m", "t/c", "t/c/n"]),
        st.lists(st.sampled_from(list(KINDS)), min_size=1).map(tuple),
    ),
)
DOUBTS = st.lists(st.builds(Doubt, st.just("/p"), st.just("zk"), st.just("?"), st.lists(ABOUT, max_size=3).map(tuple)))
NAMES = st.sets(st.sampled_from(["t/n", "t/m", "u/n", "t/c/n"]))


@settings(max_examples=300)
@given(
    st.sampled_from(HOLDERS),
    STAMPS,
    st.none() | STAMPS,
    st.none() | st.just("cut off"),
    st.sets(st.sampled_from(["t", "u"])),
    NAMES,
    st.sets(st.sampled_from([str(holder) for holder in HOLDERS])),
    DOUBTS,
    NAMES | st.sets(st.sampled_from(TOPICS)),
)
def test_an_orphan_is_old_and_ours_and_no_doubt_concerns_it(
    holder: Holder,
    created_ms: int,
    ctime_ms: int | None,
    problem: str | None,
    tenants: set[str],
    namespaces: set[str],
    existing: set[str],
    doubts: list[Doubt],
    alive: set[str],
) -> None:
    listed = row(holder, created_ms=created_ms, ctime_ms=ctime_ms, problem=problem)
    known = Knowledge(CUTOFF_MS, tenants, namespaces, existing, tuple(doubts), alive)
    found = classify(listed, known)
    name = str(holder).partition(":")[2] or str(holder)
    depth = 2 if isinstance(holder, SchemaHolder) or "/c/n/" not in name else 3
    namespace = "/".join(name.split("/")[:depth])
    stamps = [created_ms, *([] if ctime_ms is None else [ctime_ms])]
    reasons_to_keep = [
        problem is not None,
        namespace.partition("/")[0] not in tenants and namespace not in namespaces,
        any(doubt.concerns(holder) for doubt in doubts),
        any(stamp > CUTOFF_MS for stamp in stamps),
        all(stamp <= 0 for stamp in stamps),
        namespace in alive,
        any(name == topic or name.startswith(topic + "/") for topic in alive),
    ]
    assert (found.ledger_class is LedgerClass.ORPHAN) == (not any(reasons_to_keep)), found
    assert (found.cause is not None) == (found.ledger_class is LedgerClass.ORPHAN)
    # What a task of Spark gets says the same.
    assert classify(listed, pickle.loads(pickle.dumps(known))) == found


def test_what_an_index_of_doubts_remembers_does_not_travel() -> None:
    known = knowledge(doubts=(Doubt("/p", "zk", "?", (ManagedLedgerHolder("t/n/persistent/x"),)),))
    before = pickle.dumps(known)
    classify(row(), known)
    assert pickle.dumps(known) == before


def test_the_younger_of_the_two_times_counts() -> None:
    assert born_ms(row(created_ms=5, ctime_ms=9)) == 9
    assert born_ms(row(created_ms=9, ctime_ms=5)) == 9
    assert born_ms(row(created_ms=5, ctime_ms=None)) == 5
    assert age_ms(row(created_ms=5, ctime_ms=9), 100) == 91
    assert age_ms(row(created_ms=500), 100) == -400


CURSOR = CursorHolder(TOPIC, "billing")
BUCKET = BucketHolder(TOPIC, "billing")


@pytest.mark.parametrize(
    ("listed", "existing", "namespaces", "expected"),
    [
        (row(), {TOPIC}, {"t/n"}, Cause.TRIM),
        (row(length=0), {TOPIC}, {"t/n"}, Cause.NEVER_LISTED),
        (row(state="OPEN"), {TOPIC}, {"t/n"}, Cause.NEVER_LISTED),
        (row(state="IN_RECOVERY"), {TOPIC}, {"t/n"}, Cause.NEVER_LISTED),
        (row(), set(), {"t/n"}, Cause.TOPIC_DELETED),
        (row(), set(), set(), Cause.NAMESPACE_DELETED),
        (row(CURSOR), {TOPIC, str(CURSOR)}, {"t/n"}, Cause.CURSOR_ROLLOVER),
        (row(CURSOR), {TOPIC}, {"t/n"}, Cause.SUBSCRIPTION_DELETED),
        (row(CURSOR), set(), {"t/n"}, Cause.TOPIC_DELETED),
        (row(SchemaHolder("t/n/orders")), {"schema:t/n/orders"}, {"t/n"}, Cause.SCHEMA_VERSION),
        (row(SchemaHolder("t/n/orders")), {TOPIC}, {"t/n"}, Cause.SCHEMA_DELETED),
        (row(SchemaHolder("t/n/orders")), set(), set(), Cause.NAMESPACE_DELETED),
        (row(CompactedHolder(TOPIC)), {TOPIC}, {"t/n"}, Cause.COMPACTION),
        (row(CompactedHolder(TOPIC)), set(), {"t/n"}, Cause.TOPIC_DELETED),
        (row(BUCKET), {TOPIC, str(CURSOR)}, {"t/n"}, Cause.DELAYED_DELIVERY),
        (row(BUCKET), {TOPIC}, {"t/n"}, Cause.SUBSCRIPTION_DELETED),
        (row(BUCKET), set(), set(), Cause.NAMESPACE_DELETED),
    ],
)
def test_the_cause_is_told_by_the_kind_and_what_is_left_of_the_holder(
    listed: ListedLedger, existing: set[str], namespaces: set[str], expected: Cause
) -> None:
    assert classify(listed, knowledge(existing=existing, namespaces=namespaces)).cause is expected


def test_a_ledger_that_is_named_is_referenced_unless_it_is_unreadable_or_of_a_log() -> None:
    segment = ["log segment", "log allocation"]
    assert classify_named(row(), ["managed ledger"]).ledger_class is LedgerClass.REFERENCED
    assert classify_named(row(problem="?"), ["managed ledger"]).ledger_class is LedgerClass.UNPARSABLE
    assert classify_named(row(None), segment).ledger_class is LedgerClass.FOREIGN
    assert classify_named(row(None), [*segment, "cursor"]).ledger_class is LedgerClass.REFERENCED
    assert classify_named(row(), segment).ledger_class is LedgerClass.REFERENCED


@pytest.mark.parametrize(
    ("listed", "known", "expected"),
    [
        (row(), {}, (LedgerClass.LEFT_BEHIND, Cause.OFFLOADED)),
        (row(CompactedHolder(TOPIC)), {}, (LedgerClass.LEFT_BEHIND, Cause.REPLACED)),
        (row(CURSOR), {}, (LedgerClass.REFERENCED, None)),
        (row(None), {}, (LedgerClass.REFERENCED, None)),
        (row(problem="?"), {}, (LedgerClass.UNPARSABLE, None)),
        (row(created_ms=CUTOFF_MS + 1), {}, (LedgerClass.REFERENCED, None)),
        (row(), {"doubts": (Doubt("/x", "zk", "refused"),)}, (LedgerClass.REFERENCED, None)),
        (row(), {"tenants": set(), "namespaces": set()}, (LedgerClass.REFERENCED, None)),
        (row(), {"alive": frozenset({TOPIC})}, (LedgerClass.REFERENCED, None)),
    ],
    ids=["data", "compacted", "cursor", "no holder", "unreadable", "young", "doubt", "foreign", "alive"],
)
def test_what_all_places_call_deleted_was_left_behind_only_where_an_orphan_would_be_one(
    listed: ListedLedger, known: dict[str, Any], expected: tuple[LedgerClass, Cause | None]
) -> None:
    found = classify_left(listed, ["managed ledger"], knowledge(**known))
    assert (found.ledger_class, found.cause) == expected


def test_a_topic_that_no_root_knows_and_that_got_a_ledger_lately_may_be_another_clusters() -> None:
    strange, elsewhere = "t/n/persistent/strange", "t/gone/persistent/x"
    young = [ManagedLedgerHolder(strange), CursorHolder(elsewhere, "c"), ManagedLedgerHolder(TOPIC)]
    owners = [owner_of(KINDS[type(holder)], str(holder)) for holder in young]
    signs = [sign_of_life(owner, knowledge()) for owner in [*owners, None]]
    assert signs == [strange, "t/gone", None, None]
    known = knowledge(alive=frozenset(sign for sign in signs if sign))
    assert classify(row(ManagedLedgerHolder(strange)), known).ledger_class is LedgerClass.TOO_YOUNG
    assert classify(row(ManagedLedgerHolder(elsewhere)), known).ledger_class is LedgerClass.FOREIGN
    assert "another cluster's" in classify(row(ManagedLedgerHolder(elsewhere)), known).detail
    assert classify(row(), known).ledger_class is LedgerClass.ORPHAN


def test_a_schema_lives_with_its_topic_or_a_partition_of_it() -> None:
    schema = SchemaHolder("t/n/strange")
    young = owner_of(KINDS[SchemaHolder], str(schema))
    assert young is not None
    assert young.topic == "t/n/persistent/strange"
    assert sign_of_life(young, knowledge()) == "t/n/persistent/strange"
    # A topic with partitions has no managed ledger of its own name.
    assert sign_of_life(young, knowledge(existing={str(schema)})) is None
    partition = owner_of(KINDS[ManagedLedgerHolder], "t/n/persistent/strange-partition-3")
    sign = sign_of_life(partition, knowledge())
    assert sign is not None
    assert without_partition(sign) == young.topic
    alive = knowledge(alive={sign, without_partition(sign)})
    assert classify(row(schema), alive).ledger_class is LedgerClass.TOO_YOUNG
    assert classify(row(SchemaHolder("t/n/other")), alive).ledger_class is LedgerClass.ORPHAN


@settings(max_examples=300)
@given(st.sampled_from(list(KINDS.values())), st.text("ab/:%+.-~ ", max_size=12))
def test_an_owner_is_one_that_a_mark_can_name(kind: str, text: str) -> None:
    for prefix in ("", "t/n/persistent/", "schema:", "compacted:t/n/persistent/", "buckets:t/n/persistent/a/"):
        owner = owner_of(kind, prefix + text)
        if owner is not None:
            assert str(owner.holder) == prefix + text
            assert KINDS[type(owner.holder)] == kind
            assert mark_of_holder(1, owner.holder, "").holder() == owner.holder


@pytest.mark.parametrize("holder", HOLDERS, ids=str)
def test_every_holder_is_read_back_from_its_text(holder: Holder) -> None:
    owner = owner_of(KINDS[type(holder)], str(holder))
    assert owner is not None
    assert owner.holder == holder
    written = {name: value.encode() for name, value in expected_custom_metadata(holder).items()}
    assert identify_holder(written) == owner.holder
