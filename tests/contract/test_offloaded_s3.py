"""Offloaded copies on a real S3 server: looked at, deleted in bulk, and kept whenever the store is in doubt."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from pydantic import SecretStr

from bookwarden.clusters.offload.names import object_names
from bookwarden.clusters.offload.requests import RequestLimits
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.config import OffloadStoreSettings
from bookwarden.ledgers.offloaded_copies import (
    AbsentCopy,
    CopyFate,
    CopyIndex,
    DamagedIndex,
    OffloadedCopy,
    PresentCopy,
    StoreLocation,
    UnreadableCopy,
)
from bookwarden.wiring.offload import allowed_store
from servers.object_store import ACCESS_KEY, REGION, SECRET_KEY, ObjectStore, TroubledStore
from servers.offload_index import index_of

OWNER = "t/n/persistent/orders%2Fnew"
LIMITS = RequestLimits(attempts=3, parallel=4, connect_timeout=2.0, read_timeout=20.0)


@pytest.fixture
def troubled(server: ObjectStore) -> Iterator[TroubledStore]:
    proxy = TroubledStore(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def stores() -> Iterator[list[OffloadStores]]:
    made: list[OffloadStores] = []
    yield made
    for store in made:
        store.close()


def opened(made: list[OffloadStores], endpoint: str, bucket: str, limits: RequestLimits = LIMITS) -> OffloadStores:
    place = OffloadStoreSettings(
        driver="S3", endpoint=endpoint, buckets=(bucket,), access_key=ACCESS_KEY, secret_key=SecretStr(SECRET_KEY)
    )
    made.append(OffloadStores([allowed_store(place, limits)]))
    return made[-1]


def copy_in(endpoint: str, bucket: str, ledger_id: int = 7, uuid: UUID | None = None) -> OffloadedCopy:
    return OffloadedCopy(ledger_id, OWNER, uuid or uuid4(), StoreLocation("S3", bucket, REGION, endpoint))


INDEX = index_of(1, 1, 1)


def put(server: ObjectStore, copy: OffloadedCopy, index: bytes = INDEX) -> OffloadedCopy:
    for name, body in zip(object_names(copy), (b"x", index), strict=True):
        server.client.put_object(
            Bucket=copy.location.bucket, Key=name, Body=body, Metadata={"managedledgername": copy.managed_ledger}
        )
    return copy


def test_data_and_index_go_and_nothing_else(server: ObjectStore, bucket: str, stores: list[OffloadStores]) -> None:
    doomed, kept = put(server, copy_in(server.endpoint, bucket)), put(server, copy_in(server.endpoint, bucket, 8))
    segment = put(server, copy_in(server.endpoint, bucket, 9)._replace(segment=True))
    store = opened(stores, server.endpoint, bucket)
    assert store.read_many([doomed, segment]) == [PresentCopy(OWNER), PresentCopy(OWNER)]
    assert store.examine_many([doomed]) == [PresentCopy(OWNER, 1, CopyIndex(1, 0, 1))]
    server.client.delete_object(Bucket=bucket, Key=object_names(doomed)[1])
    assert store.examine_many([doomed]) == [PresentCopy(OWNER, 1, None)]
    assert [done.fate for done in store.delete_many([doomed, segment])] == [CopyFate.DELETED] * 2
    assert server.keys(bucket) == set(object_names(kept))
    assert store.read_many([doomed]) == [AbsentCopy()]


def test_an_index_of_nothing_is_damaged_and_one_that_may_not_be_read_is_no_damage(
    server: ObjectStore, bucket: str, troubled: TroubledStore, stores: list[OffloadStores]
) -> None:
    empty, zeros, whole = (
        put(server, copy_in(troubled.endpoint, bucket, ledger), index)
        for ledger, index in enumerate((b"", bytes(len(INDEX)), INDEX))
    )
    store = opened(stores, troubled.endpoint, bucket)
    found = [one.index for one in store.examine_many([empty, zeros, whole]) if isinstance(one, PresentCopy)]
    assert found[0] == DamagedIndex("it is empty")
    assert isinstance(found[1], DamagedIndex)
    assert "begins with 0x00000000" in found[1].reason
    assert found[2] == CopyIndex(1, 0, 1)
    troubled.refuse(2, 403, "AccessDenied", "You may look only", "GET")
    (refused,) = store.examine_many([whole])
    assert isinstance(refused, UnreadableCopy)
    assert "You may look only" in refused.reason


def test_a_thousand_ledgers_take_two_deletes_and_one_listing(
    server: ObjectStore, bucket: str, troubled: TroubledStore, stores: list[OffloadStores]
) -> None:
    copies = [copy_in(troubled.endpoint, bucket, ledger) for ledger in range(1000)]
    put(server, copies[0])
    put(server, copies[-1])
    store = opened(stores, troubled.endpoint, bucket)
    assert {done.fate for done in store.delete_many(copies)} == {CopyFate.DELETED}
    assert [request.split()[0] for request in troubled.requests] == ["POST", "POST", "GET"]
    assert server.keys(bucket) == set()


def test_an_unfinished_upload_is_aborted_with_its_copy_and_others_stay(
    server: ObjectStore, bucket: str, stores: list[OffloadStores]
) -> None:
    doomed, other = copy_in(server.endpoint, bucket), copy_in(server.endpoint, bucket)
    _, upload = (
        server.client.create_multipart_upload(Bucket=bucket, Key=object_names(copy)[0]) for copy in (doomed, other)
    )
    store = opened(stores, server.endpoint, bucket)
    assert [done.fate for done in store.delete_many([doomed])] == [CopyFate.ABORTED]
    assert server.uploads(bucket) == {object_names(other)[0]}
    # The listing is kept for a while, in which somebody else may be faster.
    server.client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    assert [done.fate for done in store.delete_many([doomed, other])] == [CopyFate.DELETED] * 2


def test_a_throttled_store_is_asked_again(
    server: ObjectStore, bucket: str, troubled: TroubledStore, stores: list[OffloadStores]
) -> None:
    copy = put(server, copy_in(troubled.endpoint, bucket))
    troubled.refuse(2, 503, "SlowDown", "Please reduce your request rate.")
    (done,) = opened(stores, troubled.endpoint, bucket).delete_many([copy])
    assert done.fate is CopyFate.DELETED
    assert server.keys(bucket) == set()


def test_one_object_that_the_store_keeps_is_the_failure_of_its_copy_alone(
    server: ObjectStore, bucket: str, troubled: TroubledStore, stores: list[OffloadStores]
) -> None:
    gone, kept = (put(server, copy_in(troubled.endpoint, bucket, ledger)) for ledger in (1, 2))
    key = object_names(kept)[1]
    refused = f"<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>Retained</Message></Error>"
    troubled.answer(1, 200, f"<DeleteResult>{refused}</DeleteResult>", only="?delete")
    done = opened(stores, troubled.endpoint, bucket).delete_many([gone, kept])
    assert [one.fate for one in done] == [CopyFate.DELETED, CopyFate.FAILED]
    assert "AccessDenied: Retained" in done[1].reason


def test_uploads_that_cannot_be_listed_or_aborted_are_a_failure_until_they_can(
    server: ObjectStore, bucket: str, troubled: TroubledStore, stores: list[OffloadStores]
) -> None:
    copy = copy_in(troubled.endpoint, bucket)
    server.client.create_multipart_upload(Bucket=bucket, Key=object_names(copy)[0])
    store = opened(stores, troubled.endpoint, bucket)
    for only in ("uploads", "uploadId"):
        troubled.refuse(3, 403, "AccessDenied", "Not your uploads", only)
        (done,) = store.delete_many([copy])
        assert done.fate is CopyFate.FAILED
        assert "Not your uploads" in done.reason
        troubled.refuse(0, 0, "", "")
        assert server.uploads(bucket) == {object_names(copy)[0]}
    assert store.delete_many([copy])[0].fate is CopyFate.ABORTED
    assert server.uploads(bucket) == set()


def test_uploads_are_left_alone_when_the_settings_say_so(
    server: ObjectStore, bucket: str, troubled: TroubledStore, stores: list[OffloadStores]
) -> None:
    copy = copy_in(troubled.endpoint, bucket)
    server.client.create_multipart_upload(Bucket=bucket, Key=object_names(copy)[0])
    opened(stores, troubled.endpoint, bucket, replace(LIMITS, abort_uploads=False)).delete_many([copy])
    assert [request.split()[0] for request in troubled.requests] == ["POST"]
    assert server.uploads(bucket) == {object_names(copy)[0]}


def test_a_bulk_delete_carries_the_digest_that_old_servers_ask_for(
    bucket: str, troubled: TroubledStore, stores: list[OffloadStores]
) -> None:
    opened(stores, troubled.endpoint, bucket).delete_many([copy_in(troubled.endpoint, bucket)])
    assert len(base64.b64decode(troubled.headers[0]["Content-MD5"])) == 16


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (503, "SlowDown", "Please reduce your request rate."),
        (403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."),
        (403, "SignatureDoesNotMatch", "The request signature does not match."),
    ],
)
def test_a_refusal_keeps_the_copy_and_tells_the_stores_own_words(
    server: ObjectStore,
    bucket: str,
    troubled: TroubledStore,
    stores: list[OffloadStores],
    status: int,
    code: str,
    message: str,
) -> None:
    copy = put(server, copy_in(troubled.endpoint, bucket))
    store = opened(stores, troubled.endpoint, bucket)
    troubled.refuse(1000, status, code, message)
    (reading,) = store.read_many([copy])
    (done,) = store.delete_many([copy])
    assert isinstance(reading, UnreadableCopy)
    assert done.fate is CopyFate.FAILED
    for reason in (reading.reason, done.reason):
        assert code in reason
        assert message in reason
        assert SECRET_KEY not in reason
    assert server.keys(bucket) == set(object_names(copy))


def test_a_missing_bucket_is_a_failure_and_not_an_absent_copy(server: ObjectStore, stores: list[OffloadStores]) -> None:
    (done,) = opened(stores, server.endpoint, "no-such-bucket").delete_many(
        [copy_in(server.endpoint, "no-such-bucket")]
    )
    assert done.fate is CopyFate.FAILED
    assert "NoSuchBucket" in done.reason


class HangsUp:
    """Takes connections and closes them at once; counts them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()


