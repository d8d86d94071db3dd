"""The scan over two bookie clusters: each ledger is listed once, strangers are kept, and a copy hides no ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from bookwarden.config import Settings, load_settings
from bookwarden.errors import StoreError, TruncatedListingError
from bookwarden.ledgers.custom_metadata import COPY_KEY, OWNER_KEY
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import LedgerState
from bookwarden.metastore.memory import MemoryStore
from bookwarden.orphans.apply import difference
from bookwarden.orphans.plan import Candidate
from bookwarden.pipelines.columns.tables import CHANGES
from bookwarden.pipelines.scan.files import ScanFolder
from bookwarden.pipelines.scan.places import read_listed
from bookwarden.pipelines.scan.reading import CHANGES_STAGE, LEDGERS_STAGE, CompareListings, ReadLedgers, as_json
from bookwarden.wiring.scan import ScanSources
from unit.switching.two_bookie_clusters import COPY, OWNER, TwoBookieClusters

OURS = {OWNER_KEY: OWNER.encode()}
OPEN: dict[str, Any] = {"state": LedgerState.OPEN, "last": None, "length": 0}


@pytest.fixture
def settings() -> Settings:
    return load_settings(overrides={"metadata_store.urls": f"['memory:{uuid4()}']"})


@pytest.fixture
def context(settings: Settings) -> Iterator[ScanSources]:
    with ScanSources(settings) as made:
        yield made


@pytest.fixture
def site(context: ScanSources) -> TwoBookieClusters:
    made = TwoBookieClusters(context.cluster.store)
    made.register()
    return made


def rows_of(context: ScanSources) -> dict[tuple[str, int], dict[str, Any]]:
    """Read all pieces; return the rows by cluster and id."""
    context.cluster.bookkeeper.clusters.invalidate()
    return {
        (piece.cluster, row["ledger_id"]): row
        for piece in context.listing.pieces()
        for row in read_listed(context, piece).table.to_pylist()
    }


def test_each_ledger_is_listed_once_where_its_original_is(context: ScanSources, site: TwoBookieClusters) -> None:
    site.ledger("a", 1)
    site.ledger("b", 2, **OURS)
    site.ledger("a", 3)
    site.ledger("b", 3, **COPY, **OURS)
    site.ledger("b", 4, **OURS)
    site.ledger("a", 4, **COPY)
    site.ledger("a", 5)
    site.ledger("b", 5, **OPEN, **COPY, **OURS)
    # The original is gone, and a copy that brokers do not read is left.
    site.ledger("b", 6, **OPEN, **COPY, **OURS)
    # Only copies are left: it is where brokers read it.
    site.ledger("a", 7, **COPY)
    site.ledger("b", 7, **COPY, **OURS)
    rows = rows_of(context)
    assert sorted(rows) == [("a", 1), ("a", 3), ("a", 5), ("b", 2), ("b", 4), ("b", 7)]
    assert all((row["kind"], row["holder"]) == ("MANAGED_LEDGER", "t/ns/persistent/orders") for row in rows.values())
    assert rows["b", 2]["path"].startswith("/bookies-b/")


def test_what_is_not_ours_is_kept_or_not_there(context: ScanSources, site: TwoBookieClusters) -> None:
    site.ledger("a", 1, **{OWNER_KEY: b"00000000"})
    site.ledger("b", 2, **{OWNER_KEY: b"00000000"})
    site.ledger("b", 3)
    site.ledger("b", 4, **OURS)
    path = site.ledger("b", 5)
    site.store.put(path, b"what", 0)
    by_the_first_release = rows_of(context)
    site.register(site.changed("b", unmarked_below=0))
    rows = rows_of(context)
    assert rows == by_the_first_release
    assert {place: row["holder"] for place, row in rows.items()} == {
        **dict.fromkeys([("a", 1), ("b", 2), ("b", 3), ("b", 5)]),
        ("b", 4): "t/ns/persistent/orders",
    }
    assert rows["b", 3]["custom"] == "it has no owner mark in bookie cluster b, and ours is 5f2c9a41"
    assert "the owner mark 00000000" in rows["a", 1]["custom"]
    assert rows["b", 5]["problem"]
    site.register(site.changed("b", shared=True))
    assert sorted(rows_of(context)) == [("a", 1), ("b", 4)]


def test_two_originals_of_an_id_are_both_listed_so_that_neither_is_a_candidate(
    context: ScanSources, site: TwoBookieClusters
) -> None:
    site.ledger("a", 1)
    site.ledger("b", 1, **OURS)
    site.ledger("a", 2)
    site.ledger("b", 2, holder=ManagedLedgerHolder("t/ns/persistent/other"), **COPY, **OURS)
    assert sorted(rows_of(context)) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_without_a_registry_there_is_one_listing(context: ScanSources) -> None:
    site = TwoBookieClusters(context.cluster.store)
    site.ledger("a", 1, **COPY)
    site.ledger("b", 2)
    assert sorted(rows_of(context)) == [("", 1)]
    site.register()
    (piece, *_) = context.listing.pieces()
    assert piece.cluster == ""
    with pytest.raises(StoreError, match="'c' is not registered any more"):
        read_listed(context, replace(piece, cluster="c"))


def scanned(context: ScanSources, folder: ScanFolder) -> list[Any]:
    """Read the first listing of all pieces; return these."""
    pieces = [as_json(piece) for piece in context.listing.pieces()]
    for number, piece in enumerate(pieces):
        ReadLedgers(source_of(context))(folder, number, piece)
    return pieces


def source_of(context: ScanSources) -> Any:
    return SimpleNamespace(shared=lambda: context)


def changes(context: ScanSources, folder: ScanFolder, pieces: list[Any], begun_ms: int) -> list[tuple[int, bool]]:
    """List all pieces again; return what changed, by id."""
    found: list[tuple[int, bool]] = []
    for number, piece in enumerate(pieces):
        compare = CompareListings(source_of(context), begun_ms)
        compare(folder, number, {"piece": piece, "first": number})
        rows = folder.read(CHANGES_STAGE, number, CHANGES.arrow.names).to_pylist()
        found += [(row["ledger_id"], row["gone"]) for row in rows]
    return sorted(found)


def test_the_second_listing_takes_no_copy_for_a_ledger_that_the_first_lacks(
    context: ScanSources, site: TwoBookieClusters, tmp_path: Path
) -> None:
    for ledger_id in (1, 2, 3):
        site.ledger("a", ledger_id)
        site.ledger("b", ledger_id, **COPY, **OURS)
    gone = site.ledger("b", 4, **OURS)
    folder = ScanFolder(str(tmp_path / "scan"))
    pieces = scanned(context, folder)
    assert [folder.read(LEDGERS_STAGE, number, ["ledger_id"]).num_rows for number in range(len(pieces))] == [1, 3]
    far = 2**60
    assert changes(context, folder, pieces, far) == []
    node = site.store.get(gone)
    assert node is not None
    site.store.delete_many([(gone, node.version)])
    assert changes(context, folder, pieces, far) == [(4, True)]
    site.ledger("b", 9, **OURS)
    assert changes(context, folder, pieces, 0) == [(4, True), (9, False)]
    with pytest.raises(TruncatedListingError, match="lacks 1 ledgers that were there before it, such as 9"):
        changes(context, folder, pieces, far)


def test_a_plan_is_of_the_clusters_that_are_registered(context: ScanSources, site: TwoBookieClusters) -> None:
    both = context.plan_cluster.identity()
    assert both.instance_id == "instance-a of a instance-a, b instance-b"
    site.register(replace(site.registry, active="a", clusters={"a": site.registry.clusters["a"]}))
    assert context.plan_cluster.identity().instance_id == "instance-a"


def test_a_planned_ledger_is_compared_in_the_place_where_it_was_listed() -> None:
    site = TwoBookieClusters(MemoryStore())
    site.register()
    path = site.ledger("a", 1)
    site.ledger("b", 1, **{COPY_KEY: b"9:1000"})
    node = site.store.get(path)
    assert node is not None
    holder, ctime = "t/ns/persistent/orders", 1_600_000_000_000
    planned = Candidate(1, "MANAGED_LEDGER", holder, "c", path, 0, node.created_ms, ctime, 1000, "CLOSED", 0)
    (reading,) = site.catalog.read_many([1])
    assert difference(planned, reading) is None
    site.store.put(path, node.value, 0)
    (reading,) = site.catalog.read_many([1])
    assert difference(planned, reading) is not None
