"""Tenants and namespaces that exist: the policies that Pulsar keeps of each.

Source: TenantResources and NamespaceResources of Pulsar 4.0. They are in the configuration store, mostly the
metadata store itself; a root without any policies does not show which exist.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from bookwarden.errors import NotFoundError
from bookwarden.metastore.interface import MetadataStore

_POLICIES_ROOT: Final = "/admin/policies"


def known_tenants(store: MetadataStore) -> frozenset[str] | None:
    """List the tenants that exist; None where the root keeps no policies."""
    store.sync()
    try:
        return frozenset(store.list_children(_POLICIES_ROOT))
    except NotFoundError:
        return None


def known_namespaces(store: MetadataStore) -> frozenset[str] | None:
    """List the namespaces that exist, ``tenant/namespace`` or in the first version ``tenant/cluster/namespace``.

    None where the root keeps no policies.
    """
    tenants = known_tenants(store)
    if tenants is None:
        return None
    # In names of the first version the second part is a cluster, whose node has no value of its own.
    seconds = [
        f"{tenant}/{name}" for tenant in sorted(tenants) for name in store.children_of(f"{_POLICIES_ROOT}/{tenant}")
    ]
    values = store.get_many([f"{_POLICIES_ROOT}/{second}" for second in seconds])
    known = {second for second, node in zip(seconds, values, strict=True) if node is not None and node.value}
    for second, node in zip(seconds, values, strict=True):
        # Most stores tell with the value that nothing is below, which saves a request for each namespace.
        if node is not None and node.children != 0:
            known.update(f"{second}/{name}" for name in store.children_of(f"{_POLICIES_ROOT}/{second}"))
    return frozenset(known)


def tenants_in(stores: Collection[MetadataStore]) -> frozenset[str]:
    """List the tenants that any of the roots keeps policies of."""
    return frozenset().union(*(known_tenants(store) or () for store in stores))


def namespaces_in(stores: Collection[MetadataStore]) -> frozenset[str]:
    """List the namespaces that any of the roots keeps policies of, as `known_namespaces` does."""
    return frozenset().union(*(known_namespaces(store) or () for store in stores))
