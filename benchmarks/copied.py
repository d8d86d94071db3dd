"""Ledgers that a benchmark makes in one bookie cluster in order to have them copied to another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster import temporary_home
from benchmarks.population import create_nodes, managed_ledger_of, zookeeper_at
from benchmarks.results import say
from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.requests import Bookies
from bookwarden.clusters.bookkeeper.bookies.writer import EntryWriting, LedgerWriter
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.pulsar.metadata.paths import managed_ledger_path
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import ManagedLedgerHolder
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.interface import MetadataStore
from bookwarden.signals import sigterm_unwinds
from bookwarden.wire.ledger_metadata import encode_ledger_metadata
from bookwarden_dev.devcluster.bookie_clusters import ClusterPlan, RunBookies, SwitchablePulsar
from bookwarden_dev.devcluster.servers.settings import PULSARS_LEDGERS_ROOT

_CLUSTERS = (ClusterPlan("a", PULSARS_LEDGERS_ROOT, bookies=1), ClusterPlan("b", "/bookies-b", bookies=1))
# Room for a round's large ledgers, as real bookies have; these sync their journals.
_BOOKIE_SETTINGS = {
    "journalSyncData": "true",
    "journalMaxSizeMB": "256",
    "logSizeLimit": "268435456",
    "dbStorage_writeCacheMaxSizeMb": "128",
}
_PASSWORD = b""
_LEDGERS_PER_TOPIC = 100
_LEDGERS_IN_FLIGHT = 200


@contextmanager
def two_clusters() -> Iterator[tuple[SwitchablePulsar, Path]]:
    """Run a ZooKeeper and two bookie clusters of one bookie each: a by Pulsar's driver, b by BookKeeper's own.

    Give a folder too, which is gone afterwards.
    """
    with (
        temporary_home() as home,
        sigterm_unwinds(),
        SwitchablePulsar(
            home, None, clusters=_CLUSTERS, bookie_settings=_BOOKIE_SETTINGS, throughput=True, progress=say
        ) as servers,
    ):
        servers.start_bookies()
        yield servers, home
        say("stopping everything")


@dataclass(frozen=True, slots=True)
class Ledgers:
    """``count`` closed ledgers from the id ``first`` on, of entries of one size; a hundred in a topic's list."""

    first: int
    count: int
    entries: int
    entry_bytes: int

    @staticmethod
    def of_topics(first_topic: int, count: int, entries: int, entry_bytes: int) -> Ledgers:
        """Make ledgers of topics of their own, from this number on."""
        return Ledgers(first_topic * _LEDGERS_PER_TOPIC, count, entries, entry_bytes)

    @property
    def topics(self) -> int:
        """How many topics list them."""
        return -(-self.count // _LEDGERS_PER_TOPIC)

    @property
    def ids(self) -> range:
        """Their ids."""
        return range(self.first, self.first + self.count)

    @property
    def ledger_bytes(self) -> int:
        """The payload of one."""
        return self.entries * self.entry_bytes

    def holder_of(self, ledger_id: int) -> ManagedLedgerHolder:
        """Return the topic's managed ledger that lists the ledger."""
        return ManagedLedgerHolder(f"public/default/persistent/copied-{ledger_id // _LEDGERS_PER_TOPIC:09d}")

    def metadata_of(self, ledger_id: int, bookies: tuple[str, ...]) -> LedgerMetadata:
        """Make the metadata of one on these bookies."""
        custom = expected_custom_metadata(self.holder_of(ledger_id))
        return LedgerMetadata(
            format_version=3,
            state=LedgerState.CLOSED,
            ensemble_size=len(bookies),
            write_quorum=len(bookies),
            ack_quorum=len(bookies),
            segments=(Segment(0, bookies),),
            length=self.ledger_bytes,
            last_entry_id=self.entries - 1,
            digest_type="CRC32C",
            ctime_ms=1_700_000_000_000,
            custom={name: text.encode() for name, text in custom.items()},
        )


def plant(store: MetadataStore, servers: SwitchablePulsar, ledgers: Ledgers) -> None:
    """Make the ledgers in cluster a, and the managed-ledger nodes that list them."""
    source = servers.clusters["a"]
    bookies = tuple(source.ids)
    metadata = {ledger_id: ledgers.metadata_of(ledger_id, bookies) for ledger_id in ledgers.ids}
    nodes = [
        (ledger_path(source.ledgers_root, ledger_id), encode_ledger_metadata(found, password=_PASSWORD))
        for ledger_id, found in metadata.items()
    ]
    listed: dict[str, list[int]] = {}
    for ledger_id in ledgers.ids:
        listed.setdefault(managed_ledger_path(ledgers.holder_of(ledger_id).name), []).append(ledger_id)
    nodes += [(path, managed_ledger_of(ids)) for path, ids in listed.items()]
    with zookeeper_at(servers.store_url) as client:
        create_nodes(client, nodes)
    fill(store, source, ledgers, metadata)


def fill(store: MetadataStore, cluster: RunBookies, ledgers: Ledgers, metadata: dict[int, LedgerMetadata]) -> None:
    """Write the entries of ledgers whose metadata is there."""
    # Every byte pattern of an entry differs from the next one's, as in real ones.
    payloads = [number.to_bytes(4, "big") * (ledgers.entry_bytes // 4) for number in range(ledgers.entries)]
    under_way: deque[LedgerWriter] = deque()
    with (
        Bookies(BookieAddresses(store, cluster.ledgers_root)) as bookies,
        EntryWriting(bookies) as writing,
    ):
        for ledger_id in ledgers.ids:
            writer = writing.ledger(ledger_id, metadata[ledger_id], _PASSWORD)
            for payload in payloads:
                writer.add(payload)
            under_way.append(writer)
            if len(under_way) > _LEDGERS_IN_FLIGHT:
                under_way.popleft().finish()
        while under_way:
            under_way.popleft().finish()
