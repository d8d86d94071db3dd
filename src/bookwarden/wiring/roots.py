"""Wiring of the proof that the configured metadata roots are all that share their BookKeeper."""

from __future__ import annotations

from bookwarden.clusters.pulsar.roots.proof import RootsProof
from bookwarden.config import Settings
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.stores import bookkeeper_place_of, open_single_store


def roots_proof_of(settings: Settings, metadata: MetadataContext) -> RootsProof:
    """Make it over the stores of ``metadata``, which is of the same settings."""
    store = settings.metadata_store
    return RootsProof(
        metadata.stores,
        metadata.catalog,
        bookkeeper_place_of(settings),
        lambda url: open_single_store(settings, url),
        separate=store.separate_roots,
        allow_unseen=store.allow_unseen_roots,
    )
