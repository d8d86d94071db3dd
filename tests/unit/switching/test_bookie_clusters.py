"""Where several bookie clusters are registered nothing is read as if there were one, nor while that is not known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from bookwarden.config import Settings, load_settings
from bookwarden.errors import RefusedError, StoreUnavailableError
from bookwarden.ledgers.metadata import AbsentLedger
from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.registry import REGISTRY_PATH, Registry, parse_registry, serialize_registry
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.roots import roots_proof_of

SAMPLES = Path(__file__).parents[2] / "data" / "bookie_cluster_registry" / "valid"
ONE = parse_registry((SAMPLES / "bootstrapped.json").read_bytes())
TWO = parse_registry((SAMPLES / "switched.json").read_bytes())


@pytest.fixture
def settings() -> Settings:
    return load_settings(overrides={"metadata_store.urls": f"['memory:{uuid4()}']"})


@pytest.fixture
def metadata(settings: Settings) -> Iterator[MetadataContext]:
    with MetadataContext(settings) as made:
        made.store.create("/ledgers", b"")
        made.store.create("/bookwarden", b"")
        yield made


def register(store: MetadataStore, value: Registry | bytes) -> None:
    text = value if isinstance(value, bytes) else serialize_registry(value)
    node = store.get(REGISTRY_PATH)
    if node is None:
        store.create(REGISTRY_PATH, text)
    else:
        store.put(REGISTRY_PATH, text, node.version)


def test_ledgers_are_not_looked_for_in_one_of_several_clusters(settings: Settings, metadata: MetadataContext) -> None:
    proof = roots_proof_of(settings.metadata_store, metadata)
    assert metadata.catalog.read_many([7]) == [AbsentLedger(7)]
    register(metadata.store, TWO)
    # The batch that began before goes on as it began; the next one, and a scan, are refused.
    assert metadata.catalog.read_many([7]) == [AbsentLedger(7)]
    with pytest.raises(RefusedError, match="bookie clusters a, b are registered"):
        proof.require_all_roots()
    metadata.bookie_clusters.look_again()
    with pytest.raises(RefusedError, match="bookie clusters a, b are registered"):
        metadata.catalog.read_many([7])


def test_one_registered_cluster_is_read_as_if_there_were_no_registry(metadata: MetadataContext) -> None:
    register(metadata.store, replace(ONE, epoch=9))
    assert metadata.catalog.read_many([7]) == [AbsentLedger(7)]
    metadata.bookie_clusters.require_one()


def test_while_the_registry_cannot_be_parsed_no_ledger_is_called_absent(metadata: MetadataContext) -> None:
    register(metadata.store, b"{")
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="where ledgers are is not known"):
            metadata.catalog.read_many([7])
    register(metadata.store, ONE)
    assert metadata.catalog.read_many([7]) == [AbsentLedger(7)]
