"""The header of a scan, as it was begun."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bookwarden.errors import RefusedError
from bookwarden.orphans.plan import ScannedCluster
from bookwarden.pipelines.scan.files import ScanFolder

# Version of the columns of a scan's tables; the first had no smallest ids of topics' lists.
TABLES = 2


@dataclass(frozen=True)
class ScanHeader:
    """The header of a scan, as it was begun; times in milliseconds since the epoch."""

    tables: int  #: TABLES of the version that began it.
    scan_id: str  #: Time of its beginning, and a random part.
    begun_ms: int  #: By this machine's clock.
    tool_version: str  #: Of bookwarden.
    snapshot: str | None  #: URL of a snapshot; None for the live stores.
    snapshot_ms: int | None  #: Latest time in the snapshot; None for the live stores.
    clocks: dict[str, int]  #: Readings of other clocks then, by their owners; empty for a snapshot.
    cluster: dict[str, Any]  #: Fields of the ScannedCluster.
    settings: dict[str, Any]  #: The section `orphans`.
    notes: list[str] = field(default_factory=list)  #: For operators: metadata roots that the settings do not name.

    @property
    def identity(self) -> ScannedCluster:
        """The cluster that is scanned."""
        cluster = self.cluster
        return ScannedCluster(**{**cluster, "roots": tuple(cluster["roots"])})


def header_of(folder: ScanFolder) -> ScanHeader:
    """Read the header; NotFoundError where no scan was begun, RefusedError for another version."""
    fields = folder.header()
    another = RefusedError(f"{folder.folder.location} was begun by another version of bookwarden: begin a new scan")
    try:
        header = ScanHeader(**fields)
    except TypeError as error:
        raise another from error
    if header.tables != TABLES:
        raise another
    return header
