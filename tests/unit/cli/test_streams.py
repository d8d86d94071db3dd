"""Commands with a line for each of millions write while they read, and keep little."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bookwarden.cli import dlq, sweep
from bookwarden.cli.main import cli
from bookwarden.cli.shell.output import JsonWriter, TextWriter
from bookwarden.deletion.dead_letters import DeadLetters
from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.outcomes import Outcome, OutcomeRow
from bookwarden.ledgers.received import ReceivedMark

MANY = 5_000


def row(ledger_id: int) -> OutcomeRow:
    outcome = Outcome.WOULD_DELETE if ledger_id % 5 else Outcome.RETRY
    return OutcomeRow(
        *(ledger_id, "t/n/persistent/orders", "MANAGED_LEDGER", "LEDGER", outcome, "", 0, None, 1, 1, None, None),
        *("persistent://t/n/d", "1:2:3", ""),
    )


def test_a_dry_run_of_the_sweep_writes_its_first_lines_while_it_looks_at_the_others() -> None:
    output, most_unwritten = io.StringIO(), 0

    def rows() -> Iterator[OutcomeRow]:
        nonlocal most_unwritten
        for ledger_id in range(MANY):
            most_unwritten = max(most_unwritten, ledger_id - output.getvalue().count("orders"))
            yield row(ledger_id)

    TextWriter(output, io.StringIO()).write_stream(sweep._described(rows()))
    assert most_unwritten == 999
    lines = output.getvalue().splitlines()
    assert len(lines) == MANY + 3
    assert lines[-1] == "Dry run over 5,000 marks: 1,000 retry, 4,000 would delete. Nothing was changed."
    written = io.StringIO()
    JsonWriter(written, io.StringIO()).write_stream(sweep._described(map(row, range(7))))
    found = json.loads(written.getvalue())
    assert [one["ledger_id"] for one in found["outcomes"]] == list(range(7))
    assert found["counts"] == {"would delete": 5, "retry": 2}


def test_a_dry_run_of_nothing_says_so() -> None:
    output = io.StringIO()
    TextWriter(output, io.StringIO()).write_stream(sweep._described([]))
    assert output.getvalue() == "Nothing is in flight.\n\nDry run over 0 marks. Nothing was changed.\n"


class Box:
    """A DLQ of very many letters, made as they are read."""

    def __init__(self, count: int) -> None:
        self.left = dict.fromkeys(range(count))
        self.most_held = self._held = 0
        self.sent = 0

    @contextmanager
    def open(self) -> Iterator[Box]:
        yield self

    def __iter__(self) -> Iterator[ReceivedMark]:
        for number in list(self.left):
            self._held += 1
            self.most_held = max(self.most_held, self._held)
            yield ReceivedMark("dlq", f"1:{number}:-1", "key", b"x", {"bookwarden.reason": "away"}, 1)

    def send_back(self, received: ReceivedMark, properties: object) -> None:
        self.sent += 1

    def confirm(self) -> None:
        pass

    def acknowledge(self, received: ReceivedMark) -> None:
        self._held -= 1
        del self.left[int(received.message_id.split(":")[1])]


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Box:
    made = Box(MANY)

    def decode(topic: str, payload: bytes, version: bytes | None) -> Any:
        raise MalformedMarkError("no mark")

    topics = type("Topics", (), {"dead_letters": DeadLetters(made), "decode": staticmethod(decode)})  # type: ignore[arg-type]
    monkeypatch.setattr(dlq, "_opened", lambda _: nullcontext(topics))
    return made


def run(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(cli, ["dlq", *arguments], input=answer, catch_exceptions=False)


def test_very_many_dead_letters_are_sent_back_and_told_with_few_of_them_held(box: Box) -> None:
    done = run("replay", "--all", "--yes")
    assert done.stdout.splitlines()[-1] == "Sent back: 5,000 dead letters."
    assert done.stdout.count("away") == MANY
    assert (box.sent, len(box.left), box.most_held) == (MANY, 0, 500)


def test_a_question_is_about_the_letters_that_are_taken_then(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def confirmed(question: str, *, yes: bool) -> None:
        asked.append(question)
        box.left.update(dict.fromkeys(range(MANY, MANY + 10)))

    monkeypatch.setattr(dlq, "confirm", confirmed)
    done = run("drop", "--reason", "away")
    assert asked == ["Drop 5,000 dead letters?"]
    assert done.stdout.splitlines()[-1] == "Dropped: 5,000 dead letters."
    assert list(box.left) == list(range(MANY, MANY + 10))


def test_programs_read_one_object_of_a_dry_run(box: Box) -> None:
    found = json.loads(CliRunner().invoke(cli, ["-o", "json", "dlq", "replay", "--all", "--dry-run"]).stdout)
    assert list(found) == ["dead_letters"]
    assert [one["id"] for one in found["dead_letters"]] == [f"1:{number}:-1" for number in range(MANY)]
    assert box.sent == 0
