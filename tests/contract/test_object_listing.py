"""Listing stores of offloaded copies: every object once, its upload too, and a store in trouble is no empty store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from pydantic import SecretStr

from bookwarden.clusters.offload.listing import ListingDigest, ObjectListing
from bookwarden.clusters.offload.requests import RequestLimits
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.config import OffloadStoreSettings
from bookwarden.errors import StoreError, StoreUnavailableError
from bookwarden.ledgers.listing import ListedObject
from bookwarden.wiring.offload import allowed_store
from servers.object_store import ACCESS_KEY, REGION, SECRET_KEY, ObjectStore, TroubledStore

LIMITS = RequestLimits(attempts=2, parallel=4, connect_timeout=2.0, read_timeout=20.0)


@pytest.fixture
def opened() -> Iterator[list[OffloadStores]]:
    made: list[OffloadStores] = []
    yield made
    for stores in made:
        stores.close()


def listing(opened: list[OffloadStores], endpoint: str, *buckets: str, limits: RequestLimits = LIMITS) -> ObjectListing:
    place = OffloadStoreSettings(
        driver="S3",
        endpoint=endpoint,
        buckets=buckets,
        region=REGION,
        access_key=ACCESS_KEY,
        secret_key=SecretStr(SECRET_KEY),
    )
    opened.append(OffloadStores([allowed_store(place, limits)]))
    return ObjectListing(opened[-1])


def rows(objects: ObjectListing) -> list[ListedObject]:
    return [row for piece in objects.pieces() for page in objects.pages(piece) for row in page]


def test_every_object_and_upload_of_a_bucket_is_listed_once_whatever_its_name(
    server: ObjectStore, bucket: str, opened: list[OffloadStores]
) -> None:
    copies = {UUID(f"{digit}{str(uuid4())[1:]}"): number for number, digit in enumerate("0123456789abcdef")}
    named = {f"{uuid}-ledger-{number}{end}" for uuid, number in copies.items() for end in ("", "-index")}
    odd = {"!first", "9", "9~", ":", "Z", "f~~", "g", "zebra", "ümlaut", "a/b", "ABCDEF00-0000-0000-0000-000000000000"}
    for key in named | odd:
        server.client.put_object(Bucket=bucket, Key=key, Body=b"x" * 7)
    upload = f"{next(iter(copies))}-ledger-0"
    for key in (upload, "zebra"):
        server.client.create_multipart_upload(Bucket=bucket, Key=key)

    found = rows(listing(opened, server.endpoint, bucket))
    objects = [row for row in found if row.upload_id is None]
    assert sorted(row.key for row in objects) == sorted(named | odd)
    assert {row.length for row in objects} == {7}
    assert {(row.uuid, row.ledger_id) for row in objects if row.uuid} == set(copies.items())
    assert {row.key for row in objects if row.uuid is None} == odd
    uploads = {(row.key, row.uuid, row.ledger_id, row.length) for row in found if row.upload_id is not None}
    assert sorted(key for key, *_ in uploads) == sorted([upload, "zebra"])
    assert (upload, next(iter(copies)), 0, 0) in uploads
    assert len([row for row in found if row.upload_id is not None]) == 2
    # moto begins every upload in 2010.
    assert all(row.modified_ms > 1_600_000_000_000 for row in objects)
    assert all(row.modified_ms > 1_200_000_000_000 for row in found)
    assert {row.store for row in found} == {f"S3 {bucket} {REGION} {server.endpoint}"}


def test_uploads_are_not_asked_for_where_the_settings_leave_them_alone(
    server: ObjectStore, bucket: str, opened: list[OffloadStores]
) -> None:
    server.client.create_multipart_upload(Bucket=bucket, Key="zebra")
    limits = RequestLimits(attempts=1, abort_uploads=False)
    assert rows(listing(opened, server.endpoint, bucket, limits=limits)) == []


def test_a_listing_that_is_cut_off_in_the_middle_is_no_shorter_listing(
    server: ObjectStore, bucket: str, opened: list[OffloadStores]
) -> None:
    for number in range(3):
        server.client.put_object(Bucket=bucket, Key=f"0-{number}", Body=b"")
    proxy = TroubledStore(server.port)
    try:
        objects = listing(opened, proxy.endpoint, bucket)
        first = objects.pieces()[0]
        assert [row.key for page in objects.pages(first) for row in page] == ["0-0", "0-1", "0-2"]
        for status, code, kind in ((403, "AccessDenied", StoreError), (503, "SlowDown", StoreUnavailableError)):
            proxy.refuse(10, status, code, "by the test", only="uploads")
            with pytest.raises(kind, match=code):
                list(objects.pages(first))
    finally:
        proxy.close()


def test_a_bucket_that_is_not_there_is_an_error_and_no_empty_bucket(
    server: ObjectStore, opened: list[OffloadStores]
) -> None:
    objects = listing(opened, server.endpoint, "no-such-bucket")
    with pytest.raises(StoreError, match="NoSuchBucket"):
        list(objects.pages(objects.pieces()[0]))


def test_stores_without_named_buckets_are_not_listed_and_say_so(opened: list[OffloadStores]) -> None:
    # The settings refuse such a store; the listing does not rest on that.
    place = OffloadStoreSettings.model_construct(driver="S3", endpoint="http://127.0.0.1:9")
    opened.append(OffloadStores([allowed_store(place, LIMITS)]))
    objects = ObjectListing(opened[-1])
    assert objects.pieces() == []
    assert list(objects.not_listed()) == ["S3 http://127.0.0.1:9"]


def test_folders_of_a_file_system_are_copies_and_all_else_is_counted(
    tmp_path: Path, opened: list[OffloadStores]
) -> None:
    uuid = uuid4()
    folder = tmp_path / "t" / "n" / "persistent" / "orders" / f"7-{uuid}"
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(b"x" * 100)
    (folder / "index").write_bytes(b"x" * 10)
    (tmp_path / "t" / "notes").write_bytes(b"?")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (tmp_path / "t" / f"8-{uuid4()}").symlink_to(outside)
    opened.append(
        OffloadStores([allowed_store(OffloadStoreSettings(driver="filesystem", endpoint=str(tmp_path)), LIMITS)])
    )
    found = sorted(rows(ObjectListing(opened[-1])), key=lambda row: row.key)
    shown = {row.key: (row.uuid, row.ledger_id, row.length) for row in found if "8-" not in row.key[:4]}
    assert shown == {f"t/n/persistent/orders/7-{uuid}": (uuid, 7, 110), "t/notes": (None, None, 1)}
    # A link is nobody's folder, whatever its name.
    assert len(found) == 3


def test_a_file_system_that_is_not_mounted_is_an_error(tmp_path: Path, opened: list[OffloadStores]) -> None:
    opened.append(
        OffloadStores([allowed_store(OffloadStoreSettings(driver="filesystem", endpoint=str(tmp_path)), LIMITS)])
    )
    with pytest.raises(StoreError, match="mounted"):
        rows(ObjectListing(opened[-1]))


def test_the_digest_of_a_listing_is_over_every_name() -> None:
    one, other = ListingDigest(), ListingDigest()
    row = ListedObject("s", "k", None, None, 1, 2)
    one.add([row, row])
    other.add([row])
    assert str(one) != str(other)
    assert (one.names, other.names) == (2, 1)
