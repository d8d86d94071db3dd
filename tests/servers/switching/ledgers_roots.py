"""Ledgers roots as BookKeeper initialises them, without bookies that run."""

from __future__ import annotations

from uuid import uuid4

from bookwarden.metastore.interface import MetadataStore


def initialise(store: MetadataStore, root: str, bookie: str) -> None:
    """Make the nodes of a bookie cluster with one bookie, which is registered as long as the store is open."""
    store.create(f"{root}/available/readonly", b"", make_parents=True)
    store.create(f"{root}/INSTANCEID", str(uuid4()).encode())
    store.create(f"{root}/cookies/{bookie}", b"", make_parents=True)
    store.ephemeral_sequential(f"{root}/available/{bookie}-", b"")
