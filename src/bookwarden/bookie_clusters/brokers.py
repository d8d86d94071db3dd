"""Live brokers, and how far each process with the jar follows the registry of bookie clusters.

Format of a broker: its node below `BROKERS_PATH`, which ends with its session. Format of a follower: a node below
`FOLLOWERS_PATH`, made by the jar in the same process over the same store, so that it ends with the same session; its
value is JSON (SeenNode of broker/). A broker without such a node runs without the jar, or does not follow: for it there
is one bookie cluster only, and what it writes there after a switch is lost to the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from bookwarden.bookie_clusters.registry import FOLLOWERS_PATH, BookieCluster
from bookwarden.errors import FormatError
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.records import RECORD, decode_record

#: In `Follower.understands`: ledgers without an owner mark are ours only below a cluster's ``unmarkedBelow``.
UNMARKED_BELOW: Final = "unmarkedBelow"
#: Likewise: a registered cluster's ``storeUrl`` may change.
STORE_URL: Final = "storeUrl"


@dataclass(frozen=True, slots=True)
class RegistryFollower:
    """The state of a process that follows the registry, as its jar reports it."""

    __pydantic_config__ = RECORD

    epoch: int  #: Of the registry that it acts by.
    active: str  #: Name of the bookie cluster that its new ledgers go to.
    owner: str  #: `Registry.owner`, as it read it.
    instances: Mapping[str, str]  #: By the name of each bookie cluster, the instance that it sees there.
    host: str = ""  #: Where it runs, as it says itself.
    pid: int = 0  #: Of its process, likewise.
    jar: str = ""  #: The jar's version.
    unreachable: frozenset[str] = frozenset()  #: Bookie clusters whose metadata it could not read lately.
    #: What of the registry its jar heeds that the jar of 0.1.0 did not know: `UNMARKED_BELOW`, `STORE_URL`.
    understands: frozenset[str] = frozenset()
    reported_ms: int = 0  #: When it last reported that, by the store's clock; not in its record.


@dataclass(frozen=True, slots=True)
class FollowerNode:
    """A follower's node. ``follower`` is None where its value is no good, as ``error`` says."""

    path: str
    keeper: int | str | None  #: `Versioned.keeper`: the node of a broker that is the same process has the same one.
    follower: RegistryFollower | None
    error: str = ""

    @property
    def epoch(self) -> int | None:
        """The epoch that it follows; None where that is not known."""
        return None if self.follower is None else self.follower.epoch


def read_followers(store: MetadataStore) -> list[FollowerNode]:
    """Read all followers from Pulsar's own store, never older than this call."""
    store.sync()
    paths = [f"{FOLLOWERS_PATH}/{name}" for name in store.children_of(FOLLOWERS_PATH)]
    nodes = zip(paths, store.get_many(paths), strict=True)
    return [follower_node(path, node) for path, node in nodes if node is not None]


def follower_node(path: str, node: Versioned) -> FollowerNode:
    """Return what a node below `FOLLOWERS_PATH` says."""
    try:
        return FollowerNode(path, node.keeper, _parsed(node))
    except FormatError as error:
        return FollowerNode(path, node.keeper, None, str(error))


def _parsed(node: Versioned) -> RegistryFollower:
    try:
        found = decode_record(RegistryFollower, node.value)
    except FormatError as error:
        raise FormatError(f"a node below {FOLLOWERS_PATH} is no follower's: {error}") from error
    return replace(found, reported_ms=node.modified_ms)


BROKERS_PATH: Final = "/loadbalance/brokers"
_LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker. ``follower`` is None where it does not follow; ``error`` says so of a node that is no good."""

    name: str
    follower: RegistryFollower | None = None
    error: str = ""

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
            return f"{self.name} ({self.error or 'without the jar'})"
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
        has_jar = broker.follower is not None or broker.error != ""
        return has_jar and not (broker.follows(epoch) and broker.reaches(cluster))

    return await_brokers(store, is_late, wait_s)


def matched(name: str, node: Versioned, followers: Iterable[FollowerNode]) -> Broker:
    """Return the broker of a node, with what the follower of the same session reports.

    Should there be several of these, one that cannot be understood counts, else the one that is furthest behind. A
    store that does not tell sessions shows no broker that follows.
    """
    own = [one for one in followers if one.keeper is not None and one.keeper == node.keeper]
    for one in own:
        if one.error:
            return Broker(name, error=one.error)
    known = (one.follower for one in own if one.follower is not None)
    return Broker(name, min(known, key=lambda follower: follower.epoch, default=None))
