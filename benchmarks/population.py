"""Ledgers by the hundred thousand, put into ZooKeeper in the bytes that brokers and bookies write."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from kazoo.client import KazooClient

from benchmarks.cluster import Site
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.pending_deletion import PendingDeletion, mark_of_holder
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden.wire.pb import managed_ledger_pb2

_BOOKIES = ("bookie-1.example.com:3181", "bookie-2.example.com:3181", "bookie-3.example.com:3181")
# Far above the ids that the cluster itself gives out.
_FIRST_ID = 100_000_000
# Above all that is swept: a trim takes what is older than the list.
_FIRST_LISTED = 2_000_000_000
_IDS_OF_HOLDER = 3
_PER_REQUEST = 500
_REQUESTS_IN_FLIGHT = 4


class Population:
    """Topics whose managed ledgers name a few ledgers, and many ledgers of theirs that they do not name any more."""

    def __init__(self, site: Site, topics: int) -> None:
        self._site = site
        self._next_id = _FIRST_ID
        self._topics = topics
        self._holders = [
            ManagedLedgerHolder(TopicName.parse(f"persistent://public/default/swept-{number:06d}").managed_ledger)
            for number in range(topics)
        ]

    def create_holders(self) -> None:
        """Create the managed-ledger nodes, and the ledgers that they name."""
        nodes: list[tuple[str, bytes]] = []
        for number, holder in enumerate(self._holders):
            first = _FIRST_LISTED + number * _IDS_OF_HOLDER
            ids = range(first, first + _IDS_OF_HOLDER)
            nodes.append((managed_ledger_path(holder.name), managed_ledger_of(ids)))
            nodes += [(ledger_path("/ledgers", ledger_id), metadata_of(holder)) for ledger_id in ids]
        with zookeeper_of(self._site) as client:
            create_nodes(client, nodes)

    def create_ledgers(self, count: int) -> list[PendingDeletion]:
        """Create the metadata of ledgers that no holder names; return their marks, the topics taking turns."""
        ids = range(self._next_id, self._next_id + count)
        self._next_id = ids.stop
        values = [metadata_of(holder) for holder in self._holders]
        nodes = [(ledger_path("/ledgers", ledger_id), values[ledger_id % self._topics]) for ledger_id in ids]
        with zookeeper_of(self._site) as client:
            create_nodes(client, nodes)
        return [mark_of_holder(ledger_id, self._holders[ledger_id % self._topics], "trimmed") for ledger_id in ids]


@contextmanager
def zookeeper_of(site: Site) -> Iterator[KazooClient]:
    """A bare client of the site's ZooKeeper."""
    with zookeeper_at(site.cluster.store_url) as client:
        yield client


@contextmanager
def zookeeper_at(url: str) -> Iterator[KazooClient]:
    """A bare client of the ZooKeeper of this URL."""
    client = KazooClient(url.removeprefix("zk:"), timeout=30.0)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def metadata_of(holder: ManagedLedgerHolder, password: bytes = b"\0" * 20) -> bytes:
    """Make the metadata of a closed ledger of the holder's; brokers open those without a password."""
    custom = {name: text.encode() for name, text in expected_custom_metadata(holder).items()}
    metadata = LedgerMetadata(
        format_version=3,
        state=LedgerState.CLOSED,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        segments=(Segment(0, _BOOKIES),),
        length=50_000_000,
        last_entry_id=49_999,
        digest_type="CRC32C",
        ctime_ms=1_700_000_000_000,
        custom=custom,
    )
    return encode_ledger_metadata(metadata, password=password)


def managed_ledger_of(ledger_ids: Iterable[int]) -> bytes:
    """Make the value of a managed ledger's node that names these ledgers."""
    info = managed_ledger_pb2.ManagedLedgerInfo()
    for ledger_id in ledger_ids:
        info.ledgerInfo.add(ledgerId=ledger_id, entries=50_000, size=50_000_000)
    return info.SerializeToString()


def create_nodes(client: KazooClient, nodes: Sequence[tuple[str, bytes]]) -> None:
    """Create the nodes, and those above them."""
    for parent in sorted({path.rpartition("/")[0] for path, _ in nodes}):
        client.ensure_path(parent)
    source, window = iter(nodes), deque[Any]()
    while batch := list(islice(source, _PER_REQUEST)):
        request = client.transaction()
        for path, value in batch:
            request.create(path, value)
        window.append(request.commit_async())
        if len(window) >= _REQUESTS_IN_FLIGHT:
            _confirm(window.popleft())
    while window:
        _confirm(window.popleft())


def _confirm(request: Any) -> None:
    failed = [found for found in request.get(60) if isinstance(found, Exception)]
    if failed:
        raise failed[0]
