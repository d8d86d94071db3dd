"""Two brokers that follow two registries which name different active bookie clusters, while bundles move."""

from __future__ import annotations

import dataclasses
import time

from bookwarden.switching.registry import REGISTRY_PATH, serialize_registry
from servers.switching.site import SwitchingSite
from servers.switching.watched_load import WatchedLoad
from servers.waiting import eventually

OTHER_REGISTRY = f"{REGISTRY_PATH}-of-one"
_PATIENCE_S = 120.0


def part_ways(site: SwitchingSite) -> None:
    """Let the last broker follow a registry of its own, in which another cluster is active; it is started anew."""
    own = site.registry()
    (other,) = own.clusters.keys() - {own.active}
    apart = dataclasses.replace(own, epoch=own.epoch + 1, active=other, directive=None)
    node = site.store.get(OTHER_REGISTRY)
    if node is None:
        site.store.create(OTHER_REGISTRY, serialize_registry(apart))
    else:
        site.store.put(OTHER_REGISTRY, serialize_registry(apart), node.version)
    last = site.brokers[-1]
    last.settings["bookkeeper_bookwardenRegistry"] = OTHER_REGISTRY
    last.process.restart()
    eventually(lambda: site.metric("epoch") == [*[own.epoch] * (len(site.brokers) - 1), apart.epoch], _PATIENCE_S)


def agree_again(site: SwitchingSite) -> None:
    """Let all brokers follow one registry; the one that did not is started anew."""
    last = site.brokers[-1]
    del last.settings["bookkeeper_bookwardenRegistry"]
    last.process.restart()
    site.wait_until_followed()


def move_bundles(site: SwitchingSite, load: WatchedLoad, seconds: float) -> int:
    """Move all bundles between the brokers for so long; return how often."""
    end, moves = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        moves += 1
        site.spread(load.topics, moves)
        load.goes_on()
    return moves
