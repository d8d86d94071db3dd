"""The walk over former bookie clusters: their ledgers, compared with what the active one has of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from bookwarden.bookie_clusters.bookie_clusters import BookieClusters, MultiClusterCatalog
from bookwarden.clusters.bookkeeper.listing import read_every_ledger
from bookwarden.errors import RefusedError
from bookwarden.ledgers.custom_metadata import identify_holder, is_unfinished, names_no_holder, why_not_superseded
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.live_references import LiveReferences, References, UnknownReferences
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    ActiveCluster,
    LedgerMetadata,
    LedgerReading,
    LedgerState,
    StoredLedger,
    UnreadableLedger,
    place_in,
)
from bookwarden.metastore.interface import MetadataStore

AT_ONCE = 500
_NO_OWNER = "its owner is unknown: the orphan scan decides about it"
_T = TypeVar("_T")


class SupersededLedger(NamedTuple):
    """A ledger of a former cluster that the active one has, closed, with the same end."""

    former: StoredLedger
    kept: StoredLedger
    holder: Holder


class UnfinishedCopy(NamedTuple):
    """An unfinished copy of a ledger that no cluster has, and that nothing needs."""

    copy: StoredLedger
    holder: Holder


@dataclass(frozen=True, slots=True, order=True)
class KeptLedger:
    """A ledger that has to stay in its former cluster."""

    cluster: str
    reason: str
    #: Its bytes, if it is closed and a build would copy it; None otherwise.
    to_copy: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class FormerClusters:
    """Finds what former clusters have."""

    clusters: BookieClusters  #: The registered ones.
    catalog: MultiClusterCatalog  #: Over all of them.
    #: Returns the holder of a ledger that names none; None where it is unknown.
    holder_of: Callable[[int], Holder | None] = lambda _: None
    #: Reads what holders name, just now.
    read_references: Callable[[Sequence[Holder]], Mapping[Holder, References]] = lambda holders: dict.fromkeys(
        holders, UnknownReferences("they cannot be read here")
    )

    def active(self, source: str | None = None) -> ActiveCluster:
        """Return the active cluster as it is now.

        As long as nothing was switched the others have at most what was copied ahead. Raises RefusedError where no
        other cluster is registered, or none of this name.
        """
        self.clusters.invalidate()
        active = self.clusters.active()
        if active is None:
            raise _refused("no bookie cluster is registered: begin with `bookwarden bookie-clusters register`")
        if len(active.registered) < 2:
            raise _refused("there is no other bookie cluster than the active one")
        if source is not None and source not in active.registered:
            raise _refused(f"no bookie cluster {source!r} is registered")
        return active

    def active_store(self, active: ActiveCluster) -> MetadataStore:
        """Return the store that has the metadata of the active cluster."""
        return self.clusters.roots_by_name()[active.name][0]

    def found(
        self, active: ActiveCluster, source: str | None = None
    ) -> Iterator[SupersededLedger | UnfinishedCopy | KeptLedger]:
        """Yield what may go from former clusters, or from this one alone, and all else with the reason that it stays.

        From the active one, if it is named, unfinished copies alone. Reads the metadata of every ledger there.
        """
        for name, (store, root) in self.clusters.roots_by_name().items():
            if name != (source or name) or (source is None and name == active.name):
                continue
            for ids in in_parts(ledger_id for ledger_id, _ in read_every_ledger(store, root)):
                left: list[StoredLedger] = []
                for reading in self.catalog.read_many(ids):
                    if isinstance(reading, AbsentLedger):
                        left += [copy for copy in reading.unfinished if copy.bookie_cluster == name]
                        continue
                    if name == active.name:
                        continue
                    one = self._looked_at(reading, name, active.name)
                    if one is not None:
                        yield one
                yield from self._unfinished(left, name)

    def _unfinished(self, copies: Sequence[StoredLedger], name: str) -> Iterator[UnfinishedCopy | KeptLedger]:
        """Sort unfinished copies of ledgers that are in no cluster: what is named may have its only bytes there."""
        holders = [self._holder_in(copy) for copy in copies]
        known = list(dict.fromkeys(holder for holder in holders if holder is not None))
        found = self.read_references(known) if known else {}
        for copy, holder in zip(copies, holders, strict=True):
            if holder is None:
                yield KeptLedger(name, _NO_OWNER)
                continue
            references = found[holder]
            if not isinstance(references, LiveReferences):
                yield KeptLedger(name, "an unfinished copy, and whether its ledger is named is not known now")
            elif references.needs(copy.ledger_id, copy.metadata):
                yield KeptLedger(
                    name, "named and gone: no bookie cluster has it whole, and this unfinished copy may have the rest"
                )
            else:
                yield UnfinishedCopy(copy, holder)

    def _holder_in(self, ledger: StoredLedger) -> Holder | None:
        custom = ledger.metadata.custom
        return self.holder_of(ledger.ledger_id) if names_no_holder(custom) else identify_holder(custom)

    def _looked_at(self, reading: LedgerReading, name: str, active: str) -> SupersededLedger | KeptLedger | None:
        if isinstance(reading, UnreadableLedger):
            return KeptLedger(name, "its metadata cannot be understood, or differs between clusters")
        former = place_in(reading, name)
        if former is None:
            # Deleted meanwhile, or, in a shared cluster, another Pulsar cluster's.
            return None
        kept = place_in(reading, active)
        reason = why_not_superseded(former, kept, active)
        if reason is not None or kept is None:
            return KeptLedger(name, reason or "", _to_copy(former.metadata, kept))
        holder = self._holder_in(former)
        if holder is None:
            return KeptLedger(name, _NO_OWNER)
        return SupersededLedger(former, kept, holder)


def in_parts(items: Iterable[_T]) -> Iterator[list[_T]]:
    """Yield the items as lists of at most `AT_ONCE`."""
    rest = iter(items)
    while part := list(itertools.islice(rest, AT_ONCE)):
        yield part


def _to_copy(former: LedgerMetadata, kept: StoredLedger | None) -> int | None:
    is_missing = kept is None or is_unfinished(kept.metadata)
    is_whole = former.state is LedgerState.CLOSED and not is_unfinished(former)
    return former.length if is_missing and is_whole else None


def _refused(reason: str) -> RefusedError:
    return RefusedError(f"nothing is done: {reason}")
