"""Copies of a topic's closed ledgers in another bookie cluster, as a move of ledgers leaves them."""

from __future__ import annotations

from bookwarden.clusters.bookkeeper.bookies.addresses import BookieAddresses
from bookwarden.clusters.bookkeeper.bookies.reader import open_ledger
from bookwarden.clusters.bookkeeper.bookies.requests import Bookies
from bookwarden.clusters.bookkeeper.bookies.writer import EntryWriting
from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.ledgers.custom_metadata import COPY_KEY, identify_holder
from bookwarden.ledgers.metadata import AbsentLedger, LedgerState, Segment, StoredLedger
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.ledger_metadata import decode_ledger_password, encode_ledger_metadata
from servers.switching.site import SwitchingSite


def copy_ledger(
    ledger_id: int, source: tuple[MetadataStore, str], target: tuple[MetadataStore, str], bookies: tuple[str, ...]
) -> bool:
    """Copy a closed ledger, with its id, from one (store, ledgers root) to another, onto these bookies.

    Returns False if it was deleted meanwhile.
    """
    (found,) = BookKeeperCatalog(*source).read_many([ledger_id])
    if isinstance(found, AbsentLedger):
        return False
    assert isinstance(found, StoredLedger)
    assert found.metadata.state is LedgerState.CLOSED
    password = decode_ledger_password(found.raw)
    mark = {COPY_KEY: f"{found.metadata.last_entry_id}:{found.metadata.length}".encode()}
    opened = found.metadata._replace(
        state=LedgerState.OPEN,
        segments=(Segment(0, bookies[: found.metadata.ensemble_size]),),
        last_entry_id=None,
        length=0,
        custom={**found.metadata.custom, **mark},
    )
    store, root = target
    path = ledger_path(root, ledger_id)
    store.create(path, encode_ledger_metadata(opened, password=password), make_parents=True)
    with (
        Bookies(BookieAddresses(*source)) as here,
        Bookies(BookieAddresses(*target)) as there,
        EntryWriting(there) as writing,
    ):
        writer = writing.ledger(ledger_id, opened, password)
        for entry in open_ledger(found, here).read():
            writer.add(entry.payload)
        writer.finish()
    closed = opened._replace(
        state=LedgerState.CLOSED, last_entry_id=found.metadata.last_entry_id, length=found.metadata.length
    )
    node = store.get(path)
    # A broker that closes a cursor deletes its ledger, in all clusters, a moment later.
    if node is not None:
        store.put(path, encode_ledger_metadata(closed, password=password), node.version)
    return node is not None


def copy_namespace(site: SwitchingSite, namespace: str, source: str, target: str) -> set[int]:
    """Copy all closed ledgers of a namespace; return their ids."""
    clusters = {name: (site.store_of(name), site.servers.clusters[name].ledgers_root) for name in (source, target)}
    bookies = tuple(sorted(site.servers.clusters[target].ids)[:2])
    copied = set()
    for ledger_id, metadata in site.ledgers_of(source).items():
        holder = identify_holder(metadata.custom)
        if holder is None or not holder.topic.startswith(f"{namespace}/") or metadata.state is not LedgerState.CLOSED:
            continue
        if copy_ledger(ledger_id, clusters[source], clusters[target], bookies):
            copied.add(ledger_id)
    return copied
