"""Puts managed ledgers and ledgers into a metadata store, in the bytes that brokers and bookies write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.ledgers.custom_metadata import expected_custom_metadata
from bookwarden.ledgers.kinds import (
    BucketHolder,
    CompactedHolder,
    CursorHolder,
    Holder,
    ManagedLedgerHolder,
    SchemaHolder,
)
from bookwarden.ledgers.metadata import LedgerMetadata, LedgerState, Segment
from bookwarden.metastore.interface import MetadataStore, Write
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from bookwarden.wire.pb import managed_ledger_pb2, schema_locator_pb2

ROOT = "/ledgers"
OLD_MS = 1_600_000_000_000


def register_bookie(store: MetadataStore, root: str = ROOT) -> None:
    """Register a bookie as one that runs does, so that BookKeeper counts as in service."""
    store.create(f"{root}/available/127.0.0.1:3181", b"", make_parents=True)


class Population:
    """What a test puts into a store; `store` may be any implementation."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        for root in (ROOT, "/managed-ledgers", "/schemas"):
            if store.get(root) is None:
                store.create(root, b"")
        if store.get(f"{ROOT}/available") is None:
            register_bookie(store)

    def ledger(self, ledger_id: int, holder: Holder | None, *, ctime_ms: int | None = OLD_MS) -> str:
        """Create the metadata of a closed ledger, tagged for the holder, or with no tags; return its path."""
        return self.tagged_ledger(ledger_id, tags_of(holder), ctime_ms=ctime_ms)

    def empty_ledger(self, ledger_id: int, holder: Holder) -> str:
        """Create the metadata of a closed ledger without an entry, so that no bookie is asked for one."""
        path = ledger_path(ROOT, ledger_id)
        metadata = decode_ledger_metadata(closed_ledger(tags_of(holder)))._replace(length=0, last_entry_id=-1)
        self.store.create(path, encode_ledger_metadata(metadata), make_parents=True)
        return path

    def ledgers(self, holders: Mapping[int, Holder]) -> dict[int, str]:
        """Do what `ledger` does for many, by their ids; return their paths."""
        paths = {ledger_id: ledger_path(ROOT, ledger_id) for ledger_id in holders}
        writes = [Write(path, closed_ledger(tags_of(holders[ledger])), None) for ledger, path in paths.items()]
        assert self.store.write_many(writes) == [None] * len(writes)
        return paths

    def tagged_ledger(self, ledger_id: int, custom: dict[str, bytes], *, ctime_ms: int | None = OLD_MS) -> str:
        """Create the metadata of a closed ledger with this custom metadata; return its path."""
        path = ledger_path(ROOT, ledger_id)
        self.store.create(path, closed_ledger(custom, ctime_ms=ctime_ms), make_parents=True)
        return path

    def names(self, holder: Holder, ledger_ids: Iterable[int], *, closed: bool = False) -> str:
        """Let the holder name exactly these ledgers; return the path of its node.

        What the last one has is not recorded in a topic's list, as while it is written, unless it is ``closed``.
        """
        path, value = node_of(holder, list(ledger_ids), closed=closed)
        found = self.store.get(path)
        if found is None:
            self.store.create(path, value, make_parents=True)
        else:
            self.store.put(path, value, found.version)
        return path


def tags_of(holder: Holder | None) -> dict[str, bytes]:
    """Give the custom metadata of a holder's ledgers; none without a holder."""
    tags = expected_custom_metadata(holder) if holder else {}
    return {name: text.encode() for name, text in tags.items()}


def closed_ledger(custom: dict[str, bytes], *, ctime_ms: int | None = OLD_MS) -> bytes:
    """Make the metadata of a closed ledger."""
    return encode_ledger_metadata(
        LedgerMetadata(
            format_version=3,
            state=LedgerState.CLOSED,
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            segments=(Segment(0, ("127.0.0.1:3181",)),),
            length=1000,
            last_entry_id=9,
            digest_type="CRC32C",
            ctime_ms=ctime_ms,
            custom=custom,
        )
    )


def node_of(holder: Holder, ledger_ids: list[int], *, closed: bool = False) -> tuple[str, bytes]:
    """Make the node of a holder that names these ledgers: its path and value."""
    if isinstance(holder, ManagedLedgerHolder):
        managed_ledger = managed_ledger_pb2.ManagedLedgerInfo()
        for ledger_id in ledger_ids:
            managed_ledger.ledgerInfo.add(ledgerId=ledger_id, entries=10, size=1000, timestamp=OLD_MS)
        if ledger_ids and not closed:
            # A broker records what the last one has when it lists the next.
            managed_ledger.ledgerInfo[-1].CopyFrom(
                managed_ledger_pb2.ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_ids[-1])
            )
        return f"/managed-ledgers/{holder.name}", managed_ledger.SerializeToString()
    if isinstance(holder, CursorHolder):
        (cursors_ledger,) = ledger_ids or [-1]
        cursor = managed_ledger_pb2.ManagedCursorInfo(cursorsLedgerId=cursors_ledger)
        return f"/managed-ledgers/{holder.managed_ledger}/{holder.cursor}", cursor.SerializeToString()
    if isinstance(holder, CompactedHolder):
        cursor = managed_ledger_pb2.ManagedCursorInfo(cursorsLedgerId=-1)
        for ledger_id in ledger_ids[:1]:
            cursor.properties.add(name="CompactedTopicLedger", value=ledger_id)
        return f"/managed-ledgers/{holder.managed_ledger}/__compaction", cursor.SerializeToString()
    if isinstance(holder, BucketHolder):
        cursor = managed_ledger_pb2.ManagedCursorInfo(cursorsLedgerId=-1)
        for ledger_id in ledger_ids:
            key = f"#pulsar.internal.delayed.bucket_{ledger_id}_{ledger_id}"
            cursor.cursorProperties.add(name=key, value=str(ledger_id))
        return f"/managed-ledgers/{holder.managed_ledger}/{holder.cursor}", cursor.SerializeToString()
    assert isinstance(holder, SchemaHolder)
    locator = schema_locator_pb2.SchemaLocator()
    for version, ledger_id in enumerate(ledger_ids):
        entry = locator.index.add(version=version, hash=b"")
        entry.position.ledgerId, entry.position.entryId = ledger_id, 0
        locator.info.CopyFrom(entry)
    return f"/schemas/{holder.schema_id}", locator.SerializeToString()
