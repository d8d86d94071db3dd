"""A scan sees the metadata roots of other clusters on its ensembles, and makes no plan without them."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bookwarden.scan_context
from bookwarden.config import load_settings
from bookwarden.errors import RefusedError, StoreAccessError
from bookwarden.metastore.memory import MemoryStore
from bookwarden.metastore.urls import split_chroot, with_chroot
from bookwarden.pipelines.orphan_scan import OrphanScan
from bookwarden.scan_context import ScanContext


@pytest.fixture
def ensembles(monkeypatch: pytest.MonkeyPatch) -> dict[str, MemoryStore]:
    """The ensembles by their URLs, opened without a chroot."""
    made: dict[str, MemoryStore] = {}

    def open_ensemble(_: Any, url: str) -> MemoryStore:
        return made[url]

    monkeypatch.setattr(bookwarden.scan_context, "open_single_store", open_ensemble)
    return made


def ensemble(*roots: str, bookkeepers: tuple[str, ...] = ()) -> MemoryStore:
    store = MemoryStore()
    for root in roots:
        store.create(f"{root}/managed-ledgers", b"", make_parents=True)
    for root in bookkeepers:
        store.create(f"{root}/ledgers/LAYOUT", b"2", make_parents=True)
    return store


def context_of(*urls: str, **others: str) -> ScanContext:
    return ScanContext(load_settings(overrides={"metadata_store.urls": str(list(urls)), **others}))


def test_a_root_beside_those_of_the_settings_is_named(ensembles: dict[str, MemoryStore]) -> None:
    ensembles["zk:a:1,b:1"] = ensemble("/blue", "/green", bookkeepers=("/blue",))
    with context_of("zk:b:1,a:1/blue") as context:
        assert context.unconfigured_roots() == ["zk:a:1,b:1/green"]


def test_roots_of_the_settings_and_those_with_their_own_bookkeeper_are_not(ensembles: dict[str, MemoryStore]) -> None:
    ensembles["zk:a:1"] = ensemble("/blue", "/green", "/red", bookkeepers=("/blue", "/red"))
    with context_of("zk:a:1/blue", "zk:a:1/green/") as context:
        assert context.unconfigured_roots() == []


def test_the_ensemble_of_bookkeeper_is_looked_at_too(ensembles: dict[str, MemoryStore]) -> None:
    ensembles["zk:a:1"] = ensemble("/blue")
    ensembles["zk:books:1"] = ensemble("/green", bookkeepers=("",))
    with context_of("zk:a:1/blue", **{"metadata_store.bookkeeper_url": "zk:books:1"}) as context:
        assert context.unconfigured_roots() == ["zk:books:1/green"]


def test_an_ensemble_that_may_not_be_looked_at_is_told(
    ensembles: dict[str, MemoryStore], caplog: pytest.LogCaptureFixture
) -> None:
    class Shut(MemoryStore):
        def list_children(self, path: str) -> list[str]:
            raise StoreAccessError(f"{path} may not be read")

    ensembles["zk:a:1"] = Shut()
    with context_of("zk:a:1/blue") as context, caplog.at_level(logging.WARNING):
        assert context.unconfigured_roots() == []
    assert "whether other Pulsar clusters have their metadata on zk:a:1 cannot be seen" in caplog.text


def test_the_chroots_of_a_snapshot_are_looked_at_in_the_file(
    ensembles: dict[str, MemoryStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "snapshot.4f"
    ensembles[f"zk-snapshot:{file}"] = ensemble("/blue", "/green")
    settings = load_settings(overrides={"metadata_store.urls": "['zk:a:1/blue']"})
    monkeypatch.setattr("bookwarden.context.open_store", lambda *_, **__: MemoryStore())
    with ScanContext(settings, f"zk-snapshot:{file}") as context:
        assert context.unconfigured_roots() == [f"zk-snapshot:{file}#/green"]


def test_no_scan_begins_while_a_root_is_not_configured(ensembles: dict[str, MemoryStore], tmp_path: Path) -> None:
    ensembles["zk:a:1"] = ensemble("/blue", "/green")
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    urls = {"metadata_store.urls": "['zk:a:1/blue']", "orphans.folder": str(tmp_path)}
    with pytest.raises(RefusedError, match="managed ledgers in zk:a:1/green too"):
        OrphanScan(spark, load_settings(overrides=urls)).begin()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("zk:b:1,a:1/x/y/", ("zk:a:1,b:1", "/x/y")),
        ("zk://a:1", ("zk:a:1", "")),
        ("zk-snapshot:/f?logs=/l#/x", ("zk-snapshot:/f?logs=/l", "/x")),
        ("memory:one", ("memory:one", "")),
    ],
)
def test_an_ensemble_has_one_url_whatever_the_order_of_its_hosts(url: str, parts: tuple[str, str]) -> None:
    assert split_chroot(url) == parts
    assert split_chroot(with_chroot(*parts)) == parts
