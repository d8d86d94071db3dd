"""Blue with its metadata in memory, and a broker that does as it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bookwarden.cluster_migration.aborting import TopicReopener
from bookwarden.cluster_migration.observing import MigrationObserver
from bookwarden.cluster_migration.record import MigrationRecord
from bookwarden.clusters.pulsar.metadata.migrations import MigrationNodes
from bookwarden.ledgers.managed_ledger import Position
from bookwarden.ledgers.metadata import LedgerReading
from bookwarden.ledgers.names import TopicName
from bookwarden.metastore.memory import MemoryStore
from bookwarden.redirects import ClusterFlag, RedirectUrls
from bookwarden.wire.pb import managed_ledger_pb2 as pb

NAMESPACE = "shop/live"
TOPIC = f"persistent://{NAMESPACE}/orders"
LOCAL = f"/admin/local-policies/{NAMESPACE}"


def node(*, terminated: bool = True, migrated: bool = True) -> bytes:
    """Return a managed ledger's value: ledgers 5 and 6, terminated behind its last entry."""
    info = pb.ManagedLedgerInfo(
        ledgerInfo=[
            pb.ManagedLedgerInfo.LedgerInfo(ledgerId=5, entries=10, size=1, timestamp=1),
            pb.ManagedLedgerInfo.LedgerInfo(ledgerId=6, entries=3, size=1, timestamp=1),
        ]
    )
    if terminated:
        info.terminatedPosition.CopyFrom(pb.NestedPositionInfo(ledgerId=6, entryId=2))
    if migrated:
        info.properties.append(pb.KeyValue(key="migrated", value="true"))
    return info.SerializeToString()


def cursor(ledger_id: int, entry_id: int) -> bytes:
    """Return a cursor's value that was closed at a position."""
    info = pb.ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=ledger_id, markDeleteEntryId=entry_id)
    return info.SerializeToString()


class ScriptedBlue:
    """The store, the broker and the record; ``on_unload`` is called in each unload, as clients would act then."""

    cluster = "blue"

    def __init__(self, folder: Path) -> None:
        self.admin = self
        self.store = MemoryStore()
        self.record = MigrationRecord(folder)
        self.loaded: set[str] = set()
        self.deadlocked: tuple[str, ...] = ()
        self.unloaded: list[str] = []
        self.created: list[tuple[str, str, Position]] = []
        #: Answers to questions for stats; other topics must not be asked about.
        self.told: dict[str, Mapping[str, Any]] = {}
        self.on_unload: Callable[[str], None] = lambda _topic: None
        self.nodes = MigrationNodes(self.store, lambda _ledger_id: None)
        self.reopening = TopicReopener(self, self.record, sleep=lambda _seconds: None)
        self.observer = self.observer_with()

    def observer_with(self, green: ScriptedBlue | None = None) -> MigrationObserver:
        return MigrationObserver(self, self.record, green)

    def loaded_topics(self) -> set[str]:
        return self.loaded

    def deadlocked_brokers(self) -> tuple[str, ...]:
        return self.deadlocked

    def read_ledgers(self, _ledger_ids: Sequence[int]) -> Sequence[LedgerReading]:
        return ()

    def put_topic(self, value: bytes, **cursors: bytes) -> None:
        path = f"/managed-ledgers/{TopicName.parse(TOPIC).managed_ledger}"
        self.store.create(path, value, make_parents=True)
        for name, held in cursors.items():
            self.store.create(f"{path}/{name}", held)

    def flag(self, on: bool = True) -> None:
        text = f'{{"migrated": {str(on).lower()}}}'.encode()
        found = self.store.get(LOCAL)
        if found is None:
            self.store.create(LOCAL, text, make_parents=True)
        else:
            self.store.put(LOCAL, text, found.version)

    # What a broker is asked.

    def unload(self, topic: str) -> None:
        self.loaded.discard(topic)
        self.unloaded.append(topic)
        self.on_unload(topic)

    def create_subscription(self, topic: str, subscription: str, after: Position) -> None:
        self.created.append((topic, subscription, after))

    def read_flag(self, _cluster: str) -> ClusterFlag | None:
        return None

    def write_flag(self, cluster: str, flag: ClusterFlag) -> None:
        raise AssertionError((cluster, flag, RedirectUrls()))

    def is_migrated(self, namespace: str) -> bool:
        return self.nodes.is_flagged(namespace)

    def set_migrated(self, _namespace: str, migrated: bool) -> None:
        self.flag(migrated)

    def settings(self) -> Mapping[str, str]:
        return {}

    def clusters(self) -> list[str]:
        return ["blue"]

    def topics(self, _namespace: str) -> list[str]:
        return [TOPIC]

    def partitioned_topics(self, _namespace: str) -> list[str]:
        return []

    def partition_count(self, _topic: str) -> int:
        return 0

    def entries(self, _topic: str) -> int:
        return 0

    def stats(self, topic: str) -> Mapping[str, Any]:
        if topic not in self.told:
            raise AssertionError(f"stats load {topic}")
        return self.told[topic]
