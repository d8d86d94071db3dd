"""Wiring of the switch from one bookie cluster to another: what is observed before, and what makes it."""

from __future__ import annotations

from typing import Final

from bookwarden.bookie_clusters.checks.observing import Observer
from bookwarden.bookie_clusters.operation import Switch
from bookwarden.clusters.pulsar.messages.switch_events import SwitchEvents
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.config import Settings
from bookwarden.leases import LeaseTimes
from bookwarden.processes import described_here
from bookwarden.wiring.bookie_clusters import RegistryContext
from bookwarden.wiring.metadata import bookie_options_of
from bookwarden.wiring.pulsar import connection_of

# A topic with much to flush takes its time.
_UNLOAD_TIMEOUT_S: Final = 60.0


class SwitchContext(RegistryContext):
    """Everything that checks, makes and follows a switch; close it, or use it in a with statement."""

    def __init__(self, settings: Settings, *, times: LeaseTimes | None = None) -> None:
        super().__init__(settings)
        with self._closed_on_error():
            self.connection = connection = connection_of(settings.pulsar)
            admin = self._open_admin()
            #: The topics of the cluster.
            self.topics = Topics(admin, unload_timeout_s=_UNLOAD_TIMEOUT_S)
            #: Observes what a switch, or a move, depends on.
            self.observer = Observer(self.registry, connection, admin, bookie_options_of(settings.bookkeeper))
            here = described_here()
            origin = f"{here['host']} process {here['pid']}"
            self.switch = Switch(self.registry, self._keep(SwitchEvents(connection)), origin, times=times)

    def _open_admin(self) -> PulsarAdmin:
        return self._keep(PulsarAdmin(self.connection))
