"""How a program for spark-submit ends."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

import pytest

from bookwarden.config import Settings
from bookwarden.errors import RefusedError
from bookwarden.pipelines.submitted import arguments_of, run_submitted

CHECKOUT = Path(__file__).parents[3]
SCRIPTS = sorted(path for folder in ("jobs", "streaming") for path in (CHECKOUT / folder).glob("*.py"))


def given(*words: str) -> argparse.Namespace:
    return arguments_of("A program.").parse_args(list(words))


def test_the_work_gets_its_settings_and_gives_the_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "bookwarden.yaml"
    file.write_text("sweep:\n  dry_run: true\n  ledgers_per_step: 7\n")
    seen: list[Settings] = []

    def work(settings: Settings) -> int:
        seen.append(settings)
        return 25

    words = ("--config", str(file), "--set", "sweep.ledgers_per_step=8")
    assert run_submitted(given(*words), work) == 25
    assert (seen[0].sweep.dry_run, seen[0].sweep.ledgers_per_step) == (True, 8)


@pytest.mark.parametrize(
    ("raised", "exit_code", "said"),
    [
        (RefusedError("another one builds"), RefusedError.exit_code, "another one builds"),
        (KeyboardInterrupt("paused"), 130, "paused"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_or_a_signal_is_logged_and_has_its_exit_code(
    raised: BaseException, exit_code: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    def work(settings: Settings) -> int:
        raise raised

    assert run_submitted(given(), work) == exit_code
    assert caplog.messages == [said]


def test_settings_that_are_wrong_are_an_error_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    code = run_submitted(given("--set", "sweep.no_such=1"), lambda _: 0)
    assert code != 0
    assert "no_such" in caplog.text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_flags_that_are_wrong_end_a_program_with_2_before_it_does_anything(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That spark-submit ends with the program's exit code is in tests/integration/test_spark_cluster.py."""
    monkeypatch.setattr("sys.argv", [str(script), "--no-such-flag"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 2
    assert f"{script.name}: error: " in capsys.readouterr().err
