"""The copier between two bookie clusters of the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from bookwarden.clusters.bookkeeper.bookies.requests import Bookies
from bookwarden.clusters.bookkeeper.copying.copier import ChoosesBookies, LedgerCopier, Place, ReadsReferences
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.outcomes import CopyOutcome
from bookwarden.metastore.interface import MetadataStore


class ClusterEntry(Protocol):
    """An entry of the registry."""

    @property
    def ledgers_root(self) -> str:
        """The root of its ledgers."""


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

    def why_not_ours(self, name: str, ledger_id: int, custom: Mapping[str, bytes]) -> tuple[CopyOutcome, str] | None:
        """Return with which outcome, and why, a ledger of this cluster is not copied; None if it is ours."""


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
        why_not_ours=partial(clusters.why_not_ours, names[0]),
        wanted=wanted,
        holder_of=holder_of,
    )
