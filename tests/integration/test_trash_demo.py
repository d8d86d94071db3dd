"""The demo of the trash ends with everything back, and with what expired gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookwarden.cli.shell.output import Note
from bookwarden_dev.commands.demos.trash import describe_trash, play_trash
from servers.switching.broker_jar import broker_jar

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def test_the_demo_of_the_trash_ends_with_everything_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookwarden_dev.commands.demos.trash.packaged_jar", broker_jar)
    told: list[str] = []
    finale = play_trash(tmp_path, told.append)
    assert finale.as_it_should, finale
    assert [(end.under_live, end.sent, end.read) for end in finale.topics] == [(False, 75, 75), (True, 85, 85)]
    left = {end.under_live: [each.expected for each in end.subscriptions] for end in finale.topics}
    assert left == {False: [5, 40, 51], True: [15, 50, 61]}
    *_, verdict = describe_trash(finale, 1.0).parts
    assert isinstance(verdict, Note)
    assert verdict.text == "All came back as it was, and what expired is gone; 1 s."
    assert told[-1] == "stopping zookeeper"
