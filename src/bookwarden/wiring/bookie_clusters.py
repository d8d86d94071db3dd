"""Wiring of bookie clusters: their registration, and the switch from one to another."""

from __future__ import annotations

from functools import cached_property, partial

from bookwarden.bookie_clusters.checks.observing import Observer
from bookwarden.bookie_clusters.offline.record import owner_of_move_to
from bookwarden.bookie_clusters.operation import Switch
from bookwarden.bookie_clusters.registering import Registration
from bookwarden.bookie_clusters.unregistering import LostClusters, Unregistration
from bookwarden.clusters.pulsar.messages.switch_events import SwitchEvents
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.leases import LeaseTimes
from bookwarden.metastore.store_clock import StoreClock
from bookwarden.processes import described_here
from bookwarden.wiring.bookkeeper import bookie_options_of
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


class SwitchOperations:
    """Everything that checks, makes and follows a switch."""

    def __init__(self, cluster: Cluster, *, times: LeaseTimes | None = None) -> None:
        self.cluster = cluster
        self._times = times

    @cached_property
    def observer(self) -> Observer:
        """Observes what a switch, or a move, depends on."""
        cluster = self.cluster
        options = bookie_options_of(cluster.settings.bookkeeper)
        return Observer(cluster.registry, cluster.connection, cluster.admin, options)

    @cached_property
    def switch(self) -> Switch:
        """Makes the switch."""
        here, events = described_here(), self.cluster.keep(SwitchEvents(self.cluster.connection))
        return Switch(self.cluster.registry, events, f"{here['host']} process {here['pid']}", times=self._times)
