"""Wiring of the deletion of ledgers: phase one, phase two, and undo."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from bookwarden.clusters.bookkeeper.bookies.probe import ReplicaProbe
from bookwarden.clusters.bookkeeper.bookies.proof import WholeLedgers
from bookwarden.clusters.pulsar.broker_marks import MarkingBrokers, Outbox
from bookwarden.clusters.pulsar.messages.policy_events import LastPolicyEvents
from bookwarden.clusters.pulsar.messages.retries import RetrySender
from bookwarden.clusters.pulsar.metadata.managed_ledgers import ManagedLedgers
from bookwarden.clusters.pulsar.metadata.ownership import BundleOwnership
from bookwarden.clusters.pulsar.rest.backlog import SubscriptionBacklog
from bookwarden.clusters.pulsar.rest.schemas import SchemaRegistry
from bookwarden.clusters.pulsar.roots.proof import require_some_ledger
from bookwarden.config import DeletionSettings, Settings
from bookwarden.deletion.journal.reading import JournalDamage
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.deletion.phase_one.outbox_drain import OutboxDrain
from bookwarden.deletion.phase_one.removal import Removal
from bookwarden.deletion.phase_one.trimming import StoreTrim
from bookwarden.deletion.phase_two.copy_deletion import CopyDeleter, CopyOwnerGuard
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.phase_two.guards import Guard, LeftBehindGuard, NodeGuard, ReusedIdGuard, UndoneGuard
from bookwarden.deletion.phase_two.held_marks import HeldMarks, RetryTopicRoom
from bookwarden.deletion.phase_two.ledger_deletion import LedgerDeleter
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
from bookwarden.trash.keeper import LeaseWatch, TrashKeeper
from bookwarden.trash.policy_keeper import PolicyKeeper
from bookwarden.wire.ledger_metadata import decode_ledger_metadata
from bookwarden.wiring.bookkeeper import BookKeeper
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion_topics import TwoPhaseTopics
from bookwarden.wiring.journal import journal_of, journal_reader_of, sent_records_of


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


def marker_of(cluster: Cluster, on_report: Callable[[MarkReport], None] = lambda _: None) -> Marker:
    """Make what marks ledgers of this cluster.

    ``on_report`` is called with each report of marks, as by ``MarkMetrics(registry).count`` of `pipelines.metrics`.
    """
    enabled = cluster.settings.deletion.topic_two_phase_deletion_enabled
    return Marker(cluster.mark_sender, enabled=enabled, on_report=on_report)


class PhaseOne:
    """Everything that phase one needs; ``on_report`` is as for `marker_of`."""

    def __init__(self, cluster: Cluster, *, on_report: Callable[[MarkReport], None] = lambda _: None) -> None:
        self.cluster = cluster
        self.marker = marker_of(cluster, on_report)
        store = ManagedLedgers(cluster.store)
        self.removal = Removal(self.marker, store, cluster.topics, migrations=cluster.migrations)
        ownership, nodes = BundleOwnership(cluster.store), cluster.references.node_check
        self.store_trim = StoreTrim(self.marker, store, ownership, cluster.bookkeeper.catalog, nodes)


class BrokerMarks:
    """Everything about brokers that mark."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.brokers = MarkingBrokers(cluster.store)
        self.outbox = Outbox(cluster.store)

    @property
    def planned_drain(self) -> OutboxDrain:
        """What only plans to forward the outbox."""
        return OutboxDrain(self.brokers, self.outbox, self._cluster.bookkeeper.deletion_catalog)

    @property
    def drain(self) -> OutboxDrain:
        """What forwards the outbox."""
        catalog = self._cluster.bookkeeper.deletion_catalog
        return OutboxDrain(self.brokers, self.outbox, catalog, marker_of(self._cluster))


def trash_keeper_of(cluster: Cluster, why_behind: Callable[[], str]) -> TrashKeeper:
    """Make the sweep's part in the trash; ``why_behind`` is as for `LeaseWatch`."""
    trash, here = cluster.settings.trash, described_here()
    # It runs in a thread of its own, and a connection for entries is for one.
    topics = cluster.keep(
        TwoPhaseTopics(cluster.settings.deletion, cluster.connection, cluster.admin, lambda: cluster.store)
    )
    watch = LeaseWatch(
        trash.max_overdue_hours * 3600,
        trash.min_free_disk_ratio,
        why_behind,
        topics.first_marks,
        cluster.bookkeeper.all_disk_space,
    )
    return TrashKeeper(
        cluster.store,
        marker_of(cluster),
        cluster.settings.deletion.topic,
        trash.keep_rules,
        trash.max_bytes,
        f"{here['host']} as process {here['pid']}",
        watch.observe,
    )


def policy_keeper_of(cluster: Cluster) -> PolicyKeeper:
    """Make what keeps policies of topics and namespaces for the trash; it ends with the cluster."""
    events = cluster.keep(LastPolicyEvents(cluster.connection, cluster.admin, cluster.store))
    return PolicyKeeper(cluster.store, events, cluster.settings.trash.keep_rules)


