"""What the product asks of the world beside its metadata: brokers, bookies and the object store, from the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bookwarden.clusters.bookkeeper.bookies.last_entries import DecodedEntries
from bookwarden.clusters.bookkeeper.bookies.probe import Presence, ReplicaStatus
from bookwarden.clusters.pulsar.rest.brokers import TopicCompaction
from bookwarden.errors import BookieUnavailableError, NotFoundError, PulsarUnavailableError
from bookwarden.ledgers.managed_ledger import COMPACTION_CURSOR
from bookwarden.ledgers.metadata import LedgerMetadata
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.offloaded_copies import (
    AbsentCopy,
    CopyDeletion,
    CopyFate,
    CopyIndex,
    CopyReading,
    OffloadedCopy,
    PresentCopy,
    UnreadableCopy,
)

from .faults import CALM, Faults
from .model import Copy, Topic, World


class Brokers:
    """The brokers of the first cluster."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.faults = Faults(0, CALM)

    def compaction(self, topic: str) -> TopicCompaction:
        """Say what the owner knows of the topic's compaction."""
        found = self._topic(topic)
        named = frozenset(ledger_id for ledger_id in (found.compacted,) if ledger_id is not None)
        return TopicCompaction(found.compacting is not None, COMPACTION_CURSOR in found.cursors, named, recorded=True)

    def subscriptions(self, topic: str) -> frozenset[str]:
        """Name the subscriptions."""
        return frozenset(self._topic(topic).cursors)

    def _topic(self, topic: str) -> Topic:
        self.faults.step()
        if self.faults.fails():
            raise PulsarUnavailableError("no broker answers")
        found = self._world.clusters[0].topics.get(str(TopicName.parse(topic)))
        if found is None:
            raise NotFoundError(f"there is no topic {topic}")
        return found


class Entries(DecodedEntries):
    """The last entries of ledgers, as bookies have them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.faults = Faults(0, CALM)

    def last_entry(self, ledger_id: int) -> bytes | None:
        """Read it."""
        self.faults.step()
        if self.faults.fails():
            raise BookieUnavailableError("no bookie answers")
        if ledger_id not in self._world.bookies:
            raise NotFoundError(f"there is no ledger {ledger_id}")
        ledger = self._world.ledgers.get(ledger_id)
        of_data = b"an entry" if ledger is not None and ledger.has_data else None
        return self._world.entries.get(ledger_id, of_data)


class Probe:
    """Bookies, asked what they hold."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults

    def holdings(self, entries: Sequence[tuple[int, LedgerMetadata, int]]) -> list[Mapping[str, ReplicaStatus]]:
        """Say of each entry whether the bookie has it."""
        return [{"b:3181": self._of(ledger_id, entry_id)} for ledger_id, _, entry_id in entries]

    def _of(self, ledger_id: int, entry_id: int) -> ReplicaStatus:
        self._faults.step()
        if self._faults.fails():
            return ReplicaStatus(Presence.UNKNOWN, "no answer")
        held = ledger_id in self._world.bookies or (ledger_id in self._world.half_lost and entry_id == 0)
        return ReplicaStatus(Presence.HELD if held else Presence.NOT_HELD)


class ObjectStore:
    """The store of offloaded copies."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.faults = Faults(0, CALM)

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Look at each copy."""
        return [self._read(copy) for copy in copies]

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        """Delete each copy with its index."""
        return [self._delete(copy) for copy in copies]

    def examine_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Look at data and index of each copy."""
        return [self._examine(copy, self._read(copy)) for copy in copies]

    def _found(self, copy: OffloadedCopy) -> Copy | None:
        """Look a copy up as a broker names its objects: by its UUID and the ledger."""
        found = self._world.copies.get(copy.uuid)
        return found if found is not None and found.ledger_id == copy.ledger_id else None

    def _examine(self, copy: OffloadedCopy, reading: CopyReading) -> CopyReading:
        found = self._found(copy)
        if found is None or not isinstance(reading, PresentCopy):
            return reading
        return PresentCopy(reading.owner, found.length, CopyIndex(found.length) if found.index else None)

    def _read(self, copy: OffloadedCopy) -> CopyReading:
        self.faults.step()
        if self.faults.fails():
            return UnreadableCopy("no answer")
        found = self._found(copy)
        return PresentCopy(found.managed_ledger) if found is not None and found.data else AbsentCopy()

    def _delete(self, copy: OffloadedCopy) -> CopyDeletion:
        self.faults.step()
        fails = self.faults.fails()
        found = self._found(copy)
        if found is not None and (not fails or self.faults.happens(0.5)):
            del self._world.copies[copy.uuid]
        if fails:
            return CopyDeletion(CopyFate.FAILED, "no answer")
        return CopyDeletion(CopyFate.DELETED if found is not None else CopyFate.ABSENT)
