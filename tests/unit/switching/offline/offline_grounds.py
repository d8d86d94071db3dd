"""A Pulsar cluster in memory whose ledgers are moved from bookie cluster a to b, with stock brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bookwarden.bookie_clusters.brokers import BROKERS_PATH
from bookwarden.bookie_clusters.checks.observing import Observer
from bookwarden.bookie_clusters.offline.checking import MoveChecks, TargetUri
from bookwarden.bookie_clusters.offline.move import MovePlan, MoveResult, OfflineMove
from bookwarden.bookie_clusters.offline.record import MOVE_PATH, MoveRecord
from bookwarden.bookie_clusters.registry import BookieCluster
from bookwarden.bookie_clusters.registry_node import ClusterRegistry
from bookwarden.clusters.bookkeeper.bookie_cluster import ClusterStores
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.clusters.pulsar.messages.topic_policies import TopicQuorums
from bookwarden.clusters.pulsar.rest.registered_brokers import RegisteredBroker
from bookwarden.disk_space import DiskSpace
from bookwarden.ledgers.custom_metadata import COPY_KEY, OWNER_KEY
from bookwarden.ledgers.kinds import PlaceKind
from bookwarden.ledgers.listing import ListedReference
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment, StoredLedger
from bookwarden.ledgers.outcomes import CopyOutcome, CopyResult
from bookwarden.ledgers.references import Doubt
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata

PULSAR, ELSEWHERE = "zk:pulsar:2181", "zk:elsewhere:2181"
A, B = LedgersRoot(PULSAR, "/ledgers"), LedgersRoot(PULSAR, "/bookies-b")
TO_A = TargetUri("metadata-store:zk:pulsar:2181", A)
TO_B = TargetUri("zk+hierarchical://pulsar:2181/bookies-b", B)
STOCK = {
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerDigestType": "CRC32C",
    "autoSkipNonRecoverableData": "false",
    "bookkeeperMetadataServiceUri": "",
}
TOPIC = "/managed-ledgers/t/n/persistent/orders"
CURSOR = f"{TOPIC}/sub"


class Part(NamedTuple):
    """References as they are read."""

    rows: list[ListedReference]
    doubts: list[Doubt]


class Ground:
    """The stores and what is scripted; ``place`` is what the settings name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: MetadataStore = MemoryStore()
        self.elsewhere = MemoryStore()
        self.place = A
        self.settings = dict(STOCK)
        self.named: dict[int, str] = {}
        #: Named, and only where they were offloaded to.
        self.offloaded: set[int] = set()
        self.doubts: list[Doubt] = []
        self.said: list[str] = []
        self.recovered: list[int] = []
        self.refuses: dict[int, str] = {}
        #: What happens while the command waits, one each second.
        self.meanwhile: list[Callable[[], object]] = []
        #: What happens right before the ledger is copied, or recovered.
        self.before: dict[int, Callable[[], object]] = {}
        for place, bookies in ((A, ("a1:3181", "a2:3181")), (B, ("b1:3181", "b2:3181"))):
            self.cluster(place, f"instance{place.ledgers_root.replace('/', '-')}", bookies)
        for path, value in ((TOPIC, b"topic"), (CURSOR, b"cursor"), ("/schemas/t/n/orders", b"schema")):
            self.store.create(path, value, make_parents=True)

    def cluster(self, place: LedgersRoot, instance: str, bookies: tuple[str, ...]) -> None:
        store, root = self.at(place.url), place.ledgers_root
        store.create(f"{root}/available/readonly", b"", make_parents=True)
        store.create(f"{root}/cookies", b"")
        for bookie in bookies:
            store.create(f"{root}/available/{bookie}", b"")
            store.create(f"{root}/cookies/{bookie}", b"")
        store.create(f"{root}/INSTANCEID", instance.encode())

    def at(self, url: str) -> MetadataStore:
        return self.elsewhere if url == ELSEWHERE else self.store

    def ledger(
        self,
        place: LedgersRoot,
        ledger_id: int,
        *,
        state: LedgerState = LedgerState.CLOSED,
        end: tuple[int, int] = (9, 1000),
        kind: PlaceKind | None = PlaceKind.MANAGED_LEDGER,
        **custom: bytes,
    ) -> None:
        """Make a ledger as a broker does, its id by the cluster's counter; named unless ``kind`` is None."""
        ids = self.ids(place)
        if ids.next_id() <= ledger_id:
            ids.raise_to(ledger_id + 1)
        metadata = LedgerMetadata(
            *(3, state, 1, 1, 1, (Segment(0, (f"{place.ledgers_root[-1]}1:3181",)),)),
            end[1] if state is LedgerState.CLOSED else 0,
            end[0] if state is LedgerState.CLOSED else None,
            "CRC32C",
            1_600_000_000_000 + ledger_id,
            {"application": b"pulsar", **custom},
        )
        path = ledger_path(place.ledgers_root, ledger_id)
        self.at(place.url).create(path, encode_ledger_metadata(metadata), make_parents=True)
        if kind is not None:
            self.named[ledger_id] = kind.value

    def close(self, place: LedgersRoot, ledger_id: int) -> None:
        """Close a ledger at its end."""
        store, path = self.at(place.url), ledger_path(place.ledgers_root, ledger_id)
        node = store.get(path)
        assert node is not None
        metadata = decode_ledger_metadata(node.value)
        closed = metadata._replace(state=LedgerState.CLOSED, last_entry_id=4, length=400)
        store.put(path, encode_ledger_metadata(closed), node.version)

    def ids(self, place: LedgersRoot) -> LedgerIds:
        return LedgerIds(self.at(place.url), place.ledgers_root)

    def metadata(self, place: LedgersRoot, ledger_id: int) -> LedgerMetadata | None:
        (found,) = BookKeeperCatalog(self.at(place.url), place.ledgers_root).read_many([ledger_id])
        return found.metadata if isinstance(found, StoredLedger) else None

    def start_broker(self, name: str = "br1", **settings: str) -> None:
        self.settings.update(settings)
        self.store.create(f"{BROKERS_PATH}/{name}", b"{}", make_parents=True)

    def stop_brokers(self) -> None:
        for name in self.store.children_of(BROKERS_PATH):
            self.store.delete_many([(f"{BROKERS_PATH}/{name}", 0)])

    def end_sessions(self) -> None:
        """What a killed command held is gone."""
        for name in self.store.children_of(MOVE_PATH):
            self.store.delete_many([(f"{MOVE_PATH}/{name}", 0)])

    @property
    def move(self) -> OfflineMove:
        return OfflineMove(self.place, self, self, MoveChecks(Brokers(self), 1), ids_ahead=5, sleep=self.pass_time)

    def read_all(self) -> Iterator[Part]:
        """Read the references, as scripted."""
        rows = [ListedReference(ledger_id, kind, "h", "h", TOPIC, PULSAR) for ledger_id, kind in self.named.items()]
        rows += [ListedReference(each, "managed ledger", "h", "h", TOPIC, PULSAR, gone=True) for each in self.offloaded]
        yield Part(rows, self.doubts)

    @contextmanager
    def recovery(self, place: LedgersRoot) -> Iterator[Ground]:
        assert place == self.place
        yield self

    @contextmanager
    def copier(
        self, source: LedgersRoot, target: LedgersRoot, owner: str, named: Collection[int] | None
    ) -> Iterator[Copier]:
        yield Copier(self, source, target, owner)

    def recover(self, ledger_id: int) -> None:
        self.before.pop(ledger_id, lambda: None)()
        self.close(self.place, ledger_id)
        self.recovered.append(ledger_id)

    def pass_time(self, _seconds: float) -> None:
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def plan(self, target: TargetUri = TO_B, *, may_miss: int = 0) -> MovePlan:
        return self.move.plan(target, self.folder, may_miss=may_miss)

    def carry_out(self, target: TargetUri = TO_B, *, ahead: bool = False, may_miss: int = 0) -> MoveResult:
        """Run the command to its end; it waits some seconds for brokers."""
        return self.move.carry_out(
            self.plan(target, may_miss=may_miss), ahead_only=ahead, wait_s=5, say=self.said.append
        )

    @property
    def record(self) -> MoveRecord:
        found = self.move.node.read()
        assert found is not None
        return found.record


