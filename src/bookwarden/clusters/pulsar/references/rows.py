"""The rows of a scan: each ledger that a node names, and each offloaded copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bookwarden.clusters.pulsar.references.nodes import CursorNode, ManagedLedgerNode, ReferenceNode
from bookwarden.ledgers.kinds import CursorHolder, PlaceKind
from bookwarden.ledgers.listing import ListedCopy, ListedReference
from bookwarden.ledgers.managed_ledger import ManagedLedgerInfo, OffloadInfo, OffloadSegment
from bookwarden.ledgers.offloaded_copies import store_location
from bookwarden.ledgers.references import NodeReferences, ReferencePlace


def rows_of(node: ReferenceNode, references: NodeReferences) -> Iterable[ListedReference]:
    """Make a row of each ledger that the node names, or a row without a ledger if it names none."""
    if references.managed_ledger is not None:
        ((place, _),) = references.named
        return _rows_of_topic(place, references.managed_ledger)
    return _rows_of_others(node, references)


def _rows_of_others(node: ReferenceNode, references: NodeReferences) -> Iterator[ListedReference]:
    info = references.cursor
    managed_ledger = node.managed_ledger if isinstance(node, CursorNode) else None
    for place, ledger_ids in references.named:
        gone = place.kind is PlaceKind.COMPACTED and info is not None and info.cursors_ledger_id is not None
        for ledger_id in ledger_ids or (None,):
            yield _row(ledger_id, place, managed_ledger)._replace(gone=gone)
    if isinstance(node, CursorNode) and info is not None and info.cursors_ledger_id is None:
        holder = str(CursorHolder(node.managed_ledger, node.cursor))
        yield _row(None, ReferencePlace(PlaceKind.CURSOR, holder, node.path, references.root), managed_ledger)


def _rows_of_topic(place: ReferencePlace, info: ManagedLedgerInfo) -> Iterable[ListedReference]:
    if not info.ledgers:
        return (_row(None, place, place.holder),)
    kind, holder, path, root = place.kind.value, place.holder, place.path, place.root
    return [
        ListedReference(
            ledger_id, kind, holder, holder, path, root, size, offload is not None and offload.bookkeeper_deleted
        )
        for ledger_id, _, size, _, offload in info.ledgers
    ]


def _row(ledger_id: int | None, place: ReferencePlace, managed_ledger: str | None) -> ListedReference:
    return ListedReference(ledger_id, place.kind.value, place.holder, managed_ledger, place.path, place.root)


def copies_of(node: ReferenceNode, references: NodeReferences) -> Iterator[ListedCopy]:
    """Make a row of each offloaded copy, and of each segment of the former streaming offload, finished or not."""
    info = references.managed_ledger
    if not isinstance(node, ManagedLedgerNode) or info is None:
        return
    for ledger in info.ledgers:
        if ledger.offload is None:
            continue
        copies: tuple[OffloadInfo | OffloadSegment, ...] = (ledger.offload, *ledger.offload.segments)
        for copy in copies:
            if copy.uuid.int:
                location = store_location(copy.driver_name, copy.driver_metadata)
                yield ListedCopy(
                    copy.uuid, ledger.ledger_id, node.name, location.driver, location.bucket, references.root
                )
