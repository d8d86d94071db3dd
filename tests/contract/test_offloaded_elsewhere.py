"""Offloaded copies on Google Cloud Storage (an emulator), Azure (a stub of its REST interface) and file systems."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from uuid import uuid4
from xml.sax.saxutils import escape

import pytest
from gcp_storage_emulator.server import create_server
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from bookwarden.clusters.offload.azure import AzureAccess, AzureStore
from bookwarden.clusters.offload.filesystem import FileSystemStore
from bookwarden.clusters.offload.gcs import GcsAccess, GcsStore
from bookwarden.clusters.offload.names import EVERYTHING, RANGES, map_file_name, object_names
from bookwarden.clusters.offload.requests import RequestLimits, StoreSilentError
from bookwarden.errors import StoreError
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
from bookwarden_dev.devcluster.ports import free_ports
from servers.offload_index import index_of

OWNER = "t/n/persistent/orders"
INDEX = index_of(1, 1, 1)
BLOB_DATE, BLOB_DATE_MS = "Fri, 02 Jan 2026 03:04:05 GMT", 1_767_323_045_000
LIMITS = RequestLimits(attempts=2, parallel=4, connect_timeout=2.0, read_timeout=5.0)


def copies_at(location: StoreLocation, count: int = 3) -> list[OffloadedCopy]:
    return [OffloadedCopy(ledger, OWNER, uuid4(), location) for ledger in range(count)]


class Google:
    """The emulator, and a client of its own."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.client: Any = storage.Client(
            "test", AnonymousCredentials(), client_options={"api_endpoint": self.endpoint}
        )

    def put(self, copy: OffloadedCopy) -> None:
        for name, body in zip(object_names(copy), (b"x", INDEX), strict=True):
            blob = self.client.bucket(copy.location.bucket).blob(name)
            blob.metadata = {"managedledgername": copy.managed_ledger}
            blob.upload_from_string(body)

    def names(self, bucket: str) -> set[str]:
        return {blob.name for blob in self.client.list_blobs(bucket)}


@pytest.fixture(scope="module")
def google() -> Iterator[Google]:
    (port,) = free_ports(1)
    server = create_server("127.0.0.1", port, in_memory=True)
    server.start()
    made = Google(port)
    yield made
    made.client.close()
    server.stop()


def test_google_deletes_many_in_one_request_and_knows_what_is_absent(google: Google) -> None:
    google.client.create_bucket("offload")
    location = StoreLocation("google-cloud-storage", "offload", "", google.endpoint)
    gone, doomed, kept = copies_at(location)
    google.put(doomed)
    google.put(kept)
    store = GcsStore(location, GcsAccess(anonymous=True), LIMITS)
    try:
        assert store.read_many([gone, doomed]) == [AbsentCopy(), PresentCopy(OWNER)]
        assert store.examine_many([gone, doomed]) == [AbsentCopy(), PresentCopy(OWNER, 1, CopyIndex(1, 0, 1))]
        google.client.bucket("offload").blob(object_names(kept)[1]).upload_from_string(bytes(90))
        (other,) = store.examine_many([kept])
        assert isinstance(other, PresentCopy)
        assert isinstance(other.index, DamagedIndex)
        google.client.bucket("offload").delete_blob(object_names(doomed)[1])
        assert store.examine_many([doomed]) == [PresentCopy(OWNER, 1, None)]
        assert [done.fate for done in store.delete_many([gone, doomed])] == [CopyFate.ABSENT, CopyFate.DELETED]
        assert google.names("offload") == set(object_names(kept))
    finally:
        store.close()


def test_google_without_the_bucket_is_a_failure_and_without_an_answer_a_silence(google: Google) -> None:
    location = StoreLocation("google-cloud-storage", "no-such-bucket", "", google.endpoint)
    store = GcsStore(location, GcsAccess(anonymous=True), RequestLimits(read_timeout=1.0))
    (done,) = store.delete_many(copies_at(location, 1))
    store.close()
    assert done.fate is CopyFate.FAILED
    assert "bucket" in done.reason
    silent = GcsStore(
        location._replace(endpoint="http://127.0.0.1:9"), GcsAccess(anonymous=True), RequestLimits(read_timeout=1.0)
    )
    for ask in (silent.read_many, silent.delete_many):
        with pytest.raises(StoreSilentError, match="refused"):
            ask(copies_at(location, 200))
    silent.close()


