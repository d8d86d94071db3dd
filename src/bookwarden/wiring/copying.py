"""Wiring of the copying of ledgers from one registered bookie cluster to another."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

from bookwarden.clusters.bookkeeper.copying.copier import NO_LIMITS, LedgerCopier
from bookwarden.clusters.bookkeeper.copying.limits import CopyLimits
from bookwarden.clusters.bookkeeper.copying.registered import copier_between
from bookwarden.clusters.copiers import placement_on
from bookwarden.config import Settings
from bookwarden.ledgers.kinds import Holder
from bookwarden.resources import Resources
from bookwarden.wiring.metadata import MetadataContext


class CopyContext(Resources):
    """Everything that copies ledgers between two registered clusters; close it, or use it in a with statement.

    It is for one thread. ``limits`` are those of this process.
    """

    def __init__(
        self,
        settings: Settings,
        source: str,
        target: str,
        *,
        wanted: Callable[[Holder], bool] = lambda _: True,
        limits: CopyLimits = NO_LIMITS,
    ) -> None:
        super().__init__()
        self._names = source, target
        self._wanted = wanted
        self._limits = limits
        with self._closed_on_error():
            #: The metadata of both clusters and of Pulsar.
            self.metadata = self._keep(MetadataContext(settings))

    @cached_property
    def copier(self) -> LedgerCopier:
        """The copier; RefusedError where one of the clusters is not registered."""
        return copier_between(
            self.metadata.bookie_clusters,
            self._names,
            self.metadata.bookies,
            self.metadata.references,
            partial(placement_on, pulsar=self.metadata.store),
            limits=self._limits,
            wanted=self._wanted,
            holder_of=self.metadata.named_holders.holder_of,
        )
