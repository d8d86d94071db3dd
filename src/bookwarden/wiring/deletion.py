"""Wiring of the deletion of ledgers: phase one, phase two, and undo."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property, partial

from bookwarden.clusters.bookkeeper.bookies.probe import ReplicaProbe
from bookwarden.clusters.bookkeeper.bookies.proof import WholeLedgers
from bookwarden.clusters.pulsar.broker_marks import MarkingBrokers, Outbox
from bookwarden.clusters.pulsar.messages.retries import RetrySender
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.ownership import BundleOwnership
from bookwarden.clusters.pulsar.rest.backlog import SubscriptionBacklog
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry
from bookwarden.clusters.pulsar.rest.topics import Topics
from bookwarden.clusters.pulsar.roots.proof import require_some_ledger
from bookwarden.config import DeletionSettings, Settings
from bookwarden.deletion.journal.reading import JournalDamage
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.phase_one.outbox_drain import OutboxDrain
from bookwarden.deletion.phase_one.removal import Removal
from bookwarden.deletion.phase_one.trimming import StoreTrim
from bookwarden.deletion.phase_two.copy_deletion import CopyDeleter, CopyOwnerGuard
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.phase_two.guards import Guard, NodeGuard, ReusedIdGuard, UndoneGuard
from bookwarden.deletion.phase_two.held_marks import HeldMarks, RetryTopicRoom
from bookwarden.deletion.phase_two.ledger_deletion import LedgerDeleter
from bookwarden.deletion.phase_two.left_behind import LeftBehindGuard
from bookwarden.deletion.phase_two.sent_on import Sendings
from bookwarden.deletion.phase_two.superseded import SupersededGuard
from bookwarden.deletion.phase_two.sweeping import Acts, Sweep, SweepLimits
from bookwarden.deletion.phase_two.verifying import Verifier
from bookwarden.deletion.ports import LedgerCatalog, RecordsUndone
from bookwarden.deletion.undo.operation import ReadsElsewhere, Undo, new_name
from bookwarden.deletion.undo.places import UndoInPlaces
from bookwarden.ledgers.pending_deletion import MarkReport
from bookwarden.metastore.store_clock import StoreClock, StoreClocks
from bookwarden.processes import described_here
from bookwarden.resources import Resources
from bookwarden.trash.keeper import TrashKeeper
from bookwarden.wire.ledger_metadata import decode_ledger_metadata
from bookwarden.wiring.journal import journal_of, journal_reader_of, sent_records_of
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.pulsar import connection_of, decoder_of, mark_sender_of
from bookwarden.wiring.stores import bookkeeper_place_of


def policy_of(deletion: DeletionSettings) -> DeletionPolicy:
    """Return the limits of phase two."""
    return DeletionPolicy(
        retry_delay=deletion.two_phase_deletion_reconsume_later_in_seconds,
        max_retries=deletion.two_phase_deletion_max_retry_delete_count,
        still_referenced_grace=deletion.still_referenced_grace,
        unlisted_grace=deletion.unlisted_grace_seconds,
        delete_delay=deletion.delete_delay_seconds,
        bookie_cluster=deletion.bookie_cluster,
        rollback_window=deletion.rollback_window_hours * 3600,
    )


class PhaseOneContext(Resources):
    """Everything that phase one needs; close it, or use it in a with statement.

    ``on_report`` is called with each report of marks, as by ``MarkMetrics(registry).count`` of `pipelines.metrics`.
    ``metadata`` is that of a caller who has it open, and closes it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        on_report: Callable[[MarkReport], None] = lambda _: None,
        metadata: MetadataContext | None = None,
    ) -> None:
        super().__init__()
        deletion = settings.deletion
        with self._closed_on_error():
            self.metadata = metadata or self._keep(MetadataContext(settings))
            sender = self._keep(mark_sender_of(settings, deletion.topic))
            self.marker = Marker(sender, enabled=deletion.topic_two_phase_deletion_enabled, on_report=on_report)
            store, topics = ManagedLedgers(self.metadata.store), Topics(self.metadata.admin)
            migrations = self.metadata.migrations
            self.removal = Removal(self.marker, store, topics, migrations=migrations)
            ownership, nodes = BundleOwnership(self.metadata.store), self.metadata.node_check
            self.store_trim = StoreTrim(self.marker, store, ownership, self.metadata.catalog, nodes)


