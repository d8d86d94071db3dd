"""Metadata roots of other Pulsar clusters on the same ensemble: chroots besides those that the settings name.

Two clusters may share one BookKeeper, and a ledger's own metadata does not distinguish them. A root that is not
configured may have the references to half of all ledgers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from bookwarden.clusters.pulsar.metadata.paths import MANAGED_LEDGERS_ROOT
from bookwarden.errors import StoreAccessError
from bookwarden.metastore.interface import MetadataStore

# How deep a chroot may lie, as in zk:host/company/pulsar-1.
_DEPTH: Final = 2
_ASKED_AT_ONCE: Final = 1_000
# Nodes of Pulsar, BookKeeper and ZooKeeper itself: no chroot is below them, and some have millions of names.
_NO_CHROOTS: Final = frozenset(
    {
        MANAGED_LEDGERS_ROOT.strip("/"),
        *("admin", "bookies", "counters", "ledgers", "loadbalance", "namespace", "schemas", "stream"),
        *("zookeeper", "brokers", "consumers", "kafka-acl", "hadoop-ha", "hbase", "solr"),
    }
)

# Called with a node that may not be read, and the error.
Refused = Callable[[str, StoreAccessError], None]


def roots_on(ensemble: MetadataStore, refused: Refused | None = None) -> list[str]:
    """List the chroots with managed ledgers, as paths in a store without a chroot; "" is the root itself.

    Chroots deeper than two names are not found. Raises StoreError where the store does not answer, or refuses; with
    ``refused``, which is called with it, a refused node is omitted.
    """
    ensemble.sync()
    return sorted(_among(ensemble, [""], _DEPTH, refused))


def _among(store: MetadataStore, paths: Sequence[str], depth: int, refused: Refused | None) -> Iterator[str]:
    for at in range(0, len(paths), _ASKED_AT_ONCE):
        yield from _with_managed_ledgers(store, paths[at : at + _ASKED_AT_ONCE])
    if depth:
        below = [f"{path}/{name}" for path in paths for name in _names(store, path, refused) if name not in _NO_CHROOTS]
        yield from _among(store, below, depth - 1, refused)


def _with_managed_ledgers(store: MetadataStore, paths: Sequence[str]) -> list[str]:
    """Return the paths with managed ledgers below them; a node that may not be read counts as there."""
    try:
        nodes = store.get_many([f"{path}{MANAGED_LEDGERS_ROOT}" for path in paths])
    except StoreAccessError:
        if len(paths) == 1:
            return list(paths)
        half = len(paths) // 2
        return _with_managed_ledgers(store, paths[:half]) + _with_managed_ledgers(store, paths[half:])
    return [path for path, node in zip(paths, nodes, strict=True) if node is not None]


def _names(store: MetadataStore, path: str, refused: Refused | None) -> list[str]:
    try:
        return store.children_of(path or "/")
    except StoreAccessError as error:
        if refused is None:
            raise
        refused(path or "/", error)
        return []
