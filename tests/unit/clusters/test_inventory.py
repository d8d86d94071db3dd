"""S3 inventories in place of a listing: read as a whole, or an error that names the file."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import SecretStr

from bookwarden.clusters.offload.inventory import InventoryFolder, read_manifest
from bookwarden.clusters.offload.listing import ObjectListing
from bookwarden.clusters.offload.requests import RequestLimits
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.config import OffloadStoreSettings
from bookwarden.errors import ConfigError, FormatError
from bookwarden.wiring.offload import allowed_store

STAMP = "2026-01-02T03:04:05.678Z"
STAMP_MS = int(datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone.utc).timestamp() * 1000)
COPY = f"{uuid4()}-ledger-7"
SCHEMA = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, StorageClass"
ROWS = [
    f'"offload","{COPY}","v1","true","false","100","{STAMP}","STANDARD"',
    f'"offload","{COPY}-index","","true","false","5","{STAMP}","STANDARD"',
    f'"offload","{COPY}-index","v0","false","false","4","{STAMP}","STANDARD"',
    f'"offload","a+name%2Fwith%20signs","","true","false","","{STAMP}","STANDARD"',
    f'"offload","deleted","","true","true","","{STAMP}",""',
]


@pytest.fixture
def stores() -> Iterator[OffloadStores]:
    place = OffloadStoreSettings(
        driver="S3",
        endpoint="http://127.0.0.1:9",
        buckets=("offload", "other"),
        region="r",
        access_key="a",
        secret_key=SecretStr("b"),
    )
    made = OffloadStores([allowed_store(place, RequestLimits())])
    yield made
    made.close()


def write(folder: Path, data_files: dict[str, bytes], **changed: Any) -> str:
    """Write an inventory; its data files lie beside the manifest, by the last part of their keys."""
    for key, data in data_files.items():
        (folder / key.rpartition("/")[2]).write_bytes(data)
    manifest = {
        "sourceBucket": "offload",
        "destinationBucket": "arn:aws:s3:::lists",
        "version": "2016-11-30",
        "creationTimestamp": "1767323045000",
        "fileFormat": "CSV",
        "fileSchema": SCHEMA,
        "files": [
            {"key": key, "size": len(data), "MD5checksum": hashlib.md5(data).hexdigest()}
            for key, data in data_files.items()
        ],
    }
    (folder / "manifest.json").write_text(json.dumps({**manifest, **changed}))
    return str(folder)


def listed(stores: OffloadStores, folder: str) -> set[tuple[str, int, int, bool]]:
    objects = ObjectListing(stores, [folder])
    pieces = [piece for piece in objects.pieces() if piece.bucket == "offload"]
    return {
        (row.key, row.length, row.modified_ms, row.uuid is not None)
        for piece in pieces
        for page in objects.pages(piece)
        for row in page
    }


EXPECTED = {
    (COPY, 100, STAMP_MS, True),
    (f"{COPY}-index", 5, STAMP_MS, True),
    ("a name/with signs", 0, STAMP_MS, False),
}


def test_the_latest_objects_of_an_inventory_are_read_from_all_of_its_files(
    stores: OffloadStores, tmp_path: Path
) -> None:
    files = {
        "offload/all/data/one.csv.gz": gzip.compress("\n".join(ROWS[:2]).encode()),
        "offload/all/data/two.csv": ("\n".join(ROWS[2:]) + "\n").encode(),
    }
    folder = write(tmp_path, files)
    assert listed(stores, folder) == EXPECTED
    assert read_manifest(InventoryFolder(tmp_path)).created_ms == 1_767_323_045_000
    # The other bucket is listed itself.
    assert {piece.inventory for piece in ObjectListing(stores, [folder]).pieces() if piece.bucket == "other"} == {""}


def test_a_parquet_inventory_says_the_same(stores: OffloadStores, tmp_path: Path) -> None:
    stamp = datetime(2026, 1, 2, 3, 4, 5, 678_000)
    table = pa.table(
        {
            "bucket": ["offload"] * 4,
            "key": [COPY, f"{COPY}-index", "a name/with signs", "deleted"],
            "is_latest": [True] * 4,
            "is_delete_marker": [False] * 3 + [True],
            "size": [100, 5, None, None],
            "last_modified_date": pa.array([stamp] * 4, pa.timestamp("ms")),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    folder = write(
        tmp_path, {"x/one.parquet": sink.getvalue().to_pybytes()}, fileFormat="Parquet", fileSchema="message s3 {}"
    )
    assert listed(stores, folder) == EXPECTED


@pytest.mark.parametrize("harm", ["removed", "cut", "changed"])
def test_an_inventory_that_is_not_whole_is_an_error_that_names_the_file(
    stores: OffloadStores, tmp_path: Path, harm: str
) -> None:
    folder = write(tmp_path, {"data/one.csv": "\n".join(ROWS).encode(), "data/two.csv": ROWS[0].encode()})
    path = tmp_path / "two.csv"
    if harm == "removed":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[:-1] if harm == "cut" else data.replace(b"100", b"101"))
    with pytest.raises(FormatError, match=r"data/two\.csv"):
        listed(stores, folder)


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        ({"sourceBucket": "strange"}, ConfigError, "strange"),
        ({"fileFormat": "ORC"}, FormatError, "ORC"),
        ({"fileSchema": "Bucket, Key"}, FormatError, "lastmodifieddate"),
        ({"files": None}, FormatError, r"manifest\.json"),
        ({"fileSchema": f"{SCHEMA}, ETag"}, FormatError, "the schema 9"),
    ],
)
def test_a_manifest_that_is_not_understood_says_what_to_do(
    stores: OffloadStores, tmp_path: Path, changed: dict[str, Any], kind: type[Exception], said: str
) -> None:
    folder = write(tmp_path, {"one.csv": "\n".join(ROWS).encode()}, **changed)
    with pytest.raises(kind, match=said):
        listed(stores, folder)
