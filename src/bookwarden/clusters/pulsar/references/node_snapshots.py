"""Single nodes read for those who follow what they name, and the paths that have such nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from bookwarden.clusters.pulsar.metadata.paths import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT
from bookwarden.clusters.pulsar.references.nodes import (
    CursorNode,
    ManagedLedgerNode,
    ReferenceNode,
    cursor_node,
    managed_ledger_node,
    read_each,
    schema_node,
)
from bookwarden.errors import StoreAccessError
from bookwarden.ledgers.naming import NamedCopy, NodeKind, copies_text, pack_ids
from bookwarden.ledgers.pending_deletion import contexts_of
from bookwarden.metastore.interface import MetadataStore, Versioned

#: The trees whose nodes are followed; logs are not, since their ledgers are never deleted here.
FOLLOWED: Final = (MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT)
_DOMAIN: Final = "persistent"
_AMBIGUOUS: Final = "it may be a topic or a cursor, since the topic above it is called persistent"


class NodeSnapshot(NamedTuple):
    """A snapshot of one node: what it names.

    All is empty with ``problem``, and for a node that is gone, which has no ``version`` either.
    """

    path: str  #: Of the node.
    kind: str  #: Value of a NodeKind.
    version: int | None  #: Of the node; None where there is none, or it was refused.
    at_ms: int  #: When it was last written, or looked for in vain; in ms since the epoch.
    ids: bytes = b""  #: As in `ledgers.naming`.
    places: tuple[str, ...] | None = None  #: Values of the places of these; None where all are the kind's own.
    copies: str | None = None  #: As `ledgers.naming.copies_text` writes them.
    problem: str = ""  #: Why it cannot be read now.


def followed_node(path: str) -> ReferenceNode | None:
    """Return the node at a path; None for one that names no ledgers, as those of tenants."""
    top, _, name = path[1:].partition("/")
    parts = name.split("/")
    if f"/{top}" == SCHEMAS_ROOT:
        return schema_node(name) if len(parts) == 3 else None
    if f"/{top}" != MANAGED_LEDGERS_ROOT:
        return None
    # tenant/namespace/persistent/topic, or tenant/cluster/namespace/persistent/topic of the first version.
    size = 4 if len(parts) > 3 and parts[2] == _DOMAIN else 5 if len(parts) > 4 and parts[3] == _DOMAIN else 0
    if size and len(parts) == size:
        return managed_ledger_node(name)
    if size and len(parts) == size + 1:
        return cursor_node("/".join(parts[:size]), parts[size])
    return None


def kind_of(node: ReferenceNode) -> str:
    """Return the kind of a followed node."""
    if isinstance(node, ManagedLedgerNode):
        return NodeKind.TOPIC.value
    return NodeKind.CURSOR.value if isinstance(node, CursorNode) else NodeKind.SCHEMA.value


def is_ambiguous(path: str) -> bool:
    """Return whether the path could be that of a topic as well as that of a cursor."""
    parts = path.split("/")
    return len(parts) == 7 and parts[4] == parts[5] == _DOMAIN


def snapshot_of(node: ReferenceNode, value: Versioned | StoreAccessError | None, root: str) -> NodeSnapshot:
    """Read what a node says."""
    kind = kind_of(node)
    if isinstance(value, StoreAccessError):
        return NodeSnapshot(node.path, kind, None, _now_ms(), problem=str(value))
    if value is None:
        return NodeSnapshot(node.path, kind, None, _now_ms())
    at_ms = value.modified_ms or value.created_ms
    if is_ambiguous(node.path):
        return NodeSnapshot(node.path, kind, value.version, at_ms, problem=_AMBIGUOUS)
    references = node.read(value, root)
    if references.doubt is not None:
        return NodeSnapshot(node.path, kind, value.version, at_ms, problem=references.doubt.reason)
    places = {ledger_id: place.kind for place, ids in references.named for ledger_id in ids}
    copies: list[NamedCopy] = []
    if references.managed_ledger is not None:
        for ledger in references.managed_ledger.with_copies:
            copies += [NamedCopy(ledger.ledger_id, context) for context in contexts_of(ledger.offload)]
            if ledger.offload is not None and ledger.offload.bookkeeper_deleted:
                places.pop(ledger.ledger_id, None)
    ids = sorted(places)
    own = NodeKind(kind).place
    named = None if all(place is own for place in places.values()) else tuple(places[one].value for one in ids)
    return NodeSnapshot(node.path, kind, value.version, at_ms, pack_ids(ids), named, copies_text(copies))


def read_nodes(store: MetadataStore, root: str, paths: Sequence[str]) -> list[NodeSnapshot]:
    """Read the nodes at these paths, without those that name no ledgers; never older than this call.

    Raises StoreError where the store does not answer.
    """
    nodes = [node for node in map(followed_node, paths) if node is not None]
    if not nodes:
        return []
    store.sync()
    values = read_each(store, [node.path for node in nodes])
    return [snapshot_of(node, value, root) for node, value in zip(nodes, values, strict=True)]


def _now_ms() -> int:
    return int(time.time() * 1000)