def test_a_store_that_is_down_fails_every_copy_after_the_tries_of_a_few(stores: list[OffloadStores]) -> None:
    down, now = HangsUp(), [1000.0]
    place = OffloadStoreSettings(
        driver="S3",
        endpoint=down.endpoint,
        buckets=("offload",),
        access_key=ACCESS_KEY,
        secret_key=SecretStr(SECRET_KEY),
    )
    limits = RequestLimits(attempts=2, parallel=2, connect_timeout=2.0)
    stores.append(OffloadStores([allowed_store(place, limits)], clock=lambda: now[0]))
    copies = [copy_in(down.endpoint, "offload", ledger) for ledger in range(2000)]
    try:
        readings = stores[0].read_many(copies)
        # The tries of one look, and of the other that may have begun before that was known to fail.
        assert limits.attempts <= down.connections <= limits.attempts * limits.parallel
        now[0] += 31
        down.connections = 0
        done = stores[0].delete_many(copies)
        assert down.connections == 2
        # A store that was silent just now is not asked again.
        assert stores[0].delete_many(copies) == done
        assert stores[0].read_many(copies) == [UnreadableCopy(one.reason) for one in done]
        assert down.connections == 2
    finally:
        down.close()
    assert all(isinstance(reading, UnreadableCopy) and "onnection" in reading.reason for reading in readings)
    assert all(one.fate is CopyFate.FAILED and "onnection" in one.reason for one in done)