class UndoOperation:
    """Everything that undo needs; ``damaged`` is called with damaged places in the journal."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        discard_partial: bool = False,
        damaged: Callable[[JournalDamage], object] | None = None,
    ) -> None:
        settings, bookkeeper = cluster.settings, cluster.bookkeeper
        self.cluster = cluster
        #: That of this undo in the journal.
        self.name = new_name()
        self.journal = cluster.keep(journal_reader_of(settings.sweep, damaged))
        probe, journal = ReplicaProbe(bookkeeper.bookies), cluster.keep(journal_of(settings.sweep))

        def undo_of(catalog: LedgerCatalog, undone: RecordsUndone, elsewhere: ReadsElsewhere = lambda _: {}) -> Undo:
            return Undo(
                *(catalog, probe, cluster.migrations, journal, decode_ledger_metadata, self.name),
                undone=undone,
                discard_partial=discard_partial,
                elsewhere=elsewhere,
                proof=WholeLedgers(lambda: bookkeeper.bookies),
            )

        self.undo = UndoInPlaces(
            undo_of(bookkeeper.catalog, bookkeeper.undone),
            bookkeeper.clusters,
            bookkeeper.catalog,
            bookkeeper.undone,
            undo_of,
        )
        #: Raises ConfigError where BookKeeper has no ledger at all, and the metadata roots name some.
        self.require_ledgers = partial(require_some_ledger, cluster.stores, bookkeeper.store, bookkeeper.place)


def guards_of(cluster: Cluster) -> list[Guard]:
    """Return the guards in the order in which the sweep, its dry run and `ledger explain` ask them."""
    bookkeeper, references = cluster.bookkeeper, cluster.references
    return [
        NodeGuard(references.node_check, bookkeeper.last_entries),
        CopyOwnerGuard(lambda: cluster.offload_stores, verify_owner=cluster.settings.offload.verify_owner),
        LeftBehindGuard(lambda: cluster.offload_stores, references.live),
        _superseded_guard_of(bookkeeper),
        # After all proofs: these are about what would be deleted.
        UndoneGuard(bookkeeper.undone),
        ReusedIdGuard(bookkeeper.ids),
    ]


def _superseded_guard_of(bookkeeper: BookKeeper) -> SupersededGuard:
    return SupersededGuard(bookkeeper.clusters, WholeLedgers(lambda: bookkeeper.bookies), bookkeeper.promotions.newest)


def verifier_of(
    cluster: Cluster, *, clock: Callable[[], float] = time.time, clock_of: Callable[[str | None], float] | None = None
) -> Verifier:
    """Return what verifies marks; clocks are as for `Verifier`."""
    bookkeeper = cluster.bookkeeper
    return Verifier(
        *(bookkeeper.deletion_catalog, cluster.references.live, policy_of(cluster.settings.deletion)),
        guards_of(cluster),
        clusters=bookkeeper.clusters,
        clock=clock,
        clock_of=clock_of,
    )


def cluster_to_sweep(settings: Settings, *, one_of_many: bool = False) -> Cluster:
    """Make the cluster for `sweep_of`, on whose reads deletes rest; ``one_of_many`` is as for Cluster."""
    return Cluster(settings, one_of_many=one_of_many, deletes=not settings.sweep.dry_run)


def sweep_of(cluster: Cluster, *, driver_file: str = "", once: bool = False) -> Sweep:
    """Make phase two over a `cluster_to_sweep`; its sessions and clients do not survive a fork.

    ``driver_file`` is as for `journal_of`. With ``once`` no batch waits for a doubt about very many marks to end.
    """
    settings, bookkeeper = cluster.settings, cluster.bookkeeper
    # A library that is missing ends the sweep now, not at the first mark of a copy.
    stores = cluster.offload_stores
    limits = SweepLimits(settings.sweep.ledgers_per_step, settings.sweep.max_unreachable_seconds)
    if settings.sweep.dry_run:
        # It writes nothing, and a wrong age makes it delete nothing.
        return Sweep(verifier_of(cluster), None, limits, require_bookies=bookkeeper.running_bookies.require)
    deletion, policy = settings.deletion, policy_of(settings.deletion)
    clock = StoreClock(bookkeeper.store)
    journal = cluster.keep(journal_of(settings.sweep, store_clock=clock, driver_file=driver_file))
    outbox = cluster.keep(
        RetrySender(
            cluster.connection,
            *(deletion.retry_topic, deletion.dlq_topic, deletion.subscription),
            registry=SchemaRegistry(cluster.admin),
            clock=clock,
        )
    )
    on_retry_topic = partial(SubscriptionBacklog(cluster.admin).count, deletion.retry_topic, deletion.subscription)
    why_dead_letters_are_lost = partial(cluster.topics.why_nothing_is_kept, deletion.dlq_topic, deletion.subscription)
    acts = Acts(
        CopyDeleter(stores, journal, policy, clock),
        LedgerDeleter(
            *(bookkeeper.deletion_catalog, journal, policy, clock),
            clusters=bookkeeper.clusters,
            superseded=_superseded_guard_of(bookkeeper),
            again=[UndoneGuard(bookkeeper.undone), ReusedIdGuard(bookkeeper.ids)],
        ),
        Sendings(outbox, cluster.keep(sent_records_of(settings.sweep)), policy.retry_delay, why_dead_letters_are_lost),
        cluster.migrations,
        HeldMarks(RetryTopicRoom(settings.sweep.max_waiting_marks, on_retry_topic), once=once),
    )
    clock_of = StoreClocks(cluster.store, bookkeeper.clusters.roots_by_name).now
    return Sweep(
        verifier_of(cluster, clock=clock, clock_of=clock_of),
        acts,
        limits,
        require_bookies=bookkeeper.running_bookies.require,
    )
