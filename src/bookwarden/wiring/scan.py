"""Wiring of what the orphan scan reads, and of what applies its plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from bookwarden.clusters.bookkeeper.listing import LedgerListing
from bookwarden.clusters.offload.listing import ObjectListing
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.messages.mark_sender import PendingDeletionSender
from bookwarden.clusters.pulsar.metadata.namespaces import known_namespaces, known_tenants
from bookwarden.clusters.pulsar.references.check import still_named
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.clusters.pulsar.rest.brokers import broker_clock
from bookwarden.config import Settings
from bookwarden.deletion.phase_one.mark import Marker
from bookwarden.errors import ConfigError, FormatError
from bookwarden.ledgers.listing import ListedReference
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.snapshot.index import SnapshotIndex
from bookwarden.metastore.snapshot.store import SnapshotStore
from bookwarden.metastore.urls import scheme_of, split_chroot, with_chroot
from bookwarden.orphans.apply import Apply
from bookwarden.orphans.apply_copies import ApplyCopies
from bookwarden.orphans.applying import ApplyResult
from bookwarden.orphans.guards import GuardLimits
from bookwarden.orphans.plan import ClusterIdentity
from bookwarden.orphans.ports import CopyPlanStore, PlanStore
from bookwarden.resources import Resources
from bookwarden.wire.avro import PendingDeletionCodec
from bookwarden.wiring.metadata import MetadataContext
from bookwarden.wiring.pulsar import connection_of
from bookwarden.wiring.roots import roots_proof_of
from bookwarden.wiring.stores import bookkeeper_place_of


def guard_limits_of(settings: Settings) -> GuardLimits:
    """Return the limits of the orphan scan's plans."""
    orphans = settings.orphans
    return GuardLimits(
        min_age_ms=round(orphans.min_age_days * 86_400_000),
        longest_compaction_ms=round(orphans.longest_compaction_hours * 3_600_000),
        max_share=orphans.max_share,
        max_plan_age_ms=round(orphans.max_plan_age_hours * 3_600_000),
        seen_apart_ms=round(orphans.seen_apart_hours * 3_600_000),
        max_clock_skew_ms=round(orphans.max_clock_skew_seconds * 1000),
    )


def cluster_identity_of(settings: Settings, bookkeeper: MetadataStore) -> ClusterIdentity:
    """Read which cluster the settings name; `bookkeeper` is the store, or snapshot, with BookKeeper's metadata.

    Without an INSTANCEID its part is empty, and no plan of it can be applied. Raises StoreError when the store does
    not answer, FormatError when the INSTANCEID is no text.
    """
    place = bookkeeper_place_of(settings)
    root = place.ledgers_root
    bookkeeper.sync()
    node = bookkeeper.get(f"{root}/INSTANCEID")
    try:
        instance_id = "" if node is None else node.value.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{root}/INSTANCEID is no text: it is not BookKeeper's") from error
    return ClusterIdentity.of(instance_id, place.url, root, settings.metadata_store.urls)


