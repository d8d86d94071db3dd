"""Wiring of the cluster that the settings name, and of the proof that they name all roots of its BookKeeper."""

from __future__ import annotations

from bookwarden.clusters.pulsar.roots.proof import RootsProof
from bookwarden.config import MetadataStoreSettings
from bookwarden.orphans.cluster import PlanCluster
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.stores import bookkeeper_place_of, open_single_store


def roots_proof_of(cluster: Cluster, *, of_snapshot: bool = False) -> RootsProof:
    """Make the proof that the metadata roots of the settings are all of the BookKeeper.

    ``of_snapshot`` says that the cluster's stores are one: then it also refuses where several bookie clusters are
    registered, and asks for no running bookies.
    """
    settings, bookkeeper = cluster.settings.metadata_store, cluster.bookkeeper
    clusters = bookkeeper.clusters
    return RootsProof(
        cluster.stores,
        bookkeeper.catalog,
        bookkeeper.place,
        lambda url: open_single_store(settings, url),
        separate=settings.separate_roots,
        allow_unseen=settings.allow_unseen_roots,
        # A snapshot is of one store.
        further_urls=tuple if of_snapshot else clusters.own_store_urls,
        require_first=clusters.require_one if of_snapshot else clusters.invalidate,
        require_bookies=(lambda: None) if of_snapshot else bookkeeper.running_bookies.require_soon,
    )


def plan_cluster_of(settings: MetadataStoreSettings, cluster: Cluster, proof: RootsProof) -> PlanCluster:
    """Return what identifies a cluster in plans; ``settings`` are those of the live one, also of a snapshot."""
    place, bookkeeper = bookkeeper_place_of(settings), cluster.bookkeeper
    return PlanCluster(
        *(bookkeeper.store, place.url, place.ledgers_root, settings.urls, proof.require),
        bookkeeper.clusters.identity,
    )
