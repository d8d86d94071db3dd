"""The records of the trash in the metadata store, read as they come and taken out when their time is over.

Format: docs/trash.md, decoded by `wire.trash`. Every call may raise StoreError.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import unquote

from bookwarden.clusters.pulsar.broker_marks import Outbox, OutboxNode
from bookwarden.errors import FormatError, LostRaceError, OutcomeUnknownError
from bookwarden.ledgers.names import TopicName
from bookwarden.ledgers.trash import TrashLease, TrashRecord
from bookwarden.metastore.interface import MetadataStore
from bookwarden.wire.trash import (
    TRASH_LEASE,
    TRASH_RECORDS,
    TRASH_RESTORES,
    decode_lease,
    decode_records,
    encode_lease,
    without_records,
)

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class _Known(Generic[_T]):
    version: int
    value: _T | None  #: None where it cannot be read.
    is_last: bool  #: It was the last of its folder then, to which its broker adds.


class TrashNodes(Generic[_T]):
    """The nodes of the trash of one metadata store, and ``digest`` of the records of each.

    A node is read when it is first seen, and again while its broker may have added to it: the last of each folder, and
    any that was the last when it was read. What others took out of one is seen when it is read for another reason.
    """

    def __init__(self, store: MetadataStore, digest: Callable[[Sequence[TrashRecord]], _T]) -> None:
        self._store = store
        self._digest = digest
        self._nodes = Outbox(store, TRASH_RECORDS)
        self._known: dict[str, _Known[_T]] = {}
        self._reported: set[str] = set()

    def look(self) -> Mapping[str, _T]:
        """Return the digest of each node that can be read, by path; never without a record that is there."""
        self._store.sync()
        known: dict[str, _Known[_T]] = {}
        for folder in self._nodes.folders():
            paths = [path for some in self._nodes.paths(folder) for path in some]
            known |= {path: self._known[path] for path in paths if self._is_final(path)}
            unread = [path for path in paths if path not in known]
            for start in range(0, len(unread), 200):
                for found in self._nodes.nodes(unread[start : start + 200]):
                    known[found.path] = self._read(found, is_last=found.path == paths[-1])
        self._known = known
        return {path: each.value for path, each in known.items() if each.value is not None}

    def _is_final(self, path: str) -> bool:
        known = self._known.get(path)
        return known is not None and not known.is_last

    def _read(self, found: OutboxNode, *, is_last: bool) -> _Known[_T]:
        before = self._known.get(found.path)
        if before is not None and before.version == found.node.version:
            return _Known(before.version, before.value, is_last)
        try:
            return _Known(found.node.version, self._digest(decode_records(found.node.value)), is_last)
        except FormatError as error:
            if found.path not in self._reported:
                self._reported.add(found.path)
                logger.error("%s is kept, and its ledgers are not known to be in the trash: %s", found.path, error)
            return _Known(found.node.version, None, is_last)

    def records(self, path: str) -> list[TrashRecord]:
        """Read the records of a node now; none of one that is not there, or cannot be read."""
        found = self._nodes.nodes([path])
        try:
            return decode_records(found[0].node.value) if found else []
        except FormatError:
            return []

    def take_out(self, path: str, records: Collection[TrashRecord]) -> bool:
        """Take records out of a node, and delete it when it has no other; return whether they are out of it."""
        self._known.pop(path, None)
        for _ in range(_TRIES):
            found = self._nodes.nodes([path])
            if not found:
                return True
            left = without_records(found[0].node.value, records)
            try:
                if left is None:
                    if not self._nodes.delete(found):
                        return True
                elif left == found[0].node.value:
                    return True
                else:
                    self._store.put(path, left, found[0].node.version)
                    return True
            except (LostRaceError, OutcomeUnknownError):
                # Its broker added to it, or it is not known whether it is written: it is read again.
                continue
        return False

    def rewrite(self, path: str, change: Callable[[bytes], bytes]) -> bool:
        """Write a node as it is with a change; return whether it is written. It is read again then."""
        self._known.pop(path, None)
        for _ in range(_TRIES):
            found = self._nodes.nodes([path])
            if not found:
                return False
            try:
                self._store.put(path, change(found[0].node.value), found[0].node.version)
                return True
            except (LostRaceError, OutcomeUnknownError):
                continue
            except FormatError:
                return False
        return False

    def delete_empty_folders(self, live: Collection[str]) -> None:
        """Delete the folders that have no node any more, but those of live brokers."""
        for folder in self._nodes.folders():
            if folder not in live and not any(True for _ in self._nodes.paths(folder)):
                self._nodes.delete_if_empty(folder)


class TrashedLedgers:
    """The ledgers in the trash of some metadata stores, or on their way into it."""

    def __init__(self, stores: Iterable[MetadataStore]) -> None:
        self._stores = [(store, TrashNodes(store, _ledgers)) for store in stores]

    def read(self) -> frozenset[int]:
        """Return them, never without one that was there when this was called."""
        found: set[int] = set()
        for store, nodes in self._stores:
            # What leaves the outbox meanwhile is in the trash before.
            found |= _on_the_way(store)
            found.update(*nodes.look().values())
        return frozenset(found)


def _ledgers(records: Sequence[TrashRecord]) -> frozenset[int]:
    return frozenset().union(*(record.ledger_ids for record in records))


def _on_the_way(store: MetadataStore) -> set[int]:
    outbox, found = Outbox(store), set[int]()
    for folder in outbox.folders():
        for nodes in outbox.read(folder):
            for each in nodes:
                # Most nodes have marks.
                with suppress(FormatError):
                    found |= _ledgers(decode_records(each.node.value))
    return found


def restores_in(store: MetadataStore) -> frozenset[str]:
    """Return the managed ledgers of restores that are under way, or were killed; of partitions that of their topic too.

    The schema of all partitions is that topic's.
    """
    names = set(map(unquote, store.children_of(TRASH_RESTORES)))
    return frozenset(names | {TopicName.of_managed_ledger(name).base.managed_ledger for name in names})


class TrashLeaseNode:
    """The node by which the sweep lets brokers keep what they drop."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def read(self) -> TrashLease | None:
        """Return the lease; None where there is none, or it cannot be read."""
        node = self._store.get(TRASH_LEASE)
        try:
            return None if node is None else decode_lease(node.value)
        except FormatError:
            return None

    def write(self, lease: TrashLease) -> None:
        """Write it, whatever is there: only the sweep does, and there is one."""
        node = self._store.get(TRASH_LEASE)
        if node is None:
            self._store.create(TRASH_LEASE, encode_lease(lease), make_parents=True)
        else:
            self._store.put(TRASH_LEASE, encode_lease(lease), node.version)