class ScanContext(Resources):
    """What an orphan scan reads, in one process; close it, or use it in a with statement.

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
            self._snapshot = snapshot
            self._source = source
            # A file is nobody's server, so there is no limit to how fast it is read.
            limit = max_reads_per_second if snapshot is None else None
            self.metadata = self._keep(MetadataContext(source, max_reads_per_second=limit))
            store = self.metadata.bookkeeper_store
            self.listing = LedgerListing(store, bookkeeper_place_of(source).ledgers_root)
            self.references = ReferencePieces(self.metadata.stores, self.metadata.last_entries)

    @property
    def offload_stores(self) -> OffloadStores:
        """The stores of offloaded copies; MissingExtraError if a driver's library is not installed."""
        return self.metadata.offload_stores

    @property
    def objects(self) -> ObjectListing:
        """The listing of the stores of offloaded copies, live or from inventories, whatever else is read."""
        return ObjectListing(self.offload_stores, self._settings.orphans.inventories)

    @property
    def snapshot_ms(self) -> int | None:
        """The latest time in the snapshot, in milliseconds since the epoch; None for live stores."""
        return max((index.latest_ms for index in self._snapshots()), default=None)

    @property
    def fuzzy(self) -> str | None:
        """Why the snapshot may not be the state of one moment; None where it is, and for live stores."""
        return next((f"{index.file}: {index.fuzzy}" for index in self._snapshots() if index.fuzzy), None)

    def _snapshots(self) -> list[SnapshotIndex]:
        stores = (*self.metadata.stores.values(), self.metadata.bookkeeper_store)
        return [store.index for store in stores if isinstance(store, SnapshotStore)]

    def identity(self) -> ClusterIdentity:
        """Read which cluster it is; a snapshot's is that of the live one."""
        return cluster_identity_of(self._settings, self.metadata.bookkeeper_store)

    def require_all_roots(self) -> list[str]:
        """Raise RefusedError where a root that is not in the settings shares their BookKeeper, or may.

        Returns what is to be told of other roots all the same; StoreError where an ensemble does not answer.
        """
        return roots_proof_of(self._source, self.metadata).require_all_roots()

    def clocks(self) -> dict[str, int]:
        """Ask others for the time, in milliseconds since the epoch; a scan of a snapshot asks nobody.

        Raises PulsarError where no broker answers.
        """
        if self._snapshot is not None:
            return {}
        return {"the broker": broker_clock(self.metadata.admin)}

    def tenants(self) -> frozenset[str]:
        """List the tenants that have policies in any metadata root."""
        return frozenset().union(*(known_tenants(store) or () for store in self.metadata.stores.values()))

    def namespaces(self) -> frozenset[str]:
        """List the namespaces that have policies in any metadata root."""
        return frozenset().union(*(known_namespaces(store) or () for store in self.metadata.stores.values()))

    def still_named(self, references: Sequence[ListedReference]) -> list[ListedReference]:
        """Return those whose places still name their ledgers; StoreError where a root does not answer."""
        found: list[ListedReference] = []
        for root in dict.fromkeys(reference.root for reference in references):
            of_root = [reference for reference in references if reference.root == root]
            found += still_named(of_root, self.metadata.stores[root], self.metadata.last_entries)
        return found


def _settings_of_snapshot(settings: Settings, snapshot: str) -> Settings:
    """Replace the stores by a snapshot of the one ensemble that they are all on; each keeps its chroot."""
    store = settings.metadata_store
    place = bookkeeper_place_of(settings)
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


class PlansOfAll(PlanStore, CopyPlanStore, Protocol):
    """Where plans are kept, with their ledgers and their offloaded copies."""


class OrphanApplyContext(Resources):
    """Everything that applying a plan needs; close it, or use it in a with statement."""

    def __init__(
        self, settings: Settings, plans: PlansOfAll, *, on_batch: Callable[[ApplyResult], None] = lambda _: None
    ) -> None:
        super().__init__()
        deletion = settings.deletion
        with self._closed_on_error():
            self._settings = settings
            self._metadata = self._keep(MetadataContext(settings))
            sender = self._keep(PendingDeletionSender(connection_of(settings), deletion.topic, PendingDeletionCodec()))
            marker = Marker(sender, enabled=deletion.topic_two_phase_deletion_enabled)
            self.apply = Apply(
                plans,
                marker,
                self._metadata.catalog,
                self,
                guard_limits_of(settings),
                batch=settings.orphans.ledgers_per_batch,
                on_batch=on_batch,
            )
            self.apply_copies = ApplyCopies(
                plans,
                marker,
                self,
                guard_limits_of(settings),
                batch=settings.orphans.ledgers_per_batch,
                on_batch=on_batch,
            )

    def require_all_roots(self) -> list[str]:
        """Do as ScanContext does: another cluster may have come since the scan."""
        return roots_proof_of(self._settings, self._metadata).require_all_roots()

    def identity(self) -> ClusterIdentity:
        """Read which cluster it is now."""
        return cluster_identity_of(self._settings, self._metadata.bookkeeper_store)
