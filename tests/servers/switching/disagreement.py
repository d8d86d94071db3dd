"""Two brokers that follow two registries which name different active bookie clusters, while bundles move."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bookwarden.bookie_clusters.registry import REGISTRY_PATH, serialize_registry
from servers.switching.site import SwitchingSite
from servers.switching.watched_load import WatchedLoad
from servers.waiting import eventually

OTHER_REGISTRY = f"{REGISTRY_PATH}-of-one"
_PATIENCE_S = 120.0


@contextmanager
def disagreement(site: SwitchingSite) -> Iterator[None]:
    """Let the last broker follow a registry of its own for the block, in which another cluster is active.

    It is started anew before the block and after it.
    """
    own = site.registry()
    other = min(own.clusters.keys() - {own.active})
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
    try:
        yield
    finally:
        del last.settings["bookkeeper_bookwardenRegistry"]
        last.process.restart()
        site.wait_until_followed()


def move_bundles(site: SwitchingSite, load: WatchedLoad, seconds: float) -> int:
    """Move all bundles between the brokers for so long, and at least there and back; return how often."""
    end, moves = time.monotonic() + seconds, 0
    while time.monotonic() < end or moves < 2:
        moves += 1
        site.spread(load.topics, moves)
        load.goes_on()
    return moves
