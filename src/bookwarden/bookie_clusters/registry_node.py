"""The node of the registry, read and changed: each change is one compare-and-set."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from bookwarden.bookie_clusters.registry import (
    FOLLOWERS_PATH,
    REGISTRY_PATH,
    BookieCluster,
    OtherFormatError,
    Registry,
    parse_registry,
    serialize_registry,
)
from bookwarden.clusters.bookkeeper.bookie_cluster import BookieClusterMetadata, ClusterStores
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.errors import FormatError, LostRaceError, NotFoundError, OutcomeUnknownError, RefusedError
from bookwarden.metastore.interface import MetadataStore, Versioned


@dataclass(frozen=True, slots=True)
class StoredRegistry:
    """A registry as it was read."""

    registry: Registry
    version: int  #: Of its node; a change demands it.
    changed_ms: int = 0  #: When it was written, by the store's clock.


class RegistryNode:
    """The registry's node in Pulsar's own metadata store; ``url`` names that store in errors."""

    def __init__(self, store: MetadataStore, url: str) -> None:
        self.store = store
        self.url = url

    def read(self) -> StoredRegistry | None:
        """Read the registry, never older than this call; None if nothing is registered.

        Raises FormatError for a value that is no registry.
        """
        node = self._fresh()
        return None if node is None else StoredRegistry(self._parsed(node.value), node.version, node.modified_ms)

    def require(self) -> StoredRegistry:
        """Read the registry as `read` does; RefusedError if nothing is registered."""
        found = self.read()
        if found is None:
            raise RefusedError(self._why_none())
        return found

    def require_cluster(self, name: str) -> Registry:
        """Read the registry as `read` does; NotFoundError if no cluster of this name is in it."""
        found = self.read()
        if found is None:
            raise NotFoundError(self._why_none())
        if name not in found.registry.clusters:
            there = ", ".join(sorted(found.registry.clusters))
            raise NotFoundError(f"no bookie cluster {name!r} is registered in {self.url}: there are {there}")
        return found.registry

    def deprecate(self, name: str, deprecated: bool, *, dry_run: bool = False) -> Registry:
        """Keep a cluster from becoming active, or let it again; return the registry as it is, or would be, then.

        RefusedError if it is active or not registered; LostRaceError if another client changed the registry meanwhile.
        """
        found = self.require()
        after = found.registry
        if after.cluster(name).deprecated != deprecated:
            after = after.with_deprecated(name, deprecated)
            if not dry_run:
                self.replace(found, after)
        return after

    def place_of(self, cluster: BookieCluster) -> LedgersRoot:
        """Return where a registered cluster's metadata is."""
        return LedgersRoot(self.url if cluster.store_url is None else cluster.store_url, cluster.ledgers_root)

    def create(self, registry: Registry) -> None:
        """Create the node; LostRaceError if another client has meanwhile."""
        if registry.epoch != 1:
            raise FormatError(f"a new registry has epoch 1, not {registry.epoch}")
        self.write_imported(registry, None)

    def version(self) -> int | None:
        """Read the version of the node, whatever it has; None if there is none."""
        node = self._fresh()
        return None if node is None else node.version

    def write_imported(self, registry: Registry, version: int | None) -> None:
        """Write a registry of any epoch over a node of this version; None: where there is none.

        LostRaceError if another client changed it meanwhile.
        """
        value = _checked(registry)
        with suppress(LostRaceError, OutcomeUnknownError):
            # Brokers would make it open to everybody; the registry needs it not.
            self.store.create(FOLLOWERS_PATH, b"", make_parents=True)
        try:
            if version is None:
                self.store.create(REGISTRY_PATH, value, make_parents=True)
            else:
                self.store.put(REGISTRY_PATH, value, version)
        except (LostRaceError, OutcomeUnknownError) as error:
            self._require_written(value, error)

    def replace(self, seen: StoredRegistry, changed: Registry) -> None:
        """Put ``changed`` into the place of what was read; LostRaceError if another client changed it meanwhile.

        It is one compare-and-set. Where its answer is lost, the node is read again, and shows whether it was done.
        """
        if changed.epoch != seen.registry.epoch + 1:
            raise FormatError(f"the registry after epoch {seen.registry.epoch} has not epoch {changed.epoch}")
        value = _checked(changed)
        try:
            self.store.put(REGISTRY_PATH, value, seen.version)
        except (LostRaceError, OutcomeUnknownError) as error:
            self._require_written(value, error)

    def _require_written(self, value: bytes, error: LostRaceError | OutcomeUnknownError) -> None:
        """Raise LostRaceError unless the node has this value."""
        node = self._fresh()
        if node is not None and node.value == value:
            return
        now = "is not there"
        if node is not None:
            registry = self._parsed(node.value)
            now = f"has epoch {registry.epoch}, and bookie cluster {registry.active!r} is active"
        raise LostRaceError(
            f"this change was not made, since another client made one, or the store did not answer: {REGISTRY_PATH} of "
            f"{self.url} {now}. Look with `bookwarden bookie-clusters list`, and decide again"
        ) from error

    def _parsed(self, value: bytes) -> Registry:
        try:
            return parse_registry(value)
        except OtherFormatError as error:
            raise OtherFormatError(f"{REGISTRY_PATH} of {self.url} is {error}") from error
        except FormatError as error:
            raise FormatError(
                f"{REGISTRY_PATH} of {self.url} is {error}. `bookwarden bookie-clusters registry import` puts a saved "
                "one back (docs/howto/repair-bookie-clusters.md, 'Dead ends')"
            ) from error

    def _why_none(self) -> str:
        return (
            f"no bookie cluster is registered in {self.url}: begin with `bookwarden bookie-clusters register "
            "--bootstrap`; if there was a registry, `bookwarden bookie-clusters registry import` puts it back "
            "(docs/bookie-clusters.md)"
        )

    def _fresh(self) -> Versioned | None:
        self.store.sync()
        return self.store.get(REGISTRY_PATH)


