"""A migration as it is followed: how it ends, what is warned of, and how much is copied."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bookwarden.cli.metadata_migration.watch import _CopyCounter
from bookwarden.metadata_migration.control import Survey, survey
from bookwarden.metadata_migration.watching import MigrationOutcome, NodeCopyProgress, PhaseSnapshot, PhaseStep, follow
from bookwarden.metastore.memory import MemoryStore

BEGAN = 1_000_000


def look(phase: str | None, at_s: float = 0, changed_s: float = 0, **more: Any) -> PhaseSnapshot:
    began = 0 if phase is None else BEGAN
    changed = 0 if phase is None else BEGAN + int(changed_s * 1000)
    return PhaseSnapshot(BEGAN + int(at_s * 1000), phase, "oxia://o/n", began, changed, **more)


class Clock:
    """Time that passes in pauses only."""

    def __init__(self) -> None:
        self.now = 0.0

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def followed(looks: Sequence[PhaseSnapshot], every_s: float = 1) -> list[PhaseStep]:
    clock, left = Clock(), iter(looks)
    return list(follow(lambda: next(left), every_s=every_s, pause=clock.pause, clock=clock))


@pytest.mark.parametrize(
    ("last", "ending"),
    [
        (look("COMPLETED"), MigrationOutcome.COMPLETED),
        (look("FAILED"), MigrationOutcome.FAILED),
        (look(None), MigrationOutcome.REMOVED),
    ],
)
def test_it_is_followed_to_its_end_and_no_further(last: PhaseSnapshot, ending: MigrationOutcome) -> None:
    steps = followed([look("PREPARATION"), look("COPYING"), last, look("COPYING")])
    assert [step.ending for step in steps] == [None, None, ending]


def test_without_a_flag_it_waits_for_one() -> None:
    steps = followed([look(None), look("PREPARATION"), look("COMPLETED")])
    assert [step.ending for step in steps] == [None, None, MigrationOutcome.COMPLETED]


def test_a_source_that_does_not_answer_ends_nothing() -> None:
    silent = look("COMPLETED", error="no connection")
    steps = followed([look("COPYING"), silent, look("COMPLETED")])
    assert [step.ending for step in steps] == [None, None, MigrationOutcome.COMPLETED]


def test_writes_are_blocked_from_preparation_to_the_end() -> None:
    assert look("PREPARATION", at_s=7).blocked_seconds == 7
    assert look("COPYING", at_s=9, changed_s=8).blocked_seconds == 9
    assert look("COMPLETED", at_s=99, changed_s=12).blocked_seconds == 12
    assert look("FAILED", at_s=99, changed_s=61).blocked_seconds == 61
    assert look(None, at_s=99).blocked_seconds == 0
    # Our clock is behind that of the source.
    assert look("PREPARATION", at_s=-3).blocked_seconds == 0


def warnings(steps: Sequence[PhaseStep]) -> Iterator[str]:
    return (text for step in steps for text in step.warnings)


def test_who_is_left_behind_is_named_once() -> None:
    left = {"id-2": "", "id-1": "bookwarden host 7"}
    steps = followed(
        [look("PREPARATION", participants=left), *[look("COPYING", participants=left)] * 3, look("FAILED")]
    )
    (text,) = warnings(steps)
    assert "the copy began without id-1 (bookwarden host 7), id-2" in text


def test_who_comes_in_mid_copy_was_not_left_behind() -> None:
    new = {"id-3": ""}
    assert not list(warnings(followed([look("COPYING"), look("COPYING", participants=new), look("COMPLETED")])))


def test_a_copy_that_stands_still_is_warned_of() -> None:
    moving = [look("COPYING", copied=NodeCopyProgress(number, 100, False)) for number in range(60)]
    assert not list(warnings(followed([*moving, look("COMPLETED")])))
    (text,) = warnings(followed([*[moving[5]] * 60, look("COMPLETED")]))
    assert "the broker that copies may have ended" in text
    # Where the figure is not known nothing is known of a stall.
    assert not list(warnings(followed([*[look("COPYING")] * 60, look("COMPLETED")])))


def test_a_preparation_without_end_is_warned_of() -> None:
    waiting = [look("PREPARATION", participants={"id-1": ""})] * 145
    assert not list(warnings(followed([*waiting, look("FAILED")])))
    (text,) = warnings(followed([*waiting, *waiting[:20], look("FAILED")]))
    assert "PREPARATION lasts longer" in text


def test_a_survey_counts_all_and_samples_some() -> None:
    store = MemoryStore()
    paths = [f"/a/{number:04d}" for number in range(2_500)]
    store.create("/a", b"")
    for path in paths:
        store.create(path, b"12345")
    store.create("/a/0007/large", b"x" * 900)
    gone = [store.ephemeral_sequential("/a/id-", b"") for _ in range(5)]
    told: list[int] = []
    found = survey(store, progress=told.append, sample_size=100)
    assert (found.nodes, found.ephemeral) == (2_502, 5)
    assert found.size == sum(len(path) + 5 for path in paths) + len("/a") + len("/a/0007/large") + 900
    assert found.largest == ("/a/0007/large", 900)
    assert found.sessions == {None: tuple(gone[:3])}
    assert told[-1] == max(told) == 2_507
    assert len(set(found.sample)) == len(found.sample) == 100
    assert set(found.sample) < {"/a", "/a/0007/large", *paths}
    assert not found.is_sampled_whole
    assert survey(store).is_sampled_whole is False
    whole = survey(store, sample_size=5_000)
    assert whole.is_sampled_whole
    assert set(whole.sample) == {"/a", "/a/0007/large", *paths}


def test_each_node_is_as_likely_in_the_sample() -> None:
    store = MemoryStore()
    for number in range(200):
        store.create(f"/{number:03d}", b"")
    hits = [path for _ in range(400) for path in survey(store, sample_size=20).sample]
    first = sum(path < "/100" for path in hits)
    assert 3_600 < first < 4_400


class SlowToCount:
    """Control of a migration whose target answers us when it is let."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = 0

    def copy_progress(self, found: Survey, target_url: str | None) -> NodeCopyProgress | None:
        self.asked += 1
        assert (found.nodes, target_url) == (10, "oxia://o/n")
        return NodeCopyProgress(self.asked, found.nodes, False) if self.answers.wait(30) else None


def test_a_target_that_does_not_answer_us_delays_no_look_and_the_end_has_its_own_figure() -> None:
    control = SlowToCount()
    counting = _CopyCounter(control, Survey(10, 100, 0, None, {}, ()))  # type: ignore[arg-type]  # it does nothing else
    assert counting.copied(look("PREPARATION")) is None
    assert [counting.copied(look("COPYING")) for _ in range(3)] == [None] * 3
    assert control.asked == 1
    control.answers.set()
    assert counting.copied(look("COMPLETED")) == NodeCopyProgress(2, 10, False)
