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


# Shared by all that have none; nobody changes it.
_NO_CUSTOM_METADATA: Final[Mapping[str, bytes]] = {}


class LedgerMetadata(NamedTuple):
    """The decoded value of a ledger's metadata node; a tuple, since a sweep makes one of each ledger.

    ``length`` is in bytes; ``ctime_ms`` is the creator's clock in milliseconds and None where the format has
    none; ``last_entry_id`` is None while the ledger is not closed. Format: LedgerMetadataSerDe, BookKeeper 4.17.
    """

    format_version: int
    state: LedgerState
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    segments: tuple[Segment, ...]
    length: int = 0
    last_entry_id: int | None = None
    digest_type: str | None = None
    ctime_ms: int | None = None
    custom: Mapping[str, bytes] = _NO_CUSTOM_METADATA


class StoredLedger(NamedTuple):
    """A ledger's metadata as it was read: ``raw`` and ``version`` come from the same read.

    ``created_ms`` is the store's creation time of the node, in milliseconds; together with ``version`` it names
    one life of the node. ``modifications`` is how often the value was replaced, None where the version tells that.
    """

    ledger_id: int
    path: str
    version: int
    created_ms: int
    raw: bytes
    metadata: LedgerMetadata
    modifications: int | None = None

    @property
    def is_as_created(self) -> bool:
        """Whether nobody has written the node since it was made."""
        return (self.version if self.modifications is None else self.modifications) == 0


@dataclass(frozen=True, slots=True)
class AbsentLedger:
    """The store has no metadata for this ledger."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class UnreadableLedger:
    """The metadata could not be read or understood: nothing may be concluded from it."""

    ledger_id: int
    reason: str


LedgerReading = StoredLedger | AbsentLedger | UnreadableLedger


class Condition(NamedTuple):
    """A node of a metadata store that has to be there with this version when something is written."""

    path: str
    version: int


Conditions = Sequence[Condition]


class DeleteResult(enum.Enum):
    """What became of one versioned delete."""

    DELETED = "deleted"
    ABSENT = "absent"
    LOST_RACE = "lost the race"
    UNKNOWN = "outcome unknown"
