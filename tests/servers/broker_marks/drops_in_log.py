"""What left Pulsar's nodes, by the store's own log, and whether it was in an outbox before.

The nodes are read with the generated classes alone: what is tested here is not to tell what was to be marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_id_of
from bookwarden.clusters.pulsar.metadata.ownership import bundle_hash
from bookwarden.ledgers.kinds import LedgerComponent
from bookwarden.ledgers.names import TopicName
from bookwarden.metastore.snapshot.transaction_log import Created, Deleted, Replaced, Transaction, logs_after, read_logs
from bookwarden.wire.broker_marks import OUTBOX_ROOT, decode_outbox_node
from bookwarden.wire.pb import managed_ledger_pb2
from servers.population import ROOT

_BUCKET = "#pulsar.internal.delayed.bucket_"
# Of a topic's list: /managed-ledgers/TENANT/NAMESPACE/persistent/TOPIC. A cursor is one deeper.
_OF_TOPICS = 5
# `follow` may not see what is named for less, and then only the scan finds it.
_SEEN_MS = 10_000
# The end of the last bundle.
_LAST = 0xFFFFFFFF
_OUTBOX_NODES = OUTBOX_ROOT.count("/") + 3

#: The id of a ledger, or of an offloaded copy.
Key = int | UUID


@dataclass
class DropsInLog:
    """``dropped`` is what no node names any more, with the node that named it last; ``unmarked`` is what was in no
    outbox when its node was written, and still in BookKeeper; ``unmarked_by_stock`` is that of the broker ``stock``.
    Cursors of compaction are left out: their property is no list of what they need.

    ``kept_ms`` says how long each dropped ledger stayed in BookKeeper, of those that were deleted behind their drop.
    """

    stock: str = ""  #: HOST:PORT of a broker that does not mark.
    dropped: dict[Key, str] = field(default_factory=dict)
    unmarked: dict[Key, str] = field(default_factory=dict)
    unmarked_by_stock: dict[Key, str] = field(default_factory=dict)
    unseen: set[Key] = field(default_factory=set)  #: Of ``unmarked_by_stock``, what was named for a moment only.
    marked: set[Key] = field(default_factory=set)
    buckets: set[int] = field(default_factory=set)  #: Of delayed messages, of what is marked.
    kinds: Counter[str] = field(default_factory=Counter)
    kept_ms: dict[int, int] = field(default_factory=dict)
    _named_ms: dict[Key, int] = field(default_factory=dict)
    _dropped_ms: dict[Key, int] = field(default_factory=dict)
    _stock_sessions: set[int] = field(default_factory=set)
    _owners: dict[str, bytes] = field(default_factory=dict)
    _deleted: set[int] = field(default_factory=set)
    _named: dict[str, frozenset[Key]] = field(default_factory=dict)

    @property
    def ledgers(self) -> set[int]:
        """The ledgers in BookKeeper among what was dropped."""
        return {key for key in self.dropped if isinstance(key, int)}

    @property
    def named(self) -> set[int]:
        """The ledgers in BookKeeper that are named now."""
        return {key for keys in self._named.values() for key in keys if isinstance(key, int)}

    @property
    def topics(self) -> list[str]:
        """The nodes of topics that name anything now."""
        return [path for path, keys in self._named.items() if keys and path.count("/") == _OF_TOPICS]

    def created(self, node: Created, at_ms: int, session: int) -> None:
        """Take a new node into account."""
        path, value = node.path, node.value
        if self.stock and path == f"/loadbalance/brokers/{self.stock}":
            self._stock_sessions.add(node.owner)
        if path.startswith(f"{OUTBOX_ROOT}/") and path.count("/") == _OUTBOX_NODES:
            marks = decode_outbox_node(value, "")
            self.marked |= {mark.offload_context.uuid if mark.offload_context else mark.ledger_id for mark in marks}
            self.buckets |= {mark.ledger_id for mark in marks if mark.component is LedgerComponent.DELAYED_INDEX_BUCKET}
        self.written(path, value, at_ms, session)

    def written(self, path: str, value: bytes | None, at_ms: int, session: int) -> None:
        """Take a node's value into account, None for one that was deleted."""
        if path.startswith("/namespace/"):
            self._owners[path] = value or b""
        if value is None and path.startswith(f"{ROOT}/") and "/L" in path:
            ledger = ledger_id_of(ROOT, path)
            if ledger is not None:
                self._deleted.add(ledger)
            if ledger is not None and ledger in self._dropped_ms:
                self.kept_ms[ledger] = at_ms - self._dropped_ms[ledger]
        if not path.startswith("/managed-ledgers/") or path.endswith("/__compaction"):
            return
        before = self._named.get(path, frozenset())
        now = self._named[path] = frozenset(_named_by(path, value) if value else ())
        for key in now - before:
            # A broker that knew better has put it back.
            self.dropped.pop(key, None)
            self._named_ms[key] = at_ms
        for key in before - now:
            self.dropped[key] = path
            self._dropped_ms[key] = at_ms
            self.kinds[_kind(path, key, value)] += 1
            if key not in self.marked and key not in self._deleted:
                by_stock = self._is_by_stock(session, path)
                (self.unmarked_by_stock if by_stock else self.unmarked)[key] = path
                if by_stock and at_ms - self._named_ms[key] < _SEEN_MS:
                    self.unseen.add(key)

    def _is_by_stock(self, session: int, path: str) -> bool:
        """Say whether the broker ``stock`` wrote a node: where no session is known, the owner of its topic's bundle."""
        if session or not self.stock:
            return session in self._stock_sessions
        topic = TopicName.of_managed_ledger("/".join(path.split("/")[2 : _OF_TOPICS + 1]))
        root, hashed = f"/namespace/{topic.tenant}/{topic.namespace}/", bundle_hash(str(topic))
        for node, owner in self._owners.items():
            if node.startswith(root) and owner:
                lower, upper = (int(border, 16) for border in node.removeprefix(root).split("_"))
                if lower <= hashed < upper or hashed == upper == _LAST:
                    return f'//{self.stock}"' in owner.decode()
        return False


