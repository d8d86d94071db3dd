"""Values of a bookie's garbage collection, as its own HTTP server tells them, and what may be asked of it.

A collection drops the ledgers that have no metadata, then the entry logs without a live ledger. One log below a
threshold is written again, and so freed, at a minor or major compaction, which is a part of a collection
(GarbageCollectorThread of BookKeeper 4.16 to 4.18).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

#: diskUsageThreshold by default: above it a bookie takes no more, and compacts nothing.
FULL: Final = 0.95
#: diskUsageWarnThreshold by default: above it a bookie does no major compaction.
NEARLY_FULL: Final = 0.9


class RegisteredBookie(NamedTuple):
    """A bookie as it is registered in the metadata store."""

    name: str  #: Its id.
    is_read_only: bool
    http_url: str = ""  #: Of its HTTP server; "" where it has published none, or where that cannot be read.


@dataclass(frozen=True, slots=True)
class BookieReport:
    """The answers of a bookie's HTTP server; what is None it did not tell."""

    url: str  #: Of the server; "" where the bookie has published none.
    error: str = ""  #: Why it told nothing, and what to do.
    is_read_only: bool | None = None  #: By its own account.
    takes_urgent_writes: bool | None = None  #: Also while it is read-only, those of recovery.
    is_collecting: bool | None = None  #: It does so because it was asked to.
    is_major_suspended: bool | None = None  #: Major compaction: a disk is above diskUsageWarnThreshold, or by request.
    is_minor_suspended: bool | None = None  #: Minor compaction: a disk is above diskUsageThreshold, or by request.
    #: When the last compaction ended in that of its directories where that is longest ago, in ms since the epoch; of a
    #: bookie that had none since its start, when it started.
    compacted_ms: int | None = None
    minor_compactions: int | None = None  #: Number of them since its start, in all directories.
    major_compactions: int | None = None  #: The same.
    entry_logs: int | None = None  #: Number of closed entry logs in its last collection, before it compacted any.
    live_bytes: int | None = None  #: In these, of ledgers that were left; both are None before the first collection.
    log_size_limit: int | None = None  #: Bytes of an entry log, at most, but for one entry.
    total: int | None = None  #: Bytes of its disks.
    free: int | None = None  #: Of these.

    @property
    def dead_bytes(self) -> int | None:
        """The most that closed entry logs can have of ledgers that are gone: a log may be smaller than the limit."""
        if self.entry_logs is None or self.live_bytes is None or self.log_size_limit is None:
            return None
        return max(0, self.entry_logs * self.log_size_limit - self.live_bytes)


def state_text(is_read_only: bool | None) -> str:
    """Describe whether a bookie takes new ledgers; a dash where it is not registered."""
    return "-" if is_read_only is None else "read-only" if is_read_only else "writable"


class Compactions(NamedTuple):
    """The compactions that a collection is asked to have."""

    major: bool
    minor: bool

    def __str__(self) -> str:
        return "major" if self.major else "minor" if self.minor else "nothing"


def compactions_to_ask(report: BookieReport, *, major: bool) -> Compactions:
    """Decide what to ask: never for one that is suspended, since it needs the room that the disks do not have."""
    return Compactions(major and not report.is_major_suspended, not report.is_minor_suspended)


def compaction_problem(report: BookieReport | None, used: float | None) -> str:
    """Describe why a bookie does not compact; ``used`` is the used part of its disks. "" where it does, or may."""
    if report is not None and report.is_minor_suspended is not None:
        if report.is_minor_suspended:
            return "compaction is suspended: only entry logs without a live ledger are freed now"
        if report.is_major_suspended:
            return (
                "major compaction is suspended: of entry logs with a live ledger only those almost empty are freed now"
            )
        return ""
    if used is None or used < FULL:
        return ""
    return f"more than {FULL:.0%} of its disks are used: by default only entry logs without a live ledger are freed now"


def compactions_made(before: BookieReport, after: BookieReport) -> str:
    """Describe the compactions between two reports of a bookie."""
    counts = (
        ("major", before.major_compactions, after.major_compactions),
        ("minor", before.minor_compactions, after.minor_compactions),
    )
    made = [name for name, earlier, later in counts if earlier is not None and later is not None and later > earlier]
    if any(earlier is None or later is None for _, earlier, later in counts):
        return "-"
    return " and ".join(made) or "none"
