"""Two bookie clusters in one metadata store, and in two: ledgers found, deleted where they are, and put back."""

from __future__ import annotations

import pytest

from bookwarden.bookie_clusters.registry import REGISTRY_PATH
from bookwarden.ledgers.metadata import AbsentLedger, Condition, DeleteResult, Restoration, StoredLedger
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.memory import MemoryStore
from contract.test_metadata_store import FACTORIES, Pair
from servers.metadata_tree import remove_tree
from unit.deletion.test_sweep_places import Site
from unit.deletion.test_sweeping import mark
from unit.switching.two_bookie_clusters import COPY, ROOTS, TwoBookieClusters


@pytest.fixture(params=FACTORIES, ids=lambda factory: factory.__name__)
def store(request: pytest.FixtureRequest) -> MetadataStore:
    pair: Pair = request.param(request)
    return pair[0]


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["one store", "two stores"])
def test_ledgers_in_two_clusters_are_swept_and_put_back(store: MetadataStore, is_elsewhere: bool) -> None:
    site = Site(store, MemoryStore() if is_elsewhere else None)
    try:
        site.ledger("a", 601)
        site.ledger("b", 602)
        site.ledger("a", 603)
        site.ledger("b", 603, **COPY)
        found = [each for each in site.catalog.read_many([601, 602, 603]) if isinstance(each, StoredLedger)]
        assert [place.bookie_cluster for each in found for place in each.places] == ["a", "b", "b", "a"]
        assert site.outcomes(mark(601), mark(602), mark(603)) == [Outcome.DELETED] * 3
        assert [site.places_of(ledger_id) for ledger_id in (601, 602, 603)] == [""] * 3
        catalogs = site.clusters.catalogs()
        for place in found[2].places:
            catalogs[place.bookie_cluster].restore_many([Restoration(603, place.path, place.raw)])
        assert site.places_of(603) == "ab"
        (again,) = site.catalog.read_many([603])
        assert isinstance(again, StoredLedger)
        assert site.catalog.delete_many(again.places) == [DeleteResult.DELETED] * 2
        assert site.catalog.read_many([603]) == [AbsentLedger(603)]
    finally:
        forget(site)


@pytest.mark.parametrize("is_swapped", [False, True], ids=["b elsewhere", "a and Pulsar elsewhere"])
def test_nodes_of_one_store_are_not_demanded_of_the_other(store: MetadataStore, is_swapped: bool) -> None:
    """A holder's node is in the store of the settings alone: another store knows no such path, and deletes as it is."""
    pair = (MemoryStore(), store) if is_swapped else (store, MemoryStore())
    site = Site(*pair)
    try:
        site.ledger("b", 611)
        site.ledger("a", 612)
        found = [each for each in site.catalog.read_many([611, 612]) if isinstance(each, StoredLedger)]
        assert [each.bookie_cluster for each in found] == ["b", "a"]
        here, there = pair
        here.create("/named", b"", make_parents=True)
        holder = [Condition("/named", 0)]
        assert there.get("/named") is None
        assert site.catalog.delete_many(found, [holder, holder]) == [DeleteResult.DELETED] * 2
        assert site.catalog.read_many([611, 612]) == [AbsentLedger(611), AbsentLedger(612)]
    finally:
        remove_tree(pair[0], "/named")
        forget(site)


def forget(site: TwoBookieClusters) -> None:
    """Leave no registry and no ledgers to other tests of a shared store, nor to this one when it is tried again."""
    for path in (REGISTRY_PATH, *ROOTS.values()):
        for each in {id(one): one for one in site.stores.values()}.values():
            remove_tree(each, path)
