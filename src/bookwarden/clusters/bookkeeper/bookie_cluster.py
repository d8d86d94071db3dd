"""Metadata of a bookie cluster below one ledgers root: which cluster it is, its bookies, all its ledgers.

Format: discover.ZKRegistrationManager of BookKeeper 4.17 and PulsarRegistrationManager. Below the ledgers root are
``INSTANCEID`` and ``LAYOUT``; ``available`` has a node for each bookie that takes new ledgers, ``available/readonly``
for each that does not, ``cookies`` one for each that joined and was not decommissioned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Final, NamedTuple

from bookwarden.clusters.bookkeeper.catalog import BookKeeperCatalog
from bookwarden.clusters.bookkeeper.ledger_ids import LedgerIds, largest_ledger_id
from bookwarden.clusters.bookkeeper.ledger_paths import parse_layout
from bookwarden.clusters.bookkeeper.listing import LedgerListing
from bookwarden.clusters.bookkeeper.service_uris import LedgersRoot
from bookwarden.errors import FormatError, NoBookieError
from bookwarden.ledgers.cluster_identity import INSTANCE_NODE, instance_id_in
from bookwarden.ledgers.metadata import ClusterSeen, LedgerReading, LiveBookie
from bookwarden.ledgers.pending_deletion import MAX_LEDGER_ID
from bookwarden.metastore.deadline import retry_while_unavailable
from bookwarden.metastore.interface import MetadataStore
from bookwarden.metastore.urls import split_chroot
from bookwarden.wire.ledger_metadata import decode_ledger_metadata

# A single bookie that is started again is without a registration for less than this, by a wide margin.
AWAITED_SECONDS: Final = 30.0
_READ_ONLY: Final = "readonly"
_READONLY: Final = "readonly"
# The one manager whose paths are those of Pulsar's own. longhierarchical has small ids elsewhere: brokers would find
# none of its ledgers, and its bookies would collect those that brokers make (meta.LongHierarchicalLedgerManager).
_READ_BY_BROKERS: Final = b"org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"


class Members(NamedTuple):
    """Ids of bookies."""

    writable: frozenset[str]
    read_only: frozenset[str]
    known: frozenset[str]


def read_members(store: MetadataStore, root: str) -> Members:
    """Read the bookies below this ledgers root."""
    available = f"{root}/available"
    writable, read_only, known = store.list_many([available, f"{available}/{_READ_ONLY}", f"{root}/cookies"])
    return Members(frozenset(writable) - {_READ_ONLY}, frozenset(read_only), frozenset(known))


class RunningBookies:
    """The bookies of the cluster that takes new ledgers.

    ``find`` returns its store and ledgers root, ``name`` how it is called. Where none is registered its metadata is a
    copy, such as a restored one, or the whole cluster is down: then what is not there proves nothing.
    """

    def __init__(
        self,
        find: Callable[[], tuple[MetadataStore, str]],
        name: Callable[[], str],
        *,
        await_s: float = AWAITED_SECONDS,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._find = find
        self._name = name
        self._await_s = await_s
        self._pause = pause

    def require(self) -> None:
        """Raise NoBookieError where none is registered now, StoreError when the store does not answer."""
        store, root = self._find()
        available = f"{root}/available"
        writable, read_only = store.list_many([available, f"{available}/{_READ_ONLY}"])
        if not read_only and not frozenset(writable) - {_READ_ONLY}:
            raise NoBookieError(
                f"no bookie is registered in {available} of {self._name()}: BookKeeper is not in service there. If this"
                " is the right place (metadata_store.bookkeeper_url, ledgers_root) and no copy of it, start its bookies"
                ", and restart those that run, since a bookie can lose its registration"
            )

    def require_soon(self) -> None:
        """Raise as `require`, but only when that is so for a while: one may be starting again."""
        retry_while_unavailable(self.require, self._await_s, self._pause)


def read_instance(store: MetadataStore, root: str) -> str:
    """Read the instance id of the cluster at this root; "" if there is none. FormatError for what is no text."""
    node = store.get(f"{root}/{INSTANCE_NODE}")
    return instance_id_in(None if node is None else node.value)


class BookieClusterMetadata:
    """A bookie cluster by the store of its metadata and its ledgers root; reads only."""

    def __init__(self, store: MetadataStore, url: str, ledgers_root: str) -> None:
        self._store = store
        self.url = url
        self.ledgers_root = ledgers_root

    def look(self) -> ClusterSeen:
        """Read which cluster it is, never older than this call."""
        self._store.sync()
        root = self.ledgers_root
        top, instance, layout = self._store.get_many([root, f"{root}/INSTANCEID", f"{root}/LAYOUT"])
        live = frozenset(self._registered(f"{root}/available")) | frozenset(
            self._registered(f"{root}/available/{_READONLY}")
        )
        return ClusterSeen(
            exists=top is not None,
            instance=None if instance is None else _text(instance.value),
            instance_created_ms=0 if instance is None else instance.created_ms,
            layout_problem="" if layout is None else _layout_problem(layout.value),
            bookies=frozenset(bookie.name for bookie in live) | frozenset(self._store.children_of(f"{root}/cookies")),
            live=live,
        )

    def root_seen_from(self, url: str) -> str | None:
        """Return the path of the ledgers root in the store of that URL, if its ensemble is the same by any name.

        None where it would not be below that store's chroot.
        """
        chroot = split_chroot(url)[1]
        absolute = split_chroot(self.url)[1] + self.ledgers_root
        return absolute[len(chroot) :] if absolute.startswith(f"{chroot}/") else None

    def first_free_id(self) -> int:
        """Return an id above every ledger that has metadata there, and above every id that was given there."""
        largest = largest_ledger_id(self._store, self.ledgers_root, 0, MAX_LEDGER_ID + 1)
        # Read after the largest, so that a ledger made meanwhile counts in one of them.
        return max(LedgerIds(self._store, self.ledgers_root).next_id(), 0 if largest is None else largest + 1)

    def custom_metadata(self) -> Iterator[tuple[int, Mapping[str, bytes] | None]]:
        """Yield every ledger with its custom metadata; None where its metadata cannot be understood.

        Raises StoreError, and then says nothing, where a part cannot be listed.
        """
        listing = LedgerListing(self._store, self.ledgers_root)
        for piece in listing.pieces():
            found = listing.read(piece)
            for ledger_id, node in zip(found.ids, found.nodes, strict=True):
                try:
                    custom: Mapping[str, bytes] | None = decode_ledger_metadata(node.value).custom
                except FormatError:
                    custom = None
                yield ledger_id, custom

    def read_many(self, ledger_ids: list[int]) -> list[LedgerReading]:
        """Read the metadata of each ledger, as the catalog does."""
        return BookKeeperCatalog(self._store, self.ledgers_root).read_many(ledger_ids)

    def _registered(self, path: str) -> Iterator[LiveBookie]:
        names = [name for name in self._store.children_of(path) if name != _READONLY]
        nodes = self._store.get_many([f"{path}/{name}" for name in names])
        for name, node in zip(names, nodes, strict=True):
            if node is not None:
                yield LiveBookie(name, node.created_ms, node.session)


def _text(raw: bytes) -> str | None:
    """Return the text as it is, since brokers compare it so; None for an empty one, or for what is no text."""
    try:
        return raw.decode() or None
    except UnicodeDecodeError:
        return None


def _layout_problem(raw: bytes) -> str:
    try:
        layout = parse_layout(raw)
    except FormatError as error:
        return str(error)
    lines = raw.strip().split(b"\n")
    return "" if lines[-1].rpartition(b":")[0] == _READ_BY_BROKERS else f"its LAYOUT is {layout.value}, {raw[:80]!r}"


class ClusterStores:
    """Opens stores with ``open_store``, the same one for the same ensemble and chroot; closes them all."""

    def __init__(self, open_store: Callable[[str], MetadataStore]) -> None:
        self._open_store = open_store
        self._stores: dict[tuple[str, str], MetadataStore] = {}
        self._opened = ExitStack()

    def at(self, url: str) -> MetadataStore:
        """Return the store of this URL; it connects at its first call."""
        key = split_chroot(url)
        store = self._stores.get(key)
        if store is None:
            store = self._stores[key] = self._open_store(url)
            self._opened.callback(store.close)
        return store

    def cluster_at(self, place: LedgersRoot) -> BookieClusterMetadata:
        """Return the bookie cluster at this place."""
        return BookieClusterMetadata(self.at(place.url), place.url, place.ledgers_root)

    def ids_at(self, place: LedgersRoot) -> LedgerIds:
        """Return the generator of ledger ids below this place's root."""
        return LedgerIds(self.at(place.url), place.ledgers_root)

    def close(self) -> None:
        """Close all that were opened, the last one first; the second time does nothing."""
        self._opened.close()
