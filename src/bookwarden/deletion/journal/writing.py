"""Writers of the journal: files of a folder, and objects of an object store.

A file or object is named ``<UTC time>-<host>-<pid>-<random>.jsonl``: the names sort by time, and processes that
share a folder never write to the same one, even as the same process id in containers of the same name.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bookwarden.deletion.journal.entries import FORMAT, JournalHeader, JournalRecord
from bookwarden.durable import sync
from bookwarden.errors import RefusedError, StoreUnavailableError
from bookwarden.processes import described_here, has_certainly_ended

if TYPE_CHECKING:
    from bookwarden.clusters.journal_objects import S3Objects

logger = logging.getLogger(__name__)

SUFFIX: Final = ".jsonl"
MAX_FILE_BYTES: Final = 128 * 1024 * 1024
_OF_DRIVER: Final = ".driver"
# Ids of processes come again, in containers above all.
_THIS_PROCESS: Final = uuid.uuid4().hex
_STAMP: Final = "%Y%m%dT%H%M%S"
_NAME: Final = re.compile(r"[0-9T.]+-(?P<host>.+)-[0-9]+-[0-9a-f]+\.jsonl")


class FileJournal:
    """A journal in a folder; each process appends to files of its own, so make one per process.

    A new file is begun each day (UTC), beyond ``max_file_bytes``, and where the former one was moved or removed. Files
    not written for ``keep_days`` are deleted then, save the newest; None keeps all. ``clock`` tells these times.
    Where ``driver_file`` is given, nothing is written to a folder without a file of that name.
    """

    def __init__(
        self,
        folder: Path,
        max_file_bytes: int = MAX_FILE_BYTES,
        *,
        keep_days: float | None = None,
        clock: Callable[[], float] = time.time,
        driver_file: str = "",
    ) -> None:
        self._folder = folder
        self._driver_file = driver_file
        self._max_file_bytes = max_file_bytes
        self._keep_days = keep_days
        self._clock = clock
        self._file: FileIO | None = None
        self._path = folder
        self._day = ""
        self._has_records = False

    def append(self, records: Sequence[JournalRecord]) -> None:
        """Write the records and wait until they are on disk.

        Raises StoreUnavailableError when that fails, RefusedError where the driver does not see the folder: nothing may
        be deleted then.
        """
        if not records:
            return
        data = b"".join([record.encode() for record in records])
        try:
            file = self._open(records[0].run)
            _write_all(file, data)
            os.fdatasync(file.fileno())
            self._has_records = True
        except OSError as error:
            # A half-written line is no record; the next append begins a new file.
            self._give_up_file()
            raise StoreUnavailableError(
                f"journal {self._folder} cannot be written ({error.strerror}): nothing is deleted until it can"
            ) from error

    def _open(self, run: str) -> FileIO:
        now = self._clock()
        day = time.strftime("%Y%m%d", time.gmtime(now))
        if (
            self._file is not None
            and day == self._day
            and self._file.tell() < self._max_file_bytes
            and _is_at(self._path, self._file)
        ):
            return self._file
        self.close()
        self._require_driver_file()
        _make_folder(self._folder)
        self._path, self._day, self._has_records = self._folder / file_name(now), day, False
        # Ledger metadata has the passwords of ledgers in it.
        self._file = FileIO(self._path, "x", opener=lambda path, flags: os.open(path, flags, 0o640))
        _write_all(self._file, header(run, now))
        sync(self._folder)
        self._delete_old(now)
        return self._file

    def _require_driver_file(self) -> None:
        if self._driver_file and not (self._folder / self._driver_file).exists():
            raise RefusedError(
                f"journal {self._folder} on {socket.gethostname()} is not the folder that the driver has by this name, "
                "so nothing is deleted: undo would not find it. Share one folder among the driver and all executors, "
                "use s3://bucket/prefix, or set sweep.journal_per_machine and run undo on each machine"
            )

    def _give_up_file(self) -> None:
        self.close()
        if not self._has_records and self._path.suffix == SUFFIX:
            # On a full disk every attempt would leave one behind.
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                logger.debug("%s without a record stays: %s", self._path, error)

    def _delete_old(self, now: float) -> None:
        if self._keep_days is None:
            return
        try:
            others = [path for path in self._folder.glob(f"*{SUFFIX}") if path != self._path]
            # The time of a file is by its writer's clock, or its file server's, which may be a year behind.
            by_age = sorted((max(path.stat().st_mtime, written_until(path.name)), path) for path in others)
            for written, path in by_age[:-1]:
                if written < now - self._keep_days * 86_400:
                    path.unlink(missing_ok=True)
                    logger.info("journal file %s is older than %g days and was deleted", path, self._keep_days)
        except OSError as error:
            # Another process may be deleting them too.
            logger.warning("old journal files stay: %s", error)

    def close(self) -> None:
        """Close the file; a later append begins a new one."""
        if self._file is not None:
            self._file.close()
            self._file = None


class DriverFile:
    """A file of the driver's in the journal's folder, by which its workers see that they write to the same folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f"{socket.gethostname()}-{os.getpid()}-{_THIS_PROCESS}{_OF_DRIVER}"

    def write(self) -> str:
        """Write it unless it is there, and return its name; StoreUnavailableError if that fails."""
        try:
            if not self._path.exists():
                _make_folder(self._folder)
                self._remove_former()
                self._path.write_text(json.dumps(described_here()))
        except OSError as error:
            raise StoreUnavailableError(
                f"journal {self._folder} cannot be written ({error.strerror}): nothing is deleted until it can"
            ) from error
        return self._path.name

    def remove(self) -> None:
        """Remove it."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _remove_former(self) -> None:
        """Remove what drivers left behind that were killed on this machine."""
        for path in self._folder.glob(f"*{_OF_DRIVER}"):
            with contextlib.suppress(OSError, ValueError):
                if has_certainly_ended(json.loads(path.read_text())):
                    path.unlink(missing_ok=True)


class ObjectJournal:
    """A journal in an object store: one object for each append, since objects cannot be appended to."""

    def __init__(self, objects: S3Objects) -> None:
        self._objects = objects

    def append(self, records: Sequence[JournalRecord]) -> None:
        """Write the records as one object; raises StoreUnavailableError when that is not confirmed."""
        if records:
            now = time.time()
            data = b"".join([header(records[0].run, now), *(record.encode() for record in records)])
            self._objects.put(file_name(now), data)

    def close(self) -> None:
        """Close the store's connections; nothing is open between appends."""
        self._objects.close()


def file_name(now: float) -> str:
    """Make a name that is unique among all processes."""
    stamp = time.strftime(_STAMP, time.gmtime(now)) + f".{int(now * 1e6) % 1_000_000:06d}"
    return f"{stamp}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:12]}{SUFFIX}"


def host_in(name: str) -> str | None:
    """Return the host in a file's name; None for a name of another form."""
    match = _NAME.fullmatch(name)
    return None if match is None else match["host"]


def written_until(name: str) -> float:
    """Return a day after the time in a file's name, when a new one is begun; 0 for a name of another form."""
    try:
        return calendar.timegm(time.strptime(name.partition(".")[0], _STAMP)) + 86_400
    except ValueError:
        return 0.0


def header(run: str, now: float) -> bytes:
    """Render the first line of a file."""
    return JournalHeader(FORMAT, run, socket.gethostname(), os.getpid(), int(now * 1000)).encode()


def _make_folder(folder: Path) -> None:
    """Make the folder and its missing parents, durable against a loss of power."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)


def _is_at(path: Path, file: FileIO) -> bool:
    """Return whether an open file is still the one of this name: what was moved away is written to unnoticed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _write_all(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
