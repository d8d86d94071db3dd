"""Copies on a file system (driver filesystem): a Hadoop MapFile folder each, on a path that is mounted here."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from bookwarden.clusters.offload.names import map_file_name
from bookwarden.ledgers.offloaded_copies import (
    AbsentCopy,
    CopyDeletion,
    CopyFate,
    CopyReading,
    OffloadedCopy,
    PresentCopy,
    StoreLocation,
    UnreadableCopy,
)

_T = TypeVar("_T")


class FileSystemStore:
    """The copies below one base path; the managed ledger's name is part of a copy's path, and so its proof."""

    def __init__(self, location: StoreLocation, mount: str | None) -> None:
        """Make a store; ``mount`` is where the recorded base path is found here, if not under its own name."""
        self._base = Path(mount) if mount else _local_path(location.endpoint)
        self._recorded = location.endpoint

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Look at the folder of each copy, in the order asked."""
        return [self._guarded(copy, self._look, UnreadableCopy) for copy in copies]

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        """Delete the folder of each copy, in the order asked."""
        return [
            self._guarded(copy, self._delete, lambda reason: CopyDeletion(CopyFate.FAILED, reason)) for copy in copies
        ]

    def close(self) -> None:
        """Nothing is open."""

    def _look(self, copy: OffloadedCopy, folder: Path) -> CopyReading:
        return PresentCopy(copy.managed_ledger) if folder.is_dir() else AbsentCopy()

    def _delete(self, copy: OffloadedCopy, folder: Path) -> CopyDeletion:
        if not folder.exists():
            return CopyDeletion(CopyFate.ABSENT)
        shutil.rmtree(folder)
        return CopyDeletion(CopyFate.DELETED)

    def _guarded(self, copy: OffloadedCopy, act: Callable[[OffloadedCopy, Path], _T], fail: Callable[[str], _T]) -> _T:
        if self._base is None:
            return fail(f"{self._recorded!r} is not on this machine: give offload.stores the folder it is mounted on")
        # A share that is not mounted is an empty folder, or none: not one with its copies gone.
        if not self._base.is_dir() or not any(self._base.iterdir()):
            return fail(f"{self._base} is not there or is empty: is {self._recorded!r} mounted?")
        folder = self._base / map_file_name(copy)
        if not folder.resolve().is_relative_to(self._base.resolve()) or folder.is_symlink():
            return fail(f"{folder} is not below {self._base}")
        try:
            return act(copy, folder)
        except OSError as error:
            return fail(f"{folder}: {error.strerror}")


def _local_path(endpoint: str) -> Path | None:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("", "file") or parts.netloc or not parts.path.startswith("/"):
        return None
    return Path(unquote(parts.path))