class BrokerMarksContext(Resources):
    """Everything about brokers that mark; close it, or use it in a with statement."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        with self._closed_on_error():
            self.metadata = self._keep(MetadataContext(settings))
            self.brokers = MarkingBrokers(self.metadata.store)
            self.outbox = Outbox(self.metadata.store)
            #: Only plans to forward the outbox.
            self.planned_drain = OutboxDrain(self.brokers, self.outbox, self.metadata.deletion_catalog)

    @cached_property
    def drain(self) -> OutboxDrain:
        """What forwards the outbox."""
        deletion = self._settings.deletion
        sender = self._keep(mark_sender_of(self._settings, deletion.topic))
        marker = Marker(sender, enabled=deletion.topic_two_phase_deletion_enabled)
        return OutboxDrain(self.brokers, self.outbox, self.metadata.deletion_catalog, marker)


class TrashKeeperContext(Resources):
    """The sweep's part in the trash; close it, or use it in a with statement. ``keeps_up`` is as for `TrashKeeper`."""

    def __init__(self, settings: Settings, metadata: MetadataContext, keeps_up: Callable[[], bool]) -> None:
        super().__init__()
        deletion = settings.deletion
        with self._closed_on_error():
            sender = self._keep(mark_sender_of(settings, deletion.topic))
            here = described_here()
            self.keeper = TrashKeeper(
                metadata.store,
                Marker(sender, enabled=deletion.topic_two_phase_deletion_enabled),
                deletion.topic,
                settings.trash.keep_rules,
                settings.trash.max_bytes,
                f"{here['host']} as process {here['pid']}",
                keeps_up,
            )


