"""The copier between two bookie clusters of the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bookwarden.clusters.bookkeeper.bookies.requests import Bookies
from bookwarden.clusters.bookkeeper.copying.copier import ChoosesBookies, LedgerCopier, Place, ReadsReferences
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.ledgers.kinds import Holder
from bookwarden.metastore.interface import MetadataStore


class ClusterEntry(Protocol):
    """An entry of the registry."""

    @property
    def ledgers_root(self) -> str:
        """The root of its ledgers."""

    @property
    def shared(self) -> bool:
        """Whether other Pulsar clusters write there too."""


class RegisteredPlace(Protocol):
    """A registered cluster."""

    @property
    def cluster(self) -> ClusterEntry:
        """Its entry."""

    @property
    def store(self) -> MetadataStore:
        """The store of its metadata."""


class RegisteredClusters(Protocol):
    """The registered clusters."""

    def named(self, name: str) -> RegisteredPlace:
        """Return the cluster of this name; RefusedError if it is not registered."""

    def owner(self) -> str | None:
        """Return the owner mark of ledgers."""


def copier_between(
    clusters: RegisteredClusters,
    names: tuple[str, str],
    bookies: Bookies,
    references: ReadsReferences,
    placement_on: Callable[[Place], ChoosesBookies],
    *,
    limits: CopyLimits,
    wanted: Callable[[Holder], bool],
    holder_of: Callable[[int], Holder | None],
) -> LedgerCopier:
    """Make the copier from the first to the second of these clusters.

    RefusedError where one of them is not registered, StoreError where the registry cannot be read.
    """
    source, target = (clusters.named(name) for name in names)
    place = Place(target.store, target.cluster.ledgers_root)
    return LedgerCopier(
        Place(source.store, source.cluster.ledgers_root),
        place,
        bookies,
        references,
        placement_on(place),
        limits=limits,
        owner=clusters.owner(),
        only_owned=source.cluster.shared,
        wanted=wanted,
        holder_of=holder_of,
    )
