"""Nodes are saved whole, and put back only whole, by compare-and-set, while no broker lives."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from bookwarden.bookie_clusters.brokers import BROKERS_PATH
from bookwarden.bookie_clusters.offline.saved_nodes import (
    NodeRestorer,
    compare_saved,
    read_saved,
    restore_nodes,
    save_nodes,
)
from bookwarden.errors import FileError, FormatError, RefusedError
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.wrappers import ForwardingStore
from unit.switching.mortal import Killed, Mortal

URL = "zk:pulsar:2181"
TOPIC = "/managed-ledgers/t/n/persistent/topic-{}"
COUNT = 700


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    for number in range(COUNT):
        made.create(TOPIC.format(number), b"list \x00 %d" % number, make_parents=True)
    made.create(f"{TOPIC.format(0)}/sub", b"cursor")
    made.create("/schemas/t/n/topic-0", b"schema", make_parents=True)
    made.create("/admin/policies", b"not ours", make_parents=True)
    return made


def damage(store: MemoryStore) -> None:
    """What brokers on the wrong cluster do: rewrite some, remove one, make one."""
    for number in (1, 600):
        store.put(TOPIC.format(number), b"shorter", 0)
    store.delete_many([(f"{TOPIC.format(0)}/sub", 0)])
    store.create(TOPIC.format("new"), b"new")


def test_what_was_saved_is_there_again_and_what_is_new_stays(store: MemoryStore, tmp_path: Path) -> None:
    file = save_nodes(store, URL, tmp_path / "new", "stopped")
    assert file.stat().st_mode & 0o077 == 0
    saved = {node.path: node.value for node in read_saved(file, URL)}
    assert len([path for path in saved if "/topic-" in path]) == COUNT + 2
    assert saved[TOPIC.format(5)] == b"list \x00 5"
    assert "/admin/policies" not in saved
    damage(store)
    found = compare_saved(store, file, URL)
    assert (found.nodes, found.changed, found.gone, found.total) == (len(saved), 2, 1, 3)
    assert set(found.shown) == {TOPIC.format(1), TOPIC.format(600), f"{TOPIC.format(0)}/sub"}

    store.create(f"{BROKERS_PATH}/br1", b"{}", make_parents=True)
    restoring = NodeRestorer(store, URL)
    with pytest.raises(RefusedError, match="while brokers live, such as br1"):
        restoring.carry_out(file)
    assert compare_saved(store, file, URL).total == 3
    store.delete_many([(f"{BROKERS_PATH}/br1", 0)])
    done = restoring.carry_out(file)
    assert done.written == 3
    assert restoring.plan(file).total == 0
    new = store.get(TOPIC.format("new"))
    assert new is not None
    # What was there before can be put back as well.
    before = {node.path: node.value for node in read_saved(done.before, URL)}
    assert before[TOPIC.format(600)] == b"shorter"


def test_killed_at_any_write_it_is_repeated(store: MemoryStore, tmp_path: Path) -> None:
    file = save_nodes(store, URL, tmp_path, "stopped")
    damage(store)
    for number in range(3):
        with pytest.raises(Killed):
            restore_nodes(Mortal(store, 0), file, URL, lambda: None)
        assert compare_saved(store, file, URL).total == 2 - number
    assert restore_nodes(store, file, URL, lambda: None) == 0


class Raced(ForwardingStore):
    """Somebody else writes each node right before it is written."""

    def put(self, path: str, value: bytes, version: int) -> int:
        super().put(path, b"by another", version)
        return super().put(path, value, version)


def test_what_somebody_writes_meanwhile_is_not_written_over(store: MemoryStore, tmp_path: Path) -> None:
    file = save_nodes(store, URL, tmp_path, "stopped")
    store.put(TOPIC.format(1), b"shorter", 0)
    with pytest.raises(RefusedError, match="was written by another client meanwhile"):
        restore_nodes(Raced(store), file, URL, lambda: None)
    node = store.get(TOPIC.format(1))
    assert node is not None
    assert node.value == b"by another"


def changed(file: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    with gzip.open(file, "rb") as opened:
        lines = opened.readlines()
    with gzip.open(file, "wb") as written:
        written.writelines(change(lines))


def cut_bytes(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (cut_bytes, "cannot be read whole"),
        (lambda file: changed(file, lambda lines: lines[:-1]), "is cut off"),
        (lambda file: changed(file, lambda lines: [lines[0], *lines[2:]]), "is damaged: its checksum"),
        (lambda file: changed(file, lambda lines: [b"{}\n", *lines[1:]]), "has no saved nodes of format 1"),
        (lambda file: file.write_bytes(b"something else"), "cannot be read whole"),
    ],
)
def test_a_file_that_is_damaged_puts_nothing_back(
    store: MemoryStore, tmp_path: Path, spoil: Callable[[Path], object], says: str
) -> None:
    file = save_nodes(store, URL, tmp_path, "stopped")
    damage(store)
    spoil(file)
    with pytest.raises(FormatError, match=says):
        restore_nodes(store, file, URL, lambda: None)
    found = store.get_many([TOPIC.format(1), TOPIC.format(600), f"{TOPIC.format(0)}/sub"])
    assert [node and node.value for node in found] == [b"shorter", b"shorter", None]


def test_nodes_of_another_cluster_are_refused(store: MemoryStore, tmp_path: Path) -> None:
    file = save_nodes(store, "zk:other:2181", tmp_path, "stopped")
    with pytest.raises(RefusedError, match=f"was saved from zk:other:2181, and the settings name {URL}"):
        compare_saved(store, file, URL)


def test_a_folder_that_cannot_be_written_is_told(store: MemoryStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="the nodes cannot be saved"):
        save_nodes(store, URL, tmp_path / "file" / "below", "stopped")
