"""Live brokers, and how far each follows the registry of bookie clusters.

Formats: the nodes of ``/loadbalance/brokers``, one for each live broker, which ends with its session; below
`FOLLOWERS_PATH` the node that the jar makes in the same process over the same store, so that it ends with the same
session (bookwarden.broker of broker/). A broker without such a node runs without the jar, or does not follow: for it
there is one bookie cluster only, and what it writes there after a switch is lost to the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bookwarden.errors import FormatError
from bookwarden.metastore.interface import MetadataStore, Versioned
from bookwarden.switching.followers import BROKERS_PATH
from bookwarden.switching.registry import FOLLOWERS_PATH


@dataclass(frozen=True, slots=True)
class Follower:
    """A broker's state, as its jar tells it."""

    epoch: int  #: Of the registry that the broker acts by.
    active: str  #: Name of the bookie cluster that its new ledgers go to.
    owner: str  #: `Registry.owner`, as it read it.
    instances: Mapping[str, str]  #: By the name of each bookie cluster, the instance that the broker sees there.
    host: str = ""  #: Where it runs, as it says itself.
    pid: int = 0  #: Of its process, likewise.
    jar: str = ""  #: The jar's version.
    unreachable: frozenset[str] = frozenset()  #: Bookie clusters whose metadata it could not read lately.
    told_ms: int = 0  #: When it last said so, by the store's clock.


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
    names, followers = store.list_many([BROKERS_PATH, FOLLOWERS_PATH])
    nodes = store.get_many([f"{BROKERS_PATH}/{name}" for name in names])
    told = [node for node in store.get_many([f"{FOLLOWERS_PATH}/{name}" for name in followers]) if node is not None]
    return [matched(name, node, told) for name, node in zip(names, nodes, strict=True) if node is not None]


def matched(name: str, node: Versioned, told: Iterable[Versioned]) -> Broker:
    """Return the broker of a node, with what is told by a node of the same session.

    Should there be several of these, the one that is furthest behind counts. A store that does not tell sessions
    shows no broker that follows.
    """
    own = [one for one in told if node.keeper is not None and one.keeper == node.keeper]
    if not own:
        return Broker(name)
    try:
        return Broker(name, min((parse_follower(one) for one in own), key=lambda follower: follower.epoch))
    except FormatError as error:
        return Broker(name, trouble=str(error))


def parse_follower(node: Versioned) -> Follower:
    """Parse a follower's node; FormatError if it is none."""
    try:
        fields: Any = json.loads(node.value)
        epoch, pid = fields["epoch"], fields.get("pid", 0)
        instances, unreachable = fields["instances"], fields.get("unreachable", [])
        texts = (fields["active"], fields["owner"], *instances, *instances.values(), *unreachable)
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
        node.modified_ms,
    )
