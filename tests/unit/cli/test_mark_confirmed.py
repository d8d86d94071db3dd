"""What was confirmed is what is done: a topic that changes between question and answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import pytest
from click.testing import CliRunner, Result

import bookwarden.cli.mark
from bookwarden.cli.main import cli
from bookwarden.clusters.pulsar.messages.mark_sender import PendingDeletionSender
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import open_store
from servers.population import Population
from unit.deletion.test_mark_operations import NODE, TOPIC, managed_ledger

URL = "memory:mark-confirmed"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataStore]:
    with closing(open_store(URL)) as opened:
        population = Population(opened)
        for ledger_id in (1, 2, 3, 4, 7, 8):
            population.ledger(ledger_id, ManagedLedgerHolder(TopicName.parse(TOPIC).managed_ledger))
        opened.create(NODE, managed_ledger([1, 2, 3]).SerializeToString(), make_parents=True)
        with monkeypatch.context() as patched:
            # The command's store is the same, and looked at when the command has ended.
            patched.setattr(opened, "close", lambda: None)
            yield opened


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    ids: list[int] = []

    def send_all(_: PendingDeletionSender, marks: Sequence[PendingDeletion]) -> list[str | None]:
        ids.extend(mark.ledger_id for mark in marks)
        return [None] * len(marks)

    monkeypatch.setattr(PendingDeletionSender, "send_all", send_all)
    monkeypatch.setattr(bookwarden.cli.mark, "require_marking", lambda *_: None)
    return ids


@pytest.fixture
def trim(monkeypatch: pytest.MonkeyPatch, store: MetadataStore) -> Callable[[list[int]], Result]:
    """Trim, with another list by the time that the question is answered."""

    def run(now: list[int]) -> Result:
        def answer(question: str, *, yes: bool) -> None:
            assert question.endswith("2 ledgers would be marked.")
            assert not yes
            store.put(NODE, managed_ledger(now).SerializeToString(), store.get(NODE).version)

        monkeypatch.setattr(bookwarden.cli.mark, "confirm", answer)
        return CliRunner().invoke(cli, ["--set", f"metadata_store.urls=['{URL}']", "mark", "trim", "--store", TOPIC])

    return run


@pytest.mark.parametrize("now", [[1, 2, 3, 4], [2, 3, 4], [7, 8]])
def test_a_topic_of_which_more_would_be_marked_than_was_shown_is_left_alone(
    trim: Callable[[list[int]], Result], sent: list[int], store: MetadataStore, now: list[int]
) -> None:
    result = trim(now)
    assert result.exit_code != 0
    assert f"{TOPIC} changed since it was shown: 1 more would be marked, the first ledger" in result.stderr
    assert "nothing was done, run the command again" in result.stderr
    assert sent == []
    assert store.get(NODE).value == managed_ledger(now).SerializeToString()


@pytest.mark.parametrize(("now", "marked"), [([1, 2, 3], [1, 2]), ([2, 3], [2])])
def test_what_was_shown_is_done_as_far_as_it_is_still_there(
    trim: Callable[[list[int]], Result], sent: list[int], store: MetadataStore, now: list[int], marked: list[int]
) -> None:
    result = trim(now)
    assert result.exit_code == 0, result.stderr
    assert sent == marked
    assert store.get(NODE).value == managed_ledger([3]).SerializeToString()
