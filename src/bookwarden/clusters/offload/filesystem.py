"""Copies on a file system (driver filesystem): a Hadoop MapFile folder each, on a path that is mounted here."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from bookwarden.clusters.offload.names import NameRange, StoredObject, map_file_name, parse_map_file_name
from bookwarden.errors import StoreError
from bookwarden.ledgers.offloaded_copies import (
    AbsentCopy,
    CopyDeletion,
    CopyFate,
    CopyIndex,
    CopyReading,
    DamagedIndex,
    OffloadedCopy,
    PresentCopy,
    StoreLocation,
    UnreadableCopy,
)

_T = TypeVar("_T")

_SEQUENCE_FILE = b"SEQ"


class FileSystemStore:
    """The copies below one base path; a copy's path has its managed ledger's name, which proves its owner."""

    def __init__(self, location: StoreLocation, mount: str | None) -> None:
        """Make a store; ``mount`` is the recorded base path on this machine, if it has another name here."""
        self._base = Path(mount) if mount else _local_path(location.endpoint)
        self._recorded = location.endpoint

    def read_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Check the folder of each copy, in the order asked."""
        return [self._guarded(copy, self._look, UnreadableCopy) for copy in copies]

    def examine_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyReading]:
        """Check data and index of each copy, and read the index, in the order asked."""
        return [self._guarded(copy, self._examine, UnreadableCopy) for copy in copies]

    def delete_many(self, copies: Sequence[OffloadedCopy]) -> list[CopyDeletion]:
        """Delete the folder of each copy, in the order asked."""
        return [
            self._guarded(copy, self._delete, lambda reason: CopyDeletion(CopyFate.FAILED, reason)) for copy in copies
        ]

    def pages(self, names: NameRange) -> Iterator[list[StoredObject]]:
        """Yield the copies' folders, and any other files, one folder's at a time; there are no uploads."""
        base = self._reached_base()
        if isinstance(base, str):
            raise StoreError(base)
        folders = [base]
        try:
            while folders:
                found, below = _look_into(folders.pop(), base)
                folders += below
                yield [one for one in found if names.has(one.key)]
        except OSError as error:
            raise StoreError(f"{error.filename}: {error.strerror}") from error

    def close(self) -> None:
        """Nothing is open."""

    def _look(self, copy: OffloadedCopy, folder: Path) -> CopyReading:
        return PresentCopy(copy.managed_ledger) if folder.is_dir() else AbsentCopy()

    def _examine(self, copy: OffloadedCopy, folder: Path) -> CopyReading:
        # A Hadoop MapFile is a folder of two files.
        data, index = folder / "data", folder / "index"
        if not data.is_file():
            return AbsentCopy()
        return PresentCopy(copy.managed_ledger, data.stat().st_size, _index(index) if index.is_file() else None)

    def _delete(self, copy: OffloadedCopy, folder: Path) -> CopyDeletion:
        if not folder.exists():
            return CopyDeletion(CopyFate.ABSENT)
        shutil.rmtree(folder)
        return CopyDeletion(CopyFate.DELETED)

    def _guarded(self, copy: OffloadedCopy, act: Callable[[OffloadedCopy, Path], _T], fail: Callable[[str], _T]) -> _T:
        base = self._reached_base()
        if isinstance(base, str):
            return fail(base)
        folder = base / map_file_name(copy)
        if not folder.resolve().is_relative_to(base.resolve()) or folder.is_symlink():
            return fail(f"{folder} is not below {base}")
        try:
            return act(copy, folder)
        except OSError as error:
            return fail(f"{folder}: {error.strerror}")

    def _reached_base(self) -> Path | str:
        """Return the base path, or the reason why it cannot be reached."""
        if self._base is None:
            return f"{self._recorded!r} is not on this machine: give offload.stores the folder it is mounted on"
        # An unmounted share is an empty or missing folder, which does not prove that its copies are gone.
        if not self._base.is_dir() or not any(self._base.iterdir()):
            return f"{self._base} is not there or is empty: is {self._recorded!r} mounted?"
        return self._base


def _index(path: Path) -> CopyIndex | DamagedIndex:
    """Check for a Hadoop sequence file, which only has positions in the data."""
    with path.open("rb") as file:
        begins = file.read(len(_SEQUENCE_FILE))
    return CopyIndex() if begins == _SEQUENCE_FILE else DamagedIndex("it is not Hadoop's index of a MapFile")


def _look_into(folder: Path, base: Path) -> tuple[list[StoredObject], list[Path]]:
    """Return a folder's files, and its folders to search next; those that vanish meanwhile are omitted."""
    found, below = [], []
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        if folder == base:
            raise
        return [], []
    for entry in entries:
        try:
            # A link may lead out of the storage, or in a circle.
            if not entry.is_dir(follow_symlinks=False):
                found.append(_stored(base, entry.path, [entry.stat(follow_symlinks=False)]))
            elif parse_map_file_name(entry.name) is not None:
                found.append(_stored(base, entry.path, _stats_of(Path(entry.path))))
            else:
                below.append(Path(entry.path))
        except FileNotFoundError:
            continue
    return found, below


def _stats_of(folder: Path) -> list[os.stat_result]:
    paths = [folder, *folder.rglob("*")]
    return [path.lstat() for path in paths]


def _stored(base: Path, path: str, stats: Sequence[os.stat_result]) -> StoredObject:
    length = sum(one.st_size for one in stats if stat.S_ISREG(one.st_mode))
    modified_ns = max(one.st_mtime_ns for one in stats)
    return StoredObject(Path(path).relative_to(base).as_posix(), length, modified_ns // 1_000_000)


def _local_path(endpoint: str) -> Path | None:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("", "file") or parts.netloc or not parts.path.startswith("/"):
        return None
    return Path(unquote(parts.path))
