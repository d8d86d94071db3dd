"""Inventories of S3 buckets, in place of a listing: manifest.json and the data files that it names, CSV or Parquet.

Source: "Amazon S3 Inventory" in the S3 user guide. An inventory lists objects only, no unfinished uploads. It counts
only as a whole: each data file must have the size and the MD5 that the manifest states.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

from bookwarden.clusters.offload.names import StoredObject
from bookwarden.errors import FormatError, StoreError

_MANIFEST = "manifest.json"
_PAGE = 10_000
_KEY, _SIZE, _MODIFIED, _LATEST, _MARKER = "key", "size", "lastmodifieddate", "islatest", "isdeletemarker"
_NEEDED = (_KEY, _SIZE, _MODIFIED)


@dataclass(frozen=True, slots=True)
class InventoryFile:
    """A data file: its key, its size in bytes, and the MD5 of its bytes in hexadecimal."""

    key: str
    size: int
    md5: str


@dataclass(frozen=True, slots=True)
class BucketInventory:
    """The manifest of an inventory: its bucket, its time (milliseconds since the epoch), and the data files."""

    bucket: str
    created_ms: int
    format: str
    columns: tuple[str, ...]
    files: tuple[InventoryFile, ...]


class InventoryFolder:
    """An inventory in a folder of this machine; data files lie below it by their keys, or the last parts of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes:
        """Read a file by its key; FormatError where there is none, StoreError where it cannot be read."""
        parts = [part for part in name.split("/") if part not in ("", ".", "..")]
        candidates = [self._folder.joinpath(*parts[at:]) for at in range(len(parts))]
        path = next((one for one in candidates if one.is_file()), None)
        if path is None:
            raise FormatError(
                f"the inventory in {self._folder} lacks its file {name}: copy it there, next to {_MANIFEST}"
            )
        try:
            return path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path} of the inventory cannot be read: {error.strerror}") from error


def read_manifest(source: InventoryFolder) -> BucketInventory:
    """Read the manifest; FormatError for one that is damaged, or of a kind that is not read."""
    data = source.read(_MANIFEST)
    try:
        fields = json.loads(data)
        inventory = BucketInventory(
            bucket=str(fields["sourceBucket"]),
            created_ms=int(fields["creationTimestamp"]),
            format=str(fields["fileFormat"]),
            columns=_columns(fields["fileFormat"], fields["fileSchema"]),
            files=tuple(
                InventoryFile(str(one["key"]), int(one["size"]), str(one["MD5checksum"]).lower())
                for one in fields["files"]
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{_MANIFEST} is not that of an S3 inventory ({error!r}): name its manifest.json") from error
    if inventory.format not in ("CSV", "Parquet"):
        raise FormatError(
            f"the inventory of {inventory.bucket} is {inventory.format}, and CSV and Parquet are read: have it made so"
        )
    lacking = [column for column in _NEEDED if column not in inventory.columns]
    if inventory.format == "CSV" and lacking:
        raise FormatError(
            f"the inventory of {inventory.bucket} has no {', '.join(lacking)}: have Size and LastModifiedDate in it"
        )
    return inventory


def pages(source: InventoryFolder, inventory: BucketInventory, file: InventoryFile) -> Iterator[list[StoredObject]]:
    """Yield the objects of a data file, page by page, without delete markers and older versions.

    Raises FormatError where the file is missing, or not as the manifest says.
    """
    data = source.read(file.key)
    if len(data) != file.size or hashlib.md5(data, usedforsecurity=False).hexdigest() != file.md5:
        raise FormatError(
            f"{file.key} of the inventory of {inventory.bucket} is not whole: {len(data):,} bytes, where the manifest "
            f"says {file.size:,} and MD5 {file.md5}; copy it again, or wait for the next inventory"
        )
    read = _parquet_rows if inventory.format == "Parquet" else _csv_rows
    page = []
    try:
        for row in read(data, inventory.columns):
            if _true(row.get(_LATEST, True)) and not _true(row.get(_MARKER, False)):
                page.append(StoredObject(str(row[_KEY]), int(row[_SIZE] or 0), _milliseconds(row[_MODIFIED])))
            if len(page) == _PAGE:
                yield page
                page = []
    except (ValueError, KeyError, TypeError, EOFError, OSError, csv.Error, zlib.error) as error:
        raise FormatError(
            f"{file.key} of the inventory of {inventory.bucket} cannot be understood ({error}): list the bucket itself"
        ) from error
    yield page


def _columns(file_format: str, schema: str) -> tuple[str, ...]:
    # That of a Parquet file is a message's definition; the file itself has it too.
    return tuple(_plain(name) for name in schema.split(",")) if file_format == "CSV" else ()


def _plain(name: str) -> str:
    return name.strip().replace("_", "").lower()


def _csv_rows(data: bytes, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    for row in csv.reader(io.StringIO(text.decode(), newline="")):
        if len(row) != len(columns):
            raise ValueError(f"a row has {len(row)} fields, and the schema {len(columns)}")
        fields = dict(zip(columns, row, strict=True))
        # Keys are URL-encoded.
        fields[_KEY] = unquote_plus(fields[_KEY])
        yield fields


def _parquet_rows(data: bytes, _: Sequence[str]) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(pa.BufferReader(data))
    names = {_plain(name): name for name in file.schema_arrow.names}
    wanted = [name for name in (*_NEEDED, _LATEST, _MARKER) if name in names]
    for batch in file.iter_batches(columns=[names[name] for name in wanted]):
        for row in batch.to_pylist():
            yield {_plain(name): value for name, value in row.items()}


def _true(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).lower() == "true"


def _milliseconds(stamp: Any) -> int:
    if isinstance(stamp, str):
        stamp = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    if stamp.tzinfo is None:
        stamp = stamp.replace(tzinfo=timezone.utc)
    return int(stamp.timestamp() * 1000)
