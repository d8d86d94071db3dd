"""Readers of the pieces of the listing of offloaded copies, in the Python workers of Spark."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from bookwarden.clusters.offload.listing import ListingDigest, ObjectPiece, store_name
from bookwarden.errors import StoreError
from bookwarden.pipelines.columns.tables import OBJECTS, Columns
from bookwarden.pipelines.scan.files import ScanFolder
from bookwarden.pipelines.scan.reading import ScanInput, from_json

logger = logging.getLogger(__name__)

OBJECTS_STAGE = "objects"
UNREAD_TABLE = "unread_objects"


class UnreadObjects(NamedTuple):
    """A store, as ListedObject names it, of which a piece could not be listed."""

    store: str
    reason: str


UNREAD = Columns(UnreadObjects)


@dataclass(frozen=True)
class ReadObjects:
    """Lists a piece of a store of offloaded copies; a store that does not answer is noted, and ends no scan."""

    source: ScanInput

    def __call__(self, folder: ScanFolder, number: int, piece: Any) -> None:
        listed = from_json(ObjectPiece, piece)
        tables, digest, unread = [OBJECTS.table([])], ListingDigest(), list[UnreadObjects]()
        try:
            for page in self.source.shared().objects.pages(listed):
                tables.append(OBJECTS.table(page))
                digest.add(page)
        except StoreError as error:
            # Half a listing would be safe, but its shares would be wrong.
            tables, digest = tables[:1], ListingDigest()
            unread = [UnreadObjects(store_name(listed.location), str(error))]
            logger.warning("%s is not scanned: %s", *unread[0])
        folder.write(
            OBJECTS_STAGE,
            number,
            pa.concat_tables(tables),
            names=digest.names,
            digest=str(digest),
            others={UNREAD_TABLE: UNREAD.table(unread)},
        )
