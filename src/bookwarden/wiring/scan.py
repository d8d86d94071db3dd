"""Wiring of the orphan scan's sources, and of the application of its plans."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from bookwarden.clusters.bookkeeper.listing import LedgerListing, MultiClusterListing
from bookwarden.clusters.offload.listing import ObjectListing
from bookwarden.clusters.pulsar.metadata.namespaces import namespaces_in, tenants_in
from bookwarden.clusters.pulsar.references.check import outdated_in, still_named_in
from bookwarden.clusters.pulsar.trash import TrashedLedgers
from bookwarden.config import OrphanSettings, Settings
from bookwarden.errors import ConfigError
from bookwarden.metastore.snapshot.store import fuzzy_in, latest_ms_in
from bookwarden.metastore.urls import scheme_of, split_chroot, with_chroot
from bookwarden.orphans.apply import Apply, ApplyCopies
from bookwarden.orphans.applying import ApplyResult, PlanStore
from bookwarden.orphans.guards import GuardLimits
from bookwarden.resources import Resources
from bookwarden.wiring.cluster import Cluster
from bookwarden.wiring.deletion import marker_of
from bookwarden.wiring.roots import plan_cluster_of, roots_proof_of
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


class ScanSources(Resources):
    """The sources of an orphan scan, in one process; close it, or use it in a with statement.

    ``snapshot`` is the URL of a snapshot of the metadata stores, None for the live ones; ``snapshot_ms`` is then the
    latest time in it. ``max_reads_per_second`` is as for Cluster.
    """

    def __init__(
        self, settings: Settings, snapshot: str | None = None, *, max_reads_per_second: float | None = None
    ) -> None:
        super().__init__()
        is_live = snapshot is None
        source = settings if snapshot is None else _settings_of_snapshot(settings, snapshot)
        with self.closed_on_error():
            # A file does not load a server, so its reads are not limited.
            limit = max_reads_per_second if is_live else None
            #: Its stores may be a snapshot; brokers and stores of offloaded copies are the live ones.
            self.cluster = cluster = self.keep(Cluster(source, max_reads_per_second=limit))
            bookkeeper = cluster.bookkeeper
            alone = LedgerListing(bookkeeper.store, bookkeeper.place.ledgers_root)
            self.listing = MultiClusterListing(alone, bookkeeper.clusters.roots_by_name)
            #: Of the plan: a snapshot's is the live one.
            self.plan_cluster = plan_cluster_of(
                settings.metadata_store, cluster, roots_proof_of(cluster, of_snapshot=not is_live)
            )
            roots = cluster.stores
            self._read = (*roots.values(), bookkeeper.store)
            #: Lists the tenants that have policies in any metadata root.
            self.tenants = partial(tenants_in, roots.values())
            #: Lists the namespaces that have policies in any metadata root.
            self.namespaces = partial(namespaces_in, roots.values())
            #: Returns the ledgers in the trash of brokers.
            self.trashed = TrashedLedgers(roots.values()).read
            #: Returns those references whose places still name their ledgers; StoreError where a root does not answer.
            self.still_named = partial(still_named_in, roots, bookkeeper.last_entries)
            #: Returns those references of shadow topics whose sources have let go of the ledger.
            self.outdated = partial(outdated_in, roots)

    @property
    def objects(self) -> ObjectListing:
        """The listing of the stores of offloaded copies, live or from inventories, also of a scan of a snapshot."""
        return ObjectListing(self.cluster.offload_stores, self.cluster.settings.orphans.inventories)

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


class OrphanApply:
    """Everything that applies a plan to a cluster."""

    def __init__(
        self, cluster: Cluster, plans: PlanStore, *, on_batch: Callable[[ApplyResult], None] = lambda _: None
    ) -> None:
        settings, references = cluster.settings, cluster.references
        # A cluster may have been added since the scan.
        identity = plan_cluster_of(settings.metadata_store, cluster, roots_proof_of(cluster))
        parts = (plans, marker_of(cluster), cluster.bookkeeper.catalog, identity, guard_limits_of(settings.orphans))
        doubts = partial(references.node_check.doubts_now, references=references.live)
        # Once for ledgers and copies.
        in_flight = cache(cluster.deletion_topics.requests_in_flight)
        batch = settings.orphans.ledgers_per_batch
        self.ledgers = Apply(*parts, doubts=doubts, batch=batch, on_batch=on_batch, in_flight=in_flight)
        self.copies = ApplyCopies(*parts, doubts=doubts, batch=batch, on_batch=on_batch, in_flight=in_flight)
