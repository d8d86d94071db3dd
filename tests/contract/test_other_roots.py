"""Metadata roots of other Pulsar clusters on one ensemble are found by their managed ledgers."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest

from bookwarden.clusters.pulsar.other_roots import roots_on, roots_without_bookkeeper
from bookwarden.errors import StoreError
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.zookeeper import ZooKeeperStore


@pytest.fixture(params=["memory", "zookeeper"])
def ensemble(request: pytest.FixtureRequest) -> MetadataStore:
    if request.param == "memory":
        return MemoryStore()
    connect: Callable[..., ZooKeeperStore] = request.getfixturevalue("connect")
    place = f"/ensemble-{secrets.token_hex(4)}"
    connect().create(place, b"")
    return connect(chroot=place)


def test_every_chroot_with_managed_ledgers_is_found(ensemble: MetadataStore) -> None:
    before = roots_on(ensemble)
    for path in (
        "/blue/managed-ledgers/t",
        "/pulsar/managed-ledgers",
        "/company/green/managed-ledgers",
        "/not-a-pulsar/ledgers/00",
        # In a topic's place, and too deep for a chroot.
        "/admin/policies/managed-ledgers",
        "/one/two/three/managed-ledgers",
    ):
        ensemble.create(path, b"", make_parents=True)
    assert before == []
    assert sorted(roots_on(ensemble)) == ["/blue", "/company/green", "/pulsar"]
    ensemble.create("/managed-ledgers", b"")
    assert roots_on(ensemble)[0] == ""


def test_a_root_with_a_bookkeeper_of_its_own_does_not_share_ours(ensemble: MetadataStore) -> None:
    for path in ("/ours-a/managed-ledgers", "/ours-b/managed-ledgers", "/theirs/managed-ledgers"):
        ensemble.create(path, b"", make_parents=True)
    ensemble.create("/theirs/ledgers/LAYOUT", b"2", make_parents=True)
    ensemble.create("/ours-a/ledgers/INSTANCEID", b"id", make_parents=True)
    found = roots_without_bookkeeper(ensemble, "/ours-a/ledgers")
    assert sorted(found) == ["/ours-a", "/ours-b"]
    assert roots_without_bookkeeper(ensemble, None) == ["/ours-b"]


def test_an_ensemble_that_does_not_answer_has_no_answer() -> None:
    store = MemoryStore()
    store.close()
    with pytest.raises(StoreError):
        roots_on(store)
