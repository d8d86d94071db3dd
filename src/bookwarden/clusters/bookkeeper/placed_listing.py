"""A listing of every ledger over all registered bookie clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bookwarden.clusters.bookkeeper.listing import LedgerListing, ListingPiece, PieceOfNames
from bookwarden.errors import StoreError
from bookwarden.metastore.interface import MetadataStore


class PlacedListing:
    """Lists the ledgers of each cluster in pieces that name it; ``alone`` has those where no cluster is registered.

    ``roots`` returns store and ledgers root of each registered cluster by name, nothing where none is registered. Every
    call raises StoreError as LedgerListing does, and for a piece of a cluster that is not registered any more.
    """

    def __init__(self, alone: LedgerListing, roots: Callable[[], Mapping[str, tuple[MetadataStore, str]]]) -> None:
        self._alone = alone
        self._roots = roots

    def pieces(self, besides: Sequence[ListingPiece] = ()) -> list[ListingPiece]:
        """Divide the ledgers of all clusters into pieces, as `LedgerListing.pieces` does."""
        names = list(self._roots())
        if not names:
            return self._alone.pieces(besides)
        return [
            replace(piece, cluster=name)
            for name in names
            for piece in self.of(name).pieces([each for each in besides if each.cluster == name])
        ]

    def relist(self, piece: ListingPiece) -> PieceOfNames:
        """List the piece by names only; never older than this call."""
        return self.of(piece.cluster).relist(piece)

    def of(self, cluster: str) -> LedgerListing:
        """Return the listing of one cluster; by "" that of the one that the settings name."""
        if not cluster:
            return self._alone
        place = self._roots().get(cluster)
        if place is None:
            raise StoreError(f"the bookie cluster {cluster!r} is not registered any more: begin a new scan")
        return LedgerListing(*place)
