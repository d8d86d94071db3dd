"""The managed ledgers of a metadata root, found by walking its nodes: a computed name may be another topic's.

Below ``/managed-ledgers`` a managed ledger has four parts, ``tenant/namespace/persistent/topic``, or five in names of
the first version, ``tenant/cluster/namespace/persistent/topic`` (TopicName of Pulsar 4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bookwarden.clusters.pulsar.metadata.paths import MANAGED_LEDGERS_ROOT
from bookwarden.errors import NotFoundError, StoreAccessError, StoreError
from bookwarden.metastore.interface import MetadataStore

_DOMAIN = "persistent"

# Called with a node whose children may not be listed: its name below the top of the walk, and the error.
Refused = Callable[[str, StoreAccessError], None]


def walk_managed_ledgers(store: MetadataStore) -> Iterator[list[str]]:
    """Yield all managed ledgers, those of a namespace at a time.

    Where a namespace and a topic are both called "persistent" a name may be that of a cursor. Raises StoreError
    where the store does not answer or holds no managed ledgers at all.
    """
    for folder, topics in walk_topic_folders(store):
        yield [f"{folder}/{topic}" for topic in topics]


def walk_topic_folders(store: MetadataStore, refused: Refused | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield each node below which topics are, such as ``tenant/namespace/persistent``, and its children.

    Raises as walking managed ledgers does; with ``refused``, which is called with it, a tenant or namespace that the
    store refuses to list is omitted.
    """
    try:
        tenants = store.list_children(MANAGED_LEDGERS_ROOT)
    except NotFoundError as error:
        raise StoreError(f"a metadata store has no node {MANAGED_LEDGERS_ROOT}, so it is no Pulsar's") from error
    for tenant in tenants:
        for namespace in _children(store, tenant, refused):
            yield from _of_namespace(store, f"{tenant}/{namespace}", refused)


def _of_namespace(store: MetadataStore, namespace: str, refused: Refused | None) -> Iterator[tuple[str, list[str]]]:
    for part in _children(store, namespace, refused):
        below = f"{namespace}/{part}"
        names = _children(store, below, refused)
        if part == _DOMAIN:
            yield below, names
        if part != _DOMAIN or _DOMAIN in names:
            # A name of the first version: this part is the namespace, and the one above it the cluster.
            domains = names if part != _DOMAIN else [_DOMAIN]
            for domain in domains:
                yield f"{below}/{domain}", _children(store, f"{below}/{domain}", refused)


def _children(store: MetadataStore, name: str, refused: Refused | None) -> list[str]:
    return children_unless_refused(store, MANAGED_LEDGERS_ROOT, name, refused)


def children_unless_refused(store: MetadataStore, top: str, name: str, refused: Refused | None) -> list[str]:
    """List the children of a node below ``top``; if the store refuses, call ``refused`` and return none, or raise."""
    try:
        return store.children_of(f"{top}/{name}")
    except StoreAccessError as error:
        if refused is None:
            raise
        refused(name, error)
        return []
