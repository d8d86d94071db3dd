"""Nodes to be deleted, in runs."""

from __future__ import annotations

from bookwarden.metastore.doomed_nodes import Target, runs


def test_nodes_with_paths_of_their_own_are_one_run_in_their_order() -> None:
    targets = [Target("/b", 1), Target("/a", 2), Target("/c", 1)]
    assert [list(run.values()) for run in runs(targets)] == [targets]
    assert list(runs([])) == []


def test_a_pair_goes_once_and_other_versions_of_its_path_in_later_runs() -> None:
    targets = [Target("/a", 1), Target("/a", 2), Target("/b", 1), Target("/a", 1), Target("/a", 3), Target("/a", 2)]
    assert [[(target.path, target.version) for target in run.values()] for run in runs(targets)] == [
        [("/a", 1), ("/b", 1)],
        [("/a", 2)],
        [("/a", 3)],
    ]
