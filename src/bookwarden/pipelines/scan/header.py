"""The header of a scan, as it was begun."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bookwarden.errors import RefusedError
from bookwarden.orphans.plan import ClusterIdentity
from bookwarden.pipelines.scan.files import ScanFolder

# The columns of a scan's tables; another number is of another version. The first had no smallest ids of topics' lists.
TABLES = 2


@dataclass(frozen=True)
class ScanHeader:
    """What a scan is about, as it was begun; times in milliseconds since the epoch.

    ``notes`` are what an operator should know of metadata roots that the settings do not name.
    """

    tables: int
    scan_id: str
    begun_ms: int
    tool_version: str
    snapshot: str | None
    snapshot_ms: int | None
    clocks: dict[str, int]
    cluster: dict[str, Any]
    settings: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    @property
    def identity(self) -> ClusterIdentity:
        """The cluster that is scanned."""
        cluster = self.cluster
        return ClusterIdentity(**{**cluster, "roots": tuple(cluster["roots"])})


def header_of(folder: ScanFolder) -> ScanHeader:
    """Read it back; NotFoundError where no scan was begun, RefusedError for one of another version."""
    fields = folder.header()
    another = RefusedError(f"{folder.folder.location} was begun by another version of bookwarden: begin a new scan")
    try:
        header = ScanHeader(**fields)
    except TypeError as error:
        raise another from error
    if header.tables != TABLES:
        raise another
    return header