class UndoContext(Resources):
    """Everything that undo needs; close it, or use it in a with statement.

    ``damaged`` is called with damaged places in the journal; ``name`` is that of this undo in the journal.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        discard_partial: bool = False,
        damaged: Callable[[JournalDamage], object] | None = None,
    ) -> None:
        super().__init__()
        self.name = new_name()
        with self._closed_on_error():
            self.journal = self._keep(journal_reader_of(settings.sweep, damaged))
            metadata = self._keep(MetadataContext(settings))
            probe, journal = ReplicaProbe(metadata.bookies), self._keep(journal_of(settings.sweep))

            def undo_of(
                catalog: LedgerCatalog, undone: RecordsUndone, elsewhere: ReadsElsewhere = lambda _: {}
            ) -> Undo:
                return Undo(
                    *(catalog, probe, metadata.migrations, journal, decode_ledger_metadata, self.name),
                    undone=undone,
                    discard_partial=discard_partial,
                    elsewhere=elsewhere,
                    proof=WholeLedgers(lambda: metadata.bookies),
                )

            self.undo = UndoInPlaces(
                undo_of(metadata.catalog, metadata.undone),
                metadata.bookie_clusters,
                metadata.catalog,
                metadata.undone,
                undo_of,
            )
            #: Of the cluster that takes new ledgers.
            self.running_bookies = metadata.running_bookies
            place = bookkeeper_place_of(settings.metadata_store)
            #: The BookKeeper that the settings name, for people.
            self.bookkeeper = f"{place.ledgers_root} in {place.url}"
            #: Raises ConfigError where that has no ledger at all, and the metadata roots name some.
            self.require_ledgers = partial(require_some_ledger, metadata.stores, metadata.bookkeeper_store, place)


def guards_of(metadata: MetadataContext, settings: Settings) -> list[Guard]:
    """Return the guards in the order in which the sweep, its dry run and `ledger explain` ask them."""
    return [
        NodeGuard(metadata.node_check, metadata.last_entries),
        CopyOwnerGuard(lambda: metadata.offload_stores, verify_owner=settings.offload.verify_owner),
        LeftBehindGuard(lambda: metadata.offload_stores, metadata.references),
        _superseded_guard_of(metadata),
        # After all proofs: these are about what would be deleted.
        UndoneGuard(metadata.undone),
        ReusedIdGuard(metadata.ids),
    ]


def _superseded_guard_of(metadata: MetadataContext) -> SupersededGuard:
    return SupersededGuard(metadata.bookie_clusters, WholeLedgers(lambda: metadata.bookies), metadata.promotions.newest)


def verifier_of(
    metadata: MetadataContext,
    settings: Settings,
    *,
    clock: Callable[[], float] = time.time,
    clock_of: Callable[[str | None], float] | None = None,
) -> Verifier:
    """Return what verifies marks; clocks are as for `Verifier`."""
    return Verifier(
        *(metadata.deletion_catalog, metadata.references, policy_of(settings.deletion)),
        guards_of(metadata, settings),
        clusters=metadata.bookie_clusters,
        clock=clock,
        clock_of=clock_of,
    )


class SweepContext(Resources):
    """Everything that phase two needs in one process; its sessions and clients do not survive a fork.

    ``one_of_many`` says that other processes sweep other shares at the same time, as for `open_metadata_store`;
    ``driver_file`` is as for `journal_of`. With ``once`` no batch waits for a doubt about very many marks to end.
    """

    def __init__(
        self, settings: Settings, *, one_of_many: bool = False, driver_file: str = "", once: bool = False
    ) -> None:
        super().__init__()
        deletion = settings.deletion
        with self._closed_on_error():
            dry_run = settings.sweep.dry_run
            metadata = self._keep(MetadataContext(settings, one_of_many=one_of_many, deletes=not dry_run))
            # A library that is missing ends the sweep now, not at the first mark of a copy.
            stores = metadata.offload_stores
            registry = SchemaRegistry(metadata.admin)
            self.decode = decoder_of(deletion, registry).decode
            self.admin = metadata.admin
            acts = clock_of = None
            # A dry run writes nothing, and a wrong age makes it delete nothing.
            clock: Callable[[], float] = time.time
            if not dry_run:
                clock = StoreClock(metadata.bookkeeper_store)
                clock_of = StoreClocks(metadata.store, metadata.bookie_clusters.roots_by_name).now
                policy = policy_of(deletion)
                journal = self._keep(journal_of(settings.sweep, store_clock=clock, driver_file=driver_file))
                outbox = self._keep(
                    RetrySender(
                        connection_of(settings.pulsar),
                        *(deletion.retry_topic, deletion.dlq_topic, deletion.subscription),
                        registry=registry,
                        clock=clock,
                    )
                )
                backlog = SubscriptionBacklog(metadata.admin)
                on_retry_topic = partial(backlog.count, deletion.retry_topic, deletion.subscription)
                why_letters_are_lost = Topics(metadata.admin).why_nothing_is_kept
                acts = Acts(
                    CopyDeleter(stores, journal, policy, clock),
                    LedgerDeleter(
                        *(metadata.deletion_catalog, journal, policy, clock),
                        clusters=metadata.bookie_clusters,
                        superseded=_superseded_guard_of(metadata),
                        again=[UndoneGuard(metadata.undone), ReusedIdGuard(metadata.ids)],
                    ),
                    Sendings(
                        outbox,
                        self._keep(sent_records_of(settings.sweep)),
                        policy.retry_delay,
                        partial(why_letters_are_lost, deletion.dlq_topic, deletion.subscription),
                    ),
                    metadata.migrations,
                    HeldMarks(RetryTopicRoom(settings.sweep.max_waiting_marks, on_retry_topic), once=once),
                )
            self.sweep = Sweep(
                verifier_of(metadata, settings, clock=clock, clock_of=clock_of),
                acts,
                SweepLimits(settings.sweep.ledgers_per_step, settings.sweep.max_unreachable_seconds),
                require_bookies=metadata.running_bookies.require,
            )