def test_google_lists_every_object_once_and_a_bucket_that_is_not_there_is_an_error(google: Google) -> None:
    google.client.create_bucket("listed")
    location = StoreLocation("google-cloud-storage", "listed", "", google.endpoint)
    copies = copies_at(location)
    for copy in copies:
        google.put(copy)
    for name in ("notes", "Zebra"):
        google.client.bucket("listed").blob(name).upload_from_string(b"xyz")
    store = GcsStore(location, GcsAccess(anonymous=True), LIMITS)
    missing = GcsStore(location._replace(bucket="no-such"), GcsAccess(anonymous=True), LIMITS)
    try:
        found = [one for names in RANGES for page in store.pages(names) for one in page if names.has(one.key)]
        lengths = {
            name: size for copy in copies for name, size in zip(object_names(copy), (1, len(INDEX)), strict=True)
        }
        lengths |= {"notes": 3, "Zebra": 3}
        assert sorted((one.key, one.length) for one in found) == sorted(lengths.items())
        assert all(one.modified_ms > 1_600_000_000_000 for one in found)
        with pytest.raises(StoreError, match="no-such"):
            list(missing.pages(EVERYTHING))
    finally:
        store.close()
        missing.close()


class AzureStub:
    """As much of Blob Storage's REST interface as is used: HEAD, GET, batches of DELETE, and List Blobs, two a page."""

    def __init__(self) -> None:
        self.blobs: dict[str, dict[str, str]] = {}
        self.bodies: dict[str, bytes] = {}
        self.containers = {"offload"}
        self.batches: list[int] = []
        self.refusing = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                path = unquote(self.path.partition("?")[0])
                status, headers = outer.look(path)
                self._answer(status, headers, outer.bodies.get(path, b""), head=True)

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                if unquote(path) in outer.bodies:
                    self._answer(206, *outer.beginning(unquote(path)))
                    return
                status, body = outer.listed(unquote(path), {name: one[0] for name, one in parse_qs(query).items()})
                code = {"x-ms-error-code": "ContainerNotFound"} if status == 404 else {}
                self._answer(status, {"Content-Type": "application/xml", **code}, body.encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                if outer.refusing:
                    text = "<?xml version='1.0'?><Error><Code>AuthenticationFailed</Code><Message>No.</Message></Error>"
                    self._answer(
                        403,
                        {"x-ms-error-code": "AuthenticationFailed", "Content-Type": "application/xml"},
                        text.encode(),
                    )
                    return
                paths = re.findall(r"^DELETE (\S+) HTTP", body, re.MULTILINE)
                outer.batches.append(len(paths))
                parts = [outer.delete(unquote(path.partition("?")[0])) for path in paths]
                answer = "".join(
                    f"--part\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n{part}\r\n"
                    for number, part in enumerate(parts)
                )
                self._answer(202, {"Content-Type": "multipart/mixed; boundary=part"}, f"{answer}--part--\r\n".encode())

            def _answer(self, status: int, headers: dict[str, str], body: bytes, *, head: bool = False) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(b"" if head else body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/account"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def look(self, path: str) -> tuple[int, dict[str, str]]:
        if self.refusing:
            return 403, {"x-ms-error-code": "AuthenticationFailed"}
        code = self._missing(path)
        return (404, {"x-ms-error-code": code}) if code else (200, self.blobs[path])

    def beginning(self, path: str) -> tuple[dict[str, str], bytes]:
        """Give the whole of a blob as the part that was asked for."""
        body = self.bodies[path]
        told = {"Content-Range": f"bytes 0-{len(body) - 1}/{len(body)}", "Content-Type": "application/octet-stream"}
        return {**self.blobs[path], **told}, body

    def listed(self, path: str, query: dict[str, str]) -> tuple[int, str]:
        if path.rpartition("/")[2] not in self.containers:
            return 404, "<Error><Code>ContainerNotFound</Code><Message>No.</Message></Error>"
        assert (query["restype"], query["comp"]) == ("container", "list")
        begin = int(query.get("marker", "0"))
        names = [name.removeprefix(f"{path}/") for name in sorted(self.blobs) if name.startswith(f"{path}/")]
        found = [name for name in names if name.startswith(query.get("prefix", ""))]
        blobs = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{BLOB_DATE}</Last-Modified>"
            f"<Content-Length>{len(name)}</Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob>"
            for name in found[begin : begin + 2]
        )
        more = f"<NextMarker>{begin + 2}</NextMarker>" if len(found) > begin + 2 else "<NextMarker />"
        url = self.url.rpartition("/")[0]
        return 200, (
            '<?xml version="1.0" encoding="utf-8"?>'
            f'<EnumerationResults ServiceEndpoint="{url}/" ContainerName="offload">'
            f"<Blobs>{blobs}</Blobs>{more}</EnumerationResults>"
        )

    def delete(self, path: str) -> str:
        code = self._missing(path)
        if code:
            return f"HTTP/1.1 404 missing\r\nx-ms-error-code: {code}\r\nContent-Length: 0\r\n"
        del self.blobs[path]
        return "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n"

    def _missing(self, path: str) -> str:
        if path.split("/")[-2] not in self.containers:
            return "ContainerNotFound"
        return "" if path in self.blobs else "BlobNotFound"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def azure() -> Iterator[AzureStub]:
    stub = AzureStub()
    yield stub
    stub.close()


def azure_store(stub: AzureStub, container: str = "offload") -> AzureStore:
    location = StoreLocation("azureblob", container, "", "")
    return AzureStore(location, AzureAccess(stub.url, "account", "a2V5"), LIMITS)


def test_azure_deletes_many_in_one_request_and_knows_what_is_absent(azure: AzureStub) -> None:
    copies = copies_at(StoreLocation("azureblob", "offload", "", ""), 130)
    for copy in copies[1:]:
        for name in object_names(copy):
            azure.blobs[f"/account/offload/{name}"] = {
                "x-ms-meta-ManagedLedgerName": OWNER,
                "x-ms-blob-type": "BlockBlob",
            }
    store = azure_store(azure)
    try:
        assert store.read_many(copies[:2]) == [AbsentCopy(), PresentCopy(OWNER)]
        azure.bodies[f"/account/offload/{object_names(copies[1])[1]}"] = INDEX
        azure.bodies[f"/account/offload/{object_names(copies[2])[1]}"] = bytes(90)
        absent, whole, damaged = store.examine_many(copies[:3])
        assert (absent, whole) == (AbsentCopy(), PresentCopy(OWNER, 0, CopyIndex(1, 0, 1)))
        assert isinstance(damaged, PresentCopy)
        assert isinstance(damaged.index, DamagedIndex)
        fates = [done.fate for done in store.delete_many(copies[:-1])]
    finally:
        store.close()
    assert fates == [CopyFate.ABSENT] + [CopyFate.DELETED] * 128
    assert azure.batches == [256, 2]
    assert set(azure.blobs) == {f"/account/offload/{name}" for name in object_names(copies[-1])}


def test_azure_without_the_container_or_the_right_key_is_a_failure(azure: AzureStub) -> None:
    copies = copies_at(StoreLocation("azureblob", "other", "", ""), 1)
    store = azure_store(azure, "other")
    try:
        for code in ("ContainerNotFound", "AuthenticationFailed"):
            azure.refusing = code == "AuthenticationFailed"
            (reading,), (done,) = store.read_many(copies), store.delete_many(copies)
            assert isinstance(reading, UnreadableCopy)
            assert done.fate is CopyFate.FAILED
            assert code in done.reason
    finally:
        store.close()


def test_azure_lists_every_blob_of_all_pages_and_a_container_that_is_not_there_is_an_error(azure: AzureStub) -> None:
    copies = copies_at(StoreLocation("azureblob", "offload", "", ""))
    names = {name for copy in copies for name in object_names(copy)} | {"a <note> é"}
    azure.blobs = {f"/account/offload/{name}": {} for name in names}
    store, missing = azure_store(azure), azure_store(azure, "other")
    try:
        pages = list(store.pages(EVERYTHING))
        assert [len(page) for page in pages] == [2, 2, 2, 1]
        found = {one.key: (one.length, one.modified_ms, one.upload_id) for page in pages for one in page}
        assert found == {name: (len(name), BLOB_DATE_MS, None) for name in names}
        with pytest.raises(StoreError, match="ContainerNotFound"):
            list(missing.pages(EVERYTHING))
    finally:
        store.close()
        missing.close()


def test_an_azure_that_does_not_answer_is_a_silence() -> None:
    access = AzureAccess("http://127.0.0.1:9/account", "account", "a2V5")
    store = AzureStore(StoreLocation("azureblob", "offload", "", ""), access, RequestLimits(attempts=1))
    for ask in (store.read_many, store.delete_many):
        with pytest.raises(StoreSilentError, match="refused"):
            ask(copies_at(StoreLocation("azureblob", "offload", "", ""), 200))
    with pytest.raises(StoreSilentError, match="refused"):
        list(store.pages(EVERYTHING))
    store.close()


def test_a_folder_of_a_file_system_goes_whole_and_its_neighbour_stays(tmp_path: Path) -> None:
    location = StoreLocation("filesystem", "", "", tmp_path.as_uri())
    gone, doomed, kept = copies_at(location)
    for copy in (doomed, kept):
        folder = tmp_path / map_file_name(copy)
        folder.mkdir(parents=True)
        for name in ("data", "index", ".data.crc"):
            (folder / name).write_bytes(b"x")
    for store in (
        FileSystemStore(location, None),
        FileSystemStore(location._replace(endpoint="hdfs://n:1"), str(tmp_path)),
    ):
        (tmp_path / map_file_name(doomed)).mkdir(exist_ok=True)
        assert store.read_many([gone, doomed]) == [AbsentCopy(), PresentCopy(OWNER)]
        assert [done.fate for done in store.delete_many([gone, doomed])] == [CopyFate.ABSENT, CopyFate.DELETED]
    assert not (tmp_path / map_file_name(doomed)).exists()
    store = FileSystemStore(location, None)
    (damaged,) = store.examine_many([kept])
    assert isinstance(damaged, PresentCopy)
    assert isinstance(damaged.index, DamagedIndex)
    (tmp_path / map_file_name(kept) / "index").write_bytes(b"SEQ\x06")
    assert store.examine_many([gone, kept]) == [AbsentCopy(), PresentCopy(OWNER, 1, CopyIndex())]
    assert len(list((tmp_path / map_file_name(kept)).iterdir())) == 3


def test_a_file_system_that_is_not_mounted_or_left_by_a_link_is_a_failure(tmp_path: Path) -> None:
    mount, elsewhere = tmp_path / "mount", tmp_path / "elsewhere"
    mount.mkdir()
    location = StoreLocation("filesystem", "", "", "hdfs://name-node:8020")
    (copy,) = copies_at(location, 1)
    for store, says in (
        (FileSystemStore(location, None), "not on this machine"),
        (FileSystemStore(location, str(mount)), "mounted"),
    ):
        (done,) = store.delete_many([copy])
        assert done.fate is CopyFate.FAILED
        assert says in done.reason
    folder = elsewhere / map_file_name(copy)
    folder.mkdir(parents=True)
    (mount / "t").symlink_to(elsewhere / "t")
    (done,) = FileSystemStore(location, str(mount)).delete_many([copy])
    assert done.fate is CopyFate.FAILED
    assert folder.is_dir()