@pytest.mark.parametrize(
    "change",
    [
        {"bucket": "another"},
        {"endpoint": "http://elsewhere:9000"},
        {"region": "eu-west-1"},
        {"driver": "aws-s3"},
        {"driver": "aliyun-oss"},
        {"driver": ""},
    ],
    ids=str,
)
def test_a_place_that_the_settings_do_not_allow_is_a_failure(
    server: ObjectStore, bucket: str, stores: list[OffloadStores], change: dict[str, str]
) -> None:
    place = OffloadStoreSettings(
        driver="S3",
        endpoint=server.endpoint,
        buckets=(bucket,),
        region=REGION,
        access_key=ACCESS_KEY,
        secret_key=SecretStr(SECRET_KEY),
    )
    stores.append(OffloadStores([allowed_store(place, LIMITS)]))
    put(server, copy_in(server.endpoint, bucket))
    stray = copy_in(server.endpoint, bucket)
    stray = stray._replace(location=stray.location._replace(**change))
    (reading,), (done,) = stores[0].read_many([stray]), stores[0].delete_many([stray])
    assert isinstance(reading, UnreadableCopy)
    assert done.fate is CopyFate.FAILED
    assert repr(next(iter(change.values()))) in done.reason


def test_one_bad_place_does_not_keep_the_others(server: ObjectStore, bucket: str, stores: list[OffloadStores]) -> None:
    good, stray = put(server, copy_in(server.endpoint, bucket)), copy_in("http://elsewhere:9000", bucket)
    done = opened(stores, server.endpoint, bucket).delete_many([stray, good, stray])
    assert [one.fate for one in done] == [CopyFate.FAILED, CopyFate.DELETED, CopyFate.FAILED]
    assert server.keys(bucket) == set()
