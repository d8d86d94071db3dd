"""Nothing is destroyed that nobody confirmed."""

from __future__ import annotations

import io

import pytest

from bookwarden.cli.shell.questions import confirm, confirm_unproven
from bookwarden.errors import RefusedError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_it_is_refused() -> None:
    with pytest.raises(RefusedError, match="--yes"):
        confirm("Delete?", yes=False)


def test_yes_on_the_command_line_skips_the_question() -> None:
    confirm("Delete?", yes=True)


@pytest.mark.parametrize("answer", ["n\n", "\n"])
def test_an_answer_that_is_not_yes_is_a_no(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    with pytest.raises(RefusedError, match="nothing was done"):
        confirm("Delete?", yes=False)


def test_yes_on_the_terminal_lets_it_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    confirm("Delete?", yes=False)
    assert capsys.readouterr().out == "", "the question goes to the standard error"


def test_what_is_not_proven_is_asked_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("y\nn\n"))
    confirm_unproven("It is not known", accepted=False, option="--accept it", yes=False)
    with pytest.raises(RefusedError, match="nothing was done"):
        confirm_unproven("It is not known", accepted=False, option="--accept it", yes=False)


@pytest.mark.parametrize("terminal", [False, True])
def test_without_a_question_only_its_option_accepts_what_is_not_proven(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    if terminal:
        monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    with pytest.raises(RefusedError, match="It is not known: if you know that all is right, add --accept it"):
        confirm_unproven("It is not known", accepted=False, option="--accept it", yes=terminal)
    confirm_unproven("It is not known", accepted=True, option="--accept it", yes=terminal)
