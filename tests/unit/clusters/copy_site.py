"""Two bookie clusters with scripted bookies and a store in memory, and a copier between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from bookwarden.clusters.bookkeeper.bookie_cluster import read_members
from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.digests import Entry, digest_of, pack_entry, verify_entry
from bookwarden.clusters.bookkeeper.bookies.replicas import Replicas
from bookwarden.clusters.bookkeeper.bookies.requests import BookieOptions, Bookies
from bookwarden.clusters.bookkeeper.copying.copier import LedgerCopier
from bookwarden.clusters.bookkeeper.copying.placement import Affinity, BookieTopology, CopyPlacement
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.ledgers.custom_metadata import COPY_KEY, OWNER_KEY, expected_custom_metadata, is_unfinished
from bookwarden.ledgers.kinds import Holder, ManagedLedgerHolder
from bookwarden.ledgers.live_references import LiveReferences, References, UnknownReferences
from bookwarden.ledgers.managed_ledger import LedgerInfo, OffloadInfo
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.ledgers.outcomes import CopyResult
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.memory import MemoryStore
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, decode_ledger_password, encode_ledger_metadata
from servers.scripted_bookie import ScriptedBookie

OWNER = "5f2c9a41"
HOLDER = ManagedLedgerHolder("public/default/persistent/t")
PASSWORD = b"secret"
A, B = "/ledgers", "/bookies-b"


def payload_of(entry_id: int) -> bytes:
    return b"%d" % entry_id * (entry_id % 50)


def placement_in(store: MetadataStore) -> CopyPlacement:
    return CopyPlacement(lambda: BookieTopology(read_members(store, B).writable, {}, {}), lambda _: Affinity())


def offloaded_info(ledger_id: int) -> LedgerInfo:
    """Return what a list says of a ledger that is whole in a bucket, and nowhere else."""
    return LedgerInfo(ledger_id, 120, 1000, 1, OffloadInfo(1, 2, True, True, 1, "aws-s3"))


@dataclass
class Named:
    """What topics name; ``before`` is called with the number of each reading."""

    ids: set[int] = field(default_factory=set)
    doubt: str | None = None
    #: These are named only where they were offloaded to.
    offloaded: set[int] = field(default_factory=set)
    before: Callable[[int], object] = lambda _: None
    readings: int = 0

    def read(
        self, holders: Sequence[Holder], ledgers: Mapping[Holder, Collection[int]] | None = None
    ) -> Mapping[Holder, References]:
        self.readings += 1
        self.before(self.readings)
        left = {ledger_id: offloaded_info(ledger_id) for ledger_id in self.offloaded}
        named = LiveReferences(frozenset(self.ids), True, left_behind=left)
        return dict.fromkeys(holders, named if self.doubt is None else UnknownReferences(self.doubt))


class CopySite:
    """Two bookie clusters in one store: two bookies with ledgers, and three to copy to."""

    def __init__(self, stack: ExitStack) -> None:
        self.sources, self.targets = ([stack.enter_context(ScriptedBookie()) for _ in range(n)] for n in (2, 3))
        self.use(MemoryStore())
        addresses = BookieAddresses(self.store, A, lambda: [(self.store, B)])
        self.bookies = stack.enter_context(Bookies(addresses, BookieOptions(request_timeout_s=1.5)))
        self.named = Named()

    def use(self, store: MemoryStore) -> None:
        """Have the bookies registered in this store."""
        self.store = store
        for root, bookies in ((A, self.sources), (B, self.targets)):
            for bookie in bookies:
                store.create(f"{root}/available/{bookie.bookie_id}", b"", make_parents=True)

    def plant(self, ledger_id: int, count: int = 120, kind: str | None = "CRC32C", **changes: Any) -> LedgerMetadata:
        """Write a closed ledger to the source; something names it."""
        names = tuple(bookie.bookie_id for bookie in self.sources)
        custom = {key: value.encode() for key, value in expected_custom_metadata(HOLDER).items()}
        segments = (Segment(0, names), Segment(70, names[::-1])) if count > 70 else (Segment(0, names),)
        length = sum(len(payload_of(entry_id)) for entry_id in range(count))
        metadata = LedgerMetadata(
            *(3, LedgerState.CLOSED, 2, 2, 2, segments, length, count - 1, kind, 1_700_000_000_000, custom)
        )._replace(**changes)
        digest, behind, replicas = digest_of(kind, PASSWORD), 0, Replicas(metadata)
        for entry_id in range(count):
            behind += len(payload_of(entry_id))
            packet = pack_entry(digest, Entry(ledger_id, entry_id, entry_id - 1, behind, payload_of(entry_id)))
            for bookie in self.sources:
                if bookie.bookie_id in replicas.of(entry_id):
                    bookie.entries[ledger_id, entry_id] = packet
        self.write(A, ledger_id, metadata)
        self.named.ids.add(ledger_id)
        return metadata

    def write(self, root: str, ledger_id: int, metadata: LedgerMetadata) -> None:
        raw = encode_ledger_metadata(metadata, password=PASSWORD)
        path = ledger_path(root, ledger_id)
        node = self.store.get(path)
        if node is None:
            self.store.create(path, raw, make_parents=True)
        else:
            self.store.put(path, raw, node.version)

    def remove(self, root: str, ledger_id: int) -> None:
        path = ledger_path(root, ledger_id)
        node = self.store.get(path)
        assert node is not None
        self.store.delete_many([(path, node.version)])

    def copier(self, store: MetadataStore | None = None, **options: Any) -> LedgerCopier:
        """Make a copier; it sees the metadata through this store, if one is given."""
        places = (store or self.store, A), (store or self.store, B)
        placement = placement_in(self.store)
        return LedgerCopier(*places, self.bookies, self.named.read, placement, **{"owner": OWNER, **options})

    def copy(self, *ledger_ids: int, **options: Any) -> CopyResult:
        """Copy ledgers; return the result of the last one."""
        results = {result.ledger_id: result for result in self.copier(**options).copy(ledger_ids)}
        assert set(results) == set(ledger_ids)
        return results[ledger_ids[-1]]

    def copied(self, ledger_id: int) -> LedgerMetadata | None:
        """Return the metadata on the target."""
        node = self.store.get(ledger_path(B, ledger_id))
        return None if node is None else decode_ledger_metadata(node.value)

    def require_same(self, ledger_id: int, source: LedgerMetadata) -> None:
        """Check that the copy says what the source says, and that each entry is on all of its bookies."""
        node = self.store.get(ledger_path(B, ledger_id))
        copy = self.copied(ledger_id)
        assert node is not None
        assert copy is not None
        assert decode_ledger_password(node.value) == PASSWORD
        mark = f"{source.last_entry_id}:{source.length}".encode()
        assert copy.custom == {**source.custom, OWNER_KEY: OWNER.encode(), COPY_KEY: mark}
        assert copy._replace(segments=(), custom={}) == source._replace(segments=(), custom={}, format_version=3)
        assert not is_unfinished(copy)
        replicas, assertions = Replicas(copy), 0
        digest = digest_of(source.digest_type, PASSWORD)
        for entry_id in range((source.last_entry_id or 0) + 1):
            for bookie in self.targets:
                if bookie.bookie_id in replicas.of(entry_id):
                    entry = verify_entry(digest, ledger_id, entry_id, bookie.entries[ledger_id, entry_id])
                    assert entry.payload == payload_of(entry_id)
                    assertions += 1
        assert assertions == 2 * ((source.last_entry_id or 0) + 1)
