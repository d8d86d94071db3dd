"""Copiers between any two bookie clusters, and the recovery of ledgers of one, whether or not they are registered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterPlace
from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions, Bookies
from bookwarden.clusters.bookkeeper.copying.copier import LedgerCopier, Place, ReadsReferences
from bookwarden.clusters.bookkeeper.copying.placement import Affinity, Ground, Placement
from bookwarden.clusters.bookkeeper.copying.recovery import LedgerRecovery
from bookwarden.clusters.bookkeeper.members import read_members
from bookwarden.clusters.pulsar.metadata.bookie_placement import read_affinity, read_bookie_map
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.live_references import LiveReferences, References
from bookwarden.metastore.interface import MetadataStore


class StandingReferences:
    """References that were all read, and that nobody changes: there are no brokers to ask for more."""

    def __init__(self, ledger_ids: frozenset[int]) -> None:
        self._named = LiveReferences(ledger_ids, exists=True)

    def read(
        self, holders: Sequence[Holder], ledgers: Mapping[Holder, Collection[int]] | None = None
    ) -> Mapping[Holder, References]:
        """Return all of them for each holder."""
        return dict.fromkeys(holders, self._named)


def placement_on(target: Place, pulsar: MetadataStore) -> Placement:
    """Make the choice among the bookies of a cluster, by what Pulsar's own store says of racks and groups."""

    def read() -> Ground:
        known = read_bookie_map(pulsar)
        return Ground(read_members(*target).writable, known.groups, known.racks)

    return Placement(read, lambda namespace: Affinity(*read_affinity(pulsar, namespace)))


class CopiersBetween:
    """Opens copiers.

    ``store_at`` returns the store of a URL, ``pulsar`` is Pulsar's own; ``references`` are those while brokers run.
    ``holder_of`` says whose a ledger is that does not say it.
    """

    def __init__(
        self,
        store_at: Callable[[str], MetadataStore],
        pulsar: MetadataStore,
        references: ReadsReferences,
        options: BookieOptions,
        holder_of: Callable[[int], Holder | None] = lambda _: None,
    ) -> None:
        self._store_at = store_at
        self._holder_of = holder_of
        self._pulsar = pulsar
        self._references = references
        self._options = options

    @contextmanager
    def __call__(
        self, source: ClusterPlace, target: ClusterPlace, owner: str, named: frozenset[int] | None
    ) -> Iterator[LedgerCopier]:
        """Open one for the block; ``named`` takes the place of the references where no broker lives."""
        here, there = (Place(self._store_at(place.url), place.ledgers_root) for place in (source, target))
        references = self._references if named is None else StandingReferences(named)
        with closing(Bookies(BookieAddresses(*here, lambda: [there]), self._options)) as bookies:
            placement = placement_on(there, self._pulsar)
            yield LedgerCopier(here, there, bookies, references, placement, owner=owner, holder_of=self._holder_of)


class RecoveriesAt:
    """Opens the recovery of ledgers of a bookie cluster."""

    def __init__(self, store_at: Callable[[str], MetadataStore], options: BookieOptions) -> None:
        self._store_at = store_at
        self._options = options

    @contextmanager
    def __call__(self, place: ClusterPlace) -> Iterator[LedgerRecovery]:
        """Open it for the block, in which no broker lives."""
        store = self._store_at(place.url)
        with closing(Bookies(BookieAddresses(store, place.ledgers_root), self._options)) as bookies:
            yield LedgerRecovery(store, place.ledgers_root, bookies)
