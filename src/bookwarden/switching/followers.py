"""Processes that follow the registry, whether or not they are live brokers; which brokers those are is in `brokers`.

Format: each broker with the jar has an ephemeral node below `FOLLOWERS_PATH`, whose value is JSON with the epoch that
it follows.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from bookwarden.metastore.interface import MetadataStore
from bookwarden.switching.registry import FOLLOWERS_PATH

BROKERS_PATH: Final = "/loadbalance/brokers"


class Follower(NamedTuple):
    """A process that follows the registry."""

    node: str  #: The path of its node.
    epoch: int | None  #: That it follows; None where its node cannot be understood.
    host: str  #: For people; empty where its node does not tell it.


def read_followers(store: MetadataStore) -> list[Follower]:
    """Read all followers from Pulsar's own store, never older than this call."""
    store.sync()
    paths = [f"{FOLLOWERS_PATH}/{name}" for name in store.children_of(FOLLOWERS_PATH)]
    nodes = zip(paths, store.get_many(paths), strict=True)
    return [Follower(path, *_told(node.value)) for path, node in nodes if node is not None]


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
