"""Wiring of the switch from one bookie cluster to another: what is observed before, and what makes it."""

from __future__ import annotations

from functools import cached_property

from bookwarden.bookie_clusters.checks.observing import Observer
from bookwarden.bookie_clusters.operation import Switch
from bookwarden.clusters.pulsar.messages.switch_events import SwitchEvents
from bookwarden.leases import LeaseTimes
from bookwarden.processes import described_here
from bookwarden.wiring.bookkeeper import bookie_options_of
from bookwarden.wiring.cluster import Cluster


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
