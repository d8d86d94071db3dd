"""Copiers between two bookie clusters, of the registry or of a move without the jar, and recovery for the latter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

from bookwarden.bookie_clusters.bookie_clusters import BookieClusters
from bookwarden.bookie_clusters.moving.scope import Route, Scope
from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterStores, read_members
from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions, Bookies
from bookwarden.clusters.bookkeeper.copying.copier import LedgerCopier
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.clusters.bookkeeper.copying.placement import Affinity, BookieTopology, CopyPlacement
from bookwarden.clusters.bookkeeper.copying.recovery import LedgerRecovery
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.clusters.pulsar.metadata.bookie_placement import read_affinity, read_bookie_map
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.live_references import LiveReferences, References
from bookwarden.metastore.interface import MetadataStore


def placement_on(target: tuple[MetadataStore, str], pulsar: MetadataStore) -> CopyPlacement:
    """Make the choice among the bookies of a cluster, by what Pulsar's own store says of racks and groups."""

    def read() -> BookieTopology:
        known = read_bookie_map(pulsar)
        return BookieTopology(read_members(*target).writable, known.groups, known.racks)

    return CopyPlacement(read, lambda namespace: Affinity(*read_affinity(pulsar, namespace)))


def copier_between(
    clusters: BookieClusters,
    route: Route,
    scope: Scope,
    limits: CopyLimits,
    bookies: Bookies,
    references: MetadataReferences,
    holder_of: Callable[[int], Holder | None],
    pulsar: MetadataStore,
) -> LedgerCopier:
    """Make the copier of a build, for one thread; ``limits`` are those of this process.

    RefusedError where one of the clusters is not registered, StoreError where the registry cannot be read.
    """
    places = (clusters.named(name) for name in route)
    source, target = ((place.store, place.cluster.ledgers_root) for place in places)
    return LedgerCopier(
        source,
        target,
        bookies,
        references.read,
        placement_on(target, pulsar),
        limits=limits,
        owner=clusters.owner(),
        why_not_ours=partial(clusters.why_not_ours, route.source),
        wanted=scope.wanted,
        holder_of=holder_of,
    )


@dataclass(frozen=True)
class OfflineCopiers:
    """Opens what copies and recovers the ledgers of a move without the jar."""

    stores: ClusterStores
    pulsar: MetadataStore  #: Pulsar's own.
    references: MetadataReferences  #: While brokers run.
    options: BookieOptions  #: Of connections to bookies.
    #: Says whose a ledger is that does not say it.
    holder_of: Callable[[int], Holder | None] = lambda _: None

    @contextmanager
    def copier(
        self, source: LedgersRoot, target: LedgersRoot, owner: str, named: frozenset[int] | None
    ) -> Iterator[LedgerCopier]:
        """Open a copier for the block; ``named`` takes the place of the references where no broker lives."""
        here, there = ((self.stores.at(place.url), place.ledgers_root) for place in (source, target))
        read = self.references.read if named is None else partial(_read_known, LiveReferences(named, exists=True))
        with closing(Bookies(BookieAddresses(*here, lambda: [there]), self.options)) as bookies:
            placement = placement_on(there, self.pulsar)
            yield LedgerCopier(here, there, bookies, read, placement, owner=owner, holder_of=self.holder_of)

    @contextmanager
    def recovery(self, place: LedgersRoot) -> Iterator[LedgerRecovery]:
        """Open the recovery of a cluster's ledgers for the block, in which no broker lives."""
        store = self.stores.at(place.url)
        with closing(Bookies(BookieAddresses(store, place.ledgers_root), self.options)) as bookies:
            yield LedgerRecovery(store, place.ledgers_root, bookies)


def _read_known(named: LiveReferences, holders: Sequence[Holder]) -> Mapping[Holder, References]:
    """Return references that were all read, and that nothing changes: there are no brokers to ask for more."""
    return dict.fromkeys(holders, named)
