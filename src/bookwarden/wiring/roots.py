"""Wiring of the cluster that the settings name, and of the proof that they name all roots of its BookKeeper."""

from __future__ import annotations

from bookwarden.clusters.pulsar.roots.proof import RootsProof
from bookwarden.config import MetadataStoreSettings
from bookwarden.metastore.interface import MetadataStore
from bookwarden.orphans.cluster import Cluster
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.stores import bookkeeper_place_of, open_single_store


def roots_proof_of(settings: MetadataStoreSettings, metadata: MetadataContext) -> RootsProof:
    """Make the proof over the stores of ``metadata``, which is of the same settings."""
    return RootsProof(
        metadata.stores,
        metadata.catalog,
        bookkeeper_place_of(settings),
        lambda url: open_single_store(settings, url),
        separate=settings.separate_roots,
        allow_unseen=settings.allow_unseen_roots,
        require_first=metadata.bookie_clusters.require_one,
    )


def cluster_of(settings: MetadataStoreSettings, bookkeeper: MetadataStore, proof: RootsProof) -> Cluster:
    """Return the cluster that the settings name; ``bookkeeper`` has BookKeeper's metadata, live or in a snapshot."""
    place = bookkeeper_place_of(settings)
    return Cluster(bookkeeper, place.url, place.ledgers_root, settings.urls, proof.require_all_roots)
