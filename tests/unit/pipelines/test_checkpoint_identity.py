"""Whose a checkpoint is: recorded beside it, another cluster's refused by name, one that does not say it taken over."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bookwarden.wiring.cluster
from bookwarden.bookie_clusters.offline.record import MoveNode, MovePhase, MoveRecord
from bookwarden.bookie_clusters.registry import BookieCluster, Registry
from bookwarden.bookie_clusters.registry_node import RegistryNode
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.config import load_settings
from bookwarden.errors import FormatError, RefusedError
from bookwarden.metastore.memory import MemoryStore
from bookwarden.pipelines.streams.checkpoint_identity import (
    IDENTITY_FILE,
    CheckpointIdentity,
    FolderIdentityFile,
    identity_of,
    require_own,
)
from bookwarden.wiring.cluster import Cluster

P0, P1 = "persistent://t/n/marks-partition-0", "persistent://t/n/marks-partition-1"
OURS = CheckpointIdentity(frozenset({"blue"}), "0a1b2c3d", frozenset({"i-1"}), {P0: 800, P1: 801})
WITHOUT_REGISTRY = replace(OURS, owner="")

SAME: dict[str, tuple[CheckpointIdentity, CheckpointIdentity]] = {
    "nothing changed": (OURS, OURS),
    "ledgers were trimmed": (OURS, replace(OURS, first_ledgers={P0: 950, P1: 801})),
    "partitions were added": (replace(OURS, first_ledgers={P0: 800}), OURS),
    "replication with another cluster began": (OURS, replace(OURS, clusters=frozenset({"blue", "green"}))),
    "bookie clusters were registered": (WITHOUT_REGISTRY, replace(OURS, instances=frozenset({"i-1", "i-2"}))),
    "the first one was unregistered": (OURS, replace(OURS, instances=frozenset({"i-2"}))),
    "ledgers were moved to another BookKeeper": (
        WITHOUT_REGISTRY,
        replace(WITHOUT_REGISTRY, instances=frozenset({"i-1", "i-2"})),
    ),
    "the registry is gone, the BookKeeper is not": (OURS, WITHOUT_REGISTRY),
    "nothing of it was known": (CheckpointIdentity(), OURS),
    "nothing of it is known now": (OURS, CheckpointIdentity()),
}
ANOTHER: dict[str, tuple[CheckpointIdentity, CheckpointIdentity, str]] = {
    "another registry": (OURS, replace(OURS, owner="ffffffff"), "owner 0a1b2c3d, .* is ffffffff"),
    "another name": (WITHOUT_REGISTRY, replace(WITHOUT_REGISTRY, clusters=frozenset({"green"})), "blue, .* green"),
    "another name, and only one has a registry": (
        OURS,
        replace(WITHOUT_REGISTRY, clusters=frozenset({"green"})),
        "blue",
    ),
    "installed again under its name": (
        WITHOUT_REGISTRY,
        replace(WITHOUT_REGISTRY, instances=frozenset({"i-9"})),
        "BookKeeper instance i-1, .* i-9",
    ),
    "a topic made again with smaller ids": (
        OURS,
        replace(OURS, first_ledgers={P0: 12, P1: 801}),
        f"800 as the first ledger of {P0}, and found was 12",
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_what_changes_in_the_life_of_a_cluster_is_no_difference(case: str) -> None:
    recorded, found = SAME[case]
    assert recorded.difference(found) is None


@pytest.mark.parametrize("case", ANOTHER)
def test_another_cluster_is_told_by_what_differs(case: str, tmp_path: Path) -> None:
    recorded, found, told = ANOTHER[case]
    kept = file(tmp_path)
    require_own(kept, recorded, "sweep.checkpoint")
    before = (tmp_path / IDENTITY_FILE).read_bytes()
    with pytest.raises(
        RefusedError, match=rf"^{tmp_path} is the checkpoint of another .*{told}.*sweep\.checkpoint"
    ) as said:
        require_own(kept, found, "sweep.checkpoint")
    assert f"remove {IDENTITY_FILE} in it" in str(said.value)
    assert (tmp_path / IDENTITY_FILE).read_bytes() == before


def file(folder: Path, *, begun: bool = False) -> FolderIdentityFile:
    return FolderIdentityFile(str(folder), begun=begun)


def test_it_reads_back_as_it_was_written() -> None:
    assert CheckpointIdentity.parse(OURS.serialize()) == OURS


def test_what_is_learned_later_is_recorded_too(tmp_path: Path) -> None:
    require_own(file(tmp_path), WITHOUT_REGISTRY, "sweep.checkpoint")
    require_own(file(tmp_path), OURS, "sweep.checkpoint")
    assert CheckpointIdentity.parse((tmp_path / IDENTITY_FILE).read_bytes()) == OURS


def test_a_checkpoint_that_does_not_say_whose_it_is_is_taken_over_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3):
        require_own(file(tmp_path, begun=True), OURS, "sweep.checkpoint")
    (line,) = caplog.messages
    assert f"{tmp_path} does not say whose checkpoint it is" in line
    assert "Pulsar cluster blue, owner 0a1b2c3d, BookKeeper instance i-1" in line


def test_a_new_checkpoint_says_whose_it_is_without_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    require_own(file(tmp_path), OURS, "sweep.checkpoint")
    assert caplog.messages == []
    assert json.loads((tmp_path / IDENTITY_FILE).read_bytes())["registryOwner"] == "0a1b2c3d"


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b'{"format": 2}', b'{"format": 1, "firstLedgers": 3}', OURS.serialize()[:-9], b"\xff"]
)
def test_one_that_cannot_be_read_is_no_licence(tmp_path: Path, value: bytes) -> None:
    (tmp_path / IDENTITY_FILE).write_bytes(value)
    with pytest.raises(FormatError, match=rf"{tmp_path}/{IDENTITY_FILE} .*cannot be read: .*remove that file"):
        require_own(file(tmp_path), OURS, "sweep.checkpoint")
    assert (tmp_path / IDENTITY_FILE).read_bytes() == value


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()
    # The cluster closes it, and a test looks at it again.
    monkeypatch.setattr(made, "close", lambda: None)
    monkeypatch.setattr(bookwarden.wiring.cluster, "open_metadata_store", lambda *_, **__: made)
    for path, value in (
        ("/admin/clusters/blue", b""),
        ("/admin/clusters/global", b""),
        ("/ledgers/INSTANCEID", b"i-1"),
    ):
        made.create(path, value, make_parents=True)
    return made


def identity() -> CheckpointIdentity:
    settings = load_settings(overrides={"metadata_store.urls": "['memory:identity']"})
    with Cluster(settings) as cluster:
        return identity_of(cluster)


def cluster(name: str, instance: str, root: str, since: int, **more: Any) -> BookieCluster:
    return BookieCluster(name, f"zk:x:1{root}", None, root, instance, since, **more)


def test_a_cluster_without_a_registry_has_its_name_and_its_bookkeeper(store: MemoryStore) -> None:
    assert identity() == CheckpointIdentity(frozenset({"blue"}), "", frozenset({"i-1"}))


def test_registered_bookie_clusters_and_those_that_ledgers_were_moved_between_are_its_own(store: MemoryStore) -> None:
    clusters = {
        "old": cluster("old", "i-1", "/ledgers", 1, bootstrap=True),
        "new": cluster("new", "i-2", "/ledgers-b", 1),
    }
    RegistryNode(store, "memory:x").create(Registry(1, "0a1b2c3d", "/ledgers", "old", clusters))
    moved = MoveRecord(
        *("ffff0000", LedgersRoot("memory:x", "/ledgers-c"), "i-3", LedgersRoot("memory:x", "/ledgers"), "i-1"),
        *("zk:x:1/ledgers", "/folder", MovePhase.DONE),
        former=frozenset({"i-4"}),
    )
    MoveNode(store).write(moved)
    assert identity() == CheckpointIdentity(frozenset({"blue"}), "0a1b2c3d", frozenset({"i-1", "i-2", "i-3", "i-4"}))


def test_a_registry_that_cannot_be_read_is_an_error_and_not_its_absence(store: MemoryStore) -> None:
    store.create("/bookwarden/bookie-clusters", b"{", make_parents=True)
    with pytest.raises(FormatError, match="is no registry"):
        identity()


def test_a_move_of_the_metadata_makes_all_nodes_again_and_changes_nothing(store: MemoryStore) -> None:
    """As PIP-454 does: the same nodes with other times and versions."""
    before = identity()
    for path in ("/admin/clusters/blue", "/ledgers/INSTANCEID"):
        node = store.get(path)
        assert node is not None
        store.delete_many([(path, node.version)])
        store.create(path, node.value)
    assert identity() == before
