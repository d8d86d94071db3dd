"""What `sweep` and `follow` do at their start where no broker answers: wait as they do later, or end with `--once`."""

from __future__ import annotations

from collections import Counter

import pytest
from click.testing import CliRunner

import bookwarden.cli.follow
import bookwarden.cli.sweep
from bookwarden.cli.main import cli
from bookwarden.config import Settings
from bookwarden.errors import ConfigError, PulsarError
from bookwarden.pipelines.follow.driver import FollowEnd
from bookwarden.pipelines.sweep.driver import SweepEnd

_AWAY = ("--set", "pulsar.admin_url=http://127.0.0.1:1", "--set", "metadata_store.urls=['memory:starting']")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a stream began, and with --once."""
    found: list[bool] = []

    def sweep(_: Settings, once: bool, _due: int) -> SweepEnd:
        found.append(once)
        return SweepEnd(Counter(), drained=True)

    def follow(_: Settings, once: bool) -> FollowEnd:
        found.append(once)
        return FollowEnd(Counter(), 0, 0, through=True)

    for command, name, run in ((bookwarden.cli.sweep, "_sweep", sweep), (bookwarden.cli.follow, "_follow", follow)):
        monkeypatch.setattr(command, "require_spark", lambda **_: None)
        monkeypatch.setattr(command, name, run)
    return found


@pytest.mark.parametrize("command", ["sweep", "follow"])
def test_a_broker_that_is_away_is_waited_for_by_the_stream_itself(begun: list[bool], command: str) -> None:
    done = CliRunner().invoke(cli, [*_AWAY, command])
    assert (done.exit_code, begun) == (0, [False]), done.output


@pytest.mark.parametrize("command", [["sweep", "--once"], ["sweep", "--dry-run"], ["follow", "--once"]])
def test_a_run_that_ends_by_itself_ends_at_once_where_a_broker_is_away(begun: list[bool], command: list[str]) -> None:
    done = CliRunner().invoke(cli, [*_AWAY, *command])
    assert (done.exit_code, begun) == (PulsarError.exit_code, [])


@pytest.mark.parametrize("command", ["sweep", "follow"])
def test_what_no_waiting_cures_ends_each_start(begun: list[bool], command: str) -> None:
    wrong = ("--set", "pulsar.auth=tls", "--set", "pulsar.admin_url=https://127.0.0.1:1")
    done = CliRunner().invoke(cli, [*_AWAY, *wrong, command])
    assert (done.exit_code, begun) == (ConfigError.exit_code, [])
