"""The journal: what was deleted, durable before it is deleted.

One record a line: a JSON object, a tab, and the CRC-32 of the JSON in eight hexadecimal digits. A line whose
checksum does not fit, such as the last one of a file that was cut off, is no record. The fields are those of
StoredLedger (``raw`` in base64) and ``journaled_at`` (milliseconds), ``holder``, ``run`` and ``reason``.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from bookwarden.errors import StoreUnavailableError

# Made once: making it takes as long as rendering an entry.
_render = json.JSONEncoder(separators=(",", ":")).encode

MAX_FILE_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One ledger's metadata as it was right before its delete."""

    ledger_id: int
    holder: str
    path: str
    version: int
    created_ms: int
    raw: bytes
    run: str
    journaled_at: int

    def encode(self) -> bytes:
        """Render the entry as one line."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["raw"] = base64.b64encode(self.raw).decode()
        body = _render(fields).encode()
        return b"%s\t%08x\n" % (body, zlib.crc32(body))

    @classmethod
    def decode(cls, line: bytes) -> JournalEntry | None:
        """Read a line back; None when it is cut off or damaged."""
        body, tab, checksum = line.rstrip(b"\n").rpartition(b"\t")
        if not tab or not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(body):
            return None
        fields = json.loads(body)
        return cls(**{**fields, "raw": base64.b64decode(fields["raw"])})


class FileJournal:
    """A journal in a folder; each process appends to a file of its own, so make one per process.

    Every machine that sweeps needs the folder; a folder that all share keeps the record in one place.
    """

    def __init__(self, folder: Path, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._file: FileIO | None = None

    def append(self, entries: Sequence[JournalEntry]) -> None:
        """Write the entries and wait until they are on disk.

        Raises StoreUnavailableError when that fails: nothing may be deleted then.
        """
        try:
            file = self._open()
            _write_all(file, b"".join(entry.encode() for entry in entries))
            os.fdatasync(file.fileno())
        except OSError as error:
            # What was half written is no record; the next append begins a new file.
            self.close()
            raise StoreUnavailableError(
                f"journal {self._folder} cannot be written ({error.strerror}): nothing is deleted until it can"
            ) from error

    def _open(self) -> FileIO:
        if self._file is not None and self._file.tell() < self._max_file_bytes:
            return self._file
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{stamp}-{socket.gethostname()}-{os.getpid()}-{time.monotonic_ns():x}.jsonl"
        self._file = (self._folder / name).open("xb", buffering=0)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return self._file

    def close(self) -> None:
        """Close the file; a later append begins a new one."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _write_all(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def read_journal(folder: Path) -> Iterator[JournalEntry]:
    """Read all records of a journal folder, oldest file first, damaged lines left out."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                entry = JournalEntry.decode(line)
                if entry is not None:
                    yield entry
