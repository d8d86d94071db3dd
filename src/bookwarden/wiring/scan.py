"""Wiring of the orphan scan's sources, and of the application of its plans."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from bookwarden.clusters.bookkeeper.listing import LedgerListing
from bookwarden.clusters.bookkeeper.placed_listing import PlacedListing
from bookwarden.clusters.offload.listing import ObjectListing
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.metadata.namespaces import namespaces_in, tenants_in
from bookwarden.clusters.pulsar.references.check import outdated_in, still_named_in
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.clusters.pulsar.trash import TrashedLedgers
from bookwarden.config import OrphanSettings, Settings
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.errors import ConfigError
from bookwarden.metastore.snapshot.store import fuzzy_in, latest_ms_in
from bookwarden.metastore.urls import scheme_of, split_chroot, with_chroot
from bookwarden.orphans.apply import Apply, ApplyCopies
from bookwarden.orphans.applying import ApplyResult, PlanStore
from bookwarden.orphans.guards import GuardLimits
from bookwarden.resources import Resources
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.pulsar import TopicsContext, mark_sender_of
from bookwarden.wiring.roots import cluster_of, roots_proof_of
from bookwarden.wiring.stores import bookkeeper_place_of


def guard_limits_of(orphans: OrphanSettings) -> GuardLimits:
    """Return the limits of the orphan scan's plans."""
    return GuardLimits(
        min_age_ms=round(orphans.min_age_days * 86_400_000),
        longest_compaction_ms=round(orphans.longest_compaction_hours * 3_600_000),
        max_share=orphans.max_share,
        max_emptied=orphans.max_emptied,
        max_plan_age_ms=round(orphans.max_plan_age_hours * 3_600_000),
        seen_apart_ms=round(orphans.seen_apart_hours * 3_600_000),
        max_clock_skew_ms=round(orphans.max_clock_skew_seconds * 1000),
    )


class ScanContext(Resources):
    """The sources of an orphan scan, in one process; close it, or use it in a with statement.

    ``snapshot`` is the URL of a snapshot of the metadata stores, None for the live ones; ``snapshot_ms`` is then the
    latest time in it. ``max_reads_per_second`` is as for MetadataContext.
    """

    def __init__(
        self, settings: Settings, snapshot: str | None = None, *, max_reads_per_second: float | None = None
    ) -> None:
        super().__init__()
        source = settings if snapshot is None else _settings_of_snapshot(settings, snapshot)
        with self._closed_on_error():
            self._settings = settings
            # A file does not load a server, so its reads are not limited.
            limit = max_reads_per_second if snapshot is None else None
            self.metadata = self._keep(MetadataContext(source, max_reads_per_second=limit))
            store = self.metadata.bookkeeper_store
            alone = LedgerListing(store, bookkeeper_place_of(source.metadata_store).ledgers_root)
            self.listing = PlacedListing(alone, self.metadata.bookie_clusters.roots_by_name)
            self.references = ReferencePieces(self.metadata.stores, self.metadata.last_entries)
            #: A snapshot's is the live one.
            self.cluster = cluster_of(
                settings.metadata_store,
                store,
                roots_proof_of(source.metadata_store, self.metadata, of_snapshot=snapshot is not None),
                self.metadata.bookie_clusters.identity,
            )
            roots = self.metadata.stores
            self._read = (*roots.values(), store)
            #: Lists the tenants that have policies in any metadata root.
            self.tenants = partial(tenants_in, roots.values())
            #: Lists the namespaces that have policies in any metadata root.
            self.namespaces = partial(namespaces_in, roots.values())
            #: Returns the ledgers in the trash of brokers.
            self.trashed = TrashedLedgers(roots.values()).read
            #: Returns those references whose places still name their ledgers; StoreError where a root does not answer.
            self.still_named = partial(still_named_in, roots, self.metadata.last_entries)
            #: Returns those references of shadow topics whose sources have let go of the ledger.
            self.outdated = partial(outdated_in, roots)

    @property
    def offload_stores(self) -> OffloadStores:
        """The stores of offloaded copies; MissingExtraError if a driver's library is not installed."""
        return self.metadata.offload_stores

    @property
    def objects(self) -> ObjectListing:
        """The listing of the stores of offloaded copies, live or from inventories, also of a scan of a snapshot."""
        return ObjectListing(self.offload_stores, self._settings.orphans.inventories)

    @property
    def snapshot_ms(self) -> int | None:
        """The latest time in the snapshot, in milliseconds since the epoch; None for live stores."""
        return latest_ms_in(self._read)

    @property
    def fuzzy(self) -> str | None:
        """The reason why the snapshot may not be the state of one moment; None if it is, and for live stores."""
        return fuzzy_in(self._read)


