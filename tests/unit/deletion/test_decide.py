"""Each row of the outcome table and each safety rule that is decided without the world."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookwarden.deletion.phase_two.decide import Action, Decision, DeletionPolicy, MarkContext, decide
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.live_references import LiveReferences, References, ShadowList, UnknownReferences, UnnamedUse
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    LedgerMetadata,
    LedgerReading,
    LedgerState,
    StoredLedger,
    UnreadableLedger,
)
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion

HOUR = 3_600_000
NOW = 100 * HOUR
TOPIC = "persistent://tenant/ns/orders"
POLICY = DeletionPolicy(retry_delay=600, max_retries=10, still_referenced_grace=600, unlisted_grace=60)
DATA = PendingDeletion(TOPIC, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, 7)
CURSOR = replace(DATA, component=LedgerComponent.MANAGED_CURSOR, cursor_name="my sub/1")
SCHEMA = replace(DATA, component=LedgerComponent.SCHEMA_STORAGE)
GONE = LiveReferences(frozenset({8, 9}), exists=True)
NAMED = LiveReferences(frozenset({7}), exists=True)


def stored(
    custom: dict[str, bytes] | None = None, mark: PendingDeletion = DATA, ctime: int | None = HOUR
) -> StoredLedger:
    if custom is None:
        custom = {name: value.encode() for name, value in expected_custom_metadata(mark.holder()).items()}
    metadata = LedgerMetadata(3, LedgerState.CLOSED, 1, 1, 1, (), ctime_ms=ctime, custom=custom)
    return StoredLedger(7, "/ledgers/00/0000/L0007", 0, HOUR, b"", metadata)


def decided(
    reading: LedgerReading,
    references: References = GONE,
    *,
    mark: PendingDeletion = DATA,
    attempts: int = 0,
    age: float = 3600,
) -> Decision:
    return decide(mark, reading, references, MarkContext(attempts, age, NOW), POLICY)


@pytest.mark.parametrize("mark", [DATA, CURSOR, SCHEMA])
def test_a_ledger_that_nobody_names_is_deleted(mark: PendingDeletion) -> None:
    decision = decided(stored(mark=mark), mark=mark)
    assert (decision.action, decision.outcome) == (Action.DELETE, Outcome.DELETED)


def test_a_holder_that_is_gone_names_nothing() -> None:
    assert decided(stored(), LiveReferences(frozenset(), exists=False)).action is Action.DELETE


@pytest.mark.parametrize("ours", ["", "bk-b"])
@pytest.mark.parametrize("reading", [stored(), AbsentLedger(7)], ids=["there", "gone"])
def test_a_mark_of_another_bookie_cluster_is_kept_and_told(ours: str, reading: LedgerReading) -> None:
    mark, policy = replace(DATA, bookie_cluster="bk-a"), replace(POLICY, bookie_cluster=ours)
    decision = decide(mark, reading, GONE, MarkContext(0, 3600, NOW), policy)
    assert decision.action is Action.RETRY
    assert "'bk-a'" in decision.reason
    assert decide(mark, reading, GONE, MarkContext(10, 3600, NOW), policy).action is Action.GIVE_UP
    same = replace(POLICY, bookie_cluster="bk-a")
    assert decide(mark, stored(), GONE, MarkContext(0, 3600, NOW), same).action is Action.DELETE


def test_absent_metadata_is_already_gone() -> None:
    assert decided(AbsentLedger(7)).outcome is Outcome.ALREADY_GONE


def test_a_mark_that_is_younger_than_the_grace_waits_for_its_metadata_update() -> None:
    assert decided(stored(), NAMED, age=599).outcome is Outcome.RETRY


def test_a_mark_that_is_older_than_the_grace_is_finished() -> None:
    decision = decided(stored(), NAMED, age=600)
    assert (decision.action, decision.outcome) == (Action.FINISH, Outcome.STILL_REFERENCED)


def test_a_mark_from_the_future_is_never_older_than_the_grace() -> None:
    assert decided(stored(), NAMED, age=-5000).outcome is Outcome.RETRY


@pytest.mark.parametrize(
    "custom",
    [
        {},
        {"application": b"pulsar"},
        {"application": b"bk-stream-storage-service", "component": b"state-store"},
        {"application": b"pulsar", "component": b"compacted-ledger"},
        {
            "application": b"pulsar",
            "component": b"managed-ledger",
            "pulsar/managed-ledger": b"other/ns/persistent/orders",
        },
        {
            "application": b"\xff",
            "component": b"managed-ledger",
            "pulsar/managed-ledger": b"tenant/ns/persistent/orders",
        },
    ],
    ids=["none", "no component", "other application", "unknown component", "other topic", "binary"],
)
def test_what_is_not_the_holders_is_kept_and_both_sides_are_told(custom: dict[str, bytes]) -> None:
    decision = decided(stored(custom))
    assert (decision.action, decision.outcome) == (Action.FINISH, Outcome.MISMATCH)
    assert "pending deletion says application=pulsar" in decision.reason
    assert "ledger says" in decision.reason


@pytest.mark.parametrize(("mark", "owner"), [(DATA, CURSOR), (CURSOR, DATA), (SCHEMA, DATA), (DATA, SCHEMA)])
def test_one_kind_of_ledger_is_never_deleted_as_another(mark: PendingDeletion, owner: PendingDeletion) -> None:
    assert decided(stored(mark=owner), mark=mark).outcome is Outcome.MISMATCH


def test_another_cursors_ledger_is_a_mismatch() -> None:
    assert decided(stored(mark=replace(CURSOR, cursor_name="other")), mark=CURSOR).outcome is Outcome.MISMATCH


def test_unknown_references_never_mean_unreferenced() -> None:
    decision = decided(stored(), UnknownReferences("node cannot be parsed"))
    assert decision.action is Action.RETRY
    assert "node cannot be parsed" in decision.reason


def test_unreadable_metadata_is_retried() -> None:
    assert decided(UnreadableLedger(7, "cut off")).action is Action.RETRY


@pytest.mark.parametrize("ctime", [NOW - 59_000, NOW + HOUR])
def test_a_ledger_just_created_may_not_be_listed_yet(ctime: int) -> None:
    assert decided(stored(ctime=ctime)).action is Action.RETRY


def test_a_wrong_clock_at_the_creator_does_not_hide_a_young_node() -> None:
    young = stored(ctime=HOUR)._replace(created_ms=NOW - 1000)
    assert decided(young).action is Action.RETRY


def test_a_retry_beyond_the_maximum_gives_up_with_the_last_reason() -> None:
    assert decided(UnreadableLedger(7, "cut off"), attempts=9).action is Action.RETRY
    decision = decided(UnreadableLedger(7, "cut off"), attempts=10)
    assert (decision.action, decision.outcome) == (Action.GIVE_UP, Outcome.GAVE_UP)
    assert "cut off" in decision.reason


def test_a_finished_mark_is_finished_however_often_it_was_retried() -> None:
    assert decided(stored(), attempts=99).action is Action.DELETE
    assert decided(AbsentLedger(7), attempts=99).outcome is Outcome.ALREADY_GONE


def test_an_offloaded_copy_is_a_matter_of_its_uuid_and_of_whose_the_ledger_is() -> None:
    mark = replace(DATA, ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=OffloadContext(1, 2, "S3"))
    named = replace(NAMED, offloaded=frozenset({OffloadContext(1, 2, "").uuid}))
    anew = replace(NAMED, offloaded=frozenset({OffloadContext(1, 3, "").uuid}))
    assert decided(AbsentLedger(7), mark=mark).action is Action.PROVE_COPY
    assert decided(stored(), mark=mark).action is Action.DELETE_COPY
    assert decided(stored(), anew, mark=mark).action is Action.DELETE_COPY
    assert decided(stored(), named, mark=mark).outcome is Outcome.STILL_REFERENCED
    assert decided(stored(), named, mark=mark, age=599).outcome is Outcome.RETRY
    assert decided(stored({}), mark=mark).outcome is Outcome.MISMATCH
    puzzling = decided(stored(), replace(GONE, puzzling=frozenset({DATA.ledger_id})), mark=mark)
    assert (puzzling.outcome, "unknown to us" in puzzling.reason) == (Outcome.RETRY, True)
    cursor = replace(CURSOR, ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=mark.offload_context)
    assert decided(AbsentLedger(7), mark=cursor).outcome is Outcome.MISMATCH
    assert decided(UnreadableLedger(7, "cut off"), mark=mark).outcome is Outcome.RETRY
    assert decided(stored(), UnknownReferences("no answer"), mark=mark).outcome is Outcome.RETRY


WITH_DELAY = replace(POLICY, delete_delay=24 * 3600.0)


def delayed(verified_ms: int | None, references: References = GONE, policy: DeletionPolicy = WITH_DELAY) -> Decision:
    return decide(DATA, stored(), references, MarkContext(10, 3600, NOW, verified_ms), policy)


def test_with_a_delay_a_ledger_waits_an_eighth_of_it_at_a_time_and_no_retry_is_counted() -> None:
    decision = delayed(None)
    assert (decision.action, decision.outcome, decision.wait) == (Action.DELAY, Outcome.DELAYED, 3 * 3600)
    assert "86400 s" in decision.reason


def test_the_last_wait_is_what_is_left_of_the_delay() -> None:
    assert delayed(NOW - 23 * HOUR).wait == 3600


def test_a_short_delay_is_waited_for_at_once() -> None:
    assert delayed(None, policy=replace(POLICY, delete_delay=30.0)).wait == 30


def test_after_the_delay_it_is_deleted_and_not_a_moment_before() -> None:
    assert delayed(NOW - 24 * HOUR).action is Action.DELETE
    assert delayed(NOW - 24 * HOUR + 1).action is Action.DELAY


def test_a_verification_that_lies_ahead_counts_as_now() -> None:
    assert delayed(NOW + 99 * HOUR).wait == 3 * 3600
    assert "86400 s" in delayed(NOW + 99 * HOUR).reason


def test_what_is_named_again_within_the_delay_is_kept() -> None:
    assert delayed(NOW - 24 * HOUR, NAMED).outcome is Outcome.STILL_REFERENCED


COMPACTED = replace(DATA, component=LedgerComponent.COMPACTED_LEDGER)
BUCKET = replace(CURSOR, component=LedgerComponent.DELAYED_INDEX_BUCKET)


@pytest.mark.parametrize("mark", [COMPACTED, BUCKET])
def test_a_compacted_ledger_or_bucket_whose_holder_is_gone_is_deleted(mark: PendingDeletion) -> None:
    gone = LiveReferences(frozenset(), exists=False)
    assert decided(stored(mark=mark), gone, mark=mark).action is Action.DELETE


@pytest.mark.parametrize(
    ("use", "outcome"),
    [
        (UnnamedUse("under way"), Outcome.WAITING),
        (UnnamedUse("no broker", lasting=True), Outcome.RETRY),
        (UnnamedUse("newer", before_ledger=7), Outcome.WAITING),
        (UnnamedUse("older", before_ledger=8), Outcome.DELETED),
        (UnnamedUse("loaded before", before_ms=HOUR), Outcome.WAITING),
        (UnnamedUse("loaded since", before_ms=HOUR + 1), Outcome.DELETED),
    ],
)
def test_what_may_be_in_use_unnamed_waits_and_is_retried_only_where_that_does_not_end(
    use: UnnamedUse, outcome: Outcome
) -> None:
    references = LiveReferences(frozenset({8}), exists=True, unnamed_use=use)
    decision = decided(stored(mark=COMPACTED), references, mark=COMPACTED)
    assert decision.outcome is outcome
    assert (use.reason in decision.reason) is (outcome is not Outcome.DELETED)


@pytest.mark.parametrize(
    ("changed_ms", "outcome"),
    [(NOW - 60_000, Outcome.DELETED), (NOW - 59_999, Outcome.WAITING), (0, Outcome.WAITING)],
    ids=["before the grace", "within it", "unknown"],
)
def test_a_ledger_that_may_be_about_to_be_recorded_waits_until_it_was_left_alone_for_the_grace(
    changed_ms: int, outcome: Outcome
) -> None:
    references = LiveReferences(frozenset(), exists=True, unnamed_use=UnnamedUse("at rest", changed_lately=True))
    reading = stored(mark=COMPACTED)._replace(modified_ms=changed_ms)
    assert decided(reading, references, mark=COMPACTED).outcome is outcome
    # In each of its places.
    elsewhere = stored(mark=COMPACTED)._replace(modified_ms=HOUR, elsewhere=(reading,))
    assert decided(elsewhere, references, mark=COMPACTED).outcome is outcome


def test_a_wait_costs_no_retry_however_often_it_was_waited() -> None:
    references = LiveReferences(frozenset({8}), exists=True, unnamed_use=UnnamedUse("under way"))
    decision = decided(stored(mark=COMPACTED), references, mark=COMPACTED, attempts=99)
    assert (decision.action, decision.outcome) == (Action.WAIT, Outcome.WAITING)


def test_the_younger_of_a_ledgers_two_creation_times_counts_for_its_use() -> None:
    references = LiveReferences(frozenset(), exists=True, unnamed_use=UnnamedUse("loaded", before_ms=3 * HOUR))
    assert decided(stored(mark=BUCKET, ctime=4 * HOUR), references, mark=BUCKET).outcome is Outcome.WAITING
    assert decided(stored(mark=BUCKET, ctime=2 * HOUR), references, mark=BUCKET).outcome is Outcome.DELETED


def test_a_ledger_that_only_a_shadow_topic_lists_is_kept_and_the_shadow_is_told() -> None:
    shadow = ShadowList("tenant/ns/persistent/shadow", frozenset({7}))
    references = LiveReferences(frozenset({8}), exists=True, shadows=(shadow,))
    assert decided(stored(), references, age=0).outcome is Outcome.RETRY
    decision = decided(stored(), references)
    assert decision.outcome is Outcome.STILL_REFERENCED
    assert decision.reason.startswith(
        "tenant/ns/persistent/shadow, which lists ledgers of tenant/ns/persistent/orders,"
    )
    named_by_both = replace(references, ledger_ids=frozenset({7}))
    assert decided(stored(), named_by_both).reason.startswith("tenant/ns/persistent/orders still")
