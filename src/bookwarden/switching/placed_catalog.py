"""The catalog of ledgers over all registered bookie clusters.

A ledger's place is the set of clusters that have its metadata. It is absent only when every cluster was read and none
has it; as long as one does not answer, nothing is known of any ledger.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookwarden.ledgers.custom_metadata import OWNER_KEY, is_unfinished, why_not_the_same
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

_NOT_DONE = (DeleteResult.LOST_RACE, DeleteResult.UNKNOWN)


class PlacedCatalog:
    """Reads and deletes ledgers wherever they are; ``alone`` has them where no bookie cluster is registered."""

    def __init__(self, alone: ClusterCatalog, clusters: BookieClusters) -> None:
        self._alone = alone
        self._clusters = clusters

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        """Read the metadata of each ledger in all clusters, in the order asked; never older than this call.

        A ledger comes as brokers read it, with the same in other clusters beside it; unfinished copies are among these
        alone. In a shared cluster there are only ledgers of ours. What is not one ledger and its copies is unreadable.
        """
        placed = self._clusters.placed()
        if placed is None:
            return self._alone.read_many(ledger_ids)
        ids = list(dict.fromkeys(ledger_ids))
        found = {place.name: place.catalog.read_many(ids) for place in placed.as_asked}
        by_id = {
            ledger_id: _together(ledger_id, [(place, found[place.name][at]) for place in placed.places], placed)
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


def _together(ledger_id: int, readings: Sequence[tuple[Place, LedgerReading]], placed: Placed) -> LedgerReading:
    """Join what all clusters, in the order in which brokers read, have of a ledger."""
    whole: list[StoredLedger] = []
    unfinished: list[StoredLedger] = []
    for place, reading in readings:
        if isinstance(reading, UnreadableLedger):
            return UnreadableLedger(ledger_id, f"in bookie cluster {place.name}: {reading.reason}")
        if isinstance(reading, AbsentLedger):
            continue
        owner = reading.metadata.custom.get(OWNER_KEY)
        if owner != placed.registry.owner.encode():
            if place.cluster.shared:
                continue
            if owner is not None:
                told = owner.decode(errors="backslashreplace")
                text = f"another Pulsar cluster, {told!r}, made it in bookie cluster {place.name}, which is not shared"
                return UnreadableLedger(ledger_id, text)
        found = reading._replace(bookie_cluster=place.name)
        (unfinished if is_unfinished(found.metadata) else whole).append(found)
    problem = why_not_the_same([*whole, *unfinished]) if whole else None
    if problem is not None:
        return UnreadableLedger(ledger_id, problem)
    # Brokers do not read an unfinished copy either.
    return whole[0]._replace(elsewhere=(*whole[1:], *unfinished)) if whole else AbsentLedger(ledger_id)
