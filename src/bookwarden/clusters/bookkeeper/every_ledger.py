"""The metadata of the ledgers of a bookie cluster: of every one, one directory after another, or of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path
from bookwarden.clusters.bookkeeper.listing import LedgerListing
from bookwarden.errors import FormatError
from bookwarden.ledgers.metadata import LedgerMetadata
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.ledger_metadata import decode_ledger_metadata


def read_every_ledger(store: MetadataStore, root: str) -> Iterator[tuple[int, LedgerMetadata | None]]:
    """Yield each ledger with its metadata, None where that is not understood; StoreError where a part is not read."""
    listing = LedgerListing(store, root)
    for piece in listing.pieces():
        found = listing.read(piece)
        for ledger_id, node in zip(found.ids, found.nodes, strict=True):
            try:
                yield ledger_id, decode_ledger_metadata(node.value)
            except FormatError:
                yield ledger_id, None


def read_custom_metadata(store: MetadataStore, root: str, ledger_id: int) -> Mapping[str, bytes] | None:
    """Read that of one ledger, empty if it is not there; None where its metadata is not understood."""
    node = store.get(ledger_path(root, ledger_id))
    if node is None:
        return {}
    try:
        return decode_ledger_metadata(node.value).custom
    except FormatError:
        return None
