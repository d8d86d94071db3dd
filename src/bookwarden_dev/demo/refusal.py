"""ZooKeeper's refusal to delete ledgers, as long as an act of the demo needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from bookwarden.clusters.bookkeeper.ledger_paths import ledger_path

# That of the first ten thousand ids, as many as no demo gets.
_FOLDER: Final = ledger_path("/ledgers", 0).rpartition("/")[0]


@contextmanager
def refused_deletes(store_url: str) -> Iterator[None]:
    """Keep everybody from deleting ledgers' metadata during the block, by a permission that ZooKeeper takes away."""
    client = KazooClient(store_url.removeprefix("zk:"))
    client.start()
    try:
        client.set_acls(_FOLDER, [make_acl("world", "anyone", read=True, write=True, create=True, admin=True)])
        yield
    finally:
        client.set_acls(_FOLDER, OPEN_ACL_UNSAFE)
        client.stop()
        client.close()
