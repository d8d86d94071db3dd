"""Ports of two-phase deletion; `wiring` hands in the adapters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from bookwarden.ledgers.holdings import Holding
from bookwarden.ledgers.kinds import Holder
from bookwarden.ledgers.live_references import HolderNode, References
from bookwarden.ledgers.managed_ledger import (
    CursorPosition,
    Position,
    SchemaEntryIndex,
    VersionedCursor,
    VersionedManagedLedger,
    VersionedSchema,
)
from bookwarden.ledgers.metadata import (
    ActiveCluster,
    Conditions,
    DeleteResult,
    LedgerMetadata,
    LedgerReading,
    RegistrySnapshot,
    Restoration,
    StoredLedger,
)
from bookwarden.ledgers.offloaded_copies import CopyDeletion, CopyReading, OffloadedCopy
from bookwarden.ledgers.pending_deletion import PendingDeletion
from bookwarden.ledgers.references import Doubt, ReferenceIndex
from bookwarden.ledgers.shared_doubts import SharedDoubt
from bookwarden.ledgers.undone import UndoneLedger


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


class BookieClusters(Protocol):
    """The registered bookie clusters."""

    def look_again(self) -> None:
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

    def look_again(self) -> None:
        """Do nothing."""

    def require_epoch(self, epoch: int) -> None:
        """Do nothing."""

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


class CopyProof(Protocol):
    """Bookies, asked for all entries of a ledger; that changes nothing on them."""

    def problem_of(self, ledger: StoredLedger) -> str | None:
        """Read every entry of a closed ledger from each bookie that should have it; return what is wrong, if anything.

        A bookie that does not answer is a problem too; nothing is raised for it.
        """


class Promoted(Protocol):
    """The newest promotion: brokers read what it covers from the active bookie cluster, whatever they have open."""

    @property
    def conditions(self) -> Conditions:
        """Its node, where the ledgers' store has it too."""

    def why_not(self, kept: StoredLedger, holder: Holder, active: ActiveCluster) -> str | None:
        """Return why brokers may still read this ledger of the active cluster elsewhere; None if it is promoted."""


class Promotions(Protocol):
    """Reads the newest promotion."""

    def newest(self) -> Promoted:
        """Read it now."""


class OffloadedCopies(Protocol):
    """The stores of offloaded copies; no call raises for a store that does not answer or is not set up."""

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Read each copy at its recorded place, in the order asked; this may be one request per copy."""

    def examine_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Check data and index of each copy, and read the index; three requests per copy."""

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        """Delete each copy with its index and the remains of its uploads, in the order asked.

        Requests carry as many copies as the store takes. A store that cannot tell absent objects from deleted ones
        says deleted.
        """


class RestoringCatalog(LedgerCatalog, Protocol):
    """BookKeeper's list of ledgers, in which deleted ones can be put back."""

    def paths_of(self, ledger_id: int) -> tuple[str, ...]:
        """List the nodes at which the ledger's metadata may be; empty for an impossible id."""

    def restore_many(self, ledgers: Sequence[Restoration]) -> list[bool]:
        """Create each node that has no version, and replace the others if they have theirs; return which were written.

        Raises StoreError when the store does not answer; some may have been written then.
        """


class EntryProbe(Protocol):
    """Bookies, asked what they hold; that changes nothing on them."""

    def holdings(self, entries: Sequence[tuple[int, LedgerMetadata, int]]) -> list[Mapping[str, Holding]]:
        """Ask for each (ledger id, its metadata, entry id) all bookies that should have it; answers by bookie id.

        A bookie that does not answer is among the answers; nothing is raised for it.
        """


class LastEntryReader(Protocol):
    """Bookies, asked for the last entry of a ledger, open ones too; that changes nothing on them.

    Each call returns None if the ledger has no entry. It raises BookieError when the bookies do not say, NotFoundError
    when there is no such ledger, FormatError when its metadata or the entry cannot be read.
    """

    def last_entry(self, ledger_id: int) -> bytes | None:
        """Return the last entry of a ledger."""

    def position(self, ledger_id: int) -> CursorPosition | None:
        """Return the last position in a cursor's ledger."""

    def compacted_to(self, custom: Mapping[str, bytes]) -> Position | None:
        """Return the position that a compacted ledger with this custom metadata reaches to; None if it has none."""

    def schema_entry(self, ledger_id: int) -> SchemaEntryIndex | None:
        """Return the versions in a schema's ledger."""


