"""Wiring of the cluster that the settings name, and of the proof that they name all roots of its BookKeeper."""

from __future__ import annotations

from collections.abc import Callable

from bookwarden.clusters.pulsar.roots.proof import RootsProof
from bookwarden.config import MetadataStoreSettings
from bookwarden.metastore.interface import MetadataStore
from bookwarden.orphans.cluster import Cluster
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.stores import bookkeeper_place_of, open_single_store


def roots_proof_of(
    settings: MetadataStoreSettings, metadata: MetadataContext, *, of_snapshot: bool = False
) -> RootsProof:
    """Make the proof over the stores of ``metadata``, which is of the same settings.

    ``of_snapshot`` says that the stores are one: then it also refuses where several bookie clusters are registered, and
    asks for no running bookies.
    """
    clusters = metadata.bookie_clusters
    return RootsProof(
        metadata.stores,
        metadata.catalog,
        bookkeeper_place_of(settings),
        lambda url: open_single_store(settings, url),
        separate=settings.separate_roots,
        allow_unseen=settings.allow_unseen_roots,
        # A snapshot is of one store.
        further_urls=tuple if of_snapshot else clusters.own_store_urls,
        require_first=clusters.require_one if of_snapshot else clusters.look_again,
        require_bookies=(lambda: None) if of_snapshot else metadata.running_bookies.require_soon,
    )


def cluster_of(
    settings: MetadataStoreSettings,
    bookkeeper: MetadataStore,
    proof: RootsProof,
    bookie_clusters: Callable[[], str] = lambda: "",
) -> Cluster:
    """Return the cluster that the settings name; ``bookkeeper`` has BookKeeper's metadata, live or in a snapshot.

    ``bookie_clusters`` is as in Cluster.
    """
    place = bookkeeper_place_of(settings)
    return Cluster(bookkeeper, place.url, place.ledgers_root, settings.urls, proof.require, bookie_clusters)
