"""Everything in the metadata roots that names ledgers, read into an index."""

from __future__ import annotations

from collections.abc import Mapping

from bookwarden.clusters.bookkeeper.bookies.last_entries import LastEntries
from bookwarden.clusters.pulsar.references.pieces import ReferencePieces
from bookwarden.ledgers.references import ReferenceIndex
from bookwarden.metastore.interface import MetadataStore


class ReferenceScan:
    """Reads all references of all metadata roots, which are given by their URLs.

    ``entries`` reads the ledgers of compaction cursors, which name the compacted ledger in use; without it, each of
    these is a doubt about the topic's compacted ledgers.
    """

    def __init__(self, roots: Mapping[str, MetadataStore], entries: LastEntries | None = None) -> None:
        self._pieces = ReferencePieces(roots, entries)

    def read_into(self, index: ReferenceIndex) -> None:
        """Add every node's references, and a doubt for each that cannot be parsed; one request per topic with cursors.

        Raises StoreError where a root does not answer, or is no Pulsar's: then the index is not to be used.
        """
        for piece in self._pieces.pieces():
            for _, (references, _) in self._pieces.nodes(piece):
                index.add_node(references)
