"""Processes that follow the registry, whether or not they are live brokers; which brokers those are is in `brokers`.

Format: each broker with the jar has a node below `FOLLOWERS_PATH` that ends with its session, whose value is JSON
(SeenNode of broker/).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bookwarden.errors import FormatError
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.switching.registry import FOLLOWERS_PATH

#: In `Follower.understands`: ledgers without an owner mark are ours only below a cluster's ``unmarkedBelow``.
UNMARKED_BELOW: Final = "unmarkedBelow"
#: Likewise: a registered cluster's ``storeUrl`` may change.
STORE_URL: Final = "storeUrl"


@dataclass(frozen=True, slots=True)
class Follower:
    """The state of a process that follows the registry, as its jar tells it."""

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
    told_ms: int = 0  #: When it last said so, by the store's clock.


@dataclass(frozen=True, slots=True)
class FollowerNode:
    """A follower's node. ``follower`` is None where its value is no good, as ``trouble`` says."""

    path: str
    keeper: int | str | None  #: `Versioned.keeper`: the node of a broker that is the same process has the same one.
    follower: Follower | None
    trouble: str = ""

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


def _parsed(node: Versioned) -> Follower:
    try:
        fields: Any = json.loads(node.value)
        epoch, pid = fields["epoch"], fields.get("pid", 0)
        instances, unreachable = fields["instances"], fields.get("unreachable", [])
        understands = fields.get("understands", [])
        texts = (fields["active"], fields["owner"], *instances, *instances.values(), *unreachable, *understands)
        numbers = (type(one) is int for one in (epoch, pid))
        if not all(numbers) or not all(isinstance(one, str) for one in texts):
            raise TypeError("a field of another type")
        host, jar = str(fields.get("host", "")), str(fields.get("jar", ""))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"a node below {FOLLOWERS_PATH} is no follower's: {error}") from error
    return Follower(
        epoch,
        fields["active"],
        fields["owner"],
        dict(instances),
        host,
        pid,
        jar,
        frozenset(unreachable),
        frozenset(understands),
        node.modified_ms,
    )
