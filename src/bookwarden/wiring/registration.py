"""Wiring of what registers and unregisters bookie clusters."""

from __future__ import annotations

from functools import partial

from bookwarden.bookie_clusters.offline.record import owner_of_move_to
from bookwarden.bookie_clusters.registering import Registration
from bookwarden.bookie_clusters.unregistering import LostClusters, Unregistration
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.metastore.store_clock import StoreClock
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.stores import bookkeeper_place_of


def registration_of(cluster: Cluster) -> Registration:
    """Make what registers bookie clusters."""
    used = bookkeeper_place_of(cluster.settings.metadata_store)
    return Registration(cluster.registry, used, partial(owner_of_move_to, cluster.store))


def unregistration_of(cluster: Cluster) -> Unregistration:
    """Make what unregisters bookie clusters."""
    return Unregistration(cluster.registry, StoreClock(cluster.store))


def lost_clusters_of(cluster: Cluster) -> LostClusters:
    """Make what unregisters bookie clusters whose metadata is gone."""
    return LostClusters(unregistration_of(cluster), ReferencePieces({cluster.url: cluster.store}))
