"""Nodes to be deleted, in runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from bookwarden.errors import StoreUnavailableError
from bookwarden.ledgers.metadata import DeleteResult
from bookwarden.metastore.deadline import Deadline
from bookwarden.metastore.doomed_nodes import BatchDelete, DoomedNode, runs
from bookwarden.metastore.interface import Versioned


def test_nodes_with_paths_of_their_own_are_one_run_in_their_order() -> None:
    targets = [DoomedNode("/b", 1), DoomedNode("/a", 2), DoomedNode("/c", 1)]
    assert [list(run.values()) for run in runs(targets)] == [targets]
    assert list(runs([])) == []


def test_a_pair_goes_once_and_other_versions_of_its_path_in_later_runs() -> None:
    targets = [
        DoomedNode("/a", 1),
        DoomedNode("/a", 2),
        DoomedNode("/b", 1),
        DoomedNode("/a", 1),
        DoomedNode("/a", 3),
        DoomedNode("/a", 2),
    ]
    assert [[(target.path, target.version) for target in run.values()] for run in runs(targets)] == [
        [("/a", 1), ("/b", 1)],
        [("/a", 2)],
        [("/a", 3)],
    ]


@dataclass
class Interrupted(BatchDelete):
    """Loses its connection, when it has sent so many nodes and read them back."""

    first: int
    rows: dict[str, Versioned]

    def _send_and_settle(self, targets: Sequence[DoomedNode]) -> None:
        self._sent = self.first > 0
        doubtful = [target._replace(in_doubt=True) for target in targets[: self.first]]
        self.left = self._still_to_delete(doubtful, Deadline(1))
        raise StoreUnavailableError("no connection")

    def _end(self, targets: Sequence[DoomedNode]) -> None:
        pass

    def _read(self, paths: Sequence[str], deadline: Deadline) -> list[Versioned | None]:
        return [self.rows.get(path) for path in paths]


def test_a_run_that_ends_early_settles_what_it_read_back_and_leaves_the_rest_unknown() -> None:
    rows = {"/as-before": Versioned(b"", 1, 5), "/changed": Versioned(b"", 2, 5), "/made-anew": Versioned(b"", 1, 6)}
    targets = [DoomedNode(path, 1, 5) for path in (*rows, "/gone", "/never-sent")]
    run = Interrupted(4, rows)
    assert run.run(targets) == {
        "/as-before": DeleteResult.UNKNOWN,
        "/changed": DeleteResult.LOST_RACE,
        "/made-anew": DeleteResult.LOST_RACE,
        "/gone": DeleteResult.DELETED,
        "/never-sent": DeleteResult.UNKNOWN,
    }
    assert run.left == [targets[0]._replace(in_doubt=True)]


def test_a_run_that_sent_nothing_raises() -> None:
    with pytest.raises(StoreUnavailableError):
        Interrupted(0, {}).run([DoomedNode("/a", 1)])
