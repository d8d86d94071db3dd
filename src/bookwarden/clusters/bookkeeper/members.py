"""The bookies of a cluster: those that run, and those that ever joined and were not decommissioned.

Format: discover.ZKRegistrationManager of BookKeeper 4.17: ``<root>/available`` has a node for each bookie that takes
new ledgers, ``available/readonly`` for each that does not, ``cookies`` one for each that joined.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from bookwarden.ledgers.cluster_identity import INSTANCE_NODE, instance_id_in
from bookwarden.metastore.interface import MetadataStore

_READ_ONLY: Final = "readonly"


class Members(NamedTuple):
    """Ids of bookies."""

    writable: frozenset[str]
    read_only: frozenset[str]
    known: frozenset[str]


def read_members(store: MetadataStore, root: str) -> Members:
    """Read the bookies below this ledgers root."""
    available = f"{root}/available"
    writable, read_only, known = store.list_many([available, f"{available}/{_READ_ONLY}", f"{root}/cookies"])
    return Members(frozenset(writable) - {_READ_ONLY}, frozenset(read_only), frozenset(known))


def read_instance(store: MetadataStore, root: str) -> str:
    """Read the instance id of the cluster at this root; "" if there is none. FormatError for what is no text."""
    node = store.get(f"{root}/{INSTANCE_NODE}")
    return instance_id_in(None if node is None else node.value)
