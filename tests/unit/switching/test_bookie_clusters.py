"""What the settings name is read among all registered bookie clusters; what cannot do that yet refuses."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from bookwarden.bookie_clusters.registry import REGISTRY_PATH
from bookwarden.config import Settings, load_settings
from bookwarden.errors import NoBookieError, RefusedError, StoreUnavailableError
from bookwarden.ledgers.metadata import AbsentLedger, StoredLedger
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.roots import roots_proof_of
from servers.population import register_bookie
from unit.switching.two_bookie_clusters import COPY, ELSEWHERE_URL, REGISTRY, TwoBookieClusters


@pytest.fixture
def settings() -> Settings:
    return load_settings(overrides={"metadata_store.urls": f"['memory:{uuid4()}']"})


@pytest.fixture
def opened(settings: Settings) -> Iterator[Cluster]:
    with Cluster(settings) as made:
        made.store.create("/bookwarden", b"")
        yield made


def test_a_process_finds_ledgers_in_every_registered_cluster(opened: Cluster) -> None:
    site = TwoBookieClusters(opened.store)
    site.ledger("a", 1)
    site.ledger("b", 1, **COPY)
    site.ledger("b", 2)
    one, two = opened.bookkeeper.catalog.read_many([1, 2])
    assert isinstance(one, StoredLedger)
    assert (one.bookie_cluster, one.elsewhere, two) == ("", (), AbsentLedger(2))
    assert opened.bookkeeper.clusters.of_new_ledgers() == (opened.store, "/ledgers")
    site.register()
    opened.bookkeeper.clusters.invalidate()
    one, two = opened.bookkeeper.catalog.read_many([1, 2])
    assert isinstance(one, StoredLedger)
    assert isinstance(two, StoredLedger)
    assert [place.bookie_cluster for place in (*one.places, *two.places)] == ["b", "a", "b"]
    # A bookie of either is found by its registration, whatever its id.
    opened.store.create("/bookies-b/available", b"")
    assert opened.bookkeeper.clusters.counter() == (opened.store, REGISTRY.id_root)
    assert opened.bookkeeper.clusters.of_new_ledgers() == (opened.store, "/bookies-b")


def test_what_can_be_done_with_one_cluster_only_refuses_where_several_are_registered(
    settings: Settings, opened: Cluster
) -> None:
    site = TwoBookieClusters(opened.store)
    site.register()
    proof = roots_proof_of(opened, of_snapshot=True)
    with pytest.raises(RefusedError, match="bookie clusters a, b are registered"):
        proof.require_all_roots()


def test_ledgers_of_a_second_pulsar_are_not_looked_for_by_the_registry_of_the_first() -> None:
    urls = f"['memory:{uuid4()}', 'memory:{uuid4()}']"
    with Cluster(load_settings(overrides={"metadata_store.urls": urls})) as opened:
        site = TwoBookieClusters(opened.store)
        assert opened.bookkeeper.catalog.read_many([1]) == [AbsentLedger(1)]
        site.register()
        opened.bookkeeper.clusters.invalidate()
        with pytest.raises(RefusedError, match="a second Pulsar cluster"):
            opened.bookkeeper.catalog.read_many([1])


def test_the_stores_that_registered_clusters_have_of_their_own_are_read_anew(opened: Cluster) -> None:
    clusters = opened.bookkeeper.clusters
    assert clusters.own_store_urls() == []
    TwoBookieClusters(opened.store, MemoryStore()).register()
    assert clusters.own_store_urls() == [ELSEWHERE_URL]
    node = opened.store.get(REGISTRY_PATH)
    assert node is not None
    opened.store.put(REGISTRY_PATH, b"{", node.version)
    with pytest.raises(StoreUnavailableError, match="where ledgers are is not known"):
        clusters.own_store_urls()


def test_the_active_cluster_must_have_a_bookie_and_one_that_is_only_read_need_not(opened: Cluster) -> None:
    site = TwoBookieClusters(opened.store)
    register_bookie(opened.store, "/ledgers")
    opened.bookkeeper.running_bookies.require()
    site.register()
    opened.bookkeeper.clusters.invalidate()
    with pytest.raises(NoBookieError, match=r"no bookie is registered in /bookies-b/available of bookie cluster b:"):
        opened.bookkeeper.running_bookies.require()
    register_bookie(opened.store, "/bookies-b")
    opened.store.delete_many([("/ledgers/available/127.0.0.1:3181", 0)])
    opened.bookkeeper.running_bookies.require()