def _checked(registry: Registry) -> bytes:
    """Return the node's value, which brokers can read: what they refuse must not get there."""
    value = serialize_registry(registry)
    parse_registry(value)
    return value


class ClusterRegistry(RegistryNode):
    """The registry in the store of this URL, with the stores that its clusters' metadata is in."""

    def __init__(self, stores: ClusterStores, url: str) -> None:
        super().__init__(stores.at(url), url)
        self.stores = stores

    def store_of(self, cluster: BookieCluster) -> MetadataStore:
        """Return the store of a registered cluster's metadata."""
        return self.stores.at(self.place_of(cluster).url)

    def metadata_of(self, cluster: BookieCluster) -> BookieClusterMetadata:
        """Return the metadata of a registered cluster."""
        return self.stores.cluster_at(self.place_of(cluster))

    def ids_of(self, registry: Registry) -> LedgerIds:
        """Return the generator of the ids of all clusters, below the root that the registry names."""
        return LedgerIds(self.store, registry.id_root)


def read_registered(node: RegistryNode) -> tuple[tuple[str, ...], str, bool, str]:
    """Read the names of the registered clusters, and where ledger ids are counted.

    Then whether that is the one cluster's own counter in Pulsar's own store, and why the registry is none.
    """
    try:
        found = node.read()
    except FormatError as error:
        return (), "", False, str(error)
    if found is None:
        return (), "", True, ""
    registry = found.registry
    counts_itself = registry.counts_ids_in(registry.cluster(registry.active))
    return tuple(sorted(registry.clusters)), registry.id_root, counts_itself, ""


def read_id_counter(
    node: RegistryNode,
    root: str,
    elsewhere: str | None,
    open_store: Callable[[str], MetadataStore],
    pulsar: MetadataStore,
) -> tuple[str | None, str, list[tuple[MetadataStore, str]]]:
    """Read the root below which brokers count ledger ids, and the ledgers roots that have their ledgers.

    ``elsewhere`` is the store of the settings' BookKeeper, ``root`` its ledgers root, if that is not Pulsar's own;
    returned first, it says that ids are counted there.
    """
    found = node.read()
    if found is None:
        return elsewhere, root, [(pulsar, root)]
    clusters = [each for each in found.registry.clusters.values() if not each.shared]
    stores = [pulsar if each.store_url is None else open_store(each.store_url) for each in clusters]
    places = [(store, each.ledgers_root) for store, each in zip(stores, clusters, strict=True)]
    return None, found.registry.id_root, places
