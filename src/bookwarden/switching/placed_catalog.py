"""The catalog of ledgers over all registered bookie clusters.

A ledger's place is the set of clusters that have its metadata. It is absent only when every cluster was read and none
has it; as long as one does not answer, nothing is known of any ledger.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookwarden.ledgers.custom_metadata import is_unfinished, why_not_the_same
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    Conditions,
    DeleteResult,
    LedgerReading,
    Restoration,
    StoredLedger,
    UnreadableLedger,
)
from bookwarden.switching.bookie_clusters import BookieClusters, ClusterCatalog, Place, Placed
from bookwarden.switching.owners import is_ours, unknown_owner

_NOT_DONE = (DeleteResult.LOST_RACE, DeleteResult.UNKNOWN)


class PlacedCatalog:
    """Reads and deletes ledgers wherever they are; ``alone`` has them where no bookie cluster is registered.

    ``for_deletion``: an owner mark that the registry does not name is a doubt, also where brokers read such ledgers.
    """

    def __init__(self, alone: ClusterCatalog, clusters: BookieClusters, *, for_deletion: bool = False) -> None:
        self._alone = alone
        self._clusters = clusters
        self._for_deletion = for_deletion

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        """Read the metadata of each ledger in all clusters, in the order asked; never older than this call.

        A ledger comes as brokers read it, with the same in other clusters beside it; unfinished copies are among these
        alone, or with an absent one. Ledgers that are not ours are not there. What is not one ledger and its copies is
        unreadable.
        """
        placed = self._clusters.placed()
        if placed is None:
            return self._alone.read_many(ledger_ids)
        ids = list(dict.fromkeys(ledger_ids))
        found = {place.name: place.catalog.read_many(ids) for place in placed.as_asked}
        by_id = {
            ledger_id: self._together(ledger_id, [(place, found[place.name][at]) for place in placed.places], placed)
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
        placed = self._clusters.placed()
        if placed is None:
            return self._alone.delete_many(ledgers, conditions)
        results = [DeleteResult.LOST_RACE] * len(ledgers)
        stopped: set[int] = set()
        for unfinished in (True, False):
            for place in placed.by_age:
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
                demanded = [conditions[at] for at in turn] if conditions is not None and place.is_beside else None
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

    def _together(
        self, ledger_id: int, readings: Sequence[tuple[Place, LedgerReading]], placed: Placed
    ) -> LedgerReading:
        """Join what all clusters, in the order in which brokers read, have of a ledger."""
        registry = placed.registry
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
