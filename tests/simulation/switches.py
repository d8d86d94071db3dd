"""Switches of bookie clusters: the registry's epoch changes at any time, and directives are lost, doubled or forged."""

from __future__ import annotations

from random import Random

from bookwarden.bookie_clusters.registry import (
    REGISTRY_PATH,
    BookieCluster,
    Registry,
    parse_registry,
    serialize_registry,
)
from bookwarden.clusters.pulsar.messages.switch_events import SWITCH_TOPIC
from bookwarden.ledgers.switch_event import SwitchEvent
from bookwarden.wire.switch_event import encode_switch_event

from . import nodes
from .channel import Topics
from .model import World

_OTHER_ROOT = "/ledgers-b"


def register(world: World) -> None:
    """Register two bookie clusters: all ledgers are on a, and brokers of the model go on making theirs there."""
    roots = {"a": nodes.LEDGERS_ROOT, "b": _OTHER_ROOT}
    world.nodes.write(f"{_OTHER_ROOT}/INSTANCEID", b"another-instance")
    clusters = {
        name: BookieCluster(
            *(name, f"zk+hierarchical://h{root}", None, root, _instance(world, root), number + 1),
            bootstrap=name == "a",
        )
        for number, (name, root) in enumerate(roots.items())
    }
    _write(world, Registry(2, "5f2c9a41", nodes.LEDGERS_ROOT, "a", clusters))


def epoch_of(world: World) -> int:
    """Return the epoch of the registry; 0 without one."""
    registry = registry_of(world)
    return 0 if registry is None else registry.epoch


def registry_of(world: World) -> Registry | None:
    """Return the registry as it is."""
    node = world.nodes.get(REGISTRY_PATH)
    return None if node is None else parse_registry(node.value)


def switch(world: World, topics: Topics, rng: Random) -> None:
    """Switch to the other cluster; the directive may be lost, or come twice."""
    registry = registry_of(world)
    # While the metadata is being moved nothing is written.
    if registry is None or world.nodes.served_by is not None:
        return
    (target,) = registry.clusters.keys() - {registry.active}
    changed = registry.switched(target, "an operator", world.clock.ms)
    _write(world, changed)
    event = SwitchEvent(registry.active, target, "an operator", changed.epoch, world.clock.ms, registry.owner)
    for _ in range(rng.choice((0, 1, 1, 2))):
        _send(topics, encode_switch_event(event))


def forge(world: World, topics: Topics, rng: Random) -> None:
    """Send what is no directive, or one that no switch sent."""
    event = SwitchEvent("a", "b", "a stranger", rng.randrange(1, 9), 0, rng.choice(("5f2c9a41", "00000000")))
    _send(topics, rng.choice((encode_switch_event(event), b"", b"no event", encode_switch_event(event) + b"x")))


def _send(topics: Topics, payload: bytes) -> None:
    topics.add(SWITCH_TOPIC, payload, None, {})


def _instance(world: World, root: str) -> str:
    node = world.nodes.get(f"{root}/INSTANCEID")
    assert node is not None
    return node.value.decode()


def _write(world: World, registry: Registry) -> None:
    world.nodes.write(REGISTRY_PATH, serialize_registry(registry))
