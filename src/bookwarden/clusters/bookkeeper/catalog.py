"""BookKeeper's catalog of ledgers, as its metadata store keeps it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from bookwarden.clusters.bookkeeper.ledger_paths import LedgerLayout, ledger_path, parse_layout
from bookwarden.errors import FormatError, StoreError
from bookwarden.ledgers.custom_metadata import HolderChange, custom_metadata_mismatch, expected_custom_metadata
from bookwarden.ledgers.metadata import (
    AbsentLedger,
    Conditions,
    DeleteResult,
    LedgerReading,
    Restoration,
    StoredLedger,
    UnreadableLedger,
)
from bookwarden.metastore.interface import MetadataStore, Versioned, Write
from bookwarden.wire.ledger_metadata import decode_ledger_metadata, with_custom_metadata

_LOG = logging.getLogger(__name__)

DEFAULT_LEDGERS_ROOT: Final = "/ledgers"


class ReadsLedgers(Protocol):
    """The metadata of ledgers, wherever it is."""

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        """Read the metadata of each ledger, in the order asked; never older than this call."""


class BookKeeperCatalog:
    """Reads and deletes ledger metadata below one ledgers root.

    Pulsar's own ledger manager uses the hybrid layout whatever the LAYOUT node says, so a ledger is looked up in both
    places.
    """

    def __init__(self, store: MetadataStore, ledgers_root: str = DEFAULT_LEDGERS_ROOT) -> None:
        self._store = store
        self._root = ledgers_root.rstrip("/")
        self._layouts: tuple[LedgerLayout, ...] | None = None

    def read_many(self, ledger_ids: Sequence[int]) -> list[LedgerReading]:
        """Read the metadata of each ledger, in the order asked; never older than this call."""
        if not ledger_ids:
            return []
        self._store.sync()
        layouts = self._known_layouts()
        readings: dict[int, LedgerReading] = {}
        places: dict[int, tuple[str, ...]] = {}
        for ledger_id in dict.fromkeys(ledger_ids):
            try:
                places[ledger_id] = self._places(ledger_id, layouts)
            except FormatError as error:
                readings[ledger_id] = UnreadableLedger(ledger_id, str(error))
        paths = [path for candidates in places.values() for path in candidates]
        nodes = iter(self._get_below_root(paths))
        for ledger_id, candidates in places.items():
            if len(candidates) == 1:
                readings[ledger_id] = _reading(ledger_id, candidates[0], next(nodes))
            else:
                readings[ledger_id] = _reading_among(ledger_id, [(path, next(nodes)) for path in candidates])
        return [readings[ledger_id] for ledger_id in ledger_ids]

    def delete_many(
        self, ledgers: Sequence[StoredLedger], conditions: Sequence[Conditions] | None = None
    ) -> list[DeleteResult]:
        """Delete the metadata of each ledger if it still has the version that was read, in the order asked.

        ``conditions`` are, for each, other nodes that must be as they were read, where the store can check that.
        Parent directories stay, as Pulsar's ledger manager leaves them.
        """
        if not ledgers:
            return []
        return self._store.delete_many(
            [(ledger.path, ledger.version) for ledger in ledgers],
            created_ms=[ledger.created_ms for ledger in ledgers],
            conditions=conditions,
        )

    def paths_of(self, ledger_id: int) -> tuple[str, ...]:
        """List the nodes at which the ledger's metadata may be; empty for an impossible id."""
        try:
            return self._places(ledger_id, self._known_layouts())
        except FormatError:
            return ()

    def restore_many(self, ledgers: Sequence[Restoration]) -> list[bool]:
        """Create each node that has no version, with its parents, and replace the others if they have theirs.

        Returns which were written, in the order asked: a node that was replaced has another version, so no delete by
        the former one succeeds. Raises FormatError for a path that is not the ledger's, before anything is written,
        and StoreError when the store does not answer.
        """
        for ledger in ledgers:
            if ledger.path not in self.paths_of(ledger.ledger_id):
                raise FormatError(f"{ledger.path} is not where the metadata of ledger {ledger.ledger_id} is kept")
        errors = self._store.write_many([Write(ledger.path, ledger.raw, ledger.version) for ledger in ledgers])
        for error in errors:
            if error is not None:
                _LOG.info("%s", error)
        return [error is None for error in errors]

    def touch_many(self, ledgers: Sequence[StoredLedger]) -> list[bool]:
        """Write each node once more as it was read, if it still has that version; return which were, in that order.

        A client that read a node before cannot delete it by that version afterwards. StoreError as `restore_many`.
        """
        return self.restore_many([Restoration(one.ledger_id, one.path, one.raw, one.version) for one in ledgers])

    def change_holders(
        self, changes: Mapping[int, HolderChange], is_ours: Callable[[StoredLedger], bool] = lambda _: True
    ) -> list[int]:
        """Have ledgers that name their former holder name the other one; return those that were written meanwhile.

        What names any other holder, or none, stays as it is. Raises FormatError for metadata of another version than 3,
        before anything is written, and StoreError as `restore_many`.
        """
        changed = [
            Restoration(
                *(found.ledger_id, found.path),
                with_custom_metadata(found.raw, expected_custom_metadata(changes[found.ledger_id].holder)),
                found.version,
            )
            for found in self.read_many(sorted(changes))
            if isinstance(found, StoredLedger)
            and is_ours(found)
            and custom_metadata_mismatch(changes[found.ledger_id].former, found.metadata.custom) is None
        ]
        written = self.restore_many(changed)
        return [one.ledger_id for one, is_written in zip(changed, written, strict=True) if not is_written]

    def _known_layouts(self) -> tuple[LedgerLayout, ...]:
        if self._layouts is None:
            (node,) = self._get_below_root([f"{self._root}/LAYOUT"])
            layout = LedgerLayout.HIERARCHICAL if node is None else parse_layout(node.value)
            self._layouts = tuple(dict.fromkeys((LedgerLayout.HIERARCHICAL, layout)))
        return self._layouts

    def _places(self, ledger_id: int, layouts: Sequence[LedgerLayout]) -> tuple[str, ...]:
        if len(layouts) == 1:
            return (ledger_path(self._root, ledger_id, layouts[0]),)
        paths = [ledger_path(self._root, ledger_id, layouts[0])]
        for layout in layouts[1:]:
            if layout is LedgerLayout.LEGACY_HIERARCHICAL:
                # It holds no id that the hybrid would put elsewhere, save a few beyond Java's int that are never given.
                continue
            paths.append(ledger_path(self._root, ledger_id, layout))
        return tuple(dict.fromkeys(paths))

    def _get_below_root(self, paths: Sequence[str]) -> list[Versioned | None]:
        # Below a missing root every ledger would seem to be gone already.
        *values, root = self._store.get_many([*paths, self._root or "/"])
        if root is None:
            raise StoreError(f"the metadata store has no ledgers root {self._root}: check the setting ledgers_root")
        return values


def _reading_among(ledger_id: int, places: Sequence[tuple[str, Versioned | None]]) -> LedgerReading:
    found = [(path, node) for path, node in places if node is not None]
    if len(found) > 1:
        return UnreadableLedger(ledger_id, f"it has two metadata nodes, {found[0][0]} and {found[1][0]}")
    return _reading(ledger_id, *(found or places)[0])


def _reading(ledger_id: int, path: str, node: Versioned | None) -> LedgerReading:
    if node is None:
        return AbsentLedger(ledger_id)
    try:
        metadata = decode_ledger_metadata(node.value)
    except FormatError as error:
        return UnreadableLedger(ledger_id, f"{path}: {error}")
    return StoredLedger(
        *(ledger_id, path, node.version, node.created_ms, node.value, metadata, node.modifications),
        modified_ms=node.modified_ms,
    )
