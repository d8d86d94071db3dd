"""The state of following in files: it comes back as it was, and a damaged one is told."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from bookwarden.errors import FormatError, RefusedError
from bookwarden.follow.table import FollowedNodes, NodeNow
from bookwarden.ledgers.naming import NamedCopy, copies_text, pack, pack_ids
from bookwarden.ledgers.pending_deletion import OffloadContext
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.memory import MemoryStore
from bookwarden.pipelines.follow import state
from bookwarden.pipelines.follow.driver import load_state
from bookwarden.pipelines.follow.state import KeptRoot, KeptState
from bookwarden.wire.pb import managed_ledger_pb2

ROOT = "zk:one"
COPY = NamedCopy(2, OffloadContext(-7, 8, "S3", {"bucket": "b"}))


def path(number: int) -> str:
    return f"/managed-ledgers/t/n/persistent/{number}"


def now(number: int, *ids: int, gone: bool = False, copies: tuple[NamedCopy, ...] = ()) -> NodeNow:
    naming = None if gone else pack("topic", pack_ids(ids), None, copies_text(copies))
    return NodeNow(ROOT, path(number), naming, 5)


def loaded(folder: Path) -> FollowedNodes:
    return loaded_by(folder, {ROOT: MemoryStore()})[0]


def loaded_by(folder: Path, stores: Mapping[str, MetadataStore]) -> tuple[FollowedNodes, KeptState]:
    """Load the state as the driver does, with the roots of the settings."""
    nodes, kept = FollowedNodes(1000), KeptState(str(folder))
    load_state(kept, nodes, stores, str(folder))
    return nodes, kept


def keep_one_node_and_a_timer(folder: Path, root: str = ROOT) -> None:
    """Keep a topic that lists ledger 2, and the timer of its ledger 1."""
    nodes, kept = FollowedNodes(1000), KeptState(str(folder))
    kept.load(nodes, {})
    nodes.take([now(1, 1, 2)._replace(root=root)], 0)
    nodes.take([now(1, 2)._replace(root=root)], 0)
    kept.keep(nodes)


def store_with(number: int, *ids: int) -> MemoryStore:
    """Return a root in which that topic lists these ledgers."""
    store = MemoryStore()
    info = managed_ledger_pb2.ManagedLedgerInfo()
    for ledger_id in ids:
        info.ledgerInfo.add(ledgerId=ledger_id)
    store.create(path(number), info.SerializeToString(), make_parents=True)
    return store


def test_nodes_and_timers_come_back(tmp_path: Path) -> None:
    nodes, kept = FollowedNodes(1000), KeptState(str(tmp_path))
    assert not kept.load(nodes, {})
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


@pytest.mark.parametrize(
    ("before", "now_named", "ids"),
    [
        ("zk:a:2181,b:2181/pulsar", "zk:c,b,a/pulsar", ()),
        ("zk:a:2181/pulsar", "oxia://o:6648/pulsar", (2, 3)),
        ("zk:a:2181", "zk:zookeeper.example:2181/chroot", (2,)),
    ],
    ids=["one more host", "moved to Oxia", "another name of the ensemble"],
)
def test_a_root_with_another_url_is_followed_on(
    tmp_path: Path, before: str, now_named: str, ids: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    keep_one_node_and_a_timer(tmp_path, before)
    nodes, kept = loaded_by(tmp_path, {now_named: store_with(1, *ids)})
    assert [(root, path) for root, path, _ in nodes.items()] == [(now_named, path(1))]
    assert [timer.drop.root for _, timer in nodes.timers.items()] == [now_named]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    # From then on by its present URL, which needs no proof.
    kept.keep(nodes)
    again, _ = loaded_by(tmp_path, {now_named: MemoryStore()})
    assert list(again.items()) == list(nodes.items())
    assert dict(again.timers.items()) == dict(nodes.timers.items())


def test_timers_alone_are_followed_on_by_the_one_root_that_there_is(tmp_path: Path) -> None:
    nodes, kept = FollowedNodes(1000), KeptState(str(tmp_path))
    nodes.take([now(1, 1)], 0)
    nodes.take([now(1, gone=True)], 0)
    kept.keep(nodes)
    assert 1 in loaded_by(tmp_path, {"zk:other": MemoryStore()})[0].timers


@pytest.mark.parametrize("ids", [(), (7, 8)], ids=["no such topic", "a topic of that name"])
def test_a_state_of_which_all_would_be_forgotten_is_refused(tmp_path: Path, ids: tuple[int, ...]) -> None:
    keep_one_node_and_a_timer(tmp_path)
    stores = {"zk:other": store_with(1, *ids) if ids else MemoryStore()}
    with pytest.raises(
        RefusedError, match=r"is of zk:one, and .* names zk:other, .* 1 dropped ledgers never looked at"
    ):
        loaded_by(tmp_path, stores)


def test_a_root_that_is_followed_no_more_is_told_with_its_timers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep_one_node_and_a_timer(tmp_path)
    nodes, kept = FollowedNodes(1000), KeptState(str(tmp_path))
    kept.load(nodes, {})
    nodes.take([now(2, 5)._replace(root="zk:two"), now(2, gone=True)._replace(root="zk:two")], 0)
    kept.keep(nodes)
    nodes, _ = loaded_by(tmp_path, {"zk:two": MemoryStore()})
    assert (len(nodes), [key for key, _ in nodes.timers.items()]) == (0, [5])
    assert "zk:one is no longer followed" in caplog.text
    assert "1 dropped ledgers of it, which were still to be looked at, are left out" in caplog.text


def test_of_many_nodes_a_sample_as_they_are_last_is_compared() -> None:
    root = KeptRoot()
    root.take((path(number), pack("topic", pack_ids([number]))) for number in range(10_000))
    root.take((path(number), pack("topic", pack_ids([-number]))) for number in range(10_000))
    assert 100 < len(root.nodes) <= 500
    assert all(naming == pack("topic", pack_ids([-int(of.rpartition("/")[2])])) for of, naming in root.nodes.items())


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