def _settings_of_snapshot(settings: Settings, snapshot: str) -> Settings:
    """Replace the stores by a snapshot of their common ensemble; each keeps its chroot."""
    store = settings.metadata_store
    place = bookkeeper_place_of(settings.metadata_store)
    ensembles = {split_chroot(url)[0] for url in (*store.urls, place.url)}
    if len(ensembles) > 1:
        raise ConfigError(
            f"a snapshot is of one ensemble, and the settings name {len(ensembles)} metadata stores "
            f"({', '.join(sorted(ensembles))}): scan them live"
        )
    if scheme_of(place.url) == "oxia":
        raise ConfigError(f"{snapshot} is a snapshot of a ZooKeeper, and the metadata is in {place.url}: scan it live")
    if not snapshot.startswith("zk-snapshot:") or "#" in snapshot:
        raise ConfigError(
            f"{snapshot} is not zk-snapshot:FILE (the paths behind the hosts are taken from metadata_store.urls)"
        )

    def replaced(url: str) -> str:
        return with_chroot(snapshot, split_chroot(url)[1])

    changed = {
        "urls": tuple(replaced(url) for url in store.urls),
        "bookkeeper_url": replaced(place.url),
        "ledgers_root": place.ledgers_root,
        "separate_roots": tuple(replaced(url) for url in store.separate_roots if split_chroot(url)[0] in ensembles),
    }
    return settings.model_copy(update={"metadata_store": store.model_copy(update=changed)})


class OrphanApplyContext(Resources):
    """Everything that applying a plan needs; close it, or use it in a with statement."""

    def __init__(
        self, settings: Settings, plans: PlanStore, *, on_batch: Callable[[ApplyResult], None] = lambda _: None
    ) -> None:
        super().__init__()
        deletion = settings.deletion
        with self._closed_on_error():
            metadata = self._keep(MetadataContext(settings))
            # A cluster may have been added since the scan.
            cluster = cluster_of(
                settings.metadata_store,
                metadata.bookkeeper_store,
                roots_proof_of(settings.metadata_store, metadata),
                metadata.bookie_clusters.identity,
            )
            sender = self._keep(mark_sender_of(settings, deletion.topic))
            marker = Marker(sender, enabled=deletion.topic_two_phase_deletion_enabled)
            doubts = partial(metadata.node_check.doubts_now, references=metadata.references)
            # Once for ledgers and copies.
            in_flight = cache(self._keep(TopicsContext(settings, metadata.admin)).requests_in_flight)
            self.apply = Apply(
                plans,
                marker,
                metadata.catalog,
                cluster,
                guard_limits_of(settings.orphans),
                doubts=doubts,
                batch=settings.orphans.ledgers_per_batch,
                on_batch=on_batch,
                in_flight=in_flight,
            )
            self.apply_copies = ApplyCopies(
                plans,
                marker,
                metadata.catalog,
                cluster,
                guard_limits_of(settings.orphans),
                doubts=doubts,
                batch=settings.orphans.ledgers_per_batch,
                on_batch=on_batch,
                in_flight=in_flight,
            )
