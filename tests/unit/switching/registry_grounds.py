"""Metadata stores with bookie clusters in them, for tests of the registry's operations."""

from __future__ import annotations

import time
from collections.abc import Callable

from bookwarden.bookie_clusters.brokers import BROKERS_PATH
from bookwarden.bookie_clusters.registering import ClusterSpec, Registration
from bookwarden.bookie_clusters.registry import FOLLOWERS_PATH, REGISTRY_PATH, Registry
from bookwarden.bookie_clusters.registry_node import ClusterRegistry
from bookwarden.bookie_clusters.repair import IdRaiser, RegistryImport, Upgrade, UriChange
from bookwarden.bookie_clusters.unregistering import LostClusters, Unregistration
from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterStores
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from servers.switching.ground import SessionStore, follower_value

PULSAR, OTHER = "memory:pulsar", "memory:other"
A, B = LedgersRoot(PULSAR, "/ledgers"), LedgersRoot(OTHER, "/bookies-b")


class Stores(ClusterStores):
    """Stores that a test may replace."""

    def at(self, url: str) -> MetadataStore:
        return self._open_store(url)


class Ground:
    """Pulsar's own store with bookie cluster a in it, another store, and the operations on them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.pulsar = SessionStore(clock)
        self.stores: dict[str, MemoryStore] = {PULSAR: self.pulsar, OTHER: MemoryStore()}
        self.registry = ClusterRegistry(Stores(self.stores.__getitem__), PULSAR)
        self.brokers_place = A
        #: The owner of a move by the INSTANCEID of its target.
        self.moved: dict[str, str] = {}
        self.later_s = 60.0  #: So much has passed since the registry was changed.
        self.cluster(A, "instance-a", ("a1:3181", "a2:3181"))

    @property
    def registration(self) -> Registration:
        """Registers in this Pulsar cluster."""
        return Registration(self.registry, self.brokers_place, self.moved.get)

    @property
    def upgrade(self) -> Upgrade:
        """Upgrades the registry of this Pulsar cluster."""
        return Upgrade(self.registry)

    @property
    def unregistration(self) -> Unregistration:
        """Unregisters in this Pulsar cluster."""
        return Unregistration(self.registry, lambda: time.time() + self.later_s)

    @property
    def lost_clusters(self) -> LostClusters:
        """Unregisters what is lost."""
        return LostClusters(self.unregistration, ReferencePieces({PULSAR: self.pulsar}))

    @property
    def uri_change(self) -> UriChange:
        """Changes addresses."""
        return UriChange(self.registration)

    @property
    def registry_import(self) -> RegistryImport:
        """Puts a saved registry back."""
        return RegistryImport(self.registry)

    @property
    def id_raising(self) -> IdRaiser:
        """Raises counters of this Pulsar cluster."""
        return IdRaiser(self.registry)

    @property
    def now(self) -> Registry:
        """The registry as it is."""
        return self.registry.require().registry

    def ids(self, root: str) -> LedgerIds:
        """The generator of ids below a root of Pulsar's own store."""
        return LedgerIds(self.pulsar, root)

    def ids_at(self, place: LedgersRoot) -> LedgerIds:
        """The generator of ids that a bookie cluster has itself."""
        return LedgerIds(self.stores[place.url], place.ledgers_root)

    def cluster(
        self, place: LedgersRoot, instance: str | None, bookies: tuple[str, ...] = (), layout: bytes | None = None
    ) -> None:
        """Initialise a bookie cluster whose bookies run."""
        store, root = self.stores[place.url], place.ledgers_root
        self.make(store, f"{root}/available/readonly")
        self.make(store, f"{root}/cookies")
        for bookie in bookies:
            self.make(store, f"{root}/available/{bookie}")
            self.make(store, f"{root}/cookies/{bookie}")
        if instance is not None:
            self.make(store, f"{root}/INSTANCEID", instance.encode())
        if layout is not None:
            self.make(store, f"{root}/LAYOUT", layout)

    @staticmethod
    def make(store: MemoryStore, path: str, value: bytes = b"") -> None:
        """Create a node."""
        store.create(path, value, make_parents=True)

    def give_ids(self, place: LedgersRoot, count: int) -> None:
        """Let the cluster's own generator give so many ids."""
        store, path = self.stores[place.url], f"{place.ledgers_root}/idgen"
        if store.get(path) is None:
            self.make(store, path)
        for _ in range(count):
            node = store.ephemeral_sequential(f"{path}/ID-", b"")
            store.delete_many([(node, 0)])

    def ledger(self, place: LedgersRoot, ledger_id: int, owner: str | None = None, **more: bytes) -> None:
        """Make a ledger, with an owner's mark or without."""
        custom = {"application": b"pulsar"} | ({} if owner is None else {"bookwarden.owner": owner.encode()}) | more
        segments = (Segment(0, ("a1:3181",)),)
        metadata = LedgerMetadata(3, LedgerState.CLOSED, 1, 1, 1, segments, 7, 0, "CRC32C", 5, custom=custom)
        path = ledger_path(place.ledgers_root, ledger_id)
        self.make(self.stores[place.url], path, encode_ledger_metadata(metadata))

    def broker(self, name: str, epoch: int | None = None, **fields: object) -> str:
        """Start a broker that follows this epoch, and return its follower's path; None: without the jar, and ""."""
        path = f"{BROKERS_PATH}/{name}"
        self.make(self.pulsar, path)
        self.pulsar.sessions[path] = session = len(self.pulsar.sessions) + 1
        if epoch is not None:
            node = f"{FOLLOWERS_PATH}/{session}"
            self.make(self.pulsar, node, follower_value(self.now, epoch=epoch, **fields))
            self.pulsar.sessions[node] = session
            return node
        return ""

    def reaching(self, name: str) -> None:
        """Start a broker that follows each change of the registry at once, and reaches all clusters."""
        node = self.broker(name, self.now.epoch)

        def follow(_: object) -> None:
            seen = self.pulsar.get(node)
            assert seen is not None
            self.pulsar.put(node, follower_value(self.now), seen.version)

        self.pulsar.watch(REGISTRY_PATH, follow)

    def register(self, wanted: ClusterSpec) -> Registry:
        """Register as the command does; return the registry then."""
        plan = self.registration.plan(wanted)
        if plan.behind:
            self.registration.raise_ids(plan)
        self.registration.carry_out(wanted, wait_s=0)
        return self.now


def first(place: LedgersRoot = A, *, uri: str = "uri-of-a", shared: bool = False) -> ClusterSpec:
    """The bootstrap cluster."""
    return ClusterSpec("a", uri, place, bootstrap=True, shared=shared)


def further(place: LedgersRoot = B, *, name: str = "b", uri: str = "uri-of-b", shared: bool = False) -> ClusterSpec:
    """A cluster beside it."""
    return ClusterSpec(name, uri, place, shared=shared)
