"""Metadata roots of other Pulsar clusters on the same ensemble: chroots beside those that the settings name.

Two clusters may share one BookKeeper, and what a ledger says of itself does not tell them apart. A root that is not
configured is where the references to half of all ledgers may stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bookwarden.clusters.bookkeeper.catalog import DEFAULT_LEDGERS_ROOT
from bookwarden.clusters.pulsar.metadata_paths import MANAGED_LEDGERS_ROOT
from bookwarden.metastore.interface import MetadataStore

# How deep a chroot may lie, as in zk:host/company/pulsar-1.
_DEPTH: Final = 2
# Nodes of a Pulsar, a BookKeeper and ZooKeeper itself: none of them is above a chroot, and some have millions of names.
_NO_CHROOTS: Final = frozenset(
    {
        MANAGED_LEDGERS_ROOT.strip("/"),
        *("admin", "bookies", "counters", "ledgers", "loadbalance", "namespace", "schemas", "stream"),
        *("zookeeper", "brokers", "consumers", "kafka-acl", "hadoop-ha", "hbase", "solr"),
    }
)


def roots_on(ensemble: MetadataStore) -> list[str]:
    """Name the chroots with managed ledgers, as paths in a store without a chroot; the root of all is "".

    Chroots deeper than two names are not found. Raises StoreError where the store does not answer, or does not let us
    look.
    """
    return list(_below(ensemble, "", _DEPTH))


def roots_without_bookkeeper(ensemble: MetadataStore, ledgers_root: str | None) -> list[str]:
    """Name the chroots whose Pulsar may use the BookKeeper at this path; None for a BookKeeper on another ensemble.

    A Pulsar with a BookKeeper in its own chroot is left out: it is taken to use that one. Raises as `roots_on` does.
    """
    return [root for root in roots_on(ensemble) if not _has_its_own(ensemble, root, ledgers_root)]


def _has_its_own(ensemble: MetadataStore, root: str, ledgers_root: str | None) -> bool:
    own = root + DEFAULT_LEDGERS_ROOT
    return own != ledgers_root and any(ensemble.get_many([f"{own}/LAYOUT", f"{own}/INSTANCEID"]))


def _below(ensemble: MetadataStore, path: str, depth: int) -> Iterator[str]:
    names = ensemble.children_of(path or "/")
    if MANAGED_LEDGERS_ROOT.strip("/") in names:
        yield path
    if depth:
        for name in names:
            if name not in _NO_CHROOTS:
                yield from _below(ensemble, f"{path}/{name}", depth - 1)
