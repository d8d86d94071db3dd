"""Follow and ZooKeeper are killed while topics live, and brokers leave ledgers behind.

What was dropped is written by hand, as a broker that died would leave it, so that it is known.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from bookwarden.errors import StoreError
from bookwarden.ledgers.kinds import Holder
from bookwarden.metastore.urls import open_store
from bookwarden_dev.devcluster import DevCluster
from servers.follow.life import living
from servers.follow.ordinary import GRACE_S
from servers.follow.planted import PlantedNodes
from servers.follow.site import LATE_S, FollowingSite, site_of
from servers.waiting import eventually


def storm(cluster: DevCluster, home: Path, kills: int, seed: int, seconds: float, say: Callable[[str], None]) -> None:
    """Kill follow so often in this time; AssertionError if a drop is missed, or something else is marked."""
    chance = random.Random(seed)
    following = FollowingSite(site_of(cluster, "soak", home / "kills"), grace_s=GRACE_S)
    with closing(open_store(cluster.store_url)) as store:
        planted, expected = PlantedNodes(store, "soak/n"), set[int]()
        topic = planted.topic("dropping")
        named = planted.named(200, topic)
        following.start()
        try:
            with living(cluster, "soak/life", seed) as done:
                for number in range(kills):
                    time.sleep(chance.uniform(0.2, 1.0) * seconds / kills)
                    expected |= _drop(planted, topic, named, chance.randrange(1, 4))
                    following.process.kill()
                    if number % 3 == 2:
                        cluster.zookeeper.kill()
                        cluster.zookeeper.start()
                    expected |= _drop(planted, topic, named, chance.randrange(1, 4))
                    following.start()
                    say(f"kill {number + 1} of {kills}; {len(expected)} ledgers left behind; {dict(done)}")
            eventually(lambda: set(following.marked()) >= expected, GRACE_S + LATE_S, pause=1)
            eventually(following.is_settled, GRACE_S + LATE_S, pause=1)
        finally:
            following.process.kill()
    marked = Counter(following.marked())
    say(f"{len(expected)} ledgers left behind, {len(marked)} marked, {marked.total() - len(marked)} of them again")
    assert set(marked) == expected, set(marked) ^ expected
    assert not following.with_outcome("inside the list")


def _drop(planted: PlantedNodes, topic: Holder, named: list[int], count: int) -> set[int]:
    """Take the oldest off the list, as a broker that dies before its deletes; retried while ZooKeeper is away."""
    dropped, named[:] = named[:count], named[count:]

    def written() -> bool:
        try:
            planted.population.names(topic, named)
        except StoreError:
            return False
        return True

    eventually(written, 120, pause=1)
    return set(dropped)
