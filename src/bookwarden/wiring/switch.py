"""Wiring of the switch from one bookie cluster to another: what is observed before, and what makes it."""

from __future__ import annotations

from functools import partial
from typing import Final

from bookwarden.clusters.bookkeeper.bookies.disk_space import read_disk_space_at
from bookwarden.clusters.bookkeeper.every_ledger import read_custom_metadata, read_every_ledger
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.bookkeeper.ledger_numbers import largest_ledger_id, next_ledger_id
from bookwarden.clusters.bookkeeper.members import read_instance, read_members
from bookwarden.clusters.bookkeeper.trial_ledgers import TrialLedgers
from bookwarden.clusters.pulsar.messages.switch_events import SwitchEvents
from bookwarden.clusters.pulsar.messages.topic_policies import read_topic_quorums
from bookwarden.clusters.pulsar.metadata.bookie_placement import read_bookie_map, read_placements
from bookwarden.clusters.pulsar.rest.admin import PulsarAdmin
from bookwarden.clusters.pulsar.rest.registered_brokers import read_registered_brokers
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.config import Settings
from bookwarden.leases import LeaseTimes
from bookwarden.processes import described_here
from bookwarden.resources import Resources
from bookwarden.switching.checks.observing import Checks, Sources, Trials
from bookwarden.switching.documents import read_overview
from bookwarden.switching.inventory import take_inventory
from bookwarden.switching.moving.build import find_build
from bookwarden.switching.operation import Switch
from bookwarden.switching.promoted import read_promotion
from bookwarden.wiring.metadata import bookie_options_of
from bookwarden.wiring.pulsar import connection_of
from bookwarden.wiring.switching import SwitchingContext

# A topic with much to flush takes its time.
_UNLOAD_TIMEOUT_S: Final = 60.0


class SwitchContext(Resources):
    """Everything that checks, makes and follows a switch; close it, or use it in a with statement."""

    def __init__(self, settings: Settings, *, times: LeaseTimes | None = None) -> None:
        super().__init__()
        connection = connection_of(settings.pulsar)
        with self._closed_on_error():
            #: The registry, and the stores of its clusters.
            self.registered = registered = self._keep(SwitchingContext(settings))
            events = self._keep(SwitchEvents(connection))
            admin = self._keep(PulsarAdmin(connection, _UNLOAD_TIMEOUT_S))
            store, registry = registered.pulsar_store, registered.registry
            #: Names Pulsar's own metadata store, in which the registry is.
            self.pulsar_url = registered.pulsar_url
            bookie_options = bookie_options_of(settings.bookkeeper)
            #: What a switch, or a move, depends on.
            self.sources = sources = Sources(
                store,
                registered.store_of,
                read_members,
                read_instance,
                lambda at, root, end: largest_ledger_id(at, root, 0, end),
                read_custom_metadata,
                next_ledger_id,
                partial(read_registered_brokers, store, connection),
                read_placements,
                partial(read_topic_quorums, connection=connection, admin=admin),
                read_bookie_map,
                partial(read_disk_space_at, options=bookie_options),
            )
            trials = Trials(
                store,
                partial(LedgerIds, store),
                registered.store_of,
                partial(TrialLedgers, options=bookie_options),
            )
            checks = Checks(sources, registry, trials)
            #: Looks at everything that a switch to a cluster depends on, and judges it.
            self.precheck = checks.precheck
            #: Counts the ledgers of all clusters of a registry.
            self.inventory = partial(take_inventory, store_of=registered.store_of, read=read_every_ledger)
            #: Reads how far the copying of ledgers is; None if there was none yet.
            self.build = partial(find_build, store)
            #: Reads the newest promotion of ledgers.
            self.promotion = partial(read_promotion, store)
            #: The topics of the cluster.
            self.topics = Topics(admin)
            here = described_here()
            origin = f"{here['host']} process {here['pid']}"
            self.switch = Switch(store, registry, events.send, origin, times=times)
            #: Reads where everything stands.
            self.overview = partial(read_overview, store, self.switch)
