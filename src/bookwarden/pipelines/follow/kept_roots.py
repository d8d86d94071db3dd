"""The metadata roots of a kept state, and which of the settings' roots each of them is.

A root has no name of its own, and its URL changes: a host is added, or Pulsar moves the metadata to another store
(PIP-454). It is known by what its nodes name, since no two roots of a BookKeeper have a ledger in common.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final
from zlib import crc32

from bookwarden.errors import RefusedError
from bookwarden.follow.table import NodeNow
from bookwarden.ledgers.nodes.naming import ids_in
from bookwarden.metastore.urls import is_same_store

_SAMPLE: Final = 500
_ID_BYTES: Final = 8


class KeptRoot:
    """A root in a kept state: a sample of its nodes, and the keys of what is still to be looked at."""

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {}
        self.timers: set[str] = set()
        self._mask = 0

    @property
    def is_without_nodes(self) -> bool:
        """Whether none of its nodes names a ledger."""
        return not self.nodes and not self._mask

    def take(self, rows: Iterable[tuple[str, bytes | None]]) -> None:
        """Take path and naming of its nodes, in their order; None for one that is gone, or names no ledger."""
        for path, naming in rows:
            if crc32(path.encode()) & self._mask:
                continue
            if naming is not None and ids_in(naming):
                self.nodes[path] = naming
            else:
                self.nodes.pop(path, None)
            if len(self.nodes) > _SAMPLE:
                # The same nodes each time, so that a later row of one replaces its earlier one.
                self._mask = 2 * self._mask + 1
                self.nodes = {
                    path: known for path, known in self.nodes.items() if not crc32(path.encode()) & self._mask
                }


def find_roots(
    kept: Mapping[str, KeptRoot], urls: Collection[str], read: Callable[[str, Sequence[str]], list[NodeNow]]
) -> dict[str, str]:
    """Return for the roots that are kept the URLs of now; roots that are none of ``urls`` are left out.

    ``read`` reads nodes of a root by its URL of now. Raises RefusedError where all would be left out, StoreError where
    a root does not answer.
    """
    found = {before: now for before, root in kept.items() if (now := _found(before, root, urls, read)) is not None}
    if kept and not found:
        timers = sum(len(root.timers) for root in kept.values())
        raise RefusedError(
            f"follow.checkpoint is of {', '.join(sorted(kept))}, and metadata_store.urls names {', '.join(urls)}, whose"
            f" nodes do not name the same ledgers: all would be forgotten, and {timers:,} dropped ledgers never looked "
            "at. Name that root, or move the folder away: what was dropped before is found by the orphan scan then"
        )
    return found


def _found(
    before: str, root: KeptRoot, urls: Collection[str], read: Callable[[str, Sequence[str]], list[NodeNow]]
) -> str | None:
    if before in urls:
        return before
    same = next((url for url in urls if is_same_store(before, url)), None)
    if same is not None:
        return same
    if root.is_without_nodes:
        # A timer is only looked at, in all roots.
        return next(iter(urls)) if len(urls) == 1 else None
    return next((url for url in urls if _names_the_same(root.nodes, read(url, list(root.nodes)))), None)


def _names_the_same(known: Mapping[str, bytes], rows: Iterable[NodeNow]) -> bool:
    """Return whether most of these nodes that are there now name a ledger that they named before."""
    there = [row for row in rows if row.naming is not None]
    same = [row for row in there if not _ids(row.naming).isdisjoint(_ids(known[row.path]))]
    return bool(there) and 2 * len(same) > len(there)


def _ids(naming: bytes | None) -> frozenset[bytes]:
    ids = b"" if naming is None else ids_in(naming)
    return frozenset(ids[at : at + _ID_BYTES] for at in range(0, len(ids), _ID_BYTES))