def read_drops(log: Iterable[Transaction], stock: str = "") -> DropsInLog:
    """Read a store's log from its first transaction on, as far as it goes."""
    found = DropsInLog(stock)
    for transaction in log:
        at_ms, session = transaction.time_ms, transaction.session
        for change in transaction.changes:
            if isinstance(change, Created):
                found.created(change, at_ms, session)
            elif isinstance(change, Replaced):
                found.written(change.path, change.value, at_ms, session)
            elif isinstance(change, Deleted):
                found.written(change.path, None, at_ms, session)
    return found


def read_zookeeper_log(folder: Path) -> Iterator[Transaction]:
    """Read all epochs: each leader begins one; a server without others has the first only.

    The log has all from the first transaction on; of an ensemble it is that of a server that never ends.
    """
    latest = folder / "currentEpoch"
    for epoch in range(int(latest.read_text()) + 1 if latest.exists() else 1):
        before = epoch << 32
        yield from read_logs(logs_after(folder, before), before)


def _named_by(path: str, value: bytes) -> Iterator[Key]:
    if path.count("/") == _OF_TOPICS:
        for listed in managed_ledger_pb2.ManagedLedgerInfo.FromString(value).ledgerInfo:
            offload = listed.offloadContext
            if not offload.bookkeeperDeleted:
                yield listed.ledgerId
            if offload.HasField("uidMsb"):
                yield UUID(int=(offload.uidMsb % 2**64) << 64 | offload.uidLsb % 2**64)
    elif path.count("/") > _OF_TOPICS:
        cursor = managed_ledger_pb2.ManagedCursorInfo.FromString(value)
        if cursor.cursorsLedgerId >= 0:
            yield cursor.cursorsLedgerId
        for each in cursor.cursorProperties:
            if each.name.startswith(_BUCKET):
                yield int(each.value)


def _kind(path: str, key: Key, value: bytes | None) -> str:
    what = "topic" if path.count("/") == _OF_TOPICS else "cursor"
    if isinstance(key, UUID):
        what = "copy"
    elif "__transaction_" in path:
        # The log of a coordinator, of acknowledgements, or the snapshots of a buffer.
        what = f"transactions' {what}"
    return f"{what} {'deleted' if value is None else 'written'}"