class Brokers(Observer):
    """Observes the stores; brokers tell scripted settings, and no topic and no disk tells anything."""

    def __init__(self, ground: Ground) -> None:
        options = BookieOptions()
        super().__init__(ClusterRegistry(ClusterStores(ground.at), PULSAR), None, None, options)  # type: ignore[arg-type]  # not asked
        self._ground = ground

    def settings(self) -> list[RegisteredBroker]:
        names = self._ground.store.children_of(BROKERS_PATH)
        return [RegisteredBroker(name, "4.0.8", self._ground.settings) for name in names]

    def topic_quorums(self) -> TopicQuorums:
        return TopicQuorums((), ())

    def disks(self, cluster: BookieCluster, bookies: Sequence[str]) -> Mapping[str, DiskSpace]:
        return dict.fromkeys(bookies, DiskSpace(100, 50))


class Copier:
    """Copies metadata alone, as the copier does: unproven first, closed with its end afterwards."""

    def __init__(self, ground: Ground, source: LedgersRoot, target: LedgersRoot, owner: str) -> None:
        self._ground = ground
        self._source = source
        self._target = target
        self._owner = {OWNER_KEY: owner.encode()}

    def copy(self, ledger_ids: Iterable[int]) -> Iterator[CopyResult]:
        for ledger_id in ledger_ids:
            self._ground.before.pop(ledger_id, lambda: None)()
            if ledger_id in self._ground.refuses:
                yield CopyResult(ledger_id, CopyOutcome.FAILED, None, reason=self._ground.refuses[ledger_id])
                continue
            metadata = self._ground.metadata(self._source, ledger_id)
            assert metadata is not None
            assert metadata.state is LedgerState.CLOSED
            self._write(ledger_id, metadata)
            yield CopyResult(ledger_id, CopyOutcome.COPIED, None, 10, 1000)

    def _write(self, ledger_id: int, source: LedgerMetadata) -> None:
        store = self._ground.at(self._target.url)
        path = ledger_path(self._target.ledgers_root, ledger_id)
        begun = source._replace(
            state=LedgerState.OPEN,
            segments=(Segment(0, ("b1:3181",)),),
            length=0,
            last_entry_id=None,
            custom={**source.custom, **self._owner, COPY_KEY: b"unproven"},
        )
        found = store.get(path)
        if found is None:
            store.create(path, encode_ledger_metadata(begun), make_parents=True)
        else:
            store.put(path, encode_ledger_metadata(begun), found.version)
        end = {COPY_KEY: f"{source.last_entry_id}:{source.length}".encode()}
        custom: Mapping[str, bytes] = {**begun.custom, **end}
        closed = begun._replace(
            state=LedgerState.CLOSED, length=source.length, last_entry_id=source.last_entry_id, custom=custom
        )
        node = store.get(path)
        assert node is not None
        store.put(path, encode_ledger_metadata(closed), node.version)
