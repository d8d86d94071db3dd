"""The managed ledgers of a metadata root, found by walking its nodes: a name computed from a topic's may be another's.

Below ``/managed-ledgers`` a managed ledger has four parts, ``tenant/namespace/persistent/topic``, or five in names of
the first version, ``tenant/cluster/namespace/persistent/topic`` (TopicName of Pulsar 4.0).
"""

from __future__ import annotations

from collections.abc import Iterator

from bookwarden.clusters.pulsar.metadata_paths import MANAGED_LEDGERS_ROOT
from bookwarden.errors import NotFoundError, StoreError
from bookwarden.metastore.interface import MetadataStore

_DOMAIN = "persistent"


def walk_managed_ledgers(store: MetadataStore) -> Iterator[list[str]]:
    """Name all managed ledgers, those of a namespace at a time.

    Where a namespace and a topic are both called "persistent" a name may be that of a cursor. Raises StoreError
    where the store does not answer or holds no managed ledgers at all.
    """
    try:
        tenants = store.list_children(MANAGED_LEDGERS_ROOT)
    except NotFoundError as error:
        raise StoreError(f"a metadata store has no node {MANAGED_LEDGERS_ROOT}, so it is no Pulsar's") from error
    for tenant in tenants:
        for namespace in children_of(store, f"{MANAGED_LEDGERS_ROOT}/{tenant}"):
            yield from _of_namespace(store, f"{tenant}/{namespace}")


def _of_namespace(store: MetadataStore, namespace: str) -> Iterator[list[str]]:
    for part in children_of(store, f"{MANAGED_LEDGERS_ROOT}/{namespace}"):
        below = f"{namespace}/{part}"
        names = children_of(store, f"{MANAGED_LEDGERS_ROOT}/{below}")
        if part == _DOMAIN:
            yield [f"{below}/{name}" for name in names]
        if part != _DOMAIN or _DOMAIN in names:
            # A name of the first version: this part is the namespace, and the one above it the cluster.
            domains = names if part != _DOMAIN else [_DOMAIN]
            for domain in domains:
                topics = children_of(store, f"{MANAGED_LEDGERS_ROOT}/{below}/{domain}")
                yield [f"{below}/{domain}/{topic}" for topic in topics]


def children_of(store: MetadataStore, path: str) -> list[str]:
    """Name the children of a node; none if it vanished since it was listed."""
    try:
        return store.list_children(path)
    except NotFoundError:
        return []