class MetadataMigrations(Protocol):
    """The metadata stores that Pulsar may move; while it does, nothing is written to them."""

    @property
    def stops(self) -> int:
        """How often writes were stopped; anything read or sent before the latest stop must be read again."""

    def await_writes(self) -> None:
        """Wait until none of the stores is being moved; StoreMigratingError after as long as a write would wait."""


class ReadsUndone(Protocol):
    """The records of ledgers that were undone."""

    def read_many(self, ledger_ids: Sequence[int]) -> Mapping[int, UndoneLedger]:
        """Return the records of these ledgers, where there is one; StoreError if that is not known."""


class RecordsUndone(ReadsUndone, Protocol):
    """The records, which an undo writes and a mark by id withdraws."""

    def note_many(self, ledgers: Sequence[UndoneLedger]) -> None:
        """Write the record of each ledger."""

    def withdraw_many(self, ledger_ids: Sequence[int]) -> frozenset[int]:
        """Remove the records of these ledgers; return the ledgers that had one."""


class DoubtsIds(Protocol):
    """Source of doubts about ids: the store with the ledgers may give an id twice."""

    def doubt(self) -> SharedDoubt | None:
        """Return why a ledger may have a former one's id; None where it cannot; StoreError if that is not known."""


class ReferenceReader(Protocol):
    """Pulsar's metadata, over all configured metadata roots."""

    def read(
        self, holders: Sequence[Holder], ledgers: Mapping[Holder, Collection[int]] | None = None
    ) -> Mapping[Holder, References]:
        """Read what each holder names, never older than this call; a doubt about one is UnknownReferences.

        ``ledgers`` are the ledgers in question: another topic that lists one of them counts as a shadow.

        Raises StoreError when a metadata root as a whole does not answer.
        """

    def nodes(self, holders: Sequence[Holder]) -> Mapping[Holder, tuple[HolderNode, ...] | Doubt]:
        """Read the node that names each holder's ledgers first, in each root that has it; errors as for `read`."""


class ReferenceSearch(Protocol):
    """All of Pulsar's metadata, over all configured metadata roots."""

    def read_into(self, index: ReferenceIndex) -> None:
        """Add every node's references, and a doubt for each node that cannot be parsed.

        Raises StoreError when a metadata root does not answer: then the index is not to be used.
        """


class MarkSender(Protocol):
    """The way to the deletion topic."""

    def send_all(self, marks: Sequence[PendingDeletion]) -> list[str | None]:
        """Send each and wait for the broker; None where it confirmed, else the reason, in the order given.

        Raises PulsarError only when nothing could be sent at all.
        """


class ManagedLedgerStore(Protocol):
    """The nodes of managed ledgers, cursors and schemas; reads are never older than the call.

    Names are those of the holders. Every call may raise StoreError, and FormatError for a node that cannot be
    understood.
    """

    def read(self, name: str) -> VersionedManagedLedger | None:
        """Read a managed ledger's node; None if there is none."""

    def remove_ledgers(self, managed_ledger: VersionedManagedLedger, ids: Collection[int]) -> None:
        """Remove the ledgers from the list in one update; LostRaceError if the node is not as it was read."""

    def cursors(self, name: str) -> Mapping[str, VersionedCursor]:
        """Read all cursors of a managed ledger, by encoded name."""

    def schema(self, schema_id: str) -> VersionedSchema | None:
        """Read a schema's node; None if there is none."""


class TopicOwnership(Protocol):
    """The brokers that have topics loaded."""

    def owner(self, topic: str) -> str | None:
        """Return the broker that has the topic, or could have it, loaded; None if certainly none does."""


class TopicAdmin(Protocol):
    """Operations of a broker on topics; every call may raise PulsarError or NotFoundError."""

    def partitions(self, topic: str) -> list[str]:
        """List the partitions in order; a topic without partitions is its own only one."""

    def mark_delete_positions(self, topic: str) -> Mapping[str, Position]:
        """Return how far each subscription of one partition has acknowledged; this loads the topic."""

    def compacted_ledgers(self, topic: str) -> frozenset[int]:
        """List the compacted ledgers of one partition, in use or recorded; this loads the topic."""

    def trim(self, topic: str) -> None:
        """Remove the consumed ledgers that retention no longer holds."""

    def delete_topic(self, topic: str, *, force: bool) -> None:
        """Delete the topic, with all its partitions; `force` disconnects clients and drops subscriptions."""

    def delete_subscription(self, topic: str, subscription: str, *, force: bool) -> None:
        """Delete the subscription on all partitions; `force` disconnects its consumers."""

    def delete_schema(self, topic: str) -> None:
        """Delete all versions of the topic's schema."""
