"""Two registered bookie clusters: a, which the settings name, and b below another root, or in another store."""

from __future__ import annotations

from dataclasses import replace

from bookwarden.bookie_clusters.bookie_clusters import BookieClusters, ConfiguredCluster, MultiClusterCatalog
from bookwarden.bookie_clusters.registry import REGISTRY_PATH, BookieCluster, Registry, serialize_registry
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.ledgers.custom_metadata import COPY_KEY, expected_custom_metadata
from bookwarden.ledgers.kinds import Holder, ManagedLedgerHolder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.ledger_metadata import encode_ledger_metadata

ROOTS = {"a": "/ledgers", "b": "/bookies-b"}
OWNER = "5f2c9a41"
DATA = ManagedLedgerHolder("t/ns/persistent/orders")
ELSEWHERE_URL = "memory:elsewhere"
REGISTRY = Registry(
    epoch=3,
    owner=OWNER,
    id_root="/ledgers",
    active="b",
    clusters={
        "a": BookieCluster("a", "zk+hierarchical://h/ledgers", None, "/ledgers", "instance-a", 1, bootstrap=True),
        "b": BookieCluster("b", "zk+hierarchical://h/bookies-b", None, "/bookies-b", "instance-b", 2),
    },
)
COPY = {COPY_KEY: b"9:1000"}


class TwoBookieClusters:
    """The clusters, with their metadata in ``store``, that of b in ``elsewhere`` if it is given."""

    def __init__(self, store: MetadataStore, elsewhere: MetadataStore | None = None) -> None:
        self.store = store
        self.stores = {"a": store, "b": elsewhere or store}
        self.registry = REGISTRY
        if elsewhere is not None:
            self.registry = self.changed("b", store_url=ELSEWHERE_URL)
        for name, root in ROOTS.items():
            if self.stores[name].get(root) is None:
                self.stores[name].create(root, b"")
            if self.stores[name].get(f"{root}/INSTANCEID") is None:
                self.stores[name].create(f"{root}/INSTANCEID", f"instance-{name}".encode())
        self.clusters = self.seen_from("a")
        self.catalog = MultiClusterCatalog(self.alone("a"), self.clusters)

    def alone(self, name: str) -> BookKeeperCatalog:
        """Return the catalog of one cluster."""
        return BookKeeperCatalog(self.stores[name], ROOTS[name])

    def seen_from(self, name: str) -> BookieClusters:
        """Return the clusters as a process sees them whose settings name this one."""
        settled = ConfiguredCluster(self.stores[name], ROOTS[name], self.alone(name), ROOTS[name])
        return BookieClusters(self.store, settled, {ELSEWHERE_URL: self.stores["b"]}.__getitem__)

    def changed(self, name: str, **changes: object) -> Registry:
        """Return the registry with other fields of one cluster."""
        cluster = replace(self.registry.clusters[name], **changes)
        return replace(self.registry, clusters={**self.registry.clusters, name: cluster})

    def register(self, registry: Registry | bytes | None = None) -> None:
        """Write the registry, which counts from the next look on."""
        value = registry if isinstance(registry, bytes) else serialize_registry(registry or self.registry)
        found = self.store.get(REGISTRY_PATH)
        if found is None:
            self.store.create(REGISTRY_PATH, value, make_parents=True)
        else:
            self.store.put(REGISTRY_PATH, value, found.version)
        self.clusters.invalidate()

    def ledger(
        self,
        name: str,
        ledger_id: int,
        *,
        holder: Holder | None = DATA,
        state: LedgerState = LedgerState.CLOSED,
        last: int | None = 9,
        length: int = 1000,
        ctime_ms: int = 1_600_000_000_000,
        **custom: bytes,
    ) -> str:
        """Create a ledger's metadata in a cluster; return its path."""
        tags = {} if holder is None else expected_custom_metadata(holder)
        metadata = LedgerMetadata(
            *(3, state, 1, 1, 1, (Segment(0, (f"{name}1:3181",)),), length, last, "CRC32C", ctime_ms),
            custom={**{key: text.encode() for key, text in tags.items()}, **custom},
        )
        path = ledger_path(ROOTS[name], ledger_id)
        self.stores[name].create(path, encode_ledger_metadata(metadata), make_parents=True)
        return path

    def places_of(self, ledger_id: int) -> str:
        """Return the names of the clusters that have a node of the ledger."""
        there = (self.stores[name].get(ledger_path(root, ledger_id)) for name, root in ROOTS.items())
        return "".join(name for name, node in zip(ROOTS, there, strict=True) if node is not None)
