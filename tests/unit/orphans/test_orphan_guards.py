"""Guards of plans: each refusal names what it found, the limit and the setting; clocks that differ tell no ages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookwarden.config import OrphanSettings, load_settings
from bookwarden.errors import RefusedError
from bookwarden.ledgers.kinds import CursorHolder
from bookwarden.orphans.copy_plan import CopyCandidate
from bookwarden.orphans.guards import (
    GuardLimits,
    check,
    check_counts,
    cutoff_of,
    held_back,
    held_back_copy,
    not_to_be_emptied,
)
from bookwarden.orphans.plan import Candidate, EmptiedScope, PlanCounts, PlanManifest, ScannedCluster
from bookwarden.wiring.scan import guard_limits_of

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BEGUN_MS = 1_000 * DAY_MS
LIMITS = GuardLimits()
CLUSTER = ScannedCluster.of("0f1e", "zk:a", "/ledgers", ["zk:a", "zk:b"])
PLAN = PlanManifest(
    plan_id="p",
    scan_id="s",
    tool_version="1",
    begun_ms=BEGUN_MS,
    created_ms=BEGUN_MS + HOUR_MS,
    cutoff_ms=BEGUN_MS - LIMITS.min_age_ms,
    cluster=CLUSTER,
    counts=PlanCounts(ledgers=1_000, logical_bytes=10, references=900, candidates=100, candidate_bytes=5),
    candidates=(),
)


def refused(plan: PlanManifest = PLAN, now_ms: int = BEGUN_MS + 2 * HOUR_MS, **fields: Any) -> list[str]:
    given = {"cluster": CLUSTER, "limits": LIMITS, "allow_emptied": (), **fields}
    return [str(refusal) for refusal in check(plan, now_ms=now_ms, **given)]


def test_a_fresh_plan_of_this_cluster_is_not_refused() -> None:
    assert refused() == []


def test_the_limits_are_those_of_the_settings() -> None:
    assert guard_limits_of(load_settings().orphans) == LIMITS


@pytest.mark.parametrize(
    ("changes", "now_ms", "says"),
    [
        ({}, BEGUN_MS + DAY_MS + 1, ["is 24.0 h old", "24.0 h are allowed", "orphans.max_plan_age_hours", "new plan"]),
        ({}, BEGUN_MS + HOUR_MS - 300_001, ["300 s in the future", "orphans.max_clock_skew_seconds"]),
        ({"created_ms": BEGUN_MS + 9 * HOUR_MS}, BEGUN_MS, ["9.0 h in the future"]),
        ({"cutoff_ms": PLAN.cutoff_ms + 1}, BEGUN_MS, ["72.0 h on", "least is 72.0 h", "orphans.min_age_days"]),
        ({"cutoff_ms": BEGUN_MS - 11 * HOUR_MS}, BEGUN_MS, ["11.0 h", "12.0 h", "orphans.longest_compaction_hours"]),
        ({"created_ms": BEGUN_MS - HOUR_MS}, BEGUN_MS, ["71.0 h on", "orphans.min_age_days"]),
        ({"counts": replace(PLAN.counts, candidates=201)}, BEGUN_MS, ["201 of 1,000", "20.1%", "orphans.max_share"]),
        ({"counts": replace(PLAN.counts, references=0)}, BEGUN_MS, ["no reference was found", "metadata_store.urls"]),
        ({"counts": replace(PLAN.counts, ledgers=0)}, BEGUN_MS, ["100 of 0 ledgers", "orphans.max_share"]),
        ({"counts": replace(PLAN.counts, ledgers=99)}, BEGUN_MS, ["100 candidates among 99", "new plan"]),
    ],
)
def test_each_guard_names_the_number_the_limit_and_the_setting(
    changes: dict[str, Any], now_ms: int, says: list[str]
) -> None:
    text = "; ".join(refused(replace(PLAN, **changes), now_ms))
    assert all(part in text for part in says), text


@pytest.mark.parametrize(
    ("changes", "now_ms"),
    [
        ({}, BEGUN_MS + DAY_MS),
        ({}, BEGUN_MS + HOUR_MS - 300_000),
        ({"counts": replace(PLAN.counts, candidates=200)}, BEGUN_MS + HOUR_MS),
        ({"cutoff_ms": PLAN.cutoff_ms - DAY_MS}, BEGUN_MS + HOUR_MS),
    ],
)
def test_a_limit_itself_is_allowed(changes: dict[str, Any], now_ms: int) -> None:
    assert refused(replace(PLAN, **changes), now_ms) == []


@pytest.mark.parametrize(
    "other",
    [
        replace(CLUSTER, instance_id="another"),
        replace(CLUSTER, roots=("zk:a",)),
        replace(CLUSTER, roots=("zk:a", "zk:b", "zk:c")),
        replace(CLUSTER, ledgers_root="/pulsar/ledgers"),
        replace(CLUSTER, bookkeeper_url="zk:b"),
    ],
)
def test_another_cluster_is_refused(other: ScannedCluster) -> None:
    assert len(refused(cluster=other)) == 1
    assert len(refused(replace(PLAN, cluster=other))) == 1


def test_a_cluster_without_an_instance_id_is_refused() -> None:
    nameless = replace(CLUSTER, instance_id="")
    assert "INSTANCEID ''" in refused(replace(PLAN, cluster=nameless), cluster=nameless)[0]


def test_the_order_of_the_roots_does_not_matter() -> None:
    same = ScannedCluster.of("0f1e\n", "zk:a", "/ledgers", ["zk:b", "zk:a", "zk:b"])
    assert refused(cluster=same) == []


EMPTIED = (
    EmptiedScope("topic", "t/n/persistent/a", 7),
    EmptiedScope("topic", "t/m/persistent/b", 1),
    EmptiedScope("namespace", "t/n", 7),
)


@pytest.mark.parametrize(
    ("allowed", "left"),
    [
        ((), ["2 topics would be left with no ledger at all: t/n/persistent/a (7), t/m", "1 namespace"]),
        (("t/n",), ["1 topic would be left with no ledger at all: t/m/persistent/b (1)"]),
        (("t/n/persistent/a",), ["1 topic would be left with no ledger at all: t/m/p", "1 namespace"]),
        (("t/n", "persistent://t/m/b"), []),
        (("t", "t/n/persistent", "persistent://t/x/b", "://"), ["2 topics", "1 namespace"]),
    ],
)
def test_what_exists_is_emptied_only_by_name(allowed: tuple[str, ...], left: list[str]) -> None:
    found = refused(replace(PLAN, emptied=EMPTIED), limits=replace(LIMITS, max_emptied=0), allow_emptied=allowed)
    assert len(found) == len(left)
    assert all(text.startswith(start) for text, start in zip(found, left, strict=True)), found
    assert all("--allow-emptied NAME" in text for text in found)


def test_a_plan_that_would_empty_a_few_topics_is_refused_only_where_they_are_too_many() -> None:
    plan = replace(PLAN, emptied=EMPTIED)
    assert refused(plan) == []
    assert refused(plan, limits=replace(LIMITS, max_emptied=2)) == []
    (found,) = refused(plan, limits=replace(LIMITS, max_emptied=1))
    assert found.startswith("2 topics would be left with no ledger at all")
    assert "at most 1 are held back" in found
    assert "orphans.max_emptied" in found
    assert refused(plan, limits=replace(LIMITS, max_emptied=1), allow_emptied=["t/m/persistent/b"]) == []


def test_what_of_a_topic_or_namespace_that_would_be_emptied_is_held_back() -> None:
    plan = replace(PLAN, emptied=EMPTIED)

    def held(kind: str, holder: str, *allowed: str) -> str | None:
        emptied = not_to_be_emptied(plan, allowed)
        return held_back(candidate(kind=kind, holder=holder), plan, LIMITS, emptied)

    for kind, holder in (
        ("MANAGED_LEDGER", "t/m/persistent/b"),
        ("MANAGED_CURSOR", str(CursorHolder("t/m/persistent/b", "s"))),
    ):
        assert "t/m/persistent/b would be left" in str(held(kind, holder))
        assert held(kind, holder, "t/n") is not None
        assert held(kind, holder, "persistent://t/m/b") is None
    # All of an emptied namespace, and nothing of another topic.
    assert "t/n would be left" in str(held("MANAGED_LEDGER", "t/n/persistent/other"))
    assert held("MANAGED_LEDGER", "t/n/persistent/other", "t/n") is None
    assert held("MANAGED_LEDGER", "t/m/persistent/other") is None
    copy = replace_copy("t/m/persistent/b")
    assert "t/m/persistent/b would be left" in str(held_back_copy(copy, plan, LIMITS, not_to_be_emptied(plan, ())))
    assert held_back_copy(copy, plan, LIMITS, not_to_be_emptied(plan, ["t/m"])) is None


def replace_copy(topic: str) -> CopyCandidate:
    seen = BEGUN_MS - DAY_MS
    return CopyCandidate(0, "S3", "b", "", "", UUID(int=7), 1, topic, "?", 2, 0, 10, 5, seen)


def test_an_allowed_name_does_not_raise_the_share() -> None:
    plan = replace(PLAN, counts=replace(PLAN.counts, candidates=1_000), emptied=EMPTIED)
    assert ["orphans.max_share" in text for text in refused(plan, allow_emptied=("t/n", "t/m"))] == [True]


def test_what_may_be_emptied_and_is_not_known_is_refused() -> None:
    assert "would empty a tenant" in refused(replace(PLAN, emptied=(EmptiedScope("tenant", "t", 1),)))[0]


def candidate(**fields: Any) -> Candidate:
    first_seen_ms = BEGUN_MS - DAY_MS
    old = Candidate(1, "MANAGED_LEDGER", "t/n/persistent/a", "?", "/l", 0, 5, 6, 10, "CLOSED", first_seen_ms)
    return old._replace(**fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"first_seen_ms": BEGUN_MS - DAY_MS + 1}, "orphans.seen_apart_hours"),
        ({"first_seen_ms": PLAN.created_ms}, "orphans.seen_apart_hours"),
        ({"created_ms": PLAN.cutoff_ms + 1}, "orphans.min_age_days"),
        ({"ctime_ms": PLAN.cutoff_ms + 1}, "orphans.min_age_days"),
        ({"created_ms": 0, "ctime_ms": None}, "orphans.min_age_days"),
        ({"created_ms": PLAN.cutoff_ms, "ctime_ms": None}, None),
    ],
)
def test_a_candidate_that_is_young_or_not_seen_twice_is_held_back(fields: dict[str, Any], reason: str | None) -> None:
    found = held_back(candidate(**fields), PLAN, LIMITS)
    assert (found is None) == (reason is None)
    assert reason is None or reason in str(found)


def test_one_scan_is_enough_where_the_settings_say_so() -> None:
    once = replace(LIMITS, seen_apart_ms=0)
    assert held_back(candidate(first_seen_ms=PLAN.created_ms), PLAN, once) is None


def test_the_cutoff_is_by_the_earliest_clock() -> None:
    assert cutoff_of(BEGUN_MS, {}, LIMITS) == BEGUN_MS - 3 * DAY_MS
    assert cutoff_of(BEGUN_MS, {"broker": BEGUN_MS - 300_000}, LIMITS) == BEGUN_MS - 3 * DAY_MS - 300_000
    assert cutoff_of(BEGUN_MS, {"broker": BEGUN_MS + 9}, LIMITS) == BEGUN_MS - 3 * DAY_MS
    old = cutoff_of(BEGUN_MS, {}, LIMITS, snapshot_ms=BEGUN_MS - 9 * DAY_MS, newest_ms=BEGUN_MS - 9 * DAY_MS)
    assert old == BEGUN_MS - 12 * DAY_MS


@pytest.mark.parametrize(
    ("clocks", "stamps", "says"),
    [
        ({"broker b1": BEGUN_MS - 300_001}, {}, "the clock of this machine is 300 s ahead of that of broker b1"),
        ({"b1": BEGUN_MS + DAY_MS}, {}, "the clock of b1 is 24.0 h ahead of that of this machine"),
        ({"b1": BEGUN_MS + 200_000, "b2": BEGUN_MS - 200_000}, {}, "the clock of b1 is 400 s ahead of that of b2"),
        ({}, {"snapshot_ms": BEGUN_MS + 300_001}, "the snapshot's latest change is 300 s ahead"),
        ({}, {"newest_ms": BEGUN_MS + 300_001}, "the newest ledger is 300 s ahead"),
    ],
)
def test_clocks_that_differ_too_much_make_no_plan(clocks: dict[str, int], stamps: dict[str, int], says: str) -> None:
    with pytest.raises(RefusedError, match="max_clock_skew_seconds") as caught:
        cutoff_of(BEGUN_MS, clocks, LIMITS, **stamps)
    assert says in str(caught.value)


@given(st.dictionaries(st.sampled_from("abc"), st.integers(-(10**6), 10**6)), st.none() | st.integers(-(10**9), 10**6))
def test_no_clock_makes_a_ledger_older_than_it_says(offsets: dict[str, int], snapshot: int | None) -> None:
    clocks = {name: BEGUN_MS + offset for name, offset in offsets.items()}
    snapshot_ms = None if snapshot is None else BEGUN_MS + snapshot
    told = [BEGUN_MS, *clocks.values()]
    try:
        cutoff = cutoff_of(BEGUN_MS, clocks, LIMITS, snapshot_ms=snapshot_ms)
    except RefusedError:
        stamps = [*told, *([] if snapshot_ms is None else [snapshot_ms])]
        assert max(stamps) - min(told) > LIMITS.max_clock_skew_ms
    else:
        assert cutoff == min([*told, *([] if snapshot_ms is None else [snapshot_ms])]) - LIMITS.min_age_ms
        assert refused(replace(PLAN, cutoff_ms=cutoff)) == []


def test_no_plan_is_made_without_references() -> None:
    assert [refusal.found for refusal in check_counts(replace(PLAN.counts, references=0))] == [
        "no reference was found to any of 1,000 ledgers"
    ]


def test_no_setting_lets_a_compaction_under_way_be_a_candidate() -> None:
    limits = replace(LIMITS, min_age_ms=HOUR_MS)
    plan = replace(PLAN, cutoff_ms=BEGUN_MS - HOUR_MS)
    assert ["orphans.longest_compaction_hours" in text for text in refused(plan, limits=limits)] == [True]
    assert OrphanSettings().min_age_days * 24 >= OrphanSettings().longest_compaction_hours
