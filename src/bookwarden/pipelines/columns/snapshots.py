"""The ledgers of a ZooKeeper snapshot, read from the bytes of whole directories.

Only directories that hold nothing but ledgers, and that no transaction changed since the snapshot was begun, are read
here. All others are left to the listing of single nodes, which gives the same rows for these.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from bookwarden.clusters.bookkeeper.listing import LedgerListing, ListingPiece, digest_of, first_id_of
from bookwarden.ledgers.pending_deletion import MAX_LEDGER_ID
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.snapshot.store import EncodedNodes, SnapshotStore
from bookwarden.metastore.snapshot.walk import CREATED_AT, STAT_SIZE, VERSION_AT
from bookwarden.pipelines.columns.ledgers import LedgerNodes, ListedTable, ledger_table, table_of
from bookwarden.pipelines.columns.messages import Buffer, Numbers

_Texts: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
_BigEndian: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_SIZE: Final = 4
_NAME: Final = "/L0000"
_DIGITS: Final = np.array([1000, 100, 10, 1])
_LARGEST: Final = 9_999


def read_ledgers(store: MetadataStore, listing: LedgerListing, piece: ListingPiece) -> ListedTable:
    """Read a piece of the listing of any store."""
    whole = ledgers_of_snapshot(store, listing.root, piece) if isinstance(store, SnapshotStore) else None
    if whole is not None:
        return whole
    found = listing.read(piece)
    return ListedTable(ledger_table(found), found.names, found.digest, found.unparsable)


# Fast path of LedgerListing.read, must equal it: tests/unit/pipelines/test_scan_snapshots.py
def ledgers_of_snapshot(store: SnapshotStore, ledgers_root: str, piece: ListingPiece) -> ListedTable | None:
    """Read the ledgers of a piece of the listing; None where not all of its directories can be read here."""
    root = ledgers_root.rstrip("/")
    if piece.unparsable or (root or "/") in piece.directories:
        return None
    found = [store.encoded_below(directory) for directory in piece.directories]
    nodes = [one for one in found if one is not None]
    bases = [first_id_of(root, directory) for directory in piece.directories]
    if not nodes or len(nodes) < len(found) or max(bases) > MAX_LEDGER_ID - _LARGEST:
        return None
    read = [_directory(one, store.index.chroot) for one in nodes]
    directories = [one for one in read if one is not None]
    return _table(nodes, directories, bases) if len(directories) == len(read) else None


class _Directory(NamedTuple):
    """The numbers in the names of a directory's ledgers, their paths below the chroot, and where their values are."""

    numbers: Numbers
    paths: pa.Array
    places: Numbers


def _directory(nodes: EncodedNodes, chroot: str) -> _Directory | None:
    """Read a directory; None if one of its nodes does not have a ledger's name."""
    width = len(nodes.parent) + len(_NAME)
    places = np.array(_places(nodes.data, width))
    if not len(places) or not (_views(nodes.data)[0][places - width - _SIZE] == width).all():
        return None
    windows: _Texts = np.ndarray((len(nodes.data) - width + 1, width), np.uint8, nodes.data, strides=(1, 1))
    paths = windows[places - width]
    prefix, digits = nodes.parent + b"/L", paths[:, -len(_DIGITS) :] - ord("0")
    if not (paths[:, : len(prefix)] == np.frombuffer(prefix, np.uint8)).all() or (digits > 9).any():
        return None
    return _Directory(digits @ _DIGITS, _texts(paths[:, len(chroot.encode()) :]), places)


def _places(data: bytes, width: int) -> list[int]:
    """Return the offset of each value; None if these nodes cannot all have paths of that number of bytes.

    The caller checks the size of each path: then each node begins where the one before ends.
    """
    size_at, place, between = struct.Struct(">i").unpack_from, _SIZE + width, STAT_SIZE + 2 * _SIZE + width
    last, found = len(data) - STAT_SIZE - _SIZE, list[int]()
    while place <= last:
        found.append(place)
        (size,) = size_at(data, place)
        place += between + (size if size > 0 else 0)
    return found if place == len(data) + _SIZE + width else []


def _table(nodes: Sequence[EncodedNodes], directories: Sequence[_Directory], bases: Sequence[int]) -> ListedTable:
    ids = np.concatenate([one.numbers + base for one, base in zip(directories, bases, strict=True)])
    order = np.argsort(ids, kind="stable")
    raw = b"".join(one.data for one in nodes)
    before = accumulate((len(one.data) for one in nodes), initial=0)
    places = np.concatenate([one.places + size for one, size in zip(directories, before, strict=False)])[order]
    ints, longs = _views(raw)
    starts = places + _SIZE
    # The size of a null value is -1.
    ends = starts + np.maximum(ints[places], 0)
    found = LedgerNodes(
        ids[order],
        pa.concat_arrays([one.paths for one in directories]).take(pa.array(order)),
        ints[ends + VERSION_AT].astype(np.int64),
        longs[ends + CREATED_AT].astype(np.int64),
        # There are more bytes behind each value than a buffer needs.
        Buffer(raw, starts, ends),
    )
    return ListedTable(table_of(found), len(ids), digest_of(ids.tolist()), ())


def _views(data: bytes) -> tuple[_BigEndian, _BigEndian]:
    """Return the numbers of four bytes, and of eight, that begin at each place."""
    ints, longs = (np.ndarray(len(data) - size + 1, f">i{size}", data, strides=(1,)) for size in (_SIZE, 2 * _SIZE))
    return ints, longs


def _texts(rows: _Texts) -> pa.Array:
    """Make each row a text."""
    count, width = rows.shape
    ends = np.arange(count + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(rows)))
