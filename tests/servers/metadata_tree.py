"""A ZooKeeper root of a test's own, with nodes as a broker and a bookie make them."""

from __future__ import annotations

from contextlib import closing
from uuid import uuid4

from bookwarden.metastore.urls import open_store

LEDGERS = [f"/ledgers/00/{directory:04d}/L{number:04d}" for directory in range(3) for number in range(60)]
CURSORS = [f"/managed-ledgers/t/n/persistent/topic-{topic:02d}/{name}" for topic in range(25) for name in ("a", "ü%2F")]
WRITTEN_AGAIN = CURSORS[:10]


def empty_root(hosts: str) -> str:
    """Make a chroot; return its URL."""
    url = f"zk:{hosts}/m-{uuid4().hex}"
    with closing(open_store(f"zk:{hosts}")) as store:
        store.create(f"/{url.partition('/')[2]}", b"")
    return url


def filled_root(hosts: str) -> str:
    """Make a chroot with ledgers and topics, some of them written again; return its URL."""
    url = empty_root(hosts)
    with closing(open_store(url)) as store:
        for path in (*LEDGERS, *CURSORS):
            store.create(path, path.encode(), make_parents=True)
        store.create("/empty", b"")
        for path in WRITTEN_AGAIN:
            assert store.put(path, b"again", store.put(path, b"once", 0)) == 2
    return url
