"""Holes in what is decided: ledgers and copies that go without the proof, or before the time, that they are due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bookwarden.bookie_clusters.bookie_clusters import BookieClusters
from bookwarden.deletion.phase_two import decide, guards
from bookwarden.deletion.phase_two.guards import Guard, ReusedIdGuard, UndoneGuard
from bookwarden.ledgers import received
from bookwarden.ledgers.offloaded_copies import CopyIndex, CopyReading, OffloadedCopy, PresentCopy
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.metastore.store_clock import StoreClock

from .hole import Hole


def _bookie_cluster(patch: pytest.MonkeyPatch) -> None:
    judge = decide._judge
    patch.setattr(decide, "_judge", lambda mark, *rest: judge(replace(mark, bookie_cluster=""), *rest))


def _custom_metadata(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "custom_metadata_mismatch", lambda holder, custom: None)


def _inside_list(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "_kept", lambda mark, status, references, attempts: None)


def _without(guard: type[Guard]) -> Callable[[pytest.MonkeyPatch], None]:
    def put_back(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(guard, "review", lambda guard, candidates: [one.decision for one in candidates])

    return put_back


def _copy_unproven(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guards, "why_not_whole", lambda copy, reading, *rest: None)


def _copy_without_index(patch: pytest.MonkeyPatch) -> None:
    why_not_whole = guards.why_not_whole

    def indexed(copy: OffloadedCopy, reading: CopyReading, *rest: int) -> str | None:
        if isinstance(reading, PresentCopy):
            reading = replace(reading, index=CopyIndex(reading.data_bytes))
        return why_not_whole(copy, reading, *rest)

    patch.setattr(guards, "why_not_whole", indexed)


def _verified_anywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(received, "is_partition_of", lambda partition, topic: True)


def _producers_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReceivedMark, "age", lambda mark, now_ms: max(0, now_ms - mark.published_at) / 1000)


def _executors_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreClock, "__call__", lambda clock: clock._local())


def _policy(**changes: float) -> Callable[[pytest.MonkeyPatch], None]:
    def put_back(patch: pytest.MonkeyPatch) -> None:
        judge = decide._judge

        def hasty(mark: Any, reading: Any, references: Any, context: Any, policy: Any) -> decide.Decision:
            return judge(mark, reading, references, context, replace(policy, **changes))

        patch.setattr(decide, "_judge", hasty)

    return put_back


def _doubts_cost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "wait", lambda reason, _=None: decide.retry(reason))


def _other_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BookieClusters, "require_epoch", lambda clusters, epoch: None)


HOLES = {
    "a task of a batch goes by another epoch than its batch": Hole(_other_epochs, "epochs", ("registry",), first=18),
    "a mark of other bookies is carried out": Hole(_bookie_cluster, "foreign", ("other bookies",)),
    "the custom metadata is not looked at": Hole(_custom_metadata, "lost", first=15),
    "a ledger inside its topic's list was let go": Hole(
        _inside_list, "lost", ("holes",), ("damage list", "forge"), first=4
    ),
    "an undo's record is not honoured": Hole(_without(UndoneGuard), "lost", ("undone",), first=3),
    "the copy of a ledger that was left behind is not proven": Hole(
        _copy_unproven, "lost", ("offload",), ("offload", "lose copy")
    ),
    "the index of a ledger's copy is not looked for": Hole(
        _copy_without_index, "lost", ("offload",), ("offload", "lose copy"), first=7
    ),
    "since when a mark is verified is believed of any topic": Hole(
        _verified_anywhere, "delay", ("forged verification",), ("forge",), first=3
    ),
    "how old a mark is goes by its producer's clock": Hole(_producers_clock, "hasty", ("producers' clocks",), first=10),
    "how old a ledger is goes by the executor's clock": Hole(
        _executors_clock, "lost", ("clocks",), ("sweeper clock", "roll over", "forge", "sweep"), first=7
    ),
    "a ledger of just now is not waited with": Hole(
        _policy(unlisted_grace=0.0), "lost", (), ("roll over", "forge", "sweep")
    ),
    "a mark does not wait for the update that follows it": Hole(
        _policy(still_referenced_grace=0.0), "hasty", (), first=2
    ),
    "ledgers are deleted while ids come again": Hole(_without(ReusedIdGuard), "ids", ("ids again",), first=10),
    "a doubt about another's node costs a retry": Hole(_doubts_cost, "costly", ("strange nodes",)),
    "a compaction under way costs a retry": Hole(_doubts_cost, "costly", (), first=3),
    "the delay is not waited for": Hole(_policy(delete_delay=0.0), "delay", (), first=3),
}
