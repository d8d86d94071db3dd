"""The demo of a live switch ends with nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookwarden.cli.shell.output import Note
from bookwarden_dev.commands.demos.switch import describe_switch, play_switch
from servers.switching.broker_jar import broker_jar

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def test_the_demo_of_a_switch_ends_with_nothing_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookwarden_dev.demo.stage.PACKAGED", broker_jar())
    # A quarter of the load that people see, in the same time.
    monkeypatch.setattr("bookwarden_dev.demo.switch_story.PER_SECOND", 10)
    monkeypatch.setattr("bookwarden_dev.demo.switch_story._MESSAGES", 38)
    told: list[str] = []
    finale = play_switch(tmp_path, told.append)
    assert finale.as_it_should, finale
    assert [(turn.source, turn.target) for turn in finale.turns] == [("a", "b"), ("b", "a")]
    assert [set(end.ledgers) for end in finale.topics] == [{"a", "b"}] * 6
    *_, verdict = describe_switch(finale, 1.0).parts
    assert isinstance(verdict, Note)
    assert " 0 lost; " in verdict.text
    assert told[-1] == "stopping everything"
