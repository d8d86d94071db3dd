"""The registered bookie clusters, as a process that works on ledgers knows them.

The registry is read when a command or a batch of the sweep begins, and stays as it was read until the next one: where
ledgers are looked for never changes in the middle. A batch is bound to the registry's epoch: a change ends it.

Over all of them a ledger's clusters are those that have its metadata. It is absent only when every cluster was read and
none has it; as long as one does not answer, nothing is known of any ledger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bookwarden.bookie_clusters.registry import REGISTRY_PATH, BookieCluster, Registry, is_ours, unknown_owner
from bookwarden.bookie_clusters.registry_node import RegistryNode, StoredRegistry
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.errors import FormatError, RefusedError, RegistryChangedError, StoreUnavailableError
from bookwarden.ledgers.cluster_identity import INSTANCE_NODE, instance_id_in
from bookwarden.ledgers.custom_metadata import HolderChange, is_unfinished, why_not_the_same
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    ActiveCluster,
    Condition,
    Conditions,
    DeleteResult,
    LedgerReading,
    RegistrySnapshot,
    Restoration,
    StoredLedger,
    UnreadableLedger,
)
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.metastore.interface import MetadataStore


@dataclass(frozen=True)
class ConfiguredCluster:
    """The bookie cluster that the settings name: what there is without a registry."""

    store: MetadataStore
    ledgers_root: str
    catalog: BookKeeperCatalog
    text: str  #: For people.


@dataclass(frozen=True)
class RegisteredCluster:
    """A registered bookie cluster that was found to be the one of its entry."""

    cluster: BookieCluster
    store: MetadataStore
    catalog: BookKeeperCatalog
    is_configured: bool  #: The settings name it.
    same_store: bool  #: Its metadata is in the same store as that of the one that the settings name.

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.cluster.name


@dataclass(frozen=True)
class ClusterSet:
    """The registry, and each of its clusters as it was found."""

    registry: Registry
    clusters: tuple[RegisteredCluster, ...]  #: In the order in which brokers read.
    changed_ms: int  #: When the registry was last changed, by the store's clock.

    @cached_property
    def by_age(self) -> tuple[RegisteredCluster, ...]:
        """The clusters, the oldest registration first."""
        return tuple(sorted(self.clusters, key=lambda place: (place.cluster.since, place.name)))

    @cached_property
    def read_order(self) -> tuple[RegisteredCluster, ...]:
        """The clusters in the order to read all of them in.

        What undo recorded of a ledger, which is read later, is in the store of the settings and older than what undo
        put back: so that store comes last.
        """
        return tuple(sorted(self.clusters, key=lambda place: place.same_store))

    def named(self, name: str) -> RegisteredCluster | None:
        """Return the cluster of this name; None if there is none."""
        return next((place for place in self.clusters if place.name == name), None)

    @property
    def bootstrap(self) -> RegisteredCluster | None:
        """The cluster of ledgers that were deleted before there was a registry; None once it is not registered."""
        return next((place for place in self.clusters if place.cluster.bootstrap), None)


class BookieClusters:
    """Reads the registry in Pulsar's own metadata store, and finds the clusters in it. Thread-safe.

    ``open_store`` returns the store of a URL, the same one each time. ``other_roots`` are URLs of further metadata
    roots, whose ledgers are there too. ``prefix`` is that of paths in Pulsar's own store as the settings' store of
    ledgers has them; None where that is another one.
    """

    def __init__(
        self,
        pulsar: MetadataStore,
        settled: ConfiguredCluster,
        open_store: Callable[[str], MetadataStore],
        *,
        other_roots: Sequence[str] = (),
        prefix: str | None = None,
    ) -> None:
        self._prefix = "" if pulsar is settled.store else prefix
        self._pulsar = pulsar
        self._node = RegistryNode(pulsar, "")
        self._settled = settled
        self._open_store = open_store
        self._other_roots = other_roots
        self._lock = threading.Lock()
        self._has_looked = False
        self._known: ClusterSet | None = None
        self._catalogs: dict[tuple[str | None, str, str], BookKeeperCatalog] = {}

    def invalidate(self) -> None:
        """Have the registry read again at the next question."""
        with self._lock:
            self._has_looked = False

    def epoch(self) -> int:
        """Read the registry now, and return its epoch; 0 where no cluster is registered. Raises as `snapshot`."""
        return _epoch_of(self._registry())

    def require_epoch(self, epoch: int) -> None:
        """Read the registry now; what the others return is of this epoch afterwards.

        Raises RegistryChangedError where it has a later epoch, StoreUnavailableError where it has an earlier one, since
        the store lags behind, and as `registered`.
        """
        now = self.epoch()
        if now > epoch:
            raise RegistryChangedError(f"the registry of bookie clusters has epoch {now}, and this batch is of {epoch}")
        if now < epoch:
            raise StoreUnavailableError(f"the store has epoch {now} of the registry, and this batch is of {epoch}")
        registered = self.registered()
        if _epoch_of(registered) != epoch:
            self.invalidate()
            registered = self.registered()
        if _epoch_of(registered) != epoch:
            raise RegistryChangedError(f"the registry of bookie clusters changed, and this batch is of epoch {epoch}")

    def registered(self) -> ClusterSet | None:
        """Return the registered clusters; None where none is registered.

        Raises StoreUnavailableError when the registry cannot be read or parsed, or the store of a cluster does not
        answer: then it is not known where ledgers are. RefusedError when a cluster is not the one of its entry, or none
        of them is the one that the settings name.
        """
        with self._lock:
            if not self._has_looked:
                self._known = self._read()
                self._has_looked = True
            return self._known

    def names(self) -> frozenset[str]:
        """Return the names of the registered clusters; raises as `registered`."""
        registered = self.registered()
        return frozenset() if registered is None else frozenset(registered.registry.clusters)

    def named(self, name: str) -> RegisteredCluster:
        """Return the cluster of this name; RefusedError if it is not registered; raises as `registered`."""
        registered = self.registered()
        place = None if registered is None else registered.named(name)
        if place is None:
            raise RefusedError(f"no bookie cluster {name!r} is registered: `bookie-clusters list` shows which are")
        return place

    def owner(self) -> str | None:
        """Return the owner mark of ledgers; None where no cluster is registered; raises as `registered`."""
        registered = self.registered()
        return None if registered is None else registered.registry.owner

    def why_not_ours(self, name: str, ledger_id: int, custom: Mapping[str, bytes]) -> tuple[CopyOutcome, str] | None:
        """Return with which outcome, and why, a ledger of this cluster is not copied; None if it is ours.

        Raises as `named`.
        """
        cluster, registered = self.named(name).cluster, self.registered()
        if registered is None or is_ours(registered.registry, cluster, ledger_id, custom):
            return None
        if cluster.shared:
            return CopyOutcome.LEFT_OUT, "it is another Pulsar cluster's"
        unknown = unknown_owner(registered.registry, custom)
        mark = "it has no owner mark" if unknown is None else f"its owner mark is {unknown}"
        return CopyOutcome.FAILED, f"{mark}, so that brokers do not read it in {name}: find out who made it"

    def active(self) -> ActiveCluster | None:
        """Return the active cluster; None where none is registered; raises as `registered`."""
        registered = self.registered()
        return None if registered is None else _active_of(registered.registry, registered.changed_ms)

    def snapshot(self) -> RegistrySnapshot:
        """Read the registry now, and leave what the others return as it was read.

        Raises StoreUnavailableError when the registry cannot be read or parsed.
        """
        found, registered = self._registry(), self.registered()
        if found is None or registered is None:
            return RegistrySnapshot(None)
        demanded = () if self._prefix is None else (Condition(f"{self._prefix}{REGISTRY_PATH}", found.version),)
        same_store = frozenset(place.name for place in registered.clusters if place.same_store)
        return RegistrySnapshot(_active_of(found.registry, found.changed_ms), demanded, same_store)

    def catalogs(self) -> dict[str, BookKeeperCatalog]:
        """Return the catalog of each registered cluster by name, and by "" that of ledgers from before the registry.

        That one is missing once the first cluster is not registered any more. Empty where no cluster is registered;
        raises as `registered`.
        """
        registered = self.registered()
        if registered is None:
            return {}
        before = {} if registered.bootstrap is None else {"": registered.bootstrap.catalog}
        return {**before, **{place.name: place.catalog for place in registered.clusters}}

    def instances(self) -> dict[str, str]:
        """Return the INSTANCEID of each registered cluster by name, and by "" that of ledgers from before the registry.

        Likewise. Where no cluster is registered, that is the BookKeeper's that the settings name, read now; empty if it
        has none. Raises as `registered`, and FormatError where it is no text.
        """
        registered = self.registered()
        if registered is None:
            node = self._settled.store.get(f"{self._settled.ledgers_root}/{INSTANCE_NODE}")
            return {"": instance_id_in(None if node is None else node.value)}
        found = {place.name: place.cluster.instance.strip() for place in registered.clusters}
        return found if registered.bootstrap is None else {"": found[registered.bootstrap.name], **found}

    def roots_by_name(self) -> dict[str, tuple[MetadataStore, str]]:
        """Return store and ledgers root of each registered cluster; raises as `registered`."""
        registered = self.registered()
        found = () if registered is None else registered.clusters
        return {place.name: (place.store, place.cluster.ledgers_root) for place in found}

    def roots(self) -> list[tuple[MetadataStore, str]]:
        """Return the values of `roots_by_name`."""
        return list(self.roots_by_name().values())

    def all_roots(self) -> list[tuple[MetadataStore, str]]:
        """Return the same, or that of the only cluster where none is registered."""
        return self.roots() or [self.of_new_ledgers()]

    def identity(self) -> str:
        """Return the names and instances of the clusters, where several are registered now; else an empty text."""
        self.invalidate()
        registered = self.registered()
        if registered is None or len(registered.clusters) < 2:
            return ""
        return ", ".join(f"{place.name} {place.cluster.instance}" for place in registered.by_age)

    def of_new_ledgers(self) -> tuple[MetadataStore, str]:
        """Return store and ledgers root of the active cluster, or of the only one; raises as `registered`."""
        registered = self.registered()
        if registered is None:
            return self._settled.store, self._settled.ledgers_root
        return self.roots_by_name()[registered.registry.active]

    def name_of_new_ledgers(self) -> str:
        """Return the name of the same, for people."""
        registered = self.registered()
        return self._settled.text if registered is None else f"bookie cluster {registered.registry.active}"

    def counter(self) -> tuple[MetadataStore, str] | None:
        """Return store and root of the counter that numbers ledgers; None where no cluster is registered."""
        registered = self.registered()
        return None if registered is None else (self._pulsar, registered.registry.id_root)

    def require_one(self) -> None:
        """Raise RefusedError where several bookie clusters are registered now."""
        self.invalidate()
        names = self.names()
        if len(names) > 1:
            raise RefusedError(
                f"the bookie clusters {', '.join(sorted(names))} are registered, and this release of bookwarden can do "
                "this with one only: a ledger that it does not find might be in another. Nothing was changed"
            )

    def own_store_urls(self) -> list[str]:
        """Read the URLs of stores that registered clusters have of their own; StoreUnavailableError if unreadable."""
        found = self._registry()
        clusters = [] if found is None else found.registry.clusters.values()
        return [each.store_url for each in clusters if each.store_url]

    def _registry(self) -> StoredRegistry | None:
        try:
            return self._node.read()
        except FormatError as error:
            raise StoreUnavailableError(f"where ledgers are is not known, so nothing is done: {error}") from error

    def _read(self) -> ClusterSet | None:
        found = self._registry()
        if found is None:
            return None
        registry, changed_ms = found.registry, found.changed_ms
        if self._other_roots:
            raise RefusedError(
                f"bookie clusters are registered for the first of metadata_store.urls, and {self._other_roots[0]} is "
                "there too: ledgers of a second Pulsar cluster would be taken for a stranger's. Give each Pulsar "
                "cluster settings of its own, and register bookie clusters that both use as shared"
            )
        clusters = tuple(self._find(cluster) for cluster in registry.in_reading_order())
        if not any(place.is_configured for place in clusters):
            raise RefusedError(
                f"the settings name the bookie cluster at {self._settled.text}, which is none of those that are "
                f"registered ({', '.join(sorted(registry.clusters))}): set metadata_store.bookkeeper_url and "
                "ledgers_root to one of them"
            )
        return ClusterSet(registry, clusters, changed_ms)

    def _find(self, cluster: BookieCluster) -> RegisteredCluster:
        store = self._pulsar if cluster.store_url is None else self._open_store(cluster.store_url)
        self._require_instance(cluster, store)
        same_store = store is self._settled.store
        is_configured = same_store and cluster.ledgers_root == self._settled.ledgers_root
        if is_configured:
            return RegisteredCluster(cluster, store, self._settled.catalog, True, True)
        key = (cluster.store_url, cluster.ledgers_root, cluster.instance)
        if key not in self._catalogs:
            self._catalogs[key] = BookKeeperCatalog(store, cluster.ledgers_root)
        return RegisteredCluster(cluster, store, self._catalogs[key], False, same_store)

    def _require_instance(self, cluster: BookieCluster, store: MetadataStore) -> None:
        """Raise RefusedError where another cluster, or none, is at the place of this one."""
        path = f"{cluster.ledgers_root}/{INSTANCE_NODE}"
        store.sync()
        node = store.get(path)
        if node is None or node.value != cluster.instance.encode():
            found = "is missing" if node is None else f"is {node.value.decode(errors='backslashreplace')!r}"
            raise RefusedError(
                f"bookie cluster {cluster.name} is registered with the instance {cluster.instance!r}, and {path} at "
                f"{cluster.metadata_service_uri} {found}: it is another cluster, with other ledgers. Put its metadata "
                f"back; if that is gone for good: `bookie-clusters unregister --lost {cluster.name}`"
            )


def _epoch_of(found: StoredRegistry | ClusterSet | None) -> int:
    return 0 if found is None else found.registry.epoch


def _active_of(registry: Registry, changed_ms: int) -> ActiveCluster:
    # By the store's clock, not by that of the process that gave the order; any change restarts the window.
    directive, names = registry.directive, frozenset(registry.clusters)
    since_ms, epoch = (None, 0) if directive is None else (changed_ms, directive.epoch)
    return ActiveCluster(registry.active, since_ms, names, epoch)


_NOT_DONE = (DeleteResult.LOST_RACE, DeleteResult.UNKNOWN)


class MultiClusterCatalog:
    """Reads and deletes ledgers wherever they are; ``alone`` has them where no bookie cluster is registered.

    ``for_deletion``: an owner mark that the registry does not name is a doubt, also where brokers read such ledgers.
    """

    def __init__(self, alone: BookKeeperCatalog, clusters: BookieClusters, *, for_deletion: bool = False) -> None:
        self._alone = alone
        self._clusters = clusters
        self._for_deletion = for_deletion

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        """Read the metadata of each ledger in all clusters, in the order asked; never older than this call.

        A ledger comes as brokers read it, with its copies in other clusters; unfinished copies are among these
        alone, or with an absent one. Ledgers that are not ours are not there. What is not one ledger and its copies is
        unreadable.
        """
        registered = self._clusters.registered()
        if registered is None:
            return self._alone.read_many(ledger_ids)
        ids = list(dict.fromkeys(ledger_ids))
        found = {place.name: place.catalog.read_many(ids) for place in registered.read_order}
        by_id = {
            ledger_id: self._together(
                ledger_id, [(place, found[place.name][at]) for place in registered.clusters], registered
            )
            for at, ledger_id in enumerate(ids)
        }
        return [by_id[ledger_id] for ledger_id in ledger_ids]

    def delete_many(
        self, ledgers: Sequence[StoredLedger], conditions: Sequence[Conditions] | None = None
    ) -> list[DeleteResult]:
        """Delete the metadata of each ledger in its own cluster, if it still has the version that was read.

        A ledger that comes several times, once for each place, goes from unfinished copies first, then from the oldest
        registration on; where one place could not be cleared the others stay, and are LOST_RACE.
        """
        registered = self._clusters.registered()
        if registered is None:
            return self._alone.delete_many(ledgers, conditions)
        results = [DeleteResult.LOST_RACE] * len(ledgers)
        stopped: set[int] = set()
        for unfinished in (True, False):
            for place in registered.by_age:
                turn = [
                    at
                    for at, ledger in enumerate(ledgers)
                    if ledger.bookie_cluster == place.name
                    and ledger.ledger_id not in stopped
                    and is_unfinished(ledger.metadata) is unfinished
                ]
                if not turn:
                    continue
                # The nodes that are demanded are in the store of the settings.
                demanded = [conditions[at] for at in turn] if conditions is not None and place.same_store else None
                deleted = place.catalog.delete_many([ledgers[at] for at in turn], demanded)
                for at, result in zip(turn, deleted, strict=True):
                    results[at] = result
                    if result in _NOT_DONE:
                        stopped.add(ledgers[at].ledger_id)
        return results

    def paths_of(self, ledger_id: int) -> tuple[str, ...]:
        """List the nodes at which the ledger's metadata may be in the cluster that the settings name."""
        return self._alone.paths_of(ledger_id)

    def restore_many(self, ledgers: Sequence[Restoration]) -> list[bool]:
        """Write the nodes in the cluster that the settings name, as its catalog does."""
        return self._alone.restore_many(ledgers)

    def touch_many(self, ledgers: Sequence[StoredLedger]) -> list[bool]:
        """Write the nodes of each ledger once more as they were read, wherever it is; return of which all were."""
        registered = self._clusters.registered()
        if registered is None:
            return self._alone.touch_many(ledgers)
        written = dict.fromkeys((ledger.ledger_id for ledger in ledgers), True)
        for place in registered.clusters:
            there = [one for ledger in ledgers for one in ledger.places if one.bookie_cluster == place.name]
            for one, is_written in zip(there, place.catalog.touch_many(there), strict=True):
                written[one.ledger_id] = written[one.ledger_id] and is_written
        return [written[ledger.ledger_id] for ledger in ledgers]

    def change_holders(self, changes: Mapping[int, HolderChange]) -> list[int]:
        """Have ledgers name another holder wherever they are, as `BookKeeperCatalog.change_holders` does.

        Each place is read by itself: one that was changed, and another that was not, make a ledger unreadable.
        """
        registered = self._clusters.registered()
        if registered is None:
            return self._alone.change_holders(changes)
        again: set[int] = set()
        for place in registered.clusters:

            def is_ours_here(found: StoredLedger, place: RegisteredCluster = place) -> bool:
                return is_ours(registered.registry, place.cluster, found.ledger_id, found.metadata.custom)

            again.update(place.catalog.change_holders(changes, is_ours_here))
        return sorted(again)

    def _together(
        self, ledger_id: int, readings: Sequence[tuple[RegisteredCluster, LedgerReading]], registered: ClusterSet
    ) -> LedgerReading:
        """Join what all clusters, in the order in which brokers read, have of a ledger."""
        registry = registered.registry
        whole: list[StoredLedger] = []
        unfinished: list[StoredLedger] = []
        for place, reading in readings:
            if isinstance(reading, UnreadableLedger):
                return UnreadableLedger(ledger_id, f"in bookie cluster {place.name}: {reading.reason}")
            if isinstance(reading, AbsentLedger):
                continue
            unknown = unknown_owner(registry, reading.metadata.custom)
            if self._for_deletion and unknown is not None and not place.cluster.shared:
                return UnreadableLedger(
                    ledger_id,
                    f"its owner mark in bookie cluster {place.name} is {unknown!r}, which the registry does not name: "
                    "if it is of an earlier registry of this Pulsar cluster, `bookie-clusters upgrade --owner "
                    f"{unknown}` says so",
                )
            if not is_ours(registry, place.cluster, ledger_id, reading.metadata.custom):
                continue
            found = reading._replace(bookie_cluster=place.name)
            (unfinished if is_unfinished(found.metadata) else whole).append(found)
        problem = why_not_the_same([*whole, *unfinished]) if whole else None
        if problem is not None:
            return UnreadableLedger(ledger_id, problem)
        if whole:
            return whole[0]._replace(elsewhere=(*whole[1:], *unfinished))
        # Brokers do not read an unfinished copy either.
        is_one = unfinished and why_not_the_same(unfinished) is None
        return AbsentLedger(ledger_id, tuple(unfinished) if is_one else ())
