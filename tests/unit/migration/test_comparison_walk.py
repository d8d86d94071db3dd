"""Two metadata stores walked side by side: in bounded batches, in parts, by several threads, each node once."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Sequence

import pytest

from bookwarden.errors import StoreUnavailableError
from bookwarden.metadata_migration import walking
from bookwarden.metadata_migration.comparison import Comparison, Difference, DifferenceClass, VersionRule
from bookwarden.metadata_migration.walking import WorkQueue
from bookwarden.metastore.interface import Versioned
from servers.planted_tree import Planted, node, tree


def test_many_directories_are_read_in_few_batches_of_a_bounded_size() -> None:
    nodes = tree(*(f"/t/{topic:04d}/c{cursor}" for topic in range(2_000) for cursor in range(2)))
    source = Planted(nodes)
    report = Comparison(source, Planted(dict(nodes))).run()
    assert report.compared == 6_001
    assert source.largest_batch <= 1_000
    # The topics, and their cursors fifty topics at a time.
    assert source.calls["get_many"] <= 2 + 2 + 2_000 // 50
    assert source.calls["list_many"] <= 2 + 2_000 // 50


def test_directories_with_many_children_are_listed_apart() -> None:
    nodes = tree(*(f"/d{number}/{child:03d}" for number in range(6) for child in range(400)))
    target = Planted(dict(nodes))
    report = Comparison(Planted(nodes, tells_children=True), target).run()
    assert report.compared == 6 * 401
    assert target.most_listed <= 1_000


class Endless:
    """A tree of ``width`` to the third leaves, made as it is read."""

    answers_at_once = True

    def __init__(self, width: int) -> None:
        self._names = [f"n{number:04d}" for number in range(width)]

    def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
        return [node()] * len(paths)

    def list_many(self, paths: Sequence[str]) -> list[list[str]]:
        return [self._names if path == "/" or path.count("/") < 3 else [] for path in paths]

    def parents_among(self, paths: Sequence[str]) -> set[str]:
        return {path for path in paths if path.count("/") < 3}

    def sync(self) -> None:
        pass


def test_a_tree_is_never_in_memory_as_a_whole() -> None:
    comparing = Comparison(Endless(40), Endless(40))
    tracemalloc.start()
    try:
        report = comparing.run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.compared == 40 + 40**2 + 40**3
    # The paths alone would take more than five times as much.
    assert peak < 1_000_000


@pytest.mark.parametrize("at_once", [True, False])
def test_each_difference_is_found_once_in_small_batches(monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    monkeypatch.setattr(walking, "_BATCH", 7)
    nodes = tree(*(f"/t/{one:02d}/{two}/c" for one in range(40) for two in range(one % 9)), "/other/flat")
    nodes |= tree(*(f"/flat/{number:03d}" for number in range(300)))
    target = {**nodes, "/flat/200": node(b"damaged"), "/t/10/0/c/x": node()}
    del target["/t/17/4/c"], target["/t/17/4"]
    source, copy = Planted(nodes, answers_at_once=at_once), Planted(target, tells_children=False)
    found: list[Difference] = []
    report = Comparison(source, copy, versions=VersionRule.REQUIRED, sink=found.extend).run()
    assert (report.compared, report.equal) == (len(nodes.keys() | target.keys()), len(nodes) - 3)
    assert sorted((one.path, one.kind) for one in found) == [
        ("/flat/200", DifferenceClass.BYTES),
        ("/t/10/0/c/x", DifferenceClass.EXTRA),
        ("/t/17/4", DifferenceClass.MISSING),
        ("/t/17/4/c", DifferenceClass.MISSING),
    ]


def test_no_more_pieces_wait_than_there_is_room_for() -> None:
    pieces = WorkQueue(["first"], 2)
    assert [pieces.offer("second"), pieces.offer("third")] == [True, False]
    assert list(pieces.each()) == ["first", "second"]


def test_an_error_of_a_store_ends_the_comparison_in_all_threads() -> None:
    class Failing(Planted):
        def get_many(self, paths: Sequence[str]) -> list[Versioned | None]:
            if "/a/5/x" in paths:
                raise StoreUnavailableError("no answer")
            return super().get_many(paths)

    nodes = tree(*(f"/a/{number}/x" for number in range(40)))
    with pytest.raises(StoreUnavailableError, match="no answer"):
        Comparison(Failing(nodes, answers_at_once=False), Planted(nodes)).run()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("compare")]


def test_directories_are_compared_by_several_threads_where_a_store_waits_for_servers() -> None:
    meeting = threading.Barrier(3, timeout=30)

    class Waiting(Planted):
        def list_many(self, paths: Sequence[str]) -> list[list[str]]:
            if paths[0].startswith("/a/"):
                # Nobody passes alone.
                meeting.wait()
            return super().list_many(paths)

    nodes = tree(*(f"/a/{number}/x" for number in range(3)))
    report = Comparison(Waiting(nodes, answers_at_once=False), Planted(dict(nodes))).run()
    assert report.compared == 7
