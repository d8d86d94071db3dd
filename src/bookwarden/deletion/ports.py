"""Interfaces of two-phase deletion, each with more than one implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from bookwarden.clusters.bookkeeper.undone import UndoneLedger
from bookwarden.ledgers.metadata import (
    ActiveCluster,
    Conditions,
    DeleteResult,
    LedgerReading,
    RegistrySnapshot,
    Restoration,
    StoredLedger,
)
from bookwarden.ledgers.pending_deletion import PendingDeletion


class LedgerCatalog(Protocol):
    """BookKeeper's list of ledgers."""

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        """Read the metadata of each ledger, in the order asked; never older than this call.

        A ledger whose metadata cannot be understood comes back as UnreadableLedger; StoreError is raised when
        the store as a whole does not answer.
        """

    def delete_many(
        self, ledgers: Sequence[StoredLedger], conditions: Sequence[Conditions] | None = None
    ) -> list[DeleteResult]:
        """Delete the metadata of each ledger if it still has the version that was read, in the order asked.

        ``conditions`` are, for each, the nodes in which its holder names ledgers, with the versions that were read: if
        one changed the result is LOST_RACE, where the store can check that in the transaction that deletes.
        Never raises for a single ledger. A connection that breaks under the write is resolved by reading back;
        what stays unresolved is DeleteResult.UNKNOWN.
        """

    def paths_of(self, ledger_id: int) -> tuple[str, ...]:
        """List the nodes at which the ledger's metadata may be; empty for an impossible id."""

    def restore_many(self, ledgers: Sequence[Restoration]) -> list[bool]:
        """Create each node that has no version, and replace the others if they have theirs; return which were written.

        Raises StoreError when the store does not answer; some may have been written then.
        """


class BookieClusters(Protocol):
    """The registered bookie clusters."""

    def invalidate(self) -> None:
        """Have the registry read again at the next question; what was read before counts until then."""

    def require_epoch(self, epoch: int) -> None:
        """Read the registry now; what the others return is of this epoch afterwards.

        Raises RegistryChangedError where it has a later epoch, and StoreUnavailableError where it has an earlier one,
        since the store lags behind.
        """

    def names(self) -> frozenset[str]:
        """Return the names of the registered clusters; StoreError when they are not known."""

    def active(self) -> ActiveCluster | None:
        """Return the active one; None where none is registered. StoreError when they are not known."""

    def catalogs(self) -> Mapping[str, LedgerCatalog]:
        """Return those of the registered clusters by name, by "" that of ledgers from before there was a registry.

        Empty without a registry. StoreError when they are not known.
        """

    def instances(self) -> Mapping[str, str]:
        """Return the INSTANCEID of each registered cluster by name, and by "" that of the settings' or the first one.

        An id is empty where there is none. StoreError when they are not known.
        """

    def owner(self) -> str | None:
        """Return the owner mark of the registry; None where no cluster is registered. StoreError when not known."""

    def snapshot(self) -> RegistrySnapshot:
        """Read the registry now; what the others return stays as it was read. StoreError when it is not known."""


class NoBookieClusters:
    """None is registered, and none ever will be."""

    def invalidate(self) -> None:
        """Do nothing."""

    def require_epoch(self, epoch: int) -> None:
        """Do nothing."""

    def catalogs(self) -> Mapping[str, LedgerCatalog]:
        """Return none."""
        return {}

    def instances(self) -> Mapping[str, str]:
        """Return none."""
        return {}

    def owner(self) -> str | None:
        """Return none."""
        return None

    def names(self) -> frozenset[str]:
        """Return none."""
        return frozenset()

    def active(self) -> ActiveCluster | None:
        """Return none."""
        return None

    def snapshot(self) -> RegistrySnapshot:
        """Return that of no registry."""
        return RegistrySnapshot(None)


class RecordsUndone(Protocol):
    """The records of ledgers that were undone, which an undo writes and a mark by id withdraws."""

    def read_many(self, ledger_ids: Sequence[int]) -> Mapping[int, UndoneLedger]:
        """Return the records of these ledgers, where there is one; StoreError if that is not known."""

    def note_many(self, ledgers: Sequence[UndoneLedger]) -> None:
        """Write the record of each ledger."""

    def withdraw_many(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        """Remove the records of these ledgers; return the ledgers that had one."""


class MarkSender(Protocol):
    """The way to the deletion topic."""

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        """Send each and wait for the broker; None where it confirmed, else the reason, in the order given.

        Raises PulsarError only when nothing could be sent at all.
        """
