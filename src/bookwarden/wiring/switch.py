"""Wiring of the switch from one bookie cluster to another: what is observed before, and what makes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from typing import Final

from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.disk_space import Space, read_disk_space
from bookwarden.clusters.bookkeeper.bookies.requests import Bookies
from bookwarden.clusters.bookkeeper.every_ledger import read_every_ledger
from bookwarden.clusters.bookkeeper.ledger_numbers import largest_ledger_id, read_ledger_numbers
from bookwarden.clusters.bookkeeper.members import read_instance, read_members
from bookwarden.clusters.pulsar.messages.switch_events import SwitchEvents
from bookwarden.clusters.pulsar.metadata.bookie_placement import read_bookie_map, read_placements
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.registered_brokers import read_registered_brokers
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.config import Settings
from bookwarden.leases import LeaseTimes
from bookwarden.ledgers.pending_deletion import MAX_LEDGER_ID
from bookwarden.metastore.interface import MetadataStore
from bookwarden.processes import described_here
from bookwarden.switching.inventory import Inventory, take_inventory
from bookwarden.switching.observing import Sources, observe
from bookwarden.switching.operation import Switch, SwitchEvent
from bookwarden.switching.precheck import Precheck, judge
from bookwarden.switching.registry import BookieCluster, Registry
from bookwarden.wiring.metadata import bookie_options_of
from bookwarden.wiring.pulsar import connection_of
from bookwarden.wiring.switching import SwitchingContext

# A topic with much to flush takes its time.
_UNLOAD_TIMEOUT_S: Final = 60.0


class SwitchContext(SwitchingContext):
    """Everything that checks, makes and follows a switch; close it, or use it in a with statement."""

    def __init__(
        self, settings: Settings, *, times: LeaseTimes | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(settings)
        connection = connection_of(settings.pulsar)
        with self._closed_on_error():
            events = self._keep(SwitchEvents(connection))
            self._sources = Sources(
                self.pulsar_store,
                self.store_of,
                read_members,
                read_instance,
                partial(largest_ledger_id, first=0, end=MAX_LEDGER_ID + 1),
                _next_ledger_id,
                partial(read_registered_brokers, self.pulsar_store, connection),
                read_placements,
                read_bookie_map,
                self._disk_space,
            )
            here = described_here()
            self.switch = Switch(
                self.pulsar_store,
                self.registry,
                lambda event: events.send(event_fields(event)),
                f"{here['host']} process {here['pid']}",
                times=times,
                sleep=sleep,
            )

    def precheck(self, target: str) -> Precheck:
        """Look at everything that a switch to this cluster depends on, and judge it; changes nothing."""
        return judge(observe(self._sources, self.registry.require().registry, target))

    @cached_property
    def topics(self) -> Topics:
        """The topics of the cluster; connected when asked."""
        return Topics(self._keep(PulsarAdmin(connection_of(self.settings.pulsar), _UNLOAD_TIMEOUT_S)))

    def inventory(self, registry: Registry) -> Inventory:
        """Count the ledgers of all registered clusters; changes nothing."""
        return take_inventory(registry, lambda each: read_every_ledger(self.store_of(each), each.ledgers_root))

    def _disk_space(self, cluster: BookieCluster, bookie_ids: Sequence[str]) -> Mapping[str, Space]:
        addresses = BookieAddresses(self.store_of(cluster), cluster.ledgers_root)
        with closing(Bookies(addresses, bookie_options_of(self.settings.bookkeeper))) as bookies:
            return read_disk_space(bookies, bookie_ids)


def _next_ledger_id(store: MetadataStore, root: str) -> int | None:
    numbers = read_ledger_numbers(store, root)
    return None if numbers is None else numbers.id_of(numbers.next_number)


def event_fields(event: SwitchEvent) -> dict[str, str | int]:
    """Return the event's fields by the names of its schema."""
    return {
        "source": event.source,
        "target": event.target,
        "origin": event.origin,
        "epoch": event.epoch,
        "timeMs": event.time_ms,
        "owner": event.owner,
    }
