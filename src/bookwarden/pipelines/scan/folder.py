"""The folder of the orphan scan's scans and plans, and the header of a scan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bookwarden.config import Settings
from bookwarden.errors import FileError, RefusedError
from bookwarden.orphans.plan import ScannedCluster
from bookwarden.pipelines.folders import Folder
from bookwarden.pipelines.plan_files import PlanFiles
from bookwarden.pipelines.scan.files import ScanFolder

_SCANS = "scans"
_PLANS = "plans"
# Version of the columns of a scan's tables; the first had no smallest ids of topics' lists, the second no disk bytes.
TABLES = 3


def plans_of(settings: Settings) -> PlanFiles:
    """Return access to the plans."""
    return PlanFiles(f"{settings.orphans.folder.rstrip('/')}/{_PLANS}")


def plan_folder(settings: Settings, plan_id: str) -> Folder:
    """Return access to the folder of one plan."""
    return Folder(f"{settings.orphans.folder.rstrip('/')}/{_PLANS}/{plan_id}")


def scan_folder(settings: Settings, scan_id: str) -> ScanFolder:
    """Return access to the files of one scan."""
    return ScanFolder(f"{settings.orphans.folder.rstrip('/')}/{_SCANS}/{scan_id}")


def scan_ids(settings: Settings) -> list[str]:
    """List the scans that were begun, oldest first; FileError if the folder cannot be read."""
    with folder_errors(settings):
        return Folder(settings.orphans.folder).folders(_SCANS)


@contextmanager
def folder_errors(settings: Settings) -> Iterator[None]:
    """Translate the errors of the folder's file system into FileError."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{settings.orphans.folder} cannot be read and written: {error}") from error


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
