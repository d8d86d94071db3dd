"""Live brokers, and how far each follows the registry of bookie clusters.

Format: the nodes of `BROKERS_PATH`, one for each live broker, which ends with its session. A follower's node is made by
the jar in the same process over the same store, so that it ends with the same session. A broker without such a node
runs without the jar, or does not follow: for it there is one bookie cluster only, and what it writes there after a
switch is lost to the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.switching.followers import Follower, FollowerNode, read_followers

BROKERS_PATH: Final = "/loadbalance/brokers"


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker. ``follower`` is None where it does not follow; ``trouble`` says so of a node that is no good."""

    name: str
    follower: Follower | None = None
    trouble: str = ""

    def follows(self, epoch: int) -> bool:
        """Return whether it acts by the registry of this epoch, or a later one."""
        return self.follower is not None and self.follower.epoch >= epoch


def read_brokers(store: MetadataStore) -> list[Broker]:
    """Read all live brokers, each with what it follows, by name; StoreError if the store does not answer."""
    store.sync()
    names = store.children_of(BROKERS_PATH)
    nodes = store.get_many([f"{BROKERS_PATH}/{name}" for name in names])
    followers = read_followers(store)
    return [matched(name, node, followers) for name, node in zip(names, nodes, strict=True) if node is not None]


def matched(name: str, node: Versioned, followers: Iterable[FollowerNode]) -> Broker:
    """Return the broker of a node, with what the follower of the same session tells.

    Should there be several of these, one that cannot be understood counts, else the one that is furthest behind. A
    store that does not tell sessions shows no broker that follows.
    """
    own = [one for one in followers if one.keeper is not None and one.keeper == node.keeper]
    for one in own:
        if one.trouble:
            return Broker(name, trouble=one.trouble)
    known = (one.follower for one in own if one.follower is not None)
    return Broker(name, min(known, key=lambda follower: follower.epoch, default=None))
