"""The state of following in files: it comes back as it was, and a damaged one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookwarden.deletion.dropped.table import FollowedNodes, NodeNow
from bookwarden.errors import FormatError
from bookwarden.ledgers.nodes.naming import NamedCopy, copies_text, pack, pack_ids
from bookwarden.ledgers.pending_deletion import OffloadContext
from bookwarden.pipelines.follow import state
from bookwarden.pipelines.follow.state import KeptState

ROOT = "zk:one"
COPY = NamedCopy(2, OffloadContext(-7, 8, "S3", {"bucket": "b"}))


def path(number: int) -> str:
    return f"/managed-ledgers/t/n/persistent/{number}"


def now(number: int, *ids: int, gone: bool = False, copies: tuple[NamedCopy, ...] = ()) -> NodeNow:
    naming = None if gone else pack("topic", pack_ids(ids), None, copies_text(copies))
    return NodeNow(ROOT, path(number), naming, 5)


def loaded(folder: Path) -> FollowedNodes:
    nodes = FollowedNodes(1000)
    KeptState(str(folder)).load(nodes, [ROOT])
    return nodes


def test_nodes_and_timers_come_back(tmp_path: Path) -> None:
    nodes, kept = FollowedNodes(1000), KeptState(str(tmp_path))
    assert not kept.load(nodes, [ROOT])
    nodes.take([now(1, 1, 2, copies=(COPY,)), now(2, 3), now(3, 4)], 0)
    kept.keep(nodes)
    nodes.take([now(1, 2), now(2, gone=True), now(3, 5)], 100)
    kept.keep(nodes)
    nodes.take([now(3, 4, 5)], 100)
    nodes.settle(timer.drop for timer in nodes.due(2000, 1))
    kept.keep(nodes)
    before, after = nodes, loaded(tmp_path)
    assert list(after.items()) == list(before.items())
    assert dict(after.timers.items()) == dict(before.timers.items())
    assert dict(after.timers.items()).keys() == {3, COPY.uuid}
    assert after.due(2000, 10) == before.due(2000, 10) != []


def test_nothing_changed_is_nothing_written(tmp_path: Path) -> None:
    nodes, kept = FollowedNodes(1000), KeptState(str(tmp_path))
    nodes.take([now(1, 1)], 0)
    kept.keep(nodes)
    nodes.take([now(1, 1)], 0)
    kept.keep(nodes)
    assert len(list(tmp_path.iterdir())) == 1


def test_one_file_with_everything_replaces_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_FEW_FILES", 3)
    nodes, kept = FollowedNodes(1000), KeptState(str(tmp_path))
    for number in range(12):
        nodes.take([now(number, number), now(number - 1, gone=True)], number)
        kept.keep(nodes)
    names = sorted(one.name for one in tmp_path.iterdir())
    assert sum("-all" in name for name in names) == 1
    assert len(names) <= 5
    after = loaded(tmp_path)
    assert list(after.items()) == list(nodes.items())
    assert dict(after.timers.items()) == dict(nodes.timers.items())


def test_files_before_one_with_everything_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a process that was killed before it removed them."""
    nodes, kept = FollowedNodes(1000), KeptState(str(tmp_path))
    nodes.take([now(1, 1)], 0)
    kept.keep(nodes)
    (first,) = tmp_path.iterdir()
    raw = first.read_bytes()
    monkeypatch.setattr(state, "_FEW_FILES", 0)
    nodes.take([now(1, gone=True), now(2, 2)], 0)
    kept.keep(nodes)
    first.write_bytes(raw)
    assert [one for _, one, _ in loaded(tmp_path).items()] == [path(2)]


def test_roots_that_are_followed_no_more_are_forgotten(tmp_path: Path) -> None:
    nodes, kept = FollowedNodes(1000), KeptState(str(tmp_path))
    nodes.take([now(1, 1)], 0)
    nodes.take([now(1, 2)], 0)
    kept.keep(nodes)
    others = FollowedNodes(1000)
    assert KeptState(str(tmp_path)).load(others, ["zk:other"])
    assert (len(others), len(others.timers)) == (0, 0)


def test_a_damaged_file_is_named_and_what_to_do(tmp_path: Path) -> None:
    nodes, kept = FollowedNodes(1000), KeptState(str(tmp_path))
    nodes.take([now(1, 1)], 0)
    kept.keep(nodes)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(FormatError, match=f"{file.name} is damaged.*orphan scan"):
        loaded(tmp_path)


def test_what_could_not_be_written_is_kept_for_the_next_time(tmp_path: Path) -> None:
    nodes, kept = FollowedNodes(1000), KeptState(str(tmp_path / "state"))
    nodes.take([now(1, 1)], 0)
    (tmp_path / "state").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="state"):
        kept.keep(nodes)
    (tmp_path / "state").unlink()
    nodes.take([now(2, 2)], 0)
    kept.keep(nodes)
    assert [one for _, one, _ in loaded(tmp_path / "state").items()] == [path(1), path(2)]


def test_a_timer_keeps_what_is_known_of_its_wait(tmp_path: Path) -> None:
    nodes, kept = FollowedNodes(1000), KeptState(str(tmp_path))
    nodes.take([now(1, 1)], 0)
    nodes.take([now(1, gone=True)], 0)
    (timer,) = nodes.due(1000, 1)
    waiting = timer._replace(due_ms=61_000, first_look_ms=1000, looks=1, reason="no \N{EM DASH} answer")
    nodes.postpone([waiting])
    kept.keep(nodes)
    assert dict(loaded(tmp_path).timers.items()) == {1: waiting}
