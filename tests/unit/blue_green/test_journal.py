"""The journal of `prepare`: the values from before, whatever cut it short; and steps that need each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bookwarden.cluster_migration.preparing.operation import BEGUN, DONE, TAKEN_BACK, Preparation, PreparationJournal
from bookwarden.cluster_migration.preparing.plan import PreparationAction, PreparationPlan, PreparationStep, Side
from bookwarden.cluster_migration.sides.values import ClusterInfo
from bookwarden.errors import FormatError, NotFoundError, PulsarConflictError, RefusedError
from bookwarden.records import record_fields, record_of
from unit.blue_green.seen import NAME, SINGLE, policies, ready, side

KEY = "inactiveTopicPolicies"
STEP = PreparationStep(Side.BLUE, PreparationAction.POLICY, NAME, KEY, {"a": 1}, {"b": 2}, NAME)


def test_a_value_from_before_is_known_until_it_is_taken_back(tmp_path: Path) -> None:
    journal = PreparationJournal(tmp_path / "folder", clock=lambda: 5.0)
    assert journal.originals() == {}
    with journal.writing() as note:
        note(BEGUN, STEP)
        note(DONE, STEP)
    assert journal.changes() == {STEP.name: STEP}
    assert journal.originals() == {(NAME, KEY): {"b": 2}}
    with journal.writing() as note:
        note(TAKEN_BACK, STEP)
    assert journal.originals() == {}


def test_a_note_that_was_cut_short_is_none(tmp_path: Path) -> None:
    journal = PreparationJournal(tmp_path)
    with journal.writing() as note:
        note(BEGUN, STEP)
    whole = journal.path.read_bytes()
    parts = [whole[:length] for length in range(1, len(whole))]
    for part in (*parts, whole[:-1] + b"longer than any note" * 20):
        journal.path.write_bytes(whole + part)
        assert journal.changes() == {STEP.name: STEP}
        with journal.writing() as note:
            note(DONE, STEP)
        assert journal.path.read_bytes().count(b"\n") == 2


def test_a_damaged_line_is_told_and_not_passed_over(tmp_path: Path) -> None:
    journal = PreparationJournal(tmp_path)
    with journal.writing() as note:
        note(BEGUN, STEP)
    journal.path.write_bytes(journal.path.read_bytes().replace(b"begun", b'"') + b"\n")
    with pytest.raises(FormatError, match="line 1"):
        journal.changes()


def test_one_process_at_a_time_writes(tmp_path: Path) -> None:
    journal = PreparationJournal(tmp_path)
    with journal.writing(), pytest.raises(RefusedError), PreparationJournal(tmp_path).writing():
        pass


class Recorded:
    """A cluster that notes what is written to it, and refuses what it is told to."""

    def __init__(self, current: dict[str, Any], refuses: str = "") -> None:
        self.current = current
        self.refuses = refuses
        self.written: list[tuple[str, tuple[Any, ...]]] = []

    def policies(self, _namespace: str) -> dict[str, Any]:
        return self.current

    def __getattr__(self, name: str) -> Callable[..., None]:
        def write(*arguments: Any, **_named: Any) -> None:
            if name == self.refuses:
                raise PulsarConflictError(f"{name} refused")
            self.written.append((name, arguments))

        return write


def preparation(tmp_path: Path, green: Recorded, blue: Recorded) -> Preparation:
    return Preparation(observing(written("green", green), written("blue", blue)), [], PreparationJournal(tmp_path))


def written(name: str, cluster: Recorded, writer: Recorded | None = None) -> Any:
    return SimpleNamespace(cluster=name, admin=cluster, writer=writer or cluster)


def observing(green: Any, blue: Any) -> Any:
    return SimpleNamespace(green=green, blue=blue, observe=lambda _namespaces: ready())


def test_what_needs_a_step_that_failed_is_left_and_the_rest_is_done(tmp_path: Path) -> None:
    green = Recorded(policies("green"), refuses="create_topic")
    steps = (
        PreparationStep(Side.GREEN, PreparationAction.TOPIC, SINGLE, namespace=NAME),
        PreparationStep(Side.GREEN, PreparationAction.TOPIC, "persistent://a/b/c", namespace="a/b"),
        PreparationStep(
            Side.GREEN,
            PreparationAction.SUBSCRIPTION,
            SINGLE,
            "app",
            {"properties": {}, "replicated": False},
            None,
            NAME,
        ),
        PreparationStep(
            Side.GREEN,
            PreparationAction.SUBSCRIPTION,
            f"{SINGLE}2",
            "app",
            {"properties": {}, "replicated": False},
            None,
            NAME,
        ),
    )
    done = preparation(tmp_path, green, Recorded({})).execute(PreparationPlan(steps))
    assert [one.target for one, _ in done.failed] == [SINGLE, "persistent://a/b/c"]
    assert [one.target for one in done.done] == [f"{SINGLE}2"]
    assert not done.is_complete


def test_versions_of_a_schema_stop_at_the_first_that_is_refused(tmp_path: Path) -> None:
    green = Recorded({}, refuses="add_schema")
    value = {"type": "AVRO", "schema": "{}", "properties": {}}
    steps = tuple(
        PreparationStep(Side.GREEN, PreparationAction.SCHEMA, SINGLE, str(number), value, None, NAME)
        for number in range(3)
    )
    done = preparation(tmp_path, green, Recorded({})).execute(PreparationPlan(steps))
    assert [one.key for one, _ in done.failed] == ["0"]


def test_a_policy_that_somebody_changed_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    blue = Recorded(policies("blue"))
    before = policies("blue")["inactive_topic_policies"]
    step = PreparationStep(Side.BLUE, PreparationAction.POLICY, NAME, KEY, {"deleteWhileInactive": False}, before, NAME)
    operation = preparation(tmp_path, Recorded({}), blue)
    assert operation.execute(PreparationPlan((step,))).done == (step,)
    blue.current = policies("blue", inactive_topic_policies={"deleteWhileInactive": True, "x": "changed"})
    done = operation.execute(PreparationPlan((step,)))
    assert len(done.failed) == 1
    assert len(blue.written) == 1
    # Nor is it given back.
    assert operation.take_back(operation.held([NAME])).failed
    blue.current = policies("blue", inactive_topic_policies={"deleteWhileInactive": False})
    assert not operation.take_back(operation.held([NAME])).failed
    assert blue.written[-1] == ("set_policy", (NAME, KEY, before))
    assert operation.held([NAME]) == []


def test_what_another_broker_does_not_know_yet_is_waited_for(tmp_path: Path) -> None:
    green = Recorded(policies("green"))
    failures = [NotFoundError("not yet")] * 2
    slept: list[float] = []

    class Late(Recorded):
        def policies(self, namespace: str) -> dict[str, Any]:
            if failures:
                raise failures.pop()
            return super().policies(namespace)

    late = Late(policies("green"))
    sides = observing(written("green", late, green), written("blue", late, green))
    operation = Preparation(sides, [], PreparationJournal(tmp_path), slept.append)
    step = PreparationStep(
        Side.GREEN, PreparationAction.POLICY, NAME, KEY, {"a": 1}, policies("green")["inactive_topic_policies"], NAME
    )
    assert operation.execute(PreparationPlan((step,))).done == (step,)
    assert len(slept) == 2
    failures += [NotFoundError("gone")] * 9
    assert [why for _, why in operation.execute(PreparationPlan((step,))).failed] == ["gone"]


def test_all_of_the_journal_is_taken_back_where_nothing_is_named(tmp_path: Path) -> None:
    operation = preparation(tmp_path, Recorded({}), Recorded({}))
    with PreparationJournal(tmp_path).writing() as note:
        note(BEGUN, STEP)
        note(BEGUN, PreparationStep(Side.GREEN, PreparationAction.POLICY, NAME, "messageTTL", 5, None, NAME))
    assert operation.held() == [STEP]
    assert operation.held([NAME]) == [STEP]
    assert operation.held(["a/b"]) == []


def test_the_journal_names_a_step_before_it_is_taken(tmp_path: Path) -> None:
    journal = PreparationJournal(tmp_path)
    noted: list[int] = []
    green = Recorded({})

    class Looking(Recorded):
        def __getattr__(self, name: str) -> Callable[..., None]:
            noted.append(len(journal.changes()))
            return super().__getattr__(name)

    looking = Looking({})
    operation = Preparation(observing(written("green", green, looking), written("blue", green)), [], journal)
    operation.execute(PreparationPlan((PreparationStep(Side.GREEN, PreparationAction.TENANT, "t", value={}),)))
    assert noted == [1]


def test_sides_are_those_of_the_journal() -> None:
    assert record_of(PreparationStep, record_fields(STEP)) == STEP
    assert isinstance(side("blue"), ClusterInfo)
