"""Messages that kill a step are cut out, and nothing else is; what was sent on is not sent again by a replay."""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bookwarden.deletion.phase_two.isolation import MAX_CUT_OUT, Isolation
from bookwarden.deletion.phase_two.sent_on import FileSentRecords, SentOn, SentRecords
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.errors import (
    PoisonedBatchError,
    PulsarUnavailableError,
    StoreError,
    StoreUnavailableError,
    UnconfirmedError,
)
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from servers.sweep_parts import sweep_with
from unit.deletion.test_sweeping import DATA, NOW, POLICY, World, mark

ONE = SentOn("topic", "1:2:0", "retry", "line\nand a \t tab")


class Step:
    """A step over numbers that fails at some of them."""

    def __init__(self, *poisonous: int) -> None:
        self.poisonous = frozenset(poisonous)
        self.calls: list[int] = []
        self.isolation = Isolation()

    def act(self, part: Sequence[int]) -> list[str]:
        self.calls.append(len(part))
        for number in part:
            if number in self.poisonous:
                raise ValueError(f"number {number}")
        return [str(number) for number in part]

    def run(self, numbers: Sequence[int]) -> list[str]:
        made = self.isolation.carry_out(numbers, self.act, lambda number, error: [f"cut out {number}: {error}"])
        return [text for part in made for text in part]


def test_a_step_without_fault_is_done_once() -> None:
    step = Step()
    assert step.run([1, 2, 3]) == ["1", "2", "3"]
    assert step.calls == [3]


def test_a_step_that_fails_once_is_done_the_second_time() -> None:
    failures = [ValueError("once")]

    def act(part: Sequence[int]) -> int:
        if failures:
            raise failures.pop()
        return len(part)

    assert list(Isolation().carry_out([1, 2], act, lambda number, error: 0)) == [2]


@pytest.mark.parametrize("poisonous", [0, 1, 499, 998, 999])
def test_one_of_many_is_found_by_halves_and_the_others_are_done_once(poisonous: int) -> None:
    step = Step(poisonous)
    made = step.run(range(1000))
    assert [text for text in made if text.startswith("cut")] == [f"cut out {poisonous}: number {poisonous}"]
    assert sorted(map(int, (text for text in made if not text.startswith("cut")))) == [
        number for number in range(1000) if number != poisonous
    ]
    assert len(step.calls) <= 2 + 2 * 11


def test_what_fails_for_every_message_stops_instead_of_filling_the_dlq() -> None:
    step = Step(*range(1000))
    with pytest.raises(PoisonedBatchError, match="more than 10 messages fail one by one"):
        step.run(range(1000))


def test_messages_that_come_one_by_one_and_all_fail_stop_it_too_and_one_that_is_settled_begins_anew() -> None:
    step = Step(*range(1, 1000))
    for number in range(1, MAX_CUT_OUT + 1):
        step.run([number])
    step.run([0])
    for number in range(1, MAX_CUT_OUT + 1):
        step.run([number])
    with pytest.raises(PoisonedBatchError):
        step.run([99])


@pytest.mark.parametrize("error", [StoreUnavailableError("away"), PulsarUnavailableError("away"), OSError(28, "full")])
def test_an_outage_is_no_messages_fault(error: Exception) -> None:
    def act(part: Sequence[int]) -> int:
        raise error

    with pytest.raises(type(error)):
        list(Isolation().carry_out([1, 2], act, lambda number, error: 0))


def with_records(world: World, records: SentRecords) -> World:
    """Let another process of the sweep take the world over, which keeps records."""
    world.sweep_object = sweep_with(
        world.catalog,
        world.references,
        world.recorder,
        world.recorder,
        POLICY,
        SweepLimits(1000, 0.0),
        sent=records,
        clock=lambda: NOW,
    )
    return world


def failing_at(ledger_id: int) -> Callable[[Sequence[OutcomeRow]], list[OutcomeRow]]:
    def tell(rows: Sequence[OutcomeRow]) -> list[OutcomeRow]:
        if any(row.ledger_id == ledger_id and row.outcome is not Outcome.POISONOUS for row in rows):
            raise TypeError("no such row")
        return list(rows)

    return tell


def test_a_mark_whose_outcome_cannot_be_told_has_one_letter_and_the_others_are_settled() -> None:
    world = World()
    for ledger_id in range(8):
        world.population.ledger(ledger_id, DATA)
    world.population.names(DATA, [6, 7])
    marks = [mark(ledger_id, age=5) for ledger_id in range(8)]
    told = [row for rows in world.sweep_object.carry_out(marks, "run/0", failing_at(6)) for row in rows]
    assert sorted((row.ledger_id or 0) for row in told) == list(range(8))
    assert world.recorder.given_up == [
        (Outcome.POISONOUS, "the sweep fails at this message alone: TypeError: no such row")
    ]
    assert [ledger for ledger, _ in world.recorder.retried] == [7]
    assert [row.ledger_id for row in told if row.outcome is Outcome.POISONOUS] == [6]


