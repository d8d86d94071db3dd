"""Dead letters on the command line, as programs read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import bookwarden.cli.dlq
from bookwarden.cli.main import cli
from bookwarden.deletion.dead_letters import DeadLetter
from bookwarden.errors import MalformedMarkError
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.ledgers.received import ReceivedMark

LARGE = 300_000


@pytest.fixture
def one_large_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {"theirs": "x" * LARGE, "short": "y"}
    received = ReceivedMark("dlq-partition-0", "1:0:-1", "key", b"\x00" * LARGE, properties, 1_000)

    def decode(*_: object) -> PendingDeletion:
        raise MalformedMarkError("it is no mark")

    @contextmanager
    def opened(_: Any) -> Iterator[Any]:
        letters = SimpleNamespace(read=lambda *_, **__: iter([DeadLetter(received, "because", "malformed", 0)]))
        yield SimpleNamespace(dead_letters=letters, decode=decode)

    monkeypatch.setattr(bookwarden.cli.dlq, "_opened", opened)


@pytest.mark.usefixtures("one_large_letter")
def test_the_example_of_a_group_is_cut_and_tells_how_large_it_is() -> None:
    shown = CliRunner().invoke(cli, ["-o", "json", "dlq", "list", "--group-by", "reason"])
    assert shown.exit_code == 0, shown.output
    assert len(shown.output) < 5_000
    (group,) = json.loads(shown.stdout)["groups"]
    assert (group["reason"], group["payload_bytes"], group["example"]["id"]) == ("because", LARGE, "1:0:-1")
    assert group["example"]["properties"]["theirs"].endswith("... (300,000 bytes)")
    assert group["example"]["properties"]["short"] == "y"
