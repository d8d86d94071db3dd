"""Offloaded copies: how fast the sweep deletes them from S3, and how many requests that takes.

The metadata is in memory, the store is a real S3 server (moto) on this machine, whose log counts the requests. First
ledgers that BookKeeper still has, then ledgers whose only copy is the offloaded one; of each the store is asked, with
one HEAD, whose it is (offload.verify_owner).
Peer: what a stock broker does, one DeleteObjects request for each ledger, through the same client.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import boto3
import urllib3
from pydantic import SecretStr

from benchmarks.journal import plain_sweep
from benchmarks.options import Options
from benchmarks.population import metadata_of
from benchmarks.results import Result, publish, say
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.offload.names import object_names
from bookwarden.clusters.offload.requests import RequestLimits
from bookwarden.clusters.offload.stores import OffloadStores
from bookwarden.clusters.pulsar.references.live import MetadataReferences
from bookwarden.config import OffloadStoreSettings
from bookwarden.deletion.journal.writing import FileJournal
from bookwarden.deletion.phase_two.decide import DeletionPolicy
from bookwarden.deletion.phase_two.sweeping import SweepLimits
from bookwarden.ledgers.kinds import LedgerComponent, ManagedLedgerHolder
from bookwarden.ledgers.offloaded_copies import OffloadedCopy, StoreLocation
from bookwarden.ledgers.outcomes import Outcome
from bookwarden.ledgers.pending_deletion import LedgerType, OffloadContext, PendingDeletion
from bookwarden.ledgers.received import ReceivedMark
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wiring.offload import allowed_store
from bookwarden_dev.devcluster.ports import free_ports
from bookwarden_dev.devcluster.processes.process import ServerProcess, ServerSpec

COUNT = 10_000
BUCKET, PEER_BUCKET = "offloaded", "offloaded-peer"
_HOLDER = ManagedLedgerHolder("public/default/persistent/offloaded")
_REGION, _KEY = "us-east-1", "benchmark"
_STARTING_SECONDS = 300.0


def copies_in(bucket: str, count: int, owner: str, endpoint: str) -> list[OffloadedCopy]:
    """Name the copies that the server begins with."""
    location = StoreLocation("S3", bucket, _REGION, endpoint)
    return [OffloadedCopy(ledger, owner, UUID(int=ledger + 1), location) for ledger in range(count)]


def run(options: Options) -> None:
    """Run the benchmark."""
    count = options.scaled(options.count or COUNT)
    with tempfile.TemporaryDirectory() as folder:
        both, requests = _sweep_all(Path(folder, "both"), count, in_bookkeeper=True)
        only, only_requests = _sweep_all(Path(folder, "only"), count, in_bookkeeper=False)
        peer = _delete_one_by_one(Path(folder, "peer"), count // 10)
    note = "DeleteObjects and listings of uploads; beside them {:,} HEADs prove the owners; the peer takes one a ledger"
    publish(
        f"Offloaded copies, {count:,} ledgers on S3",
        [
            Result("offload", "ledgers/s", both, peer, count, note=f"requests: {dict(requests)}"),
            _for_each_request("offload, deletion", requests, count, note),
            Result("offload, only copies", "ledgers/s", only, peer, count, note=f"requests: {dict(only_requests)}"),
            _for_each_request("offload, only copies, deletion", only_requests, count, note),
        ],
    )


def _for_each_request(name: str, requests: Counter[str], count: int, note: str) -> Result:
    deleting = requests.total() - requests["HEAD"]
    return Result(name, "ledgers/request", count / deleting, 1.0, count, ">= 400", note.format(requests["HEAD"]))


def _sweep_all(folder: Path, count: int, *, in_bookkeeper: bool) -> tuple[float, Counter[str]]:
    with _server(folder, count) as (endpoint, log):
        place = OffloadStoreSettings(
            driver="S3", endpoint=endpoint, buckets=(BUCKET,), access_key=_KEY, secret_key=SecretStr(_KEY)
        )
        stores = OffloadStores([allowed_store(place, RequestLimits())])
        metadata, journal = MemoryStore(), FileJournal(folder / "journal")
        metadata.create("/managed-ledgers", b"")
        metadata.create("/ledgers", b"")
        if in_bookkeeper:
            for ledger in range(count):
                metadata.create(ledger_path("/ledgers", ledger), metadata_of(_HOLDER), make_parents=True)
        sweep = plain_sweep(
            BookKeeperCatalog(metadata, "/ledgers"),
            MetadataReferences([metadata]),
            journal,
            DeletionPolicy(unlisted_grace=0.0),
            SweepLimits(),
            stores,
        )
        marks = [_received(copy) for copy in copies_in(BUCKET, count, _HOLDER.name, endpoint)]
        started = time.monotonic()
        outcomes = Counter(row.outcome for rows in sweep.process(marks, "benchmark") for row in rows)
        taken = time.monotonic() - started
        journal.close()
        stores.close()
        requests = _requests(log)
        say(f"{count / taken:,.0f} copies a second, {dict(requests)}")
        if outcomes != {Outcome.DELETED: count} or _objects(endpoint, BUCKET):
            raise RuntimeError(f"not every copy was deleted: {outcomes}, {_objects(endpoint, BUCKET)} objects are left")
    return count / taken, requests


def _delete_one_by_one(folder: Path, count: int) -> float:
    with _server(folder, count) as (endpoint, _):
        client = _client(endpoint)
        started = time.monotonic()
        for copy in copies_in(PEER_BUCKET, count, _HOLDER.name, endpoint):
            objects = [{"Key": name} for name in object_names(copy)]
            client.delete_objects(Bucket=PEER_BUCKET, Delete={"Objects": objects, "Quiet": True})
        taken = time.monotonic() - started
        client.close()
    say(f"one request for each ledger: {count / taken:,.0f} copies a second")
    return count / taken


@contextmanager
def _server(folder: Path, count: int) -> Iterator[tuple[str, Path]]:
    folder.mkdir()
    (port,) = free_ports(1)
    endpoint, log = f"http://127.0.0.1:{port}", folder / "server.log"
    server = ServerProcess(
        ServerSpec(
            name="object-store",
            command=lambda: [sys.executable, "-m", "benchmarks.object_store", str(port), str(count), _HOLDER.name],
            log_file=log,
            is_ready=lambda _start: _answers(endpoint),
            working_folder=folder,
            environment={"PYTHONPATH": str(Path(__file__).parents[1])},
            ready_seconds=_STARTING_SECONDS,
        )
    )
    say(f"an S3 server with {count:,} copies starts")
    try:
        server.start()
        yield endpoint, log
    finally:
        server.kill()


def _answers(endpoint: str) -> bool:
    with urllib3.PoolManager(retries=False, timeout=5.0) as http:
        try:
            return http.request("GET", f"{endpoint}/moto-api/").status == 200
        except urllib3.exceptions.HTTPError:
            return False


def _requests(log: Path) -> Counter[str]:
    """Count the requests for the bucket in the server's log, by method."""
    return Counter(re.findall(rf'"(\w+) /{BUCKET}[/?]', log.read_text(encoding="utf-8", errors="replace")))


def _objects(endpoint: str, bucket: str) -> int:
    client = _client(endpoint)
    try:
        return int(client.list_objects_v2(Bucket=bucket)["KeyCount"])
    finally:
        client.close()


def _client(endpoint: str) -> Any:
    return boto3.client(
        "s3", endpoint_url=endpoint, region_name=_REGION, aws_access_key_id=_KEY, aws_secret_access_key=_KEY
    )


def _received(copy: OffloadedCopy) -> ReceivedMark:
    location = copy.location
    context = OffloadContext(
        copy.uuid.int >> 64,
        copy.uuid.int & (2**64 - 1),
        location.driver,
        {"bucket": location.bucket, "region": location.region, "serviceEndpoint": location.endpoint},
    )
    mark = PendingDeletion(
        copy.managed_ledger,
        LedgerComponent.MANAGED_LEDGER,
        LedgerType.OFFLOAD_LEDGER,
        copy.ledger_id,
        offload_context=context,
        marked_at=1,
    )
    return ReceivedMark("topic", f"1:{copy.ledger_id}:0", copy.managed_ledger, b"", {}, 1, mark=mark)
