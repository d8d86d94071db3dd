"""Live brokers, and how far each follows the registry of bookie clusters.

Format: the nodes of `BROKERS_PATH`, one for each live broker, which ends with its session. A follower's node is made by
the jar in the same process over the same store, so that it ends with the same session. A broker without such a node
runs without the jar, or does not follow: for it there is one bookie cluster only, and what it writes there after a
switch is lost to the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.switching.followers import Follower, FollowerNode, read_followers
from bookwarden.switching.registry import BookieCluster

BROKERS_PATH: Final = "/loadbalance/brokers"
_LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker. ``follower`` is None where it does not follow; ``trouble`` says so of a node that is no good."""

    name: str
    follower: Follower | None = None
    trouble: str = ""

    def follows(self, epoch: int) -> bool:
        """Return whether it acts by the registry of this epoch, or a later one."""
        return self.follower is not None and self.follower.epoch >= epoch

    def knows(self, cluster: BookieCluster) -> bool:
        """Return whether it acts by a registry that has this cluster, so that it reads, and may write, there."""
        return self.follows(cluster.since)

    def reads(self, name: str) -> bool:
        """Return whether it reads the metadata of the cluster that it knows by this name."""
        return self.follower is not None and name in self.follower.instances and name not in self.follower.unreachable

    def reaches(self, cluster: BookieCluster) -> bool:
        """Return whether it reads that cluster's metadata, and found it to be that cluster."""
        return (
            self.follower is not None
            and self.knows(cluster)
            and self.reads(cluster.name)
            and self.follower.instances[cluster.name] == cluster.instance
        )

    def described(self) -> str:
        """Return its name, and what it follows."""
        if self.follower is None:
            return f"{self.name} ({self.trouble or 'without the jar'})"
        return f"{self.name} (epoch {self.follower.epoch})"


def read_brokers(store: MetadataStore) -> list[Broker]:
    """Read all live brokers, each with what it follows, by name; StoreError if the store does not answer."""
    store.sync()
    names = store.children_of(BROKERS_PATH)
    nodes = store.get_many([f"{BROKERS_PATH}/{name}" for name in names])
    followers = read_followers(store)
    return [matched(name, node, followers) for name, node in zip(names, nodes, strict=True) if node is not None]


def await_brokers(
    store: MetadataStore, is_late: Callable[[Broker], bool], wait_s: float, sleep: Callable[[float], None] = time.sleep
) -> list[Broker]:
    """Wait until no live broker is late; return those that still are after this time."""
    deadline = time.monotonic() + wait_s
    while True:
        late = [broker for broker in read_brokers(store) if is_late(broker)]
        if not late or time.monotonic() >= deadline:
            return late
        sleep(_LOOK_EVERY_S)


def await_reached(store: MetadataStore, cluster: BookieCluster, epoch: int, wait_s: float) -> list[Broker]:
    """Wait until each live broker with the jar acts by this epoch and reaches the cluster; return those that do not."""

    def is_late(broker: Broker) -> bool:
        has_jar = broker.follower is not None or broker.trouble != ""
        return has_jar and not (broker.follows(epoch) and broker.reaches(cluster))

    return await_brokers(store, is_late, wait_s)


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
