"""The space that a ledger takes on the disks of bookies, by its metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from bookwarden.ledgers.bookie_report import BookieReport, compaction_problem
from bookwarden.ledgers.disk_growth import Forecast, Growth
from bookwarden.ledgers.metadata import Segment

#: What a bookie's entry log has for each entry besides its bytes: size, ledger, entry, last confirmed entry, length of
#: the ledger, and the digest (EntryLogger and DigestManager of BookKeeper 4.17, CRC32C).
ENTRY_OVERHEAD: Final = 40
#: More than a ledger can have: a damaged number must not carry away the sum of all others.
MOST_BYTES: Final = 2**50


def disk_bytes(write_quorum: int, length: int, entries: int) -> int:
    """Compute the bytes of a ledger of this length and number of entries in the entry logs of all bookies together."""
    return min(MOST_BYTES, write_quorum * (length + ENTRY_OVERHEAD * entries))


def shares(segments: Sequence[Segment], entries: int) -> Iterator[tuple[str, float]]:
    """Yield bookies, one perhaps several times, and the part of the ledger that each has; together they are 1.

    Entries are spread over the bookies of their segment in turn; an empty ledger belongs to its last segment.
    """
    begins = [segment.first_entry_id for segment in segments]
    for segment, (begin, end) in zip(segments, pairwise([*begins, max(entries, begins[-1])]), strict=True):
        part = (min(end, entries) - min(begin, entries)) / entries if entries else float(segment is segments[-1])
        for bookie in segment.ensemble:
            yield bookie, part / len(segment.ensemble)


#: What a `Use` may be of.
USES: Final = ("tenant", "namespace", "topic", "kind")
#: What an account may be by instead: then bookies are asked for more.
BOOKIE: Final = "bookie"
#: Whether a ledger is in use: a node names it; the trash keeps it; neither, so that it is an orphan, or new; it is not
#: Pulsar's.
NAMED: Final = "named"
TRASHED: Final = "trashed"
UNNAMED: Final = "unnamed"
FOREIGN: Final = "foreign"


class Use(NamedTuple):
    """The space that the ledgers of a tenant, namespace, topic or kind take."""

    name: str  #: Of it.
    ledgers: int = 0  #: Number of its ledgers.
    open_ledgers: int = 0  #: Of these, how many are not closed.
    unasked: int = 0  #: Open ledgers whose length no bookie told: they count without bytes.
    logical_bytes: int = 0  #: Of each entry once.
    disk_bytes: int = 0  #: Of all copies of each entry, with the overhead of entry logs.
    trashed_bytes: int = 0  #: The part of ``disk_bytes`` in ledgers that the trash keeps.
    unnamed_bytes: int = 0  #: The part of ``disk_bytes`` in ledgers that neither a node names nor the trash keeps.
    offloaded_bytes: int = 0  #: In stores of offloaded copies, each once.
    oldest_ms: int | None = None  #: When the oldest ledger was created, in ms since the epoch; None without ledgers.


class BookieUse(NamedTuple):
    """The space that ledgers take on one bookie, in bytes of entry logs, and what it says of its disks."""

    name: str  #: Its id.
    ledgers: int  #: Number of ledgers that it has entries of.
    named_bytes: int  #: In ledgers that nodes name.
    trashed_bytes: int  #: In ledgers that the trash keeps.
    unnamed_bytes: int  #: In ledgers that neither a node names nor the trash keeps.
    foreign_bytes: int  #: In ledgers that are not Pulsar's.
    total: int | None = None  #: Bytes of its disks; None where it did not tell.
    free: int | None = None  #: Of these; None where it did not tell.
    error: str = ""  #: Why it did not tell.
    is_read_only: bool | None = None  #: None where it is not registered, or that was not read.
    deleted_bytes: int | None = None  #: In ledgers that the journal has as deleted since its last compaction, if known.
    report: BookieReport | None = None  #: What its HTTP server told; None where that was not asked.

    @property
    def unexplained_bytes(self) -> int | None:
        """What is used on its disks and in none of the ledgers: not collected yet, journal, index, other files."""
        if self.total is None or self.free is None:
            return None
        explained = self.named_bytes + self.trashed_bytes + self.unnamed_bytes + self.foreign_bytes
        return self.total - self.free - explained - (self.deleted_bytes or 0)

    @property
    def compaction_problem(self) -> str:
        """Why it does not compact; "" where it does, or may."""
        return compaction_problem(self.report, self.used_share)

    @property
    def used_share(self) -> float | None:
        """The used part of its disks, from 0 to 1; None where it did not tell."""
        return None if not self.total or self.free is None else 1 - self.free / self.total


@dataclass(frozen=True, slots=True)
class DiskUse:
    """An account of the disks of bookies, by user and by bookie."""

    measured_ms: int  #: When the ledgers were listed, or of the snapshot, in ms since the epoch.
    total: Use  #: Of all together.
    uses: tuple[Use, ...]  #: The largest first.
    left_out: int  #: How many further ones there are.
    bookies: tuple[BookieUse, ...]  #: By id.
    growth: Growth | None = None  #: Of all ledgers; None where no earlier day is known, and of a part of them.
    journal_error: str = ""  #: Why it is not known what was deleted since collections of bookies.
    forecast: Forecast | None = None  #: None where the days are too few, and of a part of the ledgers.