def test_an_error_under_the_decoding_is_the_messages_own() -> None:
    world = World()
    world.population.ledger(1, DATA)
    broken = replace(mark(2), mark=None, failure=KeyError("field"))
    assert sorted(world.outcomes(broken, mark(1)), key=str) == [Outcome.DELETED, Outcome.POISONOUS]
    assert world.recorder.given_up[0][1].endswith("KeyError: 'field'")


def test_a_replayed_batch_sends_nothing_again_and_tells_the_same(tmp_path: Path) -> None:
    world = World()
    for ledger_id in (1, 2):
        world.population.ledger(ledger_id, DATA)
    world.population.names(DATA, [1, 2])
    broken = replace(mark(3), mark=None, problem="ledgerId is missing")
    marks = (mark(1, age=5), mark(2, attempts=2, age=5), broken)
    first = with_records(world, FileSentRecords(tmp_path)).outcomes(*marks)
    again = with_records(world, FileSentRecords(tmp_path)).outcomes(*marks)
    assert (len(world.recorder.retried), len(world.recorder.given_up)) == (1, 2)
    assert sorted(first, key=str) == sorted(again, key=str)


def test_a_replay_deletes_what_it_may_delete_by_now_though_a_retry_was_sent(tmp_path: Path) -> None:
    world = World()
    world.population.ledger(1, DATA)
    world.population.names(DATA, [1])
    assert with_records(world, FileSentRecords(tmp_path)).outcomes(mark(1, age=5)) == [Outcome.RETRY]
    world.population.ledger(9, DATA)
    world.population.names(DATA, [9])
    assert with_records(world, FileSentRecords(tmp_path)).outcomes(mark(1, age=5)) == [Outcome.DELETED]


def test_what_the_broker_did_not_confirm_is_sent_again(tmp_path: Path) -> None:
    world = World()
    world.population.ledger(1, DATA)
    world.population.names(DATA, [1])
    world.recorder.flush_error = PulsarUnavailableError("not confirmed")
    with pytest.raises(PulsarUnavailableError):
        with_records(world, FileSentRecords(tmp_path)).outcomes(mark(1, age=5))
    world.recorder.flush_error = None
    assert with_records(world, FileSentRecords(tmp_path)).outcomes(mark(1, age=5)) == [Outcome.RETRY]
    assert len(world.recorder.retried) == 2


def test_what_the_broker_confirmed_is_not_sent_again_for_what_it_did_not(tmp_path: Path) -> None:
    world = World()
    for ledger_id in (1, 2):
        world.population.ledger(ledger_id, DATA)
    world.population.names(DATA, [1, 2])
    marks = mark(1, age=5), mark(2, age=5)
    world.recorder.flush_error = UnconfirmedError("one was not", [(marks[1].topic, marks[1].message_id)])
    for _ in range(3):
        with pytest.raises(UnconfirmedError):
            with_records(world, FileSentRecords(tmp_path)).outcomes(*marks)
    world.recorder.flush_error = None
    assert with_records(world, FileSentRecords(tmp_path)).outcomes(*marks) == [Outcome.RETRY] * 2
    assert [ledger_id for ledger_id, _ in world.recorder.retried] == [1, 2, 2, 2, 2]


@pytest.mark.parametrize("mode", [0o2770, 0o750])
def test_workers_of_other_users_record_as_well_where_they_may_write_the_journal(tmp_path: Path, mode: int) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    journal.chmod(mode)
    FileSentRecords(journal / "sent").add("q/1", [ONE])
    assert stat.S_IMODE((journal / "sent").stat().st_mode) == mode
    assert [path.name for path in journal.iterdir()] == ["sent"]
    assert list(FileSentRecords(journal / "sent").read("q/1")) == [ONE]


class Full(FileSentRecords):
    def add(self, run: str, sent: Sequence[SentOn]) -> None:
        raise StoreError("disk full")


def test_what_was_sent_counts_though_it_cannot_be_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.population.ledger(1, DATA)
    world.population.names(DATA, [1])
    assert with_records(world, Full(tmp_path)).outcomes(mark(1, age=5)) == [Outcome.RETRY]
    assert "would send 1 messages again: disk full" in caplog.text


def test_records_are_those_of_a_batch_whoever_wrote_them_and_end_with_the_next(tmp_path: Path) -> None:
    FileSentRecords(tmp_path).add("query-a/9", [ONE])
    FileSentRecords(tmp_path).add("query-b/9", [ONE])
    records = FileSentRecords(tmp_path)
    records.add("query-a/10", [replace(ONE, message_id="1:3:0")])
    records.add("query-a/10", [ONE])
    assert sorted(one.message_id for one in records.read("query-a/10")) == ["1:2:0", "1:3:0"]
    assert (list(records.read("query-a/9")), list(records.read("query-b/9"))) == ([], [ONE])


def test_a_record_that_is_cut_off_is_none(tmp_path: Path) -> None:
    FileSentRecords(tmp_path).add("q/1", [ONE, ONE])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert list(FileSentRecords(tmp_path).read("q/1")) == [ONE]
