"""What a scan is about, as it was begun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bookwarden.errors import RefusedError
from bookwarden.orphans.plan import ClusterIdentity
from bookwarden.pipelines.scan_files import ScanFolder


@dataclass(frozen=True)
class ScanHeader:
    """What a scan is about, as it was begun; times in milliseconds since the epoch."""

    scan_id: str
    begun_ms: int
    tool_version: str
    snapshot: str | None
    snapshot_ms: int | None
    clocks: dict[str, int]
    cluster: dict[str, Any]
    settings: dict[str, Any]

    @property
    def identity(self) -> ClusterIdentity:
        """The cluster that is scanned."""
        cluster = self.cluster
        return ClusterIdentity(**{**cluster, "roots": tuple(cluster["roots"])})


def header_of(folder: ScanFolder) -> ScanHeader:
    """Read it back; NotFoundError where no scan was begun, RefusedError for one of another version."""
    fields = folder.header()
    try:
        return ScanHeader(**fields)
    except TypeError as error:
        raise RefusedError(
            f"{folder.folder.location} was begun by another version of bookwarden: begin a new scan"
        ) from error
