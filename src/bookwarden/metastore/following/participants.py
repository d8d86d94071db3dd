"""Participants of a metadata migration: the processes that it waits for, by their nodes in the source.

Format: DualMetadataStore of Pulsar 4.2: ephemeral nodes without a value; bookwarden's own say whose they are
(metastore.following.follower).
"""

from __future__ import annotations

from typing import NamedTuple

from bookwarden.metastore.following.readings import PARTICIPANTS_PATH
from bookwarden.metastore.interface import MetadataStore


class Participant(NamedTuple):
    """A registered process: its node's name, its session, its own description, and since when (ms)."""

    name: str
    session: int | None
    whose: str
    since_ms: int


def read_participants(source: MetadataStore) -> list[Participant]:
    """Read the processes registered now, in the order of registration; none without a node for them."""
    names = sorted(source.list_many([PARTICIPANTS_PATH])[0])
    nodes = source.get_many([f"{PARTICIPANTS_PATH}/{name}" for name in names])
    return [
        Participant(name, node.session, node.value.decode("utf-8", "replace"), node.created_ms)
        for name, node in zip(names, nodes, strict=True)
        if node is not None
    ]
