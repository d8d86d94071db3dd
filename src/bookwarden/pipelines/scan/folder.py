"""The folder of the orphan scan's scans and plans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bookwarden.config import Settings
from bookwarden.errors import FileError
from bookwarden.pipelines.folders import Folder
from bookwarden.pipelines.plans.files import PlanFiles
from bookwarden.pipelines.scan.files import ScanFolder

_SCANS = "scans"
_PLANS = "plans"


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
