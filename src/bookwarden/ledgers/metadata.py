"""Ledger metadata as BookKeeper keeps it, and what a look at the store can find."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple


class LedgerState(enum.Enum):
    """The state of a ledger; the values are those of DataFormats.proto."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """Bookies that hold the entries from ``first_entry_id`` on, as ``host:port`` or bookie id."""

    first_entry_id: int
    ensemble: tuple[str, ...]


# Shared by all that have none, and never changed.
_NO_CUSTOM_METADATA: Final[Mapping[str, bytes]] = {}


class LedgerMetadata(NamedTuple):
    """The decoded value of a ledger's metadata node; a tuple, since a sweep makes one for each ledger.

    Format: LedgerMetadataSerDe, BookKeeper 4.17.
    """

    format_version: int  #: 1 to 3.
    state: LedgerState  #: OPEN or IN_RECOVERY until its last entry is known.
    ensemble_size: int  #: Bookies that a segment is spread over.
    write_quorum: int  #: Bookies that each entry is written to.
    ack_quorum: int  #: Bookies that must confirm each entry.
    segments: tuple[Segment, ...]  #: By growing first entry.
    length: int = 0  #: In bytes; 0 while the ledger is open.
    last_entry_id: int | None = None  #: None while the ledger is not closed; -1 if it is empty.
    digest_type: str | None = None  #: Name of the enum constant, as CRC32C; None where the format has none.
    ctime_ms: int | None = None  #: By the creator's clock, in ms since the epoch; None where the format has none.
    custom: Mapping[str, bytes] = _NO_CUSTOM_METADATA  #: By key.


class StoredLedger(NamedTuple):
    """A ledger's metadata as it was read, value and version in one read."""

    ledger_id: int  #: From the path of its node.
    path: str  #: Of the node.
    version: int  #: Of the node; together with ``created_ms`` it names one life of it.
    created_ms: int  #: When the store created the node, in ms since the epoch.
    raw: bytes  #: The value of the node.
    metadata: LedgerMetadata  #: Decoded from ``raw``.
    modifications: int | None = None  #: How often the value was replaced; None where the version says that.
    bookie_cluster: str = ""  #: Name of the bookie cluster that has it; empty where none is registered.
    elsewhere: tuple[StoredLedger, ...] = ()  #: The same ledger as other registered bookie clusters have it.
    modified_ms: int = 0  #: When its node was last written, by the clock of its store; 0 where that is not known.

    @property
    def is_as_created(self) -> bool:
        """True while the node was not written since its creation."""
        return (self.version if self.modifications is None else self.modifications) == 0

    @property
    def places(self) -> tuple[StoredLedger, ...]:
        """The ledger as each bookie cluster has it, each alone; first as brokers read it."""
        return (self._replace(elsewhere=()), *self.elsewhere) if self.elsewhere else (self,)


class Restoration(NamedTuple):
    """A ledger's metadata to be put back, or to be written once more over what is as it was."""

    ledger_id: int
    path: str  #: Of the node.
    raw: bytes  #: The value of the node.
    version: int | None = None  #: Of the node that is replaced; None where there must be none.


@dataclass(frozen=True, slots=True)
class AbsentLedger:
    """The store has no metadata for this ledger that a broker would read."""

    ledger_id: int
    unfinished: tuple[StoredLedger, ...] = ()  #: What registered bookie clusters have of unfinished copies of it.


@dataclass(frozen=True, slots=True)
class UnreadableLedger:
    """The metadata could not be read or understood: nothing may be concluded from it."""

    ledger_id: int
    reason: str


LedgerReading = StoredLedger | AbsentLedger | UnreadableLedger


def place_in(reading: LedgerReading, name: str) -> StoredLedger | None:
    """Return a ledger as the bookie cluster of this name has it; None if that is not known to have it."""
    places = reading.places if isinstance(reading, StoredLedger) else ()
    return next((place for place in places if place.bookie_cluster == name), None)


class Condition(NamedTuple):
    """A node of a metadata store that has to be there with this version when something is written."""

    path: str
    version: int


Conditions = Sequence[Condition]


class DeleteResult(enum.Enum):
    """The result of one versioned delete."""

    DELETED = "deleted"
    ABSENT = "absent"
    LOST_RACE = "lost the race"
    UNKNOWN = "outcome unknown"


class LiveBookie(NamedTuple):
    """The registration of a running bookie; its session is nowhere but in the store that it is registered in."""

    name: str  #: The bookie's id.
    created_ms: int  #: When it was registered, by the store's clock.
    session: int | None  #: None where the store does not tell it.


class ActiveCluster(NamedTuple):
    """The bookie cluster that brokers write to, and read first."""

    name: str
    #: When the registry was last changed, by the store's clock; None if nothing was switched to it.
    since_ms: int | None
    registered: frozenset[str]  #: The names of all registered clusters.
    epoch: int = 0  #: Of the registry that the newest switch made; 0 if nothing was switched.

    def window_left(self, window: float, now_ms: float) -> float | None:
        """Return for how many seconds the switch to it can be rolled back, if that is so for ``window`` seconds.

        0 once that is over; None if nothing was switched to it.
        """
        if self.since_ms is None:
            return None
        # A time in the future, by a wrong clock, counts as now.
        return max(0.0, window - max(0.0, (now_ms - self.since_ms) / 1000))


@dataclass(frozen=True, slots=True)
class RegistrySnapshot:
    """The registry of bookie clusters, read a moment ago, and what a transaction that deletes a ledger can demand."""

    active: ActiveCluster | None  #: None where no cluster is registered.
    conditions: Conditions = ()  #: The registry's node, where the ledgers' store has it too.
    #: Names of the clusters whose metadata is in the ledgers' store, so that its nodes can be demanded.
    in_ledgers_store: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """A bookie cluster, as the metadata below a ledgers root describes it."""

    exists: bool  #: There is a node of that root.
    instance: str | None  #: What its INSTANCEID says; None without one, or if that is no text.
    instance_created_ms: int  #: When that node was made, by the store's clock; 0 without one.
    layout_problem: str  #: Why its LAYOUT is none that brokers with the jar read; "" if they do, or if there is none.
    bookies: frozenset[str]  #: Ids of the bookies that are registered, writable or not, or have a cookie.
    live: frozenset[LiveBookie]  #: Those that are registered.

    def is_same(self, other: ClusterSeen) -> bool:
        """Return whether both were read in one and the same store, and not one in a copy of the other.

        Only that store has these sessions of bookies; without a running bookie the INSTANCEID node has to do.
        """
        return (
            self.instance is not None
            and (self.instance, self.instance_created_ms) == (other.instance, other.instance_created_ms)
            and self.live == other.live
        )
