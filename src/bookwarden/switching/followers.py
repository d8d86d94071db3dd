"""Brokers that follow the registry, and those that do not.

Format: each broker with the jar has an ephemeral node below `FOLLOWERS_PATH`, of the same session as its node in
``/loadbalance/brokers``, whose value is JSON with the epoch that it follows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.registry import FOLLOWERS_PATH

BROKERS_PATH: Final = "/loadbalance/brokers"


class Follower(NamedTuple):
    """A broker that follows the registry."""

    node: str  #: The path of its node.
    epoch: int | None  #: That it follows; None where its node cannot be understood.
    host: str  #: For people; empty where its node does not tell it.
    session: int | str | None  #: What its node ends with (`Versioned.keeper`); None where the store does not tell it.


def read_followers(store: MetadataStore) -> list[Follower]:
    """Read all followers from Pulsar's own store, never older than this call."""
    store.sync()
    paths = [f"{FOLLOWERS_PATH}/{name}" for name in store.children_of(FOLLOWERS_PATH)]
    nodes = zip(paths, store.get_many(paths), strict=True)
    return [Follower(path, *_told(node.value), node.keeper) for path, node in nodes if node is not None]


def brokers_without_jar(store: MetadataStore, followers: Sequence[Follower]) -> list[str]:
    """List the live brokers that no follower shares the session of; read after the followers, never older."""
    store.sync()
    names = store.children_of(BROKERS_PATH)
    nodes = store.get_many([f"{BROKERS_PATH}/{name}" for name in names])
    sessions = {follower.session for follower in followers} - {None}
    return [name for name, node in zip(names, nodes, strict=True) if node is not None and node.keeper not in sessions]


def _told(value: bytes) -> tuple[int | None, str]:
    try:
        fields = json.loads(value)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        return None, ""
    if not isinstance(fields, dict):
        return None, ""
    epoch, host = fields.get("epoch"), fields.get("host")
    is_number = isinstance(epoch, int) and not isinstance(epoch, bool)
    return epoch if is_number else None, host if isinstance(host, str) else ""
