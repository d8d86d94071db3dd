"""Two bookie clusters in one metadata store, on every store: ledgers found, deleted where they are, and put back."""

from __future__ import annotations

import pytest

from bookwarden.ledgers.metadata import AbsentLedger, DeleteResult, Restoration, StoredLedger
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.registry import REGISTRY_PATH
from contract.test_metadata_store import FACTORIES, Pair
from servers.metadata_tree import remove_tree
from unit.deletion.test_sweep_places import Site
from unit.deletion.test_sweeping import mark
from unit.switching.two_bookie_clusters import COPY, ROOTS, TwoBookieClusters


@pytest.fixture(params=FACTORIES, ids=lambda factory: factory.__name__)
def store(request: pytest.FixtureRequest) -> MetadataStore:
    pair: Pair = request.param(request)
    return pair[0]


def test_ledgers_in_two_clusters_are_swept_and_put_back(store: MetadataStore) -> None:
    site = Site(store)
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


def forget(site: TwoBookieClusters) -> None:
    """Leave no registry and no ledgers to other tests of a shared store, nor to this one when it is tried again."""
    for path in (REGISTRY_PATH, *ROOTS.values()):
        remove_tree(site.store, path)
